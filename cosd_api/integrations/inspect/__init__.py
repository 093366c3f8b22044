"""A fusion as the model `cosd/...` in Inspect. Requires the extra `inspect`.

Inspect finds the model on its own: `inspect eval task.py --model cosd/pair -M draft=URL -M assistant=URL`.
"""

from __future__ import annotations

try:
    import inspect_ai as _  # noqa: F401 - is it installed?  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as error:
    if error.name != "inspect_ai":
        raise
    words = 'cosd_api.integrations.inspect needs Inspect: pip install ".[inspect]" in a clone of the repository'
    raise ModuleNotFoundError(words, name=error.name) from None

from cosd_api.integrations.inspect.model import FusionAPI

__all__ = ["FusionAPI"]
