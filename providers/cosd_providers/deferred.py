"""Deferred imports: names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def deferred(package: str, modules: Mapping[str, str]) -> Callable[[str], object]:
    """Create the `__getattr__` function of a package, which imports names when they are first used.

    Define it under `if not TYPE_CHECKING`, and import the same names under `if TYPE_CHECKING`, so that type checkers
    know them.

    Args:
        package: the package's `__name__`.
        modules: the module of each name.
    """

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found: object = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return find
