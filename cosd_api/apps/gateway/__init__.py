"""An OpenAI-compatible server for fusions: `cosd serve`. It requires the extra `gateway`.

Only `Gateway` imports the web framework, so the modules for requests, answers and settings work without the extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_api.apps.gateway.config import ClientKey, GatewayConfig, GatewayLimits
from cosd_providers.deferred import deferred

if TYPE_CHECKING:
    from cosd_api.apps.gateway.routes import Gateway

__all__ = ["ClientKey", "Gateway", "GatewayConfig", "GatewayLimits"]

_WEB = ("prometheus_client", "starlette", "uvicorn")

if not TYPE_CHECKING:
    _find = deferred(__name__, {"Gateway": "cosd_api.apps.gateway.routes"})

    def __getattr__(name: str) -> object:
        try:
            return _find(name)
        except ModuleNotFoundError as error:
            if error.name not in _WEB:
                raise
            install = 'pip install ".[gateway]" in a clone of the repository'
            raise ModuleNotFoundError(
                f"cosd_api.apps.gateway.Gateway needs a web server: {install}", name=error.name
            ) from None
