"""Paths of models with different ids: lookahead, encodings, units, restarts, over tokenizers trained in the tests."""

from __future__ import annotations

import functools
import random
from bisect import bisect_right
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api.paths.cuts import is_safe_cut, look, word_starts
from cosd_api.paths.encoding import DraftPath, Encoded, Encoder
from cosd_api.paths.restart import restart
from cosd_api.paths.units import PathUnit, next_unit
from cosd_providers.contract import Piece, Token
from cosd_providers.vocabulary import crosses_space
from naive import reference_paths as naive
from support.drawn import examples
from toys import ngrams
from toys.ngrams import GPT2, LLAMA3, O200K, Pieces, pieces

T = TypeVar("T")
SPELLING = ("gpt2", "digits", "llama3", "o200k", "spaces", "phrases", "symbols")
"""The tokenizers whose pieces are the bytes of the text."""
STABLE = 0.998
"""The share of places, at least, whose ids are final once their lookahead is written."""


def done(work: Awaitable[T]) -> T:
    """The result of work that waits for nothing."""
    steps = work.__await__()
    with pytest.raises(StopIteration) as stopped:
        next(steps)
    result: T = stopped.value.value
    return result


def encoder(of: Pieces) -> Encoder:
    """The encodings of a tokenizer."""

    async def encode(text: str) -> list[Piece]:
        return [Piece(one, of.tokens[one]) for one in of.encode(text.encode())]

    return Encoder(encode, cuts=naive.has_words(of.tokens))


def ends_of(of: Pieces, ids: Sequence[int], start: int = 0) -> list[int]:
    """The offset behind every id."""
    return [start + at for at in naive.bounds(Ids(of), ids)[1:]]


class Ids:
    """A tokenizer as a model that writes nothing."""

    def __init__(self, of: Pieces) -> None:
        self.tokens = of.tokens
        self.end_ids = (len(of.tokens) - 1,)
        self.encode = of.encode

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        raise NotImplementedError


def drafted(of: Pieces, ids: Sequence[int], *, ended: bool = True, prob: float = 0.3) -> DraftPath:
    """A draft of these ids."""
    path = DraftPath()
    for one in ids:
        path.add(Token(of.tokens[one], prob, id=one))
    if ended:
        path.add(Token(b"", prob, end=True, id=len(of.tokens) - 1))
    return path


def units(path: DraftPath, of: Encoder) -> list[PathUnit]:
    """The units of a whole draft, as far as it goes."""
    found, first = list[PathUnit](), 0
    while first < len(path.tokens):
        unit = done(next_unit(path, first, of))
        if unit is None:
            break
        found.append(unit)
        first = unit.last
    return found


# ------------------------------------------------------------------------------------------------------------- texts


def repeated(*parts: str, seed: int, size: int = 1_200) -> str:
    """Parts in any order."""
    chance = random.Random(seed)
    return "".join(chance.choice(parts) for _ in range(size // max(1, sum(map(len, parts)) // len(parts))))


def numbers(seed: int, size: int = 1_200) -> str:
    """Digits, grouped and not."""
    chance, found = random.Random(seed), ""
    while len(found) < size:
        number = chance.randrange(10 ** chance.choice((1, 2, 4, 7, 12)))
        found += chance.choice((f"{number}", f"{number:,}", f"{number / 100:.2f}", f"-{number}%", f"{number:b}"))
        found += chance.choice((" ", "\n", ", ", " + ", ": ", "  "))
    return found


def kinds() -> dict[str, list[str]]:
    """Texts of each kind: of this repository behind what the tokenizers were trained on, and made ones."""
    own = "naïve café Ωmega Привет мир 東京 今日は良い天気です。"
    emoji = ("😀", "👩‍👩‍👧", " 🎉", "🇨🇭", " ok", "\n", " 👍🏽", "é", " and", "\n\n")
    urls = (
        *("https://example.org", "/usr/local/lib", "?q=a%20b", "&c=d#e", " s3://bucket/key_1.tar.gz", ".\n/usr"),
        *(" see ", "\n", "http://[::1]:8080/a", "/etc/passwd", " C:\\Windows", "\n\n"),
    )
    runs = (" ", "  ", " " * 4, " " * 31, "\n", "\n\n", "\t", "x", " y", "|", " |", "    ", "return", "\r\n", "-" * 20)
    prose = [part for text in ngrams.markdown() for part in text[1_500:].split("\n\n") if part[:1].isalpha()]
    return {
        "prose": ["\n\n".join(prose[at : at + 4]) for at in range(0, len(prose), 4)],
        "markdown": [text[at : at + 1_200] for text in ngrams.markdown() for at in range(1_500, len(text), 1_200)],
        "code": [text[at : at + 1_200] for text in ngrams.code() for at in range(1_500, len(text), 1_200)],
        "digits": [numbers(seed) for seed in range(8)],
        "emoji": [repeated(*emoji, *own.split(" "), seed=seed) for seed in range(8)],
        "urls": [repeated(*urls, seed=seed) for seed in range(8)],
        "spaces": [repeated(*runs, seed=seed) for seed in range(8)],
    }


KINDS = kinds()


@st.composite
def texts(draw: st.DrawFn, most: int = 160) -> str:
    """A piece of a text of any kind, or a mixture of what tokenizers find hard."""
    if draw(st.booleans()):
        text = draw(st.sampled_from(KINDS[draw(st.sampled_from(sorted(KINDS)))]))
        at = draw(st.integers(0, max(0, len(text) - most)))
        return text[at : at + draw(st.integers(1, most))]
    hard = (
        *(" ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "a", "can", "'t", "'re", "12", "345", ".", "/"),
        *("é", "e\u0301", "😀", "東京", "は", "。", "-----", "</s>", "<|im_end|>", " The", "THE", "\u200b", "ﬁ"),
        *("from", " cosd", " the", " model", "foo>", " </bar", ">", " <"),
    )
    return "".join(draw(st.lists(st.sampled_from(hard), min_size=1, max_size=24)))


def tokenizers(*names: str) -> st.SearchStrategy[str]:
    return st.sampled_from(names or SPELLING)


@st.composite
def drafts(draw: st.DrawFn, text: str, name: str) -> list[int]:
    """The ids of a text, mostly as they are encoded; of some tokens the bytes instead."""
    of, bytes_ = pieces(name), {data: one for one, data in enumerate(pieces(name).tokens) if len(data) == 1}
    ids = of.encode(text.encode())
    if draw(st.integers(0, 3)):
        return ids
    broken = draw(st.sets(st.integers(0, max(0, len(ids) - 1)), max_size=4))
    found = list[int]()
    for at, one in enumerate(ids):
        apart = [bytes_.get(of.tokens[one][n : n + 1]) for n in range(len(of.tokens[one]))]
        found += [part for part in apart if part is not None] if at in broken and None not in apart else [one]
    return found


# --------------------------------------------------------------------------------------------------------- lookahead


@examples(30)
@given(texts(), st.data())
def test_lookahead_is_two_words_or_ends_behind_a_safe_cut(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.booleans())
    at = len(text[: data.draw(st.integers(0, len(text)))].encode())
    whole = text.encode()
    for ended in (False, True):
        assert look(whole, at, ended=ended, cuts=cuts) == naive.look(whole, at, ended, cuts)
    assert word_starts(whole, at) == naive.word_starts(whole, at)
    found = look(whole, at, ended=False, cuts=cuts)
    if found is not None:
        assert found > at
        assert look(whole[:found], at, ended=False, cuts=cuts) == found  # what is behind it does not matter
        shorter = found - len(naive.characters(whole[:found])[-1].encode())
        assert look(whole[:shorter], at, ended=False, cuts=cuts) is None


@pytest.mark.parametrize(
    ("text", "seen", "near"),
    [
        ("|a b cd", "a b c", "a b"),
        ("|  a b cd", "  a b", "  a b"),
        ("a| b\n\ncd", " b\n\nc", " b"),
        ("a|\n\nb\tc", "\n\nb\tc", "\n\nb\tc"),
        ("a |b cd", None, "b c"),
        ("a|  b c d", "  b c", "  b c"),
        ("|" + "a" * 80, "a" * 32, "a" * 32),
        ("|a " + "b" * 80, "a " + "b" * 62, "a b"),
        ("|" + " " * 80, " " * 64, " " * 64),
        ("|" + "東" * 40, "東" * 32, "東" * 32),
        ("|😀 é x", "😀 é x", "😀 é"),
        ("|one word", None, "one w"),
        ("|one ", None, None),
        ("foo|> </bar", None, None),
        ("foo|> </bar b", "> </bar b", "> </bar b"),
        ("a| = b c", " = b", " ="),
        ("a =| b c", " b c", " b c"),
        ("|", None, None),
    ],
)
def test_lookahead(text: str, seen: str | None, near: str | None) -> None:
    before, behind = (one.encode() for one in text.split("|", 1))
    for cuts, wanted in ((False, seen), (True, near)):
        found = look(before + behind, len(before), ended=False, cuts=cuts)
        assert found == (None if wanted is None else len(before) + len(wanted.encode()))
        end = look(before + behind, len(before), ended=True, cuts=cuts)
        assert end == (len(before + behind) if found is None else found)


def stable(of: Pieces, texts: Sequence[str], *, most: int, seed: int) -> tuple[int, list[str]]:
    """The number of places whose ids were compared, and those at which they changed behind the lookahead."""
    chance, places, changed = random.Random(seed), 0, list[str]()
    while places < most:
        text = chance.choice(texts)
        at = chance.randrange(max(1, len(text) - 500))
        data = text[at : at + 500].encode()
        ids = of.encode(data)
        ends = [end for end in ends_of(of, ids) if naive.between_characters(data, end)]
        for end in chance.sample(ends, min(len(ends), 20)):
            seen = look(data, end, ended=True, cuts=naive.has_words(of.tokens))
            assert seen is not None
            places += 1
            count = ends_of(of, ids).index(end) + 1
            if of.encode(data[:seen])[:count] != ids[:count]:
                changed.append(repr(data[max(0, end - 30) : seen + 10].decode(errors="ignore")))
    return places, changed


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("name", SPELLING)
def test_ids_before_a_place_are_final_behind_its_lookahead(name: str, kind: str) -> None:
    places, changed = stable(pieces(name), KINDS[kind], most=40, seed=1)
    assert len(changed) <= (1 - STABLE) * places + 1, changed


@pytest.mark.extended
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("name", SPELLING)
def test_ids_before_many_places_are_final_behind_their_lookahead(name: str, kind: str) -> None:
    places, changed = stable(pieces(name), KINDS[kind], most=1_000, seed=2)
    assert len(changed) <= (1 - STABLE) * places, changed


# --------------------------------------------------------------------------------------------------------- encodings


@examples(30)
@given(tokenizers(), texts(), st.data())
def test_encoding_step_by_step_is_encoding_the_whole(name: str, text: str, data: st.DataObject) -> None:
    """The text of a draft grows, and is another text behind a replacement."""
    of = pieces(name)
    encodes = encoder(of)
    for _ in range(data.draw(st.integers(1, 8))):
        end = data.draw(st.integers(0, len(text)))
        given_ = text.encode()
        size = len(text[:end].encode())
        found = done(encodes.upto(given_, size))
        assert found is not None
        ids = of.encode(given_[:size])
        assert found.ids == tuple(ids)
        assert list(found.ends) == ends_of(of, ids)
        for at in range(size + 1):
            assert found.count(at) == ([0, *found.ends].index(at) if at in (0, *found.ends) else None)
        if data.draw(st.booleans()):
            cut = data.draw(st.integers(0, len(text)))
            text = text[:cut] + data.draw(texts(40)) + text[cut : data.draw(st.integers(0, len(text)))]


def test_a_token_may_cross_a_cut_that_was_a_boundary_of_a_shorter_text() -> None:
    of, text = pieces("phrases"), b"It is the model, and the model, that the model reads"
    encodes = encoder(of)
    for end in range(len(text) + 1):
        found = done(encodes.upto(text, end))
        assert found is not None
        assert list(found.ids) == of.encode(text[:end])


@pytest.mark.parametrize(("name", "crossing"), [("symbols", b"> </"), ("phrases", b" the draft")])
def test_tokens_across_a_space(name: str, crossing: bytes) -> None:
    """After a symbol they cross no safe cut, after a letter they do."""
    tokens = pieces(name).tokens
    assert crossing in tokens
    assert naive.has_words(tokens) == (name == "symbols") == (not any(map(crosses_space, tokens)))


@examples(30)
@given(tokenizers(*(name for name in SPELLING if name != "phrases")), texts())
def test_an_encoding_from_a_safe_cut_is_the_tail_of_the_whole(name: str, text: str) -> None:
    of, data = pieces(name), text.encode()
    for at in range(1, len(data)):
        if is_safe_cut(data, at):
            assert of.encode(data[:at]) + of.encode(data[at:]) == of.encode(data)


@given(texts())
def test_a_tokenizer_that_normalises_has_no_places_in_what_it_changes(text: str) -> None:
    of, data = pieces("nfkc"), text.encode()
    ids = of.encode(data)
    spelled = b"".join(of.tokens[one] for one in ids)
    found = done(encoder(of).upto(data, len(data)))
    assert (found is None) == (len(spelled) != len(data))


# ------------------------------------------------------------------------------------------------------------- units


@examples(30)
@given(st.data(), tokenizers(), tokenizers(), texts(), st.booleans())
def test_units_are_those_of_the_definition(
    data: st.DataObject, draft: str, assistant: str, text: str, ended: bool
) -> None:
    ids = data.draw(drafts(text, draft))
    path = drafted(pieces(draft), ids, ended=ended)
    found = units(path, encoder(pieces(assistant)))
    check_tiles(path, found)
    expected = list[tuple[Any, ...]]()
    written = written_of(pieces(draft), ids, ended=ended)
    reference = naive.Reference(b"", Ids(pieces(draft)), [Ids(pieces(assistant))], lambda *_: False, max_tokens=999)
    start = 0
    while start < len(written.text) and (span := reference.unit(0, written, start)) is not None:
        expected.append((start, span.end, tuple(span.ids) or None, span.made))
        start = span.end
    own = [(one.start, one.end, one.encoding.ids if one.encoding else None, one.cut) for one in found]
    if ended and len(found) > len(expected):
        end = own.pop()
        assert end[:2] == (len(text.encode()),) * 2
        assert found[-1].places(end[1] + 1) == [(end[1], len(pieces(assistant).encode(text.encode())))]
    assert own == expected


def written_of(of: Pieces, ids: Sequence[int], *, ended: bool) -> naive.Written:
    """A draft of these ids, as the reference has it."""
    all_ids = [*ids, *([len(of.tokens) - 1] if ended else [])]
    data, count = b"".join(of.tokens[one] for one in ids), len(all_ids)
    offsets = [0, *ends_of(of, all_ids)]
    return naive.Written(all_ids, [0.3] * count, offsets, data, ended, len(data), count, ended)


def check_tiles(path: DraftPath, found: Sequence[PathUnit]) -> None:
    """Each unit begins where the last one ended, with a whole draft token; the last is the end, if it is written."""
    first = start = 0
    for unit in found:
        assert (unit.first, unit.start) == (first, start)
        assert unit.last > unit.first
        assert (path.offset(unit.first), path.offset(unit.last)) == (unit.start, unit.end)
        places = [at for at, _ in unit.places(len(path.text) + 1)]
        assert places == sorted(set(places))
        assert all(unit.start <= at < unit.end or at == unit.start for at in places)
        assert bool(places) == (unit.encoding is not None)
        first, start = unit.last, unit.end
    assert not path.ended or first == len(path.tokens)


@examples(20)
@given(st.data(), tokenizers(), tokenizers(), texts(), texts(30))
def test_units_do_not_change_behind_their_lookahead(
    data: st.DataObject, draft: str, assistant: str, text: str, more: str
) -> None:
    """They are the same in any order of events: as soon as they are ready, and with anything written behind them.

    The encoding counts up to a unit's end. After it, it holds an earlier unit's lookahead, which nothing reads.
    """
    ids = data.draw(drafts(text, draft))
    found = units(drafted(pieces(draft), ids, ended=False), encoder(pieces(assistant)))
    if not found:
        return
    longer = drafted(pieces(draft), [*ids, *pieces(draft).encode(more.encode())])
    once = encoder(pieces(assistant))
    for unit in reversed(found):
        assert up_to_its_end(done(next_unit(longer, unit.first, once))) == up_to_its_end(unit)
    path, early = DraftPath(), list[PathUnit]()
    growing = encoder(pieces(assistant))
    for one in ids:
        path.add(Token(pieces(draft).tokens[one], 0.3, id=one))
        first = early[-1].last if early else 0
        ready = done(next_unit(path, first, growing)) if first < len(path.tokens) else None
        early += [] if ready is None else [ready]
    assert [*map(up_to_its_end, early)] == [*map(up_to_its_end, found[: len(early)])]


def up_to_its_end(unit: PathUnit | None) -> PathUnit | None:
    """A unit without the tokens of its encoding that end after it."""
    if unit is None or unit.encoding is None:
        return unit
    count = bisect_right(unit.encoding.ends, unit.end)
    return replace(unit, encoding=Encoded(unit.encoding.ids[:count], unit.encoding.ends[:count]))


# ---------------------------------------------------------------------------------------------------------- restarts


@examples(25)
@given(st.data(), tokenizers(), tokenizers(), texts(), texts(40))
def test_a_restart_spells_the_text(data: st.DataObject, draft: str, assistant: str, text: str, word: str) -> None:
    ids = data.draw(drafts(text, draft))
    path = drafted(pieces(draft), ids)
    found = [one for one in units(path, encoder(pieces(assistant))) if one.encoding is not None]
    if not found:
        return
    unit = data.draw(st.sampled_from(found))
    at, _ = data.draw(st.sampled_from(unit.places(len(path.text) + 1)))
    theirs = pieces(assistant)
    tokens = [Token(theirs.tokens[one], 0.5, id=one) for one in theirs.encode(word.encode())]
    way = done(restart(path, unit.first, at, tokens, encoder(pieces(draft))))
    before = bytes(path.text[:at])
    if not naive.is_whole(before):
        return
    assert way is not None
    whole = before + word.encode()
    assert whole.startswith(way.text)
    assert len(way.text) > at
    assert naive.between_characters(whole, len(way.text))
    of, ids = pieces(draft), [one for one in way.ids if one is not None]
    assert len(ids) == len(way.ids)
    assert b"".join([path.text[: path.offset(way.keep)], *(of.tokens[one] for one in ids)]) == way.text
    assert list(way.ends) == ends_of(of, ids, path.offset(way.keep))
    assert path.fixed(unit.first) <= way.keep <= unit.first
    encoded = of.encode(whole)
    marks = naive.bounds(Ids(of), encoded)
    assert way.cut or len(way.text) in marks
    if not way.cut:
        tail = encoded[marks.index(path.offset(way.keep)) : marks.index(len(way.text))]
        assert list(way.ids) == tail
        shared = [n for n in range(way.keep + 1, unit.first + 1) if path.offset(n) in marks]
        assert not shared  # none of its own tokens is encoded again that need not be


# -------------------------------------------------------------------------------------------------- counterexamples


@functools.cache
def knowing(pattern: str, *known: str) -> Pieces:
    """A tokenizer with a pattern to which each part of some texts is one token; all else falls apart into bytes."""
    tokenizer = ngrams.byte_level(pattern, vocabulary=256 + 400, texts=known * 3)
    return Pieces(tokenizer, tuple(range(tokenizer.get_vocab_size())))


def split(of: Pieces, text: str) -> list[str]:
    """The tokens of a text."""
    return [of.tokens[one].decode() for one in of.encode(text.encode())]


def places_of(draft: Sequence[str], assistant: Pieces, *, ended: bool = True) -> list[tuple[str, list[str]]]:
    """The units of a draft of these tokens: the text of each, and the assistant's tokens that are places in it."""
    path = DraftPath()
    for text in draft:
        path.add(Token(text.encode(), 0.3, id=1))
    if ended:
        path.add(Token(b"", 0.3, end=True, id=2))
    found = list[tuple[str, list[str]]]()
    for unit in units(path, encoder(assistant)):
        own = list[str]()
        for _, count in unit.places(unit.end):
            assert unit.encoding is not None
            if count < len(unit.encoding.ids):
                own.append(assistant.tokens[unit.encoding.ids[count]].decode())
        found.append((path.text[unit.start : unit.end].decode(), own))
    return found


def test_two_new_lines_are_two_tokens_before_a_word() -> None:
    """A text that ends in them has one, after which GPT-2 has hardly seen a capital letter."""
    gpt2 = knowing(GPT2, "end\n\n", "end\n\nI am so")
    assert split(gpt2, "end\n\n") == ["end", "\n\n"]
    assert split(gpt2, "end\n\nI am so") == ["end", "\n", "\n", "I", " am", " so"]
    found = places_of(["end", "\n", "\n", "I", " am", " so"], gpt2)
    assert found[:4] == [("end", ["end"]), ("\n", ["\n"]), ("\n", ["\n"]), ("I", ["I"])]


def test_a_full_stop_before_a_paragraph_is_no_place() -> None:
    llama3 = knowing(LLAMA3, "The end.\n\nI am so")
    assert split(llama3, "The end.\n\nI am so") == ["The", " end", ".\n\n", "I", " am", " so"]
    found = places_of(["The", " end", ".", "\n", "\n", "I", " am", " so"], llama3)
    assert found[:4] == [("The", ["The"]), (" end.\n\n", [" end", ".\n\n"]), ("I", ["I"]), (" am", [" am"])]


def test_many_spaces_are_one_unit_where_the_assistant_has_one_token() -> None:
    spaces = " " * 31
    one = knowing(LLAMA3, f"x\n{spaces} y = 1")
    assert spaces in split(one, f"x\n{spaces} y = 1")
    found = places_of(["x", "\n", *spaces, " y", " =", " 1"], one)
    assert (spaces, [spaces]) in found


def test_digits_by_one_and_by_three() -> None:
    threes = knowing(LLAMA3, "a 123 123 4 5 so")
    assert split(threes, "a 1234 so on")[:5] == ["a", " ", "123", "4", " so"]
    found = places_of(["a", " ", "1", "2", "3", "4", " so", " on"], threes)
    assert ("1234", ["123", "4"]) in found


def test_a_contraction_is_a_part_of_its_word() -> None:
    o200k = knowing(O200K, "I can't see", "they're so")
    assert split(o200k, "I can't see") == ["I", " can't", " see"]
    assert places_of(["I", " can", "'t", " see"], o200k)[1] == (" can't", [" can't"])
    gpt2 = knowing(GPT2, "I can't see")
    assert places_of(["I", " can't", " see"], gpt2)[1] == (" can't", [" can", "'t"])
    assert split(knowing(GPT2, "they're they 'r"), "they're") == ["they", "'re"]
    assert places_of(["they", "'r", "e", " so"], knowing(GPT2, "they're so"))[0] == ("they're", ["they", "'re"])


def test_a_tokenizer_that_looks_ahead_without_end_is_the_same_each_time() -> None:
    """o200k's runs of `[\\r\\n/]` cross words: its places need not be exact, and never depend on what was asked."""
    o200k = knowing(O200K, "a .\n/usr /b", "x.\n/\n/")
    draft = ["a", " ", ".", "\n", "/", "usr", " /", "b"]
    assert places_of(draft, o200k) == places_of(draft, o200k)
    assert "".join(text for text, _ in places_of(draft, o200k)) == "".join(draft)


def test_a_normalised_text_stands_unjudged() -> None:
    assert {tuple(own) for text, own in places_of(["a ", "ﬁ", " b", " c"], pieces("nfkc"), ended=False)} == {()}
    found = places_of(["fi", " b", " c", " d"], pieces("nfkc"))
    assert all(own for _, own in found[:-1])


def test_what_is_typed_as_a_special_token_is_text() -> None:
    gpt2 = knowing(GPT2, "a </s> b <|im_end|> c")
    assert "".join(split(gpt2, "a </s> b <|im_end|> c")) == "a </s> b <|im_end|> c"


def test_an_end_inside_a_unit_is_a_unit_of_its_own() -> None:
    llama3 = knowing(LLAMA3, "The end.\n\nI am so")
    assert places_of(["The", " end", "."], llama3) == [("The", ["The"]), (" end.", [" end", "."]), ("", [])]


def test_a_start_inside_a_token_stands_unjudged_to_the_next_common_boundary() -> None:
    """As after a replacement that changes the lookahead of a settled place, which is not judged again."""
    llama3 = knowing(LLAMA3, "The end.\n\nI am so")
    path = DraftPath()
    for text in ("The", " end", ".", "\n\n", "I", " am", " so"):
        path.add(Token(text.encode(), 0.3, id=1))
    path.add(Token(b"", 0.3, end=True, id=2))
    unit = done(next_unit(path, 3, encoder(llama3)))
    assert unit == PathUnit(3, 4, 8, 10, None)


def test_a_restart_merges_with_what_stands_before() -> None:
    """The draft's own token for a full stop and a paragraph, where its path ended in the full stop."""
    llama3 = knowing(LLAMA3, "The end.\n\nI am so", "The end. The end")
    path = drafted(llama3, llama3.encode(b"The end. The end"))
    tokens = [Token(text.encode(), 0.5, id=1) for text in ("\n\n", "I", " am", " so")]
    way = done(restart(path, 3, 8, tokens, encoder(llama3)))
    assert way is not None
    assert (way.keep, way.text, way.cut) == (2, b"The end.\n\n", False)
    assert [llama3.tokens[one or 0] for one in way.ids] == [b".\n\n"]
    assert path.fixed(3) <= way.keep


def test_a_restart_inside_a_character_goes_on_to_its_end() -> None:
    gpt2 = pieces("gpt2")
    path = drafted(gpt2, gpt2.encode("a 😀".encode()))
    data = " 🎉 and so on".encode()
    tokens = [Token(data[at : at + 1], 0.5, id=1) for at in range(5)]
    tokens += [Token(text.encode(), 0.5, id=1) for text in (" and", " so", " on")]
    way = done(restart(path, 1, 1, tokens, encoder(gpt2)))
    assert way is not None
    assert way.text in (b"a ", "a 🎉".encode())


def test_a_full_context_leaves_the_last_places_unready() -> None:
    gpt2 = knowing(GPT2, "The end of it")
    path = drafted(gpt2, gpt2.encode(b"The end of it"), ended=False)
    found = units(path, encoder(gpt2))
    assert [(one.start, one.end) for one in found] == [(0, 3), (3, 7), (7, 10)][: len(found)]
    path.over = True
    assert done(next_unit(path, found[-1].last if found else 0, encoder(gpt2))) is None
