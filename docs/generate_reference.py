"""Generate the reference from the docstrings, for the site that `generate_site.py` writes.

`python docs/generate_reference.py` prints the page.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from pydantic import BaseModel

import cosd_api
import cosd_api.extend
import cosd_api.types
import cosd_providers
from cosd_api.apps import comparison, langchain, training
from cosd_providers import engines, messages, testing, tokenizers

_BEGINNING = """# Reference

This page describes every public name; it is generated from the docstrings. For tables of all settings and errors, see
[settings](settings.md) and [errors](errors.md).
"""

_ROOMS: tuple[tuple[ModuleType, str, Sequence[str]], ...] = (
    (cosd_api, "the fusion", cosd_api.__all__),
    (cosd_api.types, "records that come back", cosd_api.types.__all__),
    (comparison, "records of comparisons", comparison.__all__),
    (training, "records of trainings", training.__all__),
    (cosd_api.extend, "building blocks of new methods and verifiers", cosd_api.extend.__all__),
    (cosd_providers, "servers", cosd_providers.__all__),
    (engines, "one class for each kind of server", engines.__all__),
    (messages, "conversations", ("ChatProvider", "RenderedPrompt")),
    (tokenizers, "a model's own tokenizer", ("Tokenizer", "load_tokenizer")),
    (langchain, "LangChain", langchain.__all__),
    (testing, "a provider without a server", testing.__all__),
)
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields):$")
_IN_FULL = ("Fusion", "FusionStream", "Provider")
"""Classes whose methods are shown with full docstrings; for other classes, only first paragraphs are shown."""


def page() -> str:
    """Return the whole page."""
    parts = [_BEGINNING]
    told: set[int] = set()
    for room, what, names in _ROOMS:
        parts.append(f"## `{room.__name__}`: {what}\n")
        for name in sorted(names, key=str.lower):
            thing = getattr(room, name)
            parts += [] if id(thing) in told else _entry(name, thing)
            told.add(id(thing))
    return "\n".join(parts).rstrip() + "\n"


def _entry(name: str, thing: Any) -> Iterator[str]:
    if inspect.ismodule(thing) or name.startswith("__"):
        return
    yield f"### `{name}`\n"
    if not (inspect.isfunction(thing) or inspect.isclass(thing)):
        yield f"`{name}` is a `{type(thing).__name__}`.\n"
        return
    error = inspect.isclass(thing) and issubclass(thing, BaseException)
    yield from _documented(name, thing, signature="" if error else _signature(thing))
    if not inspect.isclass(thing) or error:
        return
    methods = [*_methods(thing)]
    if name in _IN_FULL:
        for method, function in methods:
            yield f"**`{name}.{method}`**\n"
            yield from _documented(method, function, signature=_signature(function))
    elif methods:
        yield "\n".join(f"- `{_called(thing, method, function)}`: {_summary(function)}" for method, function in methods)
        yield ""


def _documented(name: str, thing: Any, *, signature: str) -> Iterator[str]:
    if signature:
        yield f"```text\n{name}{signature}\n```\n"
    doc = inspect.getdoc(thing) if thing.__doc__ else None
    if doc:
        yield "\n".join(_markdown(doc.splitlines())) + "\n"


def _called(owner: type, name: str, function: Any) -> str:
    return name if isinstance(inspect.getattr_static(owner, name), property) else f"{name}{_signature(function)}"


def _summary(function: Any) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split()).removesuffix("::")


def _methods(thing: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that the project's own code defines, in the order of definition."""
    seen: set[str] = set()
    for owner in thing.__mro__:
        if not owner.__module__.startswith(("cosd_api", "cosd_providers")):
            continue
        for name, member in list(vars(owner).items()):
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if name.startswith("_") or name in seen or not inspect.isfunction(function) or not function.__doc__:
                continue
            seen.add(name)
            yield name, function


def _signature(thing: Any) -> str:
    if inspect.isclass(thing) and issubclass(thing, BaseModel):
        thing.model_rebuild()  # pydantic builds records on first use, which changes their signature
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    kept = [
        one.replace(annotation=inspect.Parameter.empty, default=_plain(one.default))
        for one in signature.parameters.values()
        if one.name not in ("self", "cls", "refused")
    ]
    return str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))


class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _plain(default: Any) -> Any:
    """Return a default as it would be written in code; a default that cannot be written in this way becomes `...`."""
    if default is inspect.Parameter.empty or isinstance(default, (bool, int, float, str, type(None), tuple)):
        return default
    written = repr(default)
    return _Text(written if re.fullmatch(r"[A-Za-z]\w*\([^<>]*\)", written) else "...")


def _markdown(lines: Iterable[str]) -> Iterator[str]:
    """Convert the sections of a docstring to lists, and leave everything else as it is."""
    inside = False
    for line in lines:
        found = _SECTION.match(line)
        if found:
            inside = True
            yield f"*{found[1]}*\n"
        elif not inside or not line.strip():
            yield line
        elif entry := re.match(r"    (\*{0,2}[\w.]+): (.*)", line):
            yield f"- `{entry[1]}`: {entry[2]}"
        elif line.startswith("        "):
            yield "  " + line.strip()
        else:
            inside = inside and line.startswith(" ")
            yield line.strip()


if __name__ == "__main__":
    print(page(), end="")
