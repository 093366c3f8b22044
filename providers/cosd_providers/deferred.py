"""Deferred imports, and warnings about deprecated names."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

__all__ = ["deferred", "outdated"]

_UNTIL = "0.2"
"""The release that removes the deprecated names."""
_INSIDE = ("cosd_api", "cosd_providers", "langchain_core", "pydantic")
"""Packages whose code runs on behalf of a user's code. A warning should point at the user's code, not at theirs."""
_NONE: Mapping[str, str] = MappingProxyType({})


def deferred(package: str, modules: Mapping[str, str], *, moved: Mapping[str, str] = _NONE) -> Callable[[str], object]:
    """Create the `__getattr__` function of a package, which imports names when they are first used.

    Define it under `if not TYPE_CHECKING`, and import the same names under `if TYPE_CHECKING`, so that type checkers
    know them.

    Args:
        package: the package's `__name__`.
        modules: the module of each name, or `"module:name"` if the name differs in that module.
        moved: like `modules`, for names that have moved to another module. Using a moved name issues a
            `DeprecationWarning`.
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
        if name in sys.modules[package].__all__:  # a name in `__all__` is not deprecated
            setattr(sys.modules[package], name, found)
        return found

    return find


def outdated(old: str, new: str) -> None:
    """Warn that `old` is deprecated in favour of `new`, at the line of the user's code that uses it."""
    inside, frame = 0, inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _INSIDE:
        inside, frame = inside + 1, frame.f_back
    words = f"{old} is {new} now; the old name ends with release {_UNTIL}"
    warnings.warn(words, DeprecationWarning, stacklevel=inside + 1)
