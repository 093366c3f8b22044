"""The entry point through which Inspect loads and registers the provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cosd_api.integrations.inspect.model import FusionAPI

if TYPE_CHECKING:  # the type checker runs without Inspect

    def modelapi(name: str) -> Callable[[Callable[[], type]], Callable[[], type]]:
        """Register a provider under a name."""
        ...
else:
    from inspect_ai.model import modelapi


@modelapi(name="cosd")
def cosd() -> type[FusionAPI]:
    """Return the class that provides the models `cosd/...`."""
    return FusionAPI
