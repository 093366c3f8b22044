"""Words: where they end."""

from __future__ import annotations

from itertools import pairwise

import pytest
import regex
import tiktoken
import tokenizers
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_api.decoding.word_ends import complete_words, unicode_words
from cosd_providers.tokenizers import load_tokenizer, word_ends
from naive import cool as naive_cool
from support.drawn import examples


def split(text: str) -> list[str]:
    ends = [0, *unicode_words(text)]
    return [text[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize(
    "words",
    [
        ["not", " the"],
        [" Multi", "-", "tasking"],
        ["can't", ",", " 3.14", " 1,000"],
        ["on", ".", "\n\n", "The", "  ", " "][:4],
        ["a", "\n    return"],
        ["你", "好", "。", "世", "界"],
        ["ひ", "ら", "カタカナ", "漢", "字"],
        ["한국어", " 말"],
        ["👩\u200d🚀", "!"],
        ["a", "  "],
        [],
    ],
)
def test_words_of_unicode(words: list[str]) -> None:
    assert split("".join(words)) == words


TEXTS = st.text(st.sampled_from("ab1 \n\r\t.,'’-_é一ひカ😀\u0301\u200d\u00a0\u2028가")) | st.text()
BARE_MARK = regex.compile(r"(^|[\s\p{C}])[\p{M}\p{Cf}]")
"""A mark without a character that it belongs to: there the package's boundaries are not those of UAX 29."""


@examples(50)
@given(TEXTS)
def test_words_are_those_of_the_naive_reading(text: str) -> None:
    assume(not BARE_MARK.search(text))
    assert split(text) == naive_cool.words(text)
    assert "".join(split(text)) == text


@pytest.mark.parametrize(
    ("data", "complete"),
    [
        (b"not", b""),
        (b"not ", b"not"),
        (b"not the", b"not"),
        (b" not the cat", b" not the"),
        (b"\xff", b""),
        (b"\xffa", b"\xff"),
        ("é一一".encode(), "é一".encode()),
        (b"", b""),
    ],
)
def test_the_last_word_is_left_out_and_the_longest_prefix_taken(data: bytes, complete: bytes) -> None:
    assert data[: complete_words(data, [unicode_words])] == complete


def test_words_of_all() -> None:
    def halves(text: str) -> list[int]:
        return [*range(2, len(text), 2), len(text)]

    assert complete_words(b"abc def ghi", [unicode_words]) == 7
    assert complete_words(b"abc def ghi", [unicode_words, halves]) == 0
    assert complete_words(b"abcd ef ghi", [unicode_words, halves]) == 4
    assert complete_words(b"abcd ef\xff ghi", [unicode_words, halves]) == 8  # no tokenizer is asked about this


def test_words_of_a_tokenizer() -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1, "Ġ": 2}, []))
    assert word_ends(load_tokenizer(made)) is None
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    ends = word_ends(load_tokenizer(made))
    assert ends is not None
    assert list(ends(" not the-cat 12")) == [4, 8, 9, 12, 15]
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(split=False)
    assert word_ends(load_tokenizer(made)) is None  # everything would be one word


def test_words_of_tiktoken() -> None:
    encoding = tiktoken.Encoding(
        "mine", pat_str=r" ?\p{L}+|\s+|.", mergeable_ranks={bytes([n]): n for n in range(256)}, special_tokens={}
    )
    ends = word_ends(load_tokenizer(encoding))
    assert ends is not None
    assert list(ends(" not the-cat")) == [4, 8, 9, 12]
