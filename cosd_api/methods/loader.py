"""Methods in files of the user's own, which are named by `path/to/file.py:Class`.

Only the caller's own settings name such a file: the arguments of `Fusion` and `compare`, a settings file, or the
command line. No request of a client, and no result or trace, ever does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Container
from hashlib import blake2b
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isabstract, iscoroutinefunction
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cosd_api.errors import SettingError
from cosd_providers.suggestions import suggestion

if TYPE_CHECKING:
    from cosd_api.methods.base import Method

_loaded: dict[tuple[Path, int], ModuleType] = {}
_addresses: dict[type, str] = {}


def is_address(name: str) -> bool:
    """Test whether a method's name is the address of a class in a file."""
    return name.endswith(".py") or ".py:" in name


def address_of(kind: type) -> str | None:
    """The address from which a class was loaded, with an absolute path; None if it was not loaded from a file."""
    return _addresses.get(kind)


def class_at(address: str, base: type[Method], taken: Container[str]) -> type[Method]:
    """Load the class of a method from a file. A file is loaded once, and again if it has changed.

    Args:
        address: the path of the file, a colon, and the name of the class.
        base: the class of all methods.
        taken: the names of the library's own methods.

    Raises:
        SettingError: the file cannot be loaded, lacks the class, or the class is no complete method. The message names
            the file, the line and a remedy.
    """
    path, _, name = address.rpartition(":")
    if not path or name.endswith(".py"):
        raise SettingError(f"{address}: give the file and the name of the class, as {address}:MyMethod")
    file = Path(path).resolve()
    found: Any = getattr(_module(path, file), name, None)
    lines = _lines(file)
    if found is None:
        others = ", ".join(f"{one} (line {line})" for one, line in lines.items())
        raise SettingError(f"{path} has no class {name!r}{suggestion(name, lines, f'it has {others}')}")
    where = f"{path}, line {lines.get(name, 1)}"
    if not (isinstance(found, type) and issubclass(found, base)):
        raise SettingError(f"{where}: {name} is no method: derive it from cosd_api.extend.Program")
    if isabstract(found) or not iscoroutinefunction(getattr(found, "write", _starts)):
        raise SettingError(f"{where}: {name} writes no answer: give it async def write(self, answer, *models)")
    if not isinstance(getattr(found, "name", None), str) or found.name in taken:
        words = f"has the name of the method {found.name!r}" if hasattr(found, "name") else "has no name for results"
        raise SettingError(f'{where}: {name} {words}: give it one of its own, name: ClassVar[str] = "..."')
    if "__dataclass_params__" not in vars(found):
        raise SettingError(f"{where}: {name} is no dataclass: put @dataclass(frozen=True, kw_only=True) above it")
    kind: type[Method] = found
    _addresses[kind] = f"{file}:{name}"
    return kind


async def _starts() -> None:
    """Do nothing, in place of `write` in methods that have their own `start`."""


def _lines(file: Path) -> dict[str, int]:
    """The line of each class in a file, for messages."""
    lines = enumerate(file.read_text("utf-8", "replace").splitlines(), 1)
    return {found[1]: line for line, words in lines if (found := re.match(r"class (\w+)", words))}


def _id(file: Path) -> str:
    return f"cosd_method_{blake2b(str(file).encode(), digest_size=8).hexdigest()}"


def _module(path: str, file: Path) -> ModuleType:
    """Run a file as a module, unless it is loaded and has not changed."""
    if not file.is_file():
        raise SettingError(f"{path}: there is no such file. A method is a name, an object, or FILE.py:CLASS")
    key = file, file.stat().st_mtime_ns
    if key in _loaded:
        return _loaded[key]
    spec = spec_from_file_location(_id(file), file)
    assert spec is not None and spec.loader is not None, "it is a Python file"
    module = sys.modules[spec.name] = module_from_spec(spec)  # where dataclasses look up annotations
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) and error.filename == str(file) else [1, *lines][-1]
        words = error.msg if isinstance(error, SyntaxError) else str(error)
        kind = "" if isinstance(error, SettingError) else f"{type(error).__name__}: "
        raise SettingError(f"{path}, line {line}: {kind}{words}. Correct the file, and load it again") from error
    _loaded[key] = module
    return module
