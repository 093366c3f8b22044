"""The choice of what carries HTTP: aiohttp beneath httpx where it is installed (extra `fast`), else httpx alone."""

from __future__ import annotations

import os
import urllib.request
from functools import cache
from importlib import metadata
from importlib.util import find_spec

__all__ = ["carrier", "proxied", "stack"]


def carrier() -> str:
    """The library that carries HTTP: `"aiohttp"` where it is installed, else `"httpx"`.

    With `COSD_HTTP=httpx` in the environment, and where the environment names a proxy, it is httpx.
    """
    off = os.environ.get("COSD_HTTP") == "httpx" or not _installed() or proxied()
    return "httpx" if off else "aiohttp"


def stack() -> str:
    """The same library with its version, for people."""
    name = carrier()
    return f"{name} {metadata.version(name)}"


def proxied() -> bool:
    """Test whether the environment names a proxy."""
    return any(name != "no" for name in urllib.request.getproxies())


@cache
def _installed() -> bool:
    return find_spec("aiohttp") is not None
