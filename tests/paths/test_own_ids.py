"""Paths of ids: what stays as it was written, what is encoded again, and from where."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cosd_api.decoding.characters import Characters
from cosd_api.paths.own_ids import Path, Paths
from cosd_providers.contract import Token
from cosd_providers.messages import RenderedPrompt
from cosd_providers.testing import ScriptedProvider
from toys.on_paths import TEXTS, Reciter


def paths(*models: Reciter, same: bool = False, ids: bool = True) -> Paths:
    providers = [ScriptedProvider(model, ids=True) for model in models]
    return Paths([RenderedPrompt(one, "") for one in providers], [ids] * len(models), same=same)


def tokens(model: Reciter, text: str) -> list[Token]:
    return [Token(model.tokens[one], 0.5, id=one) for one in model.encode(text.encode())]


def ids(model: Reciter, text: str) -> tuple[int, ...]:
    return tuple(model.encode(text.encode()))


@pytest.mark.parametrize("text", TEXTS)
async def test_a_text_of_others_is_the_models_own_encoding(text: str) -> None:
    """However it grew, as long as it did not end within white space."""
    model = Reciter(text)
    known, whole = paths(model), ids(model, text)
    ends = [0, *[at for at in range(1, len(text)) if text[at - 1].isalnum() and not text[at].isalnum()], len(text)]
    for start, end in pairwise(ends):
        found = await known.path(0, text[:end].encode())
        assert found is not None
        assert found.ids == ids(model, text[:end])
        assert found.before(len(text[:start].encode())) is not None
    assert found is not None
    assert found.ids == whole
    assert b"".join(piece.data for piece in found.pieces(0)) == text.encode()


async def test_what_a_model_wrote_stays_as_it_wrote_it() -> None:
    """Its own ids, which its encoding would not give; what others wrote behind them is encoded from a safe cut on."""
    model = Reciter("one two three")
    known = paths(model)
    start = await known.path(0, b"")
    assert start == Path()
    odd = [Token(bytes([byte]), 0.5, id=model.tokens.index(bytes([byte]))) for byte in b"one tw"]
    trail = known.begin(0, start)
    for token in odd:
        trail.add(token)
    own = tuple(token.id for token in odd if token.id is not None)
    assert (await known.path(0, b"one tw")) == Path(b"one tw", own, (1, 2, 3, 4, 5, 6))
    cut = await known.path(0, b"one two three")
    assert cut is not None
    assert cut.ids == (*own[:3], *ids(model, " two three"))


async def test_a_token_that_was_written_is_on_its_models_path_alone() -> None:
    first, second = Reciter("ab cd"), Reciter("ab cd", shuffled=3)
    for same in (False, True):
        known = paths(first, second, same=same)
        for at, token in enumerate([Token(b"a", 0.5, id=97 + 1), Token(b"b", 0.5, id=98 + 1)]):
            known.write(0, b"ab"[:at], token)
        mine, theirs = await known.path(0, b"ab"), await known.path(1, b"ab")
        assert mine is not None
        assert theirs is not None
        assert mine.ids == (98, 99)
        assert theirs.ids == ((98, 99) if same else ids(second, "ab"))


async def test_inside_a_token_the_model_continues_behind_it() -> None:
    model = Reciter("one two")
    known = paths(model)
    trail = known.begin(0, Path())
    for token in tokens(model, "one two"):
        trail.add(token)
    assert known.beyond(0, b"one") is None
    found = known.beyond(0, b"one t")
    assert found is not None
    path, rest = found
    assert (path.ids, rest) == (ids(model, "one two"), Token(b"wo", 0.5))
    assert known.beyond(0, b"two") is None


async def test_what_is_written_ahead_counts_once_it_is_read() -> None:
    model = Reciter("one two three")
    known = paths(model)
    trail = known.begin(0, Path(), ahead=True)
    for token in tokens(model, "one two three"):
        trail.add(token)
    assert trail.path == Path()
    trail.read(4)
    assert trail.path.text == b"one two"
    trail.read()
    assert trail.path.text == b"one two three"


async def test_a_model_that_takes_text_has_no_path() -> None:
    known = paths(Reciter("a"), ids=False)
    assert await known.path(0, b"a") is None
    assert known.beyond(0, b"a") is None


async def test_bytes_that_are_no_characters_are_not_encoded() -> None:
    model = Reciter("one two")
    found = await paths(model).path(0, b"one\xff two\xf0\x9f")
    assert found is not None
    assert found.ids == ids(model, "one two")
    assert found.ends == (4, 10)
    assert [piece.data for piece in found.pieces(0)] == [b"one\xff", b" two\xf0\x9f"]


def test_alternatives_are_whole_characters() -> None:
    listed = (
        Token(b"\xf0", 0.2, id=1),
        Token(b"a", 0.1, id=2),
        Token(b"b", 0.1, id=3),
        Token(b"", 0.1, end=True, id=4),
    )
    [found] = Characters().feed(Token(b"a", 0.4, id=5, alternatives=listed))
    assert [one.id for one in found.alternatives] == [3, 4]
