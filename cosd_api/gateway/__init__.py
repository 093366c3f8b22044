"""An OpenAI-compatible server in front of fusions: `cosd serve`. Extra: `cosd-api[gateway]`."""

from __future__ import annotations

from importlib import import_module

try:
    for _needed in ("prometheus_client", "starlette", "uvicorn"):
        import_module(_needed)
except ModuleNotFoundError as error:
    if error.name not in ("prometheus_client", "starlette", "uvicorn"):
        raise
    words = 'cosd_api.gateway needs a web server: pip install "cosd-api[gateway]"'
    raise ModuleNotFoundError(words, name=error.name) from None

from cosd_api.gateway.app import Gateway
from cosd_api.gateway.config import ClientKey, GatewayConfig, GatewayLimits

__all__ = ["ClientKey", "Gateway", "GatewayConfig", "GatewayLimits"]
