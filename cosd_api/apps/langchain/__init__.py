"""A fusion as a chat model and as a text model in LangChain. Requires the extra `langchain`."""

from __future__ import annotations

try:
    import langchain_core as _  # noqa: F401 - imported to find out if it is installed
except ModuleNotFoundError as error:
    if error.name != "langchain_core":
        raise
    words = 'cosd_api.apps.langchain needs LangChain: pip install ".[langchain]" in a clone of the repository'
    raise ModuleNotFoundError(words, name=error.name) from None

from cosd_api.apps.langchain.models import ChatCoSD, CoSDLLM

__all__ = ["ChatCoSD", "CoSDLLM"]
