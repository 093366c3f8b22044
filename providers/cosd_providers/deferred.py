"""Deferred imports, and the warning of a deprecated name."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

__all__ = ["deferred", "outdated"]

_UNTIL = "0.2"
"""The release without the deprecated names."""
_INSIDE = ("cosd_api", "cosd_providers", "langchain_core", "pydantic")
"""Packages whose code makes calls on behalf of a user's code."""
_NONE: Mapping[str, str] = MappingProxyType({})


def deferred(package: str, modules: Mapping[str, str], *, moved: Mapping[str, str] = _NONE) -> Callable[[str], object]:
    """Make the `__getattr__` of a package.

    Define it `if not TYPE_CHECKING`, beside imports `if TYPE_CHECKING`: then type checkers know the names exactly.

    Args:
        package: its `__name__`.
        modules: the module of each name; or the module, a colon, and the name there.
        moved: the same for each name that moved to another module, and is found here with a `DeprecationWarning`.
    """

    def find(name: str) -> object:
        if name in moved:
            module, _, there = moved[name].partition(":")
            outdated(f"{package}.{name}", f"{module}.{there or name}")
            return getattr(import_module(module), there or name)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, there = modules[name].partition(":")
        found: object = getattr(import_module(module), there or name)
        if name in sys.modules[package].__all__:  # not a deprecated name
            setattr(sys.modules[package], name, found)
        return found

    return find


def outdated(old: str, new: str) -> None:
    """Warn that a name is deprecated, with its replacement, at the line of the user's code that has it."""
    inside, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _INSIDE:
        inside, frame = inside + 1, frame.f_back
    words = f"{old} is {new} now; the old name ends with release {_UNTIL}"
    warnings.warn(words, DeprecationWarning, stacklevel=inside + 1)
