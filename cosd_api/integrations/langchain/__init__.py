"""LangChain: a chat model and a text model that are fused while they write. Extra: `cosd-api[langchain]`."""

from __future__ import annotations

try:
    import langchain_core as _  # noqa: F401 - it may not be there, and that has an answer
except ModuleNotFoundError as error:
    if error.name != "langchain_core":
        raise
    words = 'cosd_api.integrations.langchain needs LangChain: pip install "cosd-api[langchain]"'
    raise ModuleNotFoundError(words, name=error.name) from None

from cosd_api.integrations.langchain.chat import ChatCoSD
from cosd_api.integrations.langchain.llm import CoSDLLM

__all__ = ["ChatCoSD", "CoSDLLM"]
