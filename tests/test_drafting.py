"""The draft's requests, in virtual time: when the next one is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from cosd_api import Fusion, fuse
from cosd_providers.contract import DraftEnd, Token
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from support import virtual_time
from toys.id_models import Written

BETWEEN = 0.05
"""Seconds for a token of the draft."""


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


class Clocked(ScriptedProvider):
    """A server that notes when each of its streams begins and ends."""

    times: list[float]

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[Token | DraftEnd, None]:
        self.times.append(anyio.current_time())
        try:
            async with aclosing(super().generate(*args, **options)) as items:
                async for item in items:
                    yield item
        finally:
            self.times.append(anyio.current_time())


@pytest.mark.parametrize(("places", "pauses"), [(1, True), (64, False)])
async def test_a_draft_waits_for_the_place_of_a_cancelled_one(places: int, pauses: bool) -> None:
    """One token's time, if the server has a cache for each place; other servers are asked at once."""
    writer = Written((97,) * 40, {4: {97: 0.3}}, prob=0.95)
    draft = Clocked(writer, ids=True, places=places, token_delay=BETWEEN)
    draft.times = []
    assistant = ScriptedProvider(Written((97, 97, 97, 97, 98), prob=0.9), ids=True, request_delay=1.5 * BETWEEN)
    result = await fuse("Q", draft=draft, assistant=assistant, max_tokens=20)
    first = next(one for one in result.requests if one.endpoint == "draft")
    assert (result.replacements, first.outcome) == (1, "cancelled")
    _, left, begun, *_ = draft.times
    assert (begun - left > BETWEEN / 2) == pauses


SPELLED = b"0123456789" * 9
"""A text without spaces, which a model with long tokens spells in other places than the draft."""


class ByByte(TableModel):
    """A model whose encoding of a text has its bytes."""

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text."""
        return [*text]


def digits(size: int, prob: float) -> ByByte:
    """A model that writes `SPELLED` in tokens of `size` bytes."""
    tokens = [bytes([at]) for at in range(256)] + [b""] + [(SPELLED * 2)[at : at + size] for at in range(10)]

    def following(ids: Sequence[int]) -> Sequence[float]:
        written = len(b"".join(tokens[one] for one in ids).split(b"Q", 1)[1])
        rest = SPELLED[written : written + size]
        found = 256 if not rest else tokens.index(rest, 257 if size > 1 else 0) if len(rest) == size else rest[0]
        return [prob * (at == found) for at in range(len(tokens))]

    return ByByte(tokens, following, end_ids=(256,))


async def test_an_assistant_that_wrote_more_of_the_same_text_lets_the_draft_write_on() -> None:
    """Its word spells all that the draft has written: only more text shows whether they differ."""
    draft = ScriptedProvider(digits(1, 0.3), ids=True, token_delay=BETWEEN)
    assistant = ScriptedProvider(digits(9, 0.9), ids=True)
    result = await fuse("Q", draft=draft, assistant=assistant, unit="word", max_tokens=60)
    assert result.text == SPELLED[:60].decode()


async def test_a_text_draft_that_only_repeats_is_not_asked_the_same_again() -> None:
    """The text that it writes again after the last safe cut may take all the tokens that it is allowed."""
    tokens = [bytes([at]) for at in range(256)] + [b"ab", b" cd", b" ef", b" c", b""]
    read = tokens.index(b"ab")

    def following(ids: Sequence[int]) -> Sequence[float]:
        text = b"".join(tokens[one] for one in ids).split(b"Q", 1)[1]
        chosen = {b"ab": b" c" if ids[-1] == read else b" cd", b"ab cd": b" ef", b"ab cd ef": b""}
        found = tokens.index(chosen[text]) if text in chosen else b"ab cd ef"[len(text)]
        return [0.5 * (at == found) for at in range(len(tokens))]

    model = TableModel(tokens, following, end_ids=(len(tokens) - 1,))
    draft, assistant = (ScriptedProvider(model, token_ids=False) for _ in range(2))
    result = await fuse("Q", draft=draft, assistant=assistant, unit="word", max_ahead=1, max_tokens=20)
    assert result.text == "ab cd ef"
    assert result.draft_requests < 20


def replaced_often(places: int, **options: Any) -> tuple[ScriptedProvider, ScriptedProvider]:
    """A draft of which every fourth token is replaced, and an assistant that answers in the time of one token."""
    tokens = (97,) * 80
    draft = Written(tokens, {at: {97: 0.3} for at in range(3, 80, 4)}, prob=0.95)
    other = Written(tuple(98 if at % 4 == 3 else 97 for at in range(80)), prob=0.9)
    return (
        ScriptedProvider(draft, ids=True, places=places, token_delay=BETWEEN),
        ScriptedProvider(other, ids=True, places=places, request_delay=0.8 * BETWEEN, **options),
    )


READS = [b" x", b"x", b" xx", b" y", b" z", b"", b"P", b"Q", *(bytes([at]) for at in range(256))]
"""The tokens of a model that writes ` xx` as two tokens, and reads it as one."""


def reads(draft: bool) -> TableModel:
    """A draft that writes ` z` after a token that it has read; an assistant that replaces words after `P` alone."""

    def following(ids: Sequence[int]) -> Sequence[float]:
        data = b"".join(READS[one] for one in ids)
        unsure, text = b"P" in data, data.split(b"P" if b"P" in data else b"Q", 1)[1]
        found = b"x" if text.endswith(b" x") else b" x"
        if found == b" x" and unsure and not draft and text.count(b" ") % 3 == 2:
            found = b" y"
        if found == b" x" and not unsure and draft and READS[ids[-1]] == b" xx":
            found = b" z"
        prob = 0.9 if unsure != draft else 0.3
        return [prob * (at == READS.index(found)) for at in range(len(READS))]

    return TableModel(READS, following, end_ids=(5,))


@pytest.mark.parametrize("places", [1, 64])
async def test_a_draft_of_a_text_is_not_paused_at_the_length_that_a_verdict_takes(places: int) -> None:
    """It would read its own text again, and may write on differently."""
    draft = ScriptedProvider(reads(draft=True), token_ids=False, places=places, token_delay=BETWEEN)
    assistant = ScriptedProvider(reads(draft=False), places=places, request_delay=0.8 * BETWEEN)
    async with Fusion(draft=draft, assistant=assistant, unit="word") as fusion:
        assert (await fusion.generate("P", max_tokens=40)).replacements == 8  # the speeds are known now
        result = await fusion.generate("Q", max_tokens=20)
    assert (result.text, result.draft_requests) == (" xx" * 10, 1)


@pytest.mark.parametrize(("places", "start", "short"), [(1, 0.0, True), (1, 20 * BETWEEN, False), (64, 0.0, False)])
async def test_a_draft_is_as_long_as_a_verdict_takes_where_a_cancelled_one_costs_more(
    places: int, start: float, short: bool
) -> None:
    """A server with a cache for each place is busy for two tokens more after a cancelled stream."""
    draft, assistant = replaced_often(places)
    draft.request_delay = start
    result = await fuse("Q", draft=draft, assistant=assistant, max_tokens=60)
    assert result.replacements == 15
    later = [call.max_tokens or 0 for call in draft.calls if call.kind == "generate"][4:]
    assert (max(later) <= 2) == short


async def test_a_draft_that_was_given_up_before_its_last_token_is_not_waited_for_if_it_hangs() -> None:
    tokens = tuple(98 if at % 3 == 2 else 97 for at in range(60))
    writer = Written((97,) * 60, {at: {97: 0.3} for at in range(2, 60, 3)}, prob=0.95)
    draft = ScriptedProvider(writer, ids=True, places=1, token_delay=BETWEEN)
    assistant = ScriptedProvider(Written(tokens, prob=0.9), ids=True, places=1, request_delay=0.8 * BETWEEN)
    async with Fusion(draft=draft, assistant=assistant) as fusion:
        await fusion.generate("Q", max_tokens=40)  # the speeds are known now: the drafts have two tokens
        draft.faults = [Fault(None, request=draft.requests + 2, tokens=1)]
        with anyio.fail_after(20):
            result = await fusion.generate("Q", max_tokens=40)
    assert result.text == "aab" * 13 + "a"
    assert [one.tokens for one in result.requests if one.kind == "draft"][:4] == [2, 1, 2, 2]
