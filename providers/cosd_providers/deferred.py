"""Deferred imports: names of a package whose modules are imported when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["deferred"]


def deferred(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Make the `__getattr__` of a package.

    Define it `if not TYPE_CHECKING`, beside imports `if TYPE_CHECKING`: then type checkers know the names exactly.

    Args:
        package: its `__name__`.
        modules: the module of each name.
    """

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
