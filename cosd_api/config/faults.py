"""Messages about faults in a settings file, with the line, the field and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cosd_api.config.document import Document, FieldPath
from cosd_api.config.shape import (
    USE_ENVIRONMENT,
    LimitsConfig,
    ServerConfig,
    ServerLimitsConfig,
    method_shapes,
    verifier_kinds,
)
from cosd_api.errors import SettingError
from cosd_providers.suggestions import suggestion

__all__ = ["config_error", "config_errors", "refuse_keys"]

_MOST = 5  # maximum number of faults in one message
_SECRETS = {"apikey", "key", "token", "accesstoken", "secret", "password", "authorization", "xapikey", "bearer"}
_SECRET_ENDS = ("apikey", "accesstoken", "authtoken", "secret", "password")
_KEY = re.compile(r"(sk-|hf_|gsk_|xai-|ghp_|AIza)[\w-]{12,}", re.IGNORECASE)
_SCHEME = re.compile(r"(bearer|basic|token)\s+\S{8,}", re.IGNORECASE)
_CREDENTIALS = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s@]*@", re.IGNORECASE)


def config_error(path: Path | str, document: Document, at: FieldPath, words: str) -> SettingError:
    """Create the error about one value of a settings file."""
    line = document.line(at)
    where = f"{path}, line {line}" if line else f"{path}"
    at = (*document.prefix, *at)
    field = _dotted(at)
    return SettingError(f"{where}: {'' if not at or words.startswith(f'{field} ') else f'{field}: '}{words}")


def refuse_keys(path: Path, document: Document) -> None:
    """Refuse a document that contains a secret key, because settings files get shown, copied and committed.

    Raises:
        SettingError: a value looks like a key; the message does not quote it.
    """
    for at, value in _entries(document.value):
        name = re.sub(r"[-_]", "", str(at[-1]).lower())
        if name == "headers":
            words = "headers may hold keys, and are not kept in a file. Give the server in Python, by connect(headers=)"
            raise config_error(path, document, at, words)
        text = value if isinstance(value, str) else ""
        sent = at[0] != "limits" and at[-1] != "chat_template"  # stop strings and templates may look like keys
        if name in _SECRETS or name.endswith(_SECRET_ENDS) or _KEY.match(text) or (sent and _SCHEME.match(text)):
            words = f"this looks like a key, and keys are never kept in a settings file. {USE_ENVIRONMENT}"
            raise config_error(path, document, at, words)
        if sent and _CREDENTIALS.match(text):
            words = f"the URL holds credentials, and keys are never kept in a settings file. {USE_ENVIRONMENT}"
            raise config_error(path, document, at, words)


def _entries(value: object, at: FieldPath = ()) -> Iterator[tuple[FieldPath, object]]:
    """Yield all values of mappings and all elements of lists, at any depth, with their paths."""
    inside: Sequence[tuple[str | int, object]] = ()
    if isinstance(value, Mapping):
        inside = [*cast("Mapping[str, object]", value).items()]
    elif isinstance(value, list):
        inside = [*enumerate(cast("list[object]", value))]
    for name, one in inside:
        yield (*at, name), one
        yield from _entries(one, (*at, name))


def config_errors(path: Path, document: Document, error: ValidationError, top: type[BaseModel]) -> SettingError:
    """Create an error that lists the faults that pydantic has found, one per line."""
    found: list[str] = []
    details = error.errors(include_url=False)
    for one in details[:_MOST]:
        at = _written(document.value, one["loc"])
        found.append(str(config_error(path, document, at, _words(one, top))))
    if len(details) > _MOST:
        found.append(f"and {len(details) - _MOST} more")
    return SettingError("\n".join(found))


def _written(document: object, loc: Sequence[str | int]) -> FieldPath:
    """Return the path of a fault in the file, without the tags that pydantic adds for members of a union."""
    value: Any = document
    path: list[str | int] = []
    for one in loc:
        try:
            value = value[one]
        except (IndexError, KeyError, TypeError):
            continue
        path.append(one)
    return tuple(path)


def _words(one: ErrorDetails, top: type[BaseModel]) -> str:
    """Describe one fault, without quoting a value that may be a secret key."""
    kind, loc = one["type"], one["loc"]
    if loc == ("schema_version",) and kind != "literal_error":
        newer = kind == "less_than_equal"
        return "this version of cosd-api reads 1" + (": update cosd-api" if newer else "")
    if kind == "extra_forbidden":
        known = _known(loc[:-1], top)
        return f"there is no such field{suggestion(str(loc[-1]), known, f'there are {_listed(known)}')}"
    if kind == "missing":
        return f"its {str(loc[-1])!r} is missing"
    if kind.startswith("union_tag"):
        given = one["input"]
        name = given if isinstance(given, str) else _tag(given)
        known = [*(verifier_kinds() if "verifier" in loc else method_shapes())]
        thing, named = ("verifier", "kind") if "verifier" in loc else ("method", "name")
        if name is None:
            return f"it needs a {named}: {', '.join(known)}"
        return f"there is no {thing} {name!r}{suggestion(str(name), known, f'there are {_listed(known)}')}"
    if kind == "bool_type":
        return "it must be true or false"
    if kind in ("int_type", "float_type") and isinstance(one["input"], str | bool):
        return "it must be a number" + (", without quotes" if isinstance(one["input"], str) else ", not true or false")
    words = one["msg"].removeprefix("Value error, ")
    return words[:1].lower() + words[1:]


def _tag(given: object) -> object:
    if not isinstance(given, Mapping):
        return None
    both = cast("Mapping[str, object]", given)
    return both.get("kind", both.get("name"))


def _known(loc: Sequence[str | int], top: type[BaseModel]) -> list[str]:
    """List the names of the fields that can occur at a path."""
    names = [one for one in loc if isinstance(one, str)]
    if not names:
        return [*top.model_fields]
    if (fields := getattr(top, "fields_of", None)) is not None:  # only a gateway's file class has this
        return [*fields(names[0])]
    if names[0] in ("draft", "assistants", "models"):
        return [*(ServerLimitsConfig if "limits" in names else ServerConfig).model_fields]
    if names[0] == "limits":
        return [*LimitsConfig.model_fields]
    shapes: Mapping[str, type[BaseModel]] = verifier_kinds() if names[0] == "verifier" else method_shapes()
    return [*shapes[names[1]].model_fields] if len(names) > 1 and names[1] in shapes else []


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _dotted(path: FieldPath) -> str:
    """Format a path, such as `assistants[1].model`."""
    words = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path)
    return words.removeprefix(".")
