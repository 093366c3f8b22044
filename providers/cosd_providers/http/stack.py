"""The libraries of the extra `fast`: aiohttp in place of httpx, and uvloop for commands that start an event loop."""

from __future__ import annotations

import os
import urllib.request
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from typing import Literal, TypeAlias

__all__ = ["EventLoop", "carrier", "event_loop", "http_stack", "proxied"]

EventLoop: TypeAlias = Literal["asyncio", "uvloop"]


def carrier() -> str:
    """Return the name of the HTTP library that sends requests: `"aiohttp"` if it is installed, otherwise `"httpx"`.

    It is also `"httpx"` if `COSD_HTTP=httpx` is set or the environment names a proxy.
    """
    off = _off() or not _installed("aiohttp") or proxied()
    return "httpx" if off else "aiohttp"


def http_stack() -> str:
    """Return the HTTP library that sends requests, with its version, for people to read."""
    name = carrier()
    return f"{name} {metadata.version(name)}"


def proxied() -> bool:
    """Test whether the environment names a proxy."""
    return any(name != "no" for name in urllib.request.getproxies())


def event_loop() -> EventLoop:
    """Return the event loop for a `cosd` command: `"uvloop"` if it is installed, otherwise `"asyncio"`.

    It is also `"asyncio"` if `COSD_HTTP=httpx` is set. Programs that use the library choose their own event loop.
    """
    return "asyncio" if _off() or not _installed("uvloop") else "uvloop"


def _off() -> bool:
    return os.environ.get("COSD_HTTP") == "httpx"


@cache
def _installed(name: str) -> bool:
    return find_spec(name) is not None
