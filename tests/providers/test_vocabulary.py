"""Strings of a vocabulary and strings of a server, as bytes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cosd_providers.contract import Piece
from cosd_providers.vocabulary import Kind, crosses_space, decode_token, kind_of, spell

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<｜end▁of▁sentence｜>", "<|ü|>", "[INST]"]
TEXTS = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" aĠÃ¼▁éü😀東\u0301\0\n<>")))

# The same bijection in its usual form, not as the library computes it.
PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
LETTERS: dict[int, str] = {byte: chr(byte) for byte in PRINTABLE}
for byte in range(256):
    LETTERS.setdefault(byte, chr(256 + len(LETTERS) - len(PRINTABLE)))


def byte_level(data: bytes) -> str:
    return "".join(LETTERS[byte] for byte in data)


@st.composite
def byte_level_tokens(draw: st.DrawFn) -> tuple[list[bytes], list[str]]:
    """Texts cut anywhere, between special tokens."""
    parts, strings = list[bytes](), list[str]()
    for text in draw(st.lists(TEXTS, max_size=3)):
        data = text.encode()
        cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=8)) | {0, len(data)})
        for start, end in pairwise(cuts):
            parts.append(data[start:end])
            strings.append(byte_level(data[start:end]))
        special = draw(st.sampled_from(SPECIAL))
        parts.append(special.encode())
        strings.append(special)
    return parts, strings


@st.composite
def sentencepiece_tokens(draw: st.DrawFn) -> tuple[list[bytes], list[str]]:
    """A text as SentencePiece writes it: spaces marked, some characters as bytes, maybe a space before all."""
    parts, strings = list[bytes](), list[str]()
    for chunk in draw(st.lists(TEXTS.filter(bool), max_size=6)):
        if draw(st.booleans()):
            parts.append(chunk.encode())
            strings.append(chunk.replace(" ", "▁"))
        else:
            parts += [bytes([byte]) for byte in chunk.encode()]
            strings += [f"<0x{byte:02X}>" for byte in chunk.encode()]
    if draw(st.booleans()) and strings:
        if strings[0].startswith("<0x") or draw(st.booleans()):
            parts.insert(0, b"")
            strings.insert(0, "▁")
        else:
            strings[0] = "▁" + strings[0]
    return parts, strings


def numbered(strings: list[str]) -> list[tuple[int, str]]:
    return [(7 + n, string) for n, string in enumerate(strings)]


@given(st.one_of(byte_level_tokens(), sentencepiece_tokens()))
@example(([b"\xc3", b"\xbc", "Ã".encode()], ["Ã", "¼", "Ãĥ"]))
@example(([b"a", "▁ ▁".encode()], ["▁a", "▁▁▁"]))
def test_tokens_become_the_bytes_that_they_were_made_of(made: tuple[list[bytes], list[str]]) -> None:
    parts, strings = made
    pieces = spell(b"".join(parts), numbered(strings))
    assert pieces is not None
    assert [piece.id for piece in pieces] == [id for id, _ in numbered(strings)]
    assert [piece.data for piece in pieces] == parts


@given(byte_level_tokens(), st.binary(min_size=1, max_size=2).filter(bytes.strip))  # a special token may take spaces
def test_another_text_is_not_spelled(made: tuple[list[bytes], list[str]], more: bytes) -> None:
    parts, strings = made
    assert spell(b"".join(parts) + more, numbered(strings)) is None


@pytest.mark.parametrize(
    ("text", "strings", "parts"),
    [
        ("", [], []),
        ("the über", ["the", "ĠÃ¼", "ber"], ["the", " ü", "ber"]),
        ("the über", ["▁the", "▁ü", "ber"], ["the", " ü", "ber"]),
        (" the", ["▁the"], [" the"]),
        (" the", ["▁", "▁the"], ["", " the"]),
        ("▁ ▁", ["▁▁▁▁"], ["▁ ▁"]),  # the text itself holds what marks a space
        ("the", ["Ġthe"], ["the"]),
        ("Ã¼", ["Ã¼"], ["Ã¼"]),  # the text itself holds what would be bytes
        ("<0x41>A", ["<0x41>", "<0x41>"], ["<0x41>", "A"]),
        ("a</s> b</s>c", ["▁a", "</s>", "▁b", "</s>", "▁c"], ["a", "</s>", " b", "</s>", "c"]),
        ("a<｜end▁of▁sentence｜>é", ["a", "<｜end▁of▁sentence｜>", "Ã©"], ["a", "<｜end▁of▁sentence｜>", "é"]),
        ("<|end|>\n <|end|> b", ["<|end|>", "<|end|>", "b"], ["<|end|>\n ", "<|end|> ", "b"]),
        ("</s> b", ["</s>", "▁b"], ["</s>", " b"]),
        ("a", ["", "a"], ["", "a"]),  # a special token that the server does not show
    ],
)
def test_spelled(text: str, strings: list[str], parts: list[str]) -> None:
    assert spell(text.encode(), numbered(strings)) == [
        Piece(id, part.encode()) for (id, _), part in zip(numbered(strings), parts, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "strings"),
    [
        ("The", ["the"]),  # a normalizer has made it lower case
        ("e\u0301", ["Ã©"]),  # ... or has composed it
        ("é", ["<unk>"]),
        ("a b", ["a", "b"]),
        ("ab", ["▁a", "▁b"]),  # a space in the middle is not the tokenizer's
        ("a", []),
        ("", ["a"]),
        ("é", ["Ã"]),
        ("é", ["\ufffd", "\ufffd"]),
    ],
)
def test_not_spelled(text: str, strings: list[str]) -> None:
    assert spell(text.encode(), numbered(strings)) is None


def test_a_long_text() -> None:
    strings = ["▁a", "Ã¼", "<0x41>", "</s>"] * 5000
    pieces = spell(b" a\xc3\x83\xc2\xbcA</s>" * 5000, numbered(strings))
    assert pieces is not None
    assert len(pieces) == len(strings)


@given(st.binary())
def test_single_byte_level_tokens(data: bytes) -> None:
    assert decode_token("bytes", byte_level(data)) == data


@pytest.mark.parametrize(
    ("kind", "string", "data"),
    [
        ("bytes", "Ġthe", b" the"),
        ("bytes", "<｜User｜>", "<｜User｜>".encode()),
        ("bytes", "▁the", "▁the".encode()),
        ("spaces", "▁the▁", b" the "),
        ("spaces", "<0xE2>", b"\xe2"),
        ("spaces", "Ġthe", "Ġthe".encode()),
        ("spaces", "<0xE2>x", b"<0xE2>x"),
    ],
)
def test_single_tokens(kind: Kind, string: str, data: bytes) -> None:
    assert decode_token(kind, string) == data


@pytest.mark.parametrize(
    ("text", "strings", "kind"),
    [
        (" a", ["Ġa"], "bytes"),
        (" a", ["Ġ", "a"], "bytes"),
        ("é", ["Ã", "©"], "bytes"),
        (" a", ["▁a"], "spaces"),
        (" a", ["▁", "▁a"], "spaces"),
        ("é", ["▁", "<0xC3>", "<0xA9>"], "spaces"),
        ("é", ["é"], "spaces"),
        ("a", ["a"], None),  # both write it so
        ("", [], None),
        (" a", ["a"], None),
        (" a", ["Ġb"], None),
    ],
)
def test_kind(text: str, strings: list[str], kind: Kind | None) -> None:
    assert kind_of(text.encode(), strings) == kind


OPEN = (b"", True)
NONE = (b"", False)


@pytest.mark.parametrize("token", [" of the", ", ", ", and", "x ", "é à", "1 2", "a (", "\u3002 a", "`x` "])
def test_a_token_that_crosses_a_space_between_words(token: str) -> None:
    assert crosses_space(token.encode())


@pytest.mark.parametrize(
    "token", ["", " ", " the", "x  ", "x  y", "\n x", "\u00a0 \u00a0", "x\n", "> </", " = ", "× 2", "x \n"]
)
def test_a_token_that_crosses_none(token: str) -> None:
    assert not crosses_space(token.encode())


@pytest.mark.parametrize(
    ("token", "crosses"), [(b" \xc3", False), (b"\xa9 ", False), (b"\xc2\xa9 ", False), (b"a \xc3", True)]
)
def test_a_part_of_a_character(token: bytes, crosses: bool) -> None:
    assert crosses_space(token) is crosses
