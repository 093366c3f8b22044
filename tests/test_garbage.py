"""An answer's memory goes with its last reference: no method leaves cycles for the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from itertools import accumulate

import pytest

from cosd_api import FusionResult
from cosd_providers.testing import ScriptedProvider, TableModel
from support.every_method import LINES, Line

WORDS = tuple(f" {letter}" for letter in "abcdefghijklmnopqrstuvw")
TOKENS = (b"", *(word.encode() for word in WORDS), b"Q")


def model(number: int) -> TableModel:
    """A model that is unsure at every other place, where the one of another number writes another word; it never ends.

    It reads any text, by its spaces.
    """

    def following(ids: Sequence[int]) -> list[float]:
        at, probs = len(ids), [0.0] + [0.001] * len(WORDS) + [0.0]
        unsure = at % 2 == 0
        probs[1 + (at + 3) % 8] = 0.05
        probs[1 + (at + number * unsure) % 8] = 0.45 if unsure and not number else 0.9
        return probs

    table = TableModel(TOKENS, following, end_ids=(0,))
    known = set(b"".join(TOKENS))
    encode = table.encode
    table.encode = lambda text: encode(text if known >= set(text) else b"Q" + b" a" * text.count(b" "))  # type: ignore[method-assign]
    return table


def ends(text: str) -> Sequence[int]:
    """The ends of its words."""
    return [*accumulate(len(part) for part in text.replace(" ", "\0 ").split("\0"))]


@pytest.fixture
def collector() -> Iterator[None]:
    """The collector looks only when it is asked to."""
    gc.disable()
    yield
    gc.enable()


def found() -> list[str]:
    """The findings of the collector, in words: an object that it kept would be found again the next time."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return [f"{type(one).__name__}: {repr(one)[:200]}" for one in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


@pytest.mark.parametrize("line", LINES, ids=str)
async def test_an_answer_leaves_no_cycles(line: Line, collector: None) -> None:
    """Of an answer with disagreements, once nobody has it any more, the collector finds nothing."""
    served = {
        name: ScriptedProvider(model(at), name=name, words=ends, states=lambda _: (0.1,) * 4)
        for at, name in enumerate(dict.fromkeys(line.models))
    }
    async with line.fusion(served.__getitem__) as fusion:
        left: list[str] = []
        for _ in range(4):  # a first answer leaves what the fusion keeps; another may meet what other tests let go of
            gc.collect()
            answer = await fusion.generate("Q", max_tokens=12, **line.answer)
            assert answer.text.count(" ") >= 6, answer.text
            del answer
            if not (left := found()):
                break
        assert left == []


async def test_records_share_the_set_of_their_fields() -> None:
    """A set for each record would take more memory than the rest of an answer; a copy that is changed has its own."""
    line = LINES[0]
    async with line.fusion(lambda name: ScriptedProvider(model(line.models.index(name)))) as fusion:
        answer = await fusion.generate("Q", max_tokens=12)
    decisions = [one for token in answer.tokens for one in token.decisions]
    drafted = [one for token in answer.tokens for one in token.replaced_tokens]
    for records in (answer.tokens, answer.requests, decisions, drafted):
        assert len(records) > 1
        assert {id(record.model_fields_set) for record in records} == {id(records[0].model_fields_set)}
        assert records[0].model_fields_set == type(records[0]).model_fields.keys()
    assert answer.tokens[0].model_copy(update={"text": "b"}).model_fields_set is not answer.tokens[0].model_fields_set
    assert FusionResult.model_validate_json(answer.model_dump_json()) == answer
