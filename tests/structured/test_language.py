"""Languages: what is forced, what is accepted, where an answer may end, and every refusal in words."""

from __future__ import annotations

import json
import re
import sys
import threading
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosd_api.errors import SettingError
from cosd_api.structured import Language
from support.language_walks import walk

SEEDS = st.integers(0, 2**32)

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "city": {"enum": ["London", "Lima", "Paris"]},
    },
    "required": ["name", "age", "city"],
}


def follows(language: Language, text: bytes) -> list[bytes]:
    """The bytes that may follow, found one by one."""
    here = language.after(text)
    return [one for one in (bytes([n]) for n in range(256)) if here.accepts(one)]


@pytest.mark.parametrize(
    ("text", "forced"),
    [
        ("", '{"name": "'),
        ('{"na', 'me": "'),
        ('{"name": "Ann', ""),
        ('{"name": "Annie', '", "age": '),
        ('{"name": "Ann"', ', "age": '),
        ('{"name": "Ann", "age": 15', ""),
        ('{"name": "Ann", "age": 150', ', "city": "'),
        ('{"name": "Ann", "age": 7, "city": "L', ""),
        ('{"name": "Ann", "age": 7, "city": "Lo', 'ndon"}'),
    ],
)
def test_everything_up_to_the_next_choice_is_forced(text: str, forced: str) -> None:
    here = Language.json_schema(PERSON).after(text.encode())
    assert (here.forced.decode(), here.accepting, here.stopped) == (forced, False, False)


def test_the_end() -> None:
    language = Language.json_schema(PERSON)
    end = language.after(b'{"name": "Ann", "age": 7, "city": "Lima"}')
    assert (end.forced, end.accepting, end.stopped, end.accepts(b""), end.accepts(b" ")) == (
        b"",
        True,
        True,
        True,
        False,
    )


def test_where_the_answer_may_end_nothing_is_forced() -> None:
    here = Language.regex("ab?").after(b"a")
    assert (here.forced, here.accepting, here.stopped, here.accepts(b"b")) == (b"", True, False, True)


@pytest.mark.parametrize(
    "value", ["é", 'a "quote"', "back\\slash", "line\nfeed\t", "😀", "\u2028/", {'k"é😀': [None, True, -1.5, "x\r"]}]
)
def test_a_forced_constant_is_spelled_as_json_dumps_spells_it(value: Any) -> None:
    here = Language.json_schema({"const": value}).after(b"")
    assert here.forced.decode() == json.dumps(value, ensure_ascii=False)


def test_forced_bytes_end_at_the_end_of_a_character() -> None:
    language = Language.choices(["né", "nè", "n😀", "n😁"])
    assert language.after(b"").forced == b"n"
    assert follows(language, b"n") == ["é".encode()[:1], "😀".encode()[:1]]
    assert language.after(b"n\xf0").forced == b""  # \x9f\x98 is certain, and no character
    assert language.after(b"n\xf0\x9f\x98").forced == b""
    assert Language.choices(["né!"]).after(b"n\xc3").forced == b"\xa9!"  # a character that a model began


def test_a_character_has_one_spelling() -> None:
    here = Language.json_schema({"type": "string"}).after(b'"')
    accepted = ["é", "😀", "/", "\\n", '\\"', "\\\\"]
    refused = ["\\u00e9", "\\ud83d", "\\ud83d\\ude00", "\\/", "\n", "\x01", "\x7f", "\\u0001"]
    assert [one for one in [*accepted, *refused] if here.accepts(one.encode())] == accepted
    assert not here.accepts(b"\xff") and not here.accepts(b"\xed\xa0\x80")  # not UTF-8


@pytest.mark.parametrize("schema", [PERSON, {"type": "object"}, {"enum": ["ab", "ac", 12, 1, None, ["x"]]}])
def test_forced_bytes_are_all_bytes_without_a_choice(schema: Any) -> None:
    language, random = Language.json_schema(schema), Random(1)
    for _ in range(5):
        text = walk(language, random, 60) or b""
        for n in range(len(text)):
            here, after = language.after(text[:n]), text[:n]
            while not language.after(after).accepting and len(only := follows(language, after)) == 1:
                after += only[0]
            assert text[:n] + here.forced == after


def test_json_objects() -> None:
    language = Language.json_object()
    assert language.after(b"").forced == b"{"
    for text in (b"{}", b'{"a": [1, {"b": null}], "c": "d"}'):
        assert language.after(text).stopped
    assert not language.after(b"{").accepts(b" ")


PATTERNS = [
    "a+b?",
    "(yes|no), because .{1,9}",
    "[0-9]{3}-[a-z]*",
    "é|è|😀+",
    r"\d+\.\d{2}",
    "(?i:ok)",
    "^x*$",
    "[^a]",
    r"\s\S\w",
]


@pytest.mark.parametrize("pattern", [one.replace(r"\d", "[0-9]") for one in PATTERNS])  # Python knows fewer digits
def test_each_text_of_a_regex_is_matched_by_python(pattern: str) -> None:
    language, random = Language.regex(pattern), Random(2)
    found = [one.decode() for one in (walk(language, random) for _ in range(30)) if one is not None]
    assert found
    for text in found:
        assert re.fullmatch(pattern, text), text


@given(st.sampled_from(PATTERNS), st.text("aby es,ncou012-.éè😀xOkK", max_size=12))
@settings(max_examples=300)
def test_each_text_that_python_matches_is_accepted(pattern: str, text: str) -> None:
    here = Language.regex(pattern).after(b"")
    whole = here.accepts(text.encode()) and Language.regex(pattern).after(text.encode()).accepting
    assert whole == bool(re.fullmatch(pattern, text))


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=4), min_size=1, max_size=5), SEEDS)
@settings(max_examples=100)
def test_a_choice_is_one_of_the_list(texts: list[str], seed: int) -> None:
    language = Language.choices(texts)
    assert (found := walk(language, Random(seed))) is not None
    assert found.decode() in texts
    assert all(language.after(one.encode()).accepting for one in texts)


def test_lark() -> None:
    language = Language.lark('start: "<call>" name "</call>"\nname: /[a-z]{2}/')
    assert language.after(b"").forced == b"<call>"
    assert language.after(b"<call>ab").forced == b"</call>"


@given(SEEDS)
def test_the_order_of_the_questions_does_not_matter(seed: int) -> None:
    """Cursors move back and forth, and more texts are asked about than there are cursors."""
    random = Random(seed)
    schema = {"type": "array", "items": {"enum": ["one", "two", 3, None]}}
    language, other = Language.json_schema(schema), Language.json_schema({**schema, "maxItems": 1000})
    texts = [
        text[: random.randrange(len(text) + 1)] for text in (walk(language, random, 80) for _ in range(90)) if text
    ]
    other.after(b"")
    for text in random.sample(texts, len(texts)):
        here = language.after(text)
        language.after(random.choice(texts))
        alone = other.after(text)
        assert (here.forced, here.accepting, here.stopped) == (alone.forced, alone.accepting, alone.stopped)
        assert [here.accepts(one) for one in (b'"o', b", ", b"]", b"n")] == [
            alone.accepts(one) for one in (b'"o', b", ", b"]", b"n")
        ]


def test_a_text_outside_the_language_is_an_error_and_does_no_harm() -> None:
    language = Language.json_schema(PERSON)
    with pytest.raises(ValueError, match=r"^the language has no text that begins like this: byte 3 is not accepted$"):
        language.after(b'{"nXme')
    assert language.after(b'{"na').forced == b'me": "'


def test_threads_share_a_language() -> None:
    language = Language.json_object()
    wrong: list[bytes | Exception] = []

    def ask(seed: int) -> None:
        random = Random(seed)
        try:
            wrong.extend(
                text for text in (walk(language, random, 100) for _ in range(20)) if text and not json.loads(text)
            )
        except Exception as error:  # noqa: BLE001 - the test must see it
            wrong.append(error)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not [one for one in wrong if not isinstance(one, bytes) or one != b"{}"]


def test_languages_are_values() -> None:
    assert len({Language.json_schema(PERSON), Language.json_schema(dict(PERSON)), Language.regex("a")}) == 2
    assert repr(Language.regex("a")) == "Language()"


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(?=a)b", "regex: look-around, including look-ahead and look-behind, is not supported"),
        ("(?<!a)b", "regex: look-around, including look-ahead and look-behind, is not supported"),
        (r"(a)\1", "regex: backreferences are not supported"),
        (r"\bword", "regex: word boundaries, and anchors inside an expression, are not supported"),
        ("a$b", "regex: word boundaries, and anchors inside an expression, are not supported"),
        ("(a", "regex: unclosed group"),
        ("[b", "regex: unclosed character class"),
        ("a{2}+", "regex: possessive quantifiers, such as 'a++', are not supported; remove the second '+'"),
        ("\ud800", "regex: half a surrogate pair is not a character; remove it"),
    ],
)
def test_regexes_that_are_refused(pattern: str, words: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SettingError) as error:
        Language.regex(pattern)
    assert str(error.value) == words
    assert capfd.readouterr() == ("", "")


def test_a_plus_after_a_class_or_an_escape_is_no_possessive_quantifier() -> None:
    assert Language.regex(r"[*+]+\++").after(b"*+").accepts(b"+")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "choices: give at least one text, and no empty text"),
        (["a", ""], "choices: give at least one text, and no empty text"),
        ([1], "choices: give at least one text, and no empty text"),
        (["\udc00"], "choices: half a surrogate pair is not a character; remove it"),
    ],
)
def test_choices_that_are_refused(texts: list[str], words: str) -> None:
    with pytest.raises(SettingError) as error:
        Language.choices(texts)
    assert str(error.value) == words


def test_a_lark_grammar_that_is_refused() -> None:
    with pytest.raises(SettingError, match=r'^lark: at 1\(8\): unknown name: "foo"$'):
        Language.lark("start: foo")


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    words = r'^structured answers need llguidance: pip install "\.\[structured\]" in a clone of the repository$'
    with pytest.raises(SettingError, match=words):
        Language.regex("never compiled before")
