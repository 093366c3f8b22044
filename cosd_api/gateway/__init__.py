"""An OpenAI-compatible server for fusions: `cosd serve`. It requires the extra `gateway`.

Only `Gateway` imports the web framework, so the modules for requests, answers and settings work without the extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_api.extend import deferred
from cosd_api.gateway.config import ClientKey, GatewayConfig, GatewayLimits

if TYPE_CHECKING:
    from cosd_api.gateway.app import Gateway

__all__ = ["ClientKey", "Gateway", "GatewayConfig", "GatewayLimits"]

_WEB = ("prometheus_client", "starlette", "uvicorn")

if not TYPE_CHECKING:
    _find = deferred(__name__, {"Gateway": "cosd_api.gateway.app"})

    def __getattr__(name: str) -> object:
        try:
            return _find(name)
        except ModuleNotFoundError as error:
            if error.name not in _WEB:
                raise
            words = 'cosd_api.gateway.Gateway needs a web server: pip install ".[gateway]" in a clone of the repository'
            raise ModuleNotFoundError(words, name=error.name) from None
