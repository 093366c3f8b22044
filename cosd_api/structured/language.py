"""Languages: the texts that a structured answer may be, as automata over bytes. They require the extra `structured`.

The automata are llguidance's. They read bytes, so they know no model's vocabulary, and one language serves every model.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from cosd_api.errors import SettingError
from cosd_api.structured.schemas import SupportedSchema
from cosd_providers.text import whole

if TYPE_CHECKING:
    import llguidance

__all__ = ["AllowedNext", "Language"]

_SPELLING = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,  # with a choice of white space, hardly a byte would be forced
    "json_allowed_escapes": 'nrbtf\\"',  # with `\\u`, an object could have one key twice, in two spellings
}

_CURSORS = 64
"""Maximum number of places that a language remembers: about one for each answer in progress."""

_NEAR = 32
"""Maximum number of bytes that a cursor reads to serve another text; they cost 30 microseconds."""


@dataclass(frozen=True, slots=True)
class AllowedNext:
    """A place in a language, after a text.

    Attributes:
        forced: the bytes that must follow, up to the first place where there is a choice. They end at the end of a
            character. Empty where the answer may end.
        accepting: True if the answer may end here.
        stopped: True if nothing may follow.
    """

    forced: bytes
    accepting: bool
    stopped: bool
    _automaton: _Automaton = field(repr=False)
    _text: bytes = field(repr=False)

    def accepts(self, data: bytes) -> bool:
        """Test whether the language has a text that continues with all bytes of `data`."""
        return self._automaton.accepts(self._text, data)


@dataclass(frozen=True, slots=True)
class Language:
    """A set of texts. Languages with the same grammar are equal, and share one automaton.

    Attributes:
        grammar: the grammar, in a form of llguidance.
    """

    grammar: str = field(repr=False)

    @classmethod
    def json_schema(cls, schema: object) -> Self:
        r"""Create the language of JSON texts that conform to a JSON Schema, in the spelling of `json.dumps`.

        Keys occur in the order of the schema. White space is `", "` and `": "`. Characters are written as they are, so
        `\u` does not occur. An object with `properties` has no other keys, unless `additionalProperties` allows them.

        Args:
            schema: the schema, a dictionary or a boolean. References must be local.

        Raises:
            SettingError: the schema is invalid, unsatisfiable or not supported; the message says where.
        """
        try:
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
            supported = SupportedSchema(json.loads(_unicode(text, "schema")))
        except SettingError:
            raise
        except (TypeError, ValueError, RecursionError) as error:
            why = "it is nested too deep" if isinstance(error, RecursionError) else error
            raise SettingError(f"schema: not a JSON Schema: {why}") from None
        grammar = _json_grammar(supported.whole)
        if whole := _automaton(grammar).error:
            for where, part in supported.parts:  # the innermost that has the error
                inside = _automaton(_json_grammar(supported.with_definitions(part))).error
                if inside and ("Unsatisfiable" in whole or _first_line(inside) == _first_line(whole)):
                    raise SettingError(f"{where}: {_first_line(inside)}")
        return cls._checked(grammar, "schema")

    @classmethod
    def json_object(cls) -> Self:
        """Create the language of all JSON objects, in the spelling of `json.dumps`."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Create the language of the texts that a regular expression matches from their beginning to their end.

        Raises:
            SettingError: the expression is invalid, or uses look-around, word boundaries or back-references.
        """
        without_classes = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]", "_", pattern)
        if re.search(r"[*+?}]\+", without_classes):  # llguidance would take it for a repetition of a repetition
            raise SettingError("regex: possessive quantifiers, such as 'a++', are not supported; remove the second '+'")
        return cls._checked(_llguidance().LLMatcher.grammar_from_regex(_unicode(pattern, "regex")), "regex")

    @classmethod
    def choices(cls, texts: Sequence[str]) -> Self:
        """Create the language of these texts.

        Raises:
            SettingError: there is no text, or a text is empty.
        """
        if not texts or not all(isinstance(one, str) and one for one in texts):
            raise SettingError("choices: give at least one text, and no empty text")
        _unicode("".join(texts), "choices")
        return cls.regex("|".join("".join(f"\\x{{{ord(one):x}}}" for one in text) for text in texts))

    @classmethod
    def lark(cls, text: str) -> Self:
        """Create the language of a context-free grammar in llguidance's variant of Lark.

        Raises:
            SettingError: the grammar is invalid.
        """
        return cls._checked(_llguidance().LLMatcher.grammar_from_lark(_unicode(text, "lark")), "lark")

    @classmethod
    def _checked(cls, grammar: str, name: str) -> Self:
        made = cls(grammar)
        if error := _automaton(grammar).error:
            raise SettingError(f"{name}: {_first_line(error)}")
        return made

    def after(self, text: bytes) -> AllowedNext:
        """Find the place after a text. It is cheapest after a text that continues the text of an earlier call.

        Raises:
            ValueError: no text of the language begins like this.
        """
        return _automaton(self.grammar).after(text)


class _Cursor:
    """A matcher, and the text that it has read."""

    __slots__ = ("matcher", "text")

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self.matcher = matcher
        self.text = b""

    def move(self, text: bytes, start: int) -> None:
        """Go to the place after `text`, whose first `start` bytes have been read.

        Unlike `consume_tokens`, `try_consume_tokens` leaves the matcher usable if a byte is refused. Going back costs
        nothing, and a copy of a matcher costs time for each byte that it has read: so cursors move, and are not copied.
        """
        read = self.text
        if not text.startswith(read):
            ends = range(start + 1, min(len(read), len(text)) + 1)
            shared = start + bisect_left(ends, True, key=lambda end: read[start:end] != text[start:end])
            self.matcher.rollback(len(read) - shared)
            self.text = text[:shared]
        end = len(self.text) + self.matcher.try_consume_tokens(list(text[len(self.text) :]))
        self.text = text[:end]
        if end < len(text):
            raise ValueError(f"the language has no text that begins like this: byte {end} is not accepted")


class _Automaton:
    """The automaton of a grammar, with cursors at the places that were asked about last."""

    def __init__(self, grammar: str) -> None:
        self._root = _llguidance().LLMatcher(_tokenizer(), grammar, log_level=0)
        self.error = self._root.get_error()
        self._cursors: list[_Cursor] = []  # the last used first
        self._lock = Lock()  # `fuse_sync` may run in any thread

    def after(self, text: bytes) -> AllowedNext:
        with self._lock:
            matcher = self._at(text)
            tail = text[-3:]  # may end inside a character
            forced = matcher.compute_ff_bytes()
            forced = forced[: max(0, whole(tail + forced) - len(tail))]
            return AllowedNext(forced, matcher.is_accepting(), matcher.is_stopped(), self, text)

    def accepts(self, text: bytes, data: bytes) -> bool:
        with self._lock:
            return self._at(text).validate_tokens(list(data)) == len(data)

    def _at(self, text: bytes) -> llguidance.LLMatcher:
        """A matcher that has read this text."""
        cursors = self._cursors
        if cursors and cursors[0].text == text:  # as for each candidate at a place
            return cursors[0].matcher
        start = max(0, len(text) - _NEAR)
        found = next((one for one in cursors if len(one.text) >= start and text.startswith(one.text)), None)
        if found is None:
            head, most = text[:start], len(text) + _NEAR
            found = next((one for one in cursors if len(one.text) <= most and one.text.startswith(head)), None)
        if found is None:
            start = 0
            found = cursors[-1] if len(cursors) >= _CURSORS else _Cursor(self._root.deep_copy())
        if not cursors or found is not cursors[0]:
            cursors[:] = [found, *(one for one in cursors if one is not found)]
        found.move(text, start)
        return found.matcher


class _Bytes:
    """The vocabulary of an automaton: the 256 bytes, and an end."""

    eos_token_id = 256
    bos_token_id = None
    special_token_ids = (256,)
    tokens = (*(bytes([one]) for one in range(256)), b"<end>")

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def _json_grammar(schema: object) -> str:
    made: str = _llguidance().LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_SPELLING)
    return made


@lru_cache(maxsize=1)
def _tokenizer() -> llguidance.LLTokenizer:
    library = _llguidance()
    made: llguidance.LLTokenizer = library.LLTokenizer(library.TokenizerWrapper(_Bytes()))
    return made


@lru_cache(maxsize=256)
def _automaton(grammar: str) -> _Automaton:
    return _Automaton(grammar)


def _llguidance() -> Any:  # a module
    """The library, which is imported when it is first used."""
    try:
        import llguidance  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name != "llguidance":
            raise
        words = 'structured answers need llguidance: pip install ".[structured]" in a clone of the repository'
        raise SettingError(words) from None
    return llguidance


def _unicode(text: str, name: str) -> str:
    """The text, which must have an encoding."""
    if any("\ud800" <= one <= "\udfff" for one in text):
        raise SettingError(f"{name}: half a surrogate pair is not a character; remove it")
    return text


def _first_line(error: str) -> str:
    """An error of llguidance in one line, without names that users do not know."""
    if "lookarounds not supported" in error:
        return "word boundaries, and anchors inside an expression, are not supported"
    found = re.findall(r"^error: (.*)", error, re.MULTILINE)
    line = str(found[-1]) if found else error.strip().partition("\n")[0]
    return re.sub(r": json-schema:///.*", "", line).replace("Unsatisfiable schema:", "no value conforms:")
