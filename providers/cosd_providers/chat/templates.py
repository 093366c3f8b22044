"""Chat templates that users supply: a model's Jinja template, or a function.

Jinja templates run in jinja2's immutable sandbox, with everything that Hugging Face defines for them: `messages`,
`add_generation_prompt`, `bos_token`, `eos_token`, `raise_exception`, `strftime_now`, `tojson`, and loop controls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, cast

from cosd_providers.errors import UnsupportedError

Template = Callable[[Sequence[Mapping[str, Any]]], str]
"""Function that renders a conversation up to the start of the answer."""

_CONFIG = "tokenizer_config.json"
_LARGEST = 1_000_000  # maximum number of characters in a file


class TemplateRefusal(Exception):  # noqa: N818 - not a failure: the caller tries another form of the conversation
    """Raised if a template refuses a conversation. The message is the template's own."""


def is_template(text: str) -> bool:
    """Test whether a string is the text of a template rather than a path."""
    return "{%" in text or "{{" in text


def load_template(given: object) -> Template:
    """Load a chat template that a user supplies.

    Args:
        given: a `.jinja` file, a `tokenizer_config.json`, a folder that contains either file, the text of a template,
            or a function that receives messages (dictionaries with `role` and `content`) and returns the text to
            continue.

    Raises:
        UnsupportedError: `given` is not a template, or jinja2 is not installed.
    """
    if callable(given):
        return cast("Template", given)
    if isinstance(given, str) and is_template(given):
        return JinjaTemplate(given, {})
    if not isinstance(given, str | PathLike):
        words = f"chat_template must be a file, a folder, a template's text or a function, not {type(given).__name__}"
        raise UnsupportedError(words)
    path = Path(cast("str | PathLike[str]", given))
    config, alone = path.with_name(_CONFIG), path
    if path.is_dir():
        config, alone = path / _CONFIG, path / "chat_template.jinja"
        if not (config.is_file() or alone.is_file()):
            raise UnsupportedError(f"chat_template: the folder {path.name!r} has no {_CONFIG} and no {alone.name}")
    elif path.suffix == ".json":
        config = path
    fields: Mapping[str, object] = _fields(config) if config == path or config.is_file() else {}
    source: object = fields.get("chat_template")
    if isinstance(source, list):  # the file contains several named templates
        named = cast("list[Mapping[str, object]]", source)
        source = next((one.get("template") for one in named if one.get("name") == "default"), None)
    if alone != config and (alone == path or alone.is_file()):
        source = _read(alone)
    if not isinstance(source, str):
        raise UnsupportedError(f"chat_template: {config.name} holds no chat template")
    return JinjaTemplate(source, _tokens(fields))


def _tokens(fields: Mapping[str, object]) -> dict[str, str]:
    """Return the special tokens to which a template may refer, by name."""
    found: dict[str, str] = {}
    for name, value in fields.items():
        text = cast("Mapping[str, object]", value).get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _fields(path: Path) -> Mapping[str, object]:
    try:
        fields: object = json.loads(_read(path))
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise UnsupportedError(f"chat_template: {path.name} is not the JSON of a tokenizer")
    return cast("dict[str, object]", fields)


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError, ValueError) as error:
        words = f"chat_template: {path.name!r} cannot be read ({type(error).__name__})"
        raise UnsupportedError(words, hint="Give a .jinja file, a tokenizer_config.json, or its folder.") from None
    if len(text) > _LARGEST:
        raise UnsupportedError(f"chat_template: {path.name!r} has {len(text)} characters: too long for a template")
    return text


class JinjaTemplate:
    """A Jinja template, made from its text and the special tokens to which it may refer."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self._source = source
        self._tokens = {"bos_token": "", **tokens}  # empty by default, because the server adds the token
        self._template = _compiled(source)

    def __call__(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Render a conversation, and the tools that the model may call, in the format of OpenAI's API."""
        import jinja2  # noqa: PLC0415 - slow

        try:
            given = {"messages": messages, "add_generation_prompt": True, "tools": tools or None, "documents": None}
            return str(self._template.render(given, **self._tokens))
        except jinja2.UndefinedError as error:
            more = "; a tokenizer_config.json beside the template would define it" if "_token" in str(error) else ""
            raise TemplateRefusal(f"{error}{more}") from None
        except (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise TemplateRefusal(str(error)) from None
        except RecursionError:
            raise TemplateRefusal("it does not end") from None

    def __reduce__(self) -> tuple[object, ...]:
        return JinjaTemplate, (self._source, self._tokens)


def _compiled(source: str) -> Any:
    import jinja2  # noqa: PLC0415 - slow
    from jinja2.ext import Extension, loopcontrols  # noqa: PLC0415
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    class Generation(Extension):
        """The tag `{% generation %}`, which marks a model's own text for training. It has no effect on rendering."""

        tags = {"generation"}  # noqa: RUF012 - as in jinja2

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    extensions = [loopcontrols, Generation]
    environment: Any = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": cache(_now)}
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise UnsupportedError(f"chat_template is not a valid template: {error}") from None


def _refuse(words: str) -> str:
    raise TemplateRefusal(words)


def _now(form: str) -> str:
    """Format the time of the first call, so that every rendering of a conversation contains the same time."""
    return datetime.now(UTC).astimezone().strftime(form)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Convert a value to JSON as Hugging Face does: without escapes for non-ASCII characters or HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
