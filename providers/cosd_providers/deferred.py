"""Deferred imports: names of a package whose modules are imported when they are first used."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

__all__ = ["deferred"]


_NONE: Mapping[str, str] = MappingProxyType({})


def deferred(
    package: str, modules: Mapping[str, str], *, moved: Mapping[str, str] = _NONE, until: str = ""
) -> Callable[[str], object]:
    """Make the `__getattr__` of a package.

    Define it `if not TYPE_CHECKING`, beside imports `if TYPE_CHECKING`: then type checkers know the names exactly.

    Args:
        package: its `__name__`.
        modules: the module of each name.
        moved: the module of each name that has moved there, and is found here with a `DeprecationWarning`.
        until: the release from which on a name that has moved is not found here.
    """

    def find(name: str) -> object:
        if name in moved:
            words = f"{package}.{name} is {moved[name]}.{name} now; the old name ends with release {until}"
            warnings.warn(words, DeprecationWarning, stacklevel=2)
            return getattr(import_module(moved[name]), name)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
