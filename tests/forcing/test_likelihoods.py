"""Samples for a gate, collected over toy models, against full enumeration; and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Defer, Samples, SettingError, collect, fuse, train_deferral
from cosd_api.forcing.samples import DeferralSample, state_from_text
from cosd_providers import UnsupportedError
from cosd_providers.contract import ServerInfo
from cosd_providers.testing import ScriptedProvider
from support.drawn import examples
from toys import toy_models as toys

LETTERS = "ab1 ,"
PIECES = ("ab", "aa", "ba", " a", " ab", "b1", "a,", ", ")
TOKENS = tuple(piece.encode() for piece in (*LETTERS, *PIECES, ""))
VOCABULARY = toys.Vocabulary(TOKENS, TOKENS.index(b""), "longest")
"""Whole characters only: every token has a distribution."""

ONE = toys.models(st.just(VOCABULARY), st.sampled_from((1, 1, 2)), may_hide_end=False)
TEXTS = st.text(st.sampled_from(LETTERS), min_size=1, max_size=8)


def naive(prompt: str, answer: str, draft: toys.Model, assistant: toys.Model, listed: int) -> list[DeferralSample]:
    """Every token of the answer and its end, looked up in the whole distributions."""
    ids = list(VOCABULARY.encode((prompt + answer).encode()))
    found, start, before = [], 0, len(prompt)
    for at, one in enumerate([*ids, VOCABULARY.end]):
        size = len(TOKENS[one])
        if before >= size and one != VOCABULARY.end:  # of the prompt
            before -= size
            continue
        mine, theirs = draft.next(ids[:at]), assistant.next(ids[:at])
        best, other = mine.index(max(mine)), theirs.index(max(theirs))
        beside = sorted((prob for n, prob in enumerate(mine) if n != best and prob), reverse=True)[:listed]
        right = other == one and best != one
        if not before:
            text = TOKENS[best].decode()
            found.append(DeferralSample(start, text, (mine[best], *beside), mine[one], theirs[one], right))
        start, before = start + size - before, 0
    return found


def tied(model: toys.Model, prompt: str, answer: str) -> bool:
    """True where two tokens are equally probable at the front of a distribution."""
    ids = list(VOCABULARY.encode((prompt + answer).encode()))
    fronts = [sorted(model.next(ids[:at]))[-2:] for at in range(len(ids) + 1)]
    return any(second == first for second, first in fronts)


@examples(25)
@given(ONE, ONE, TEXTS, TEXTS, st.integers(1, 9))
async def test_samples_are_those_of_full_enumeration(
    draft: toys.ToyModel, assistant: toys.ToyModel, prompt: str, answer: str, listed: int
) -> None:
    servers: dict[str, Any] = {
        "draft": ScriptedProvider(toys.Plain(draft)),
        "assistant": ScriptedProvider(toys.Plain(assistant)),
    }
    example = {"prompt": prompt, "answer": answer}
    found = await collect([example], **servers, unit="token", listed=listed)
    [one] = found.examples
    wanted = naive(prompt, answer, draft, assistant, listed)
    got = list(one.deferral or ())
    assert [(place.start, place.p, place.q, place.listed) for place in got] == [
        (place.start, place.p, place.q, place.listed) for place in wanted
    ]
    if not tied(draft, prompt, answer) and not tied(assistant, prompt, answer):  # else either may be written
        assert got == wanted
    assert one.deferral_skipped <= 1  # a token that lies across the beginning of the answer


# From samples to an answer.

SHARED: dict[str, list[Any]] = {"tokens": [" a", " b", " c", " d", " e"]}
DRAFT: dict[str, Any] = {**SHARED, "Q": [" a", (" b", 0.2)], "Q a c": [(" d", 0.9)], "Q a c d": [("", 0.75)]}
ASSISTANT: dict[str, Any] = {**SHARED, "Q": [" a", (" c", 0.8), (" e", 0.4)], "Q a c d": [("", 0.5)]}
EXAMPLES: list[dict[str, Any]] = [{"prompt": "Q", "answer": " a c d"}, {"prompt": "Q", "answer": " a c", "ends": False}]


def servers(**options: Any) -> dict[str, Any]:
    return {
        "draft": ScriptedProvider.from_texts(DRAFT, **options),
        "assistant": ScriptedProvider.from_texts(ASSISTANT),
    }


async def test_a_gate_is_trained_and_decides(tmp_path: Path) -> None:
    """The draft is unsure of b, and the assistant knows c; nothing else is to be handed over."""
    asked = servers()
    found = await collect(EXAMPLES, path=tmp_path / "s.jsonl", listed=2, **asked)
    assert [call.kind for call in asked["draft"].calls] == ["propose", "propose", "score", "score"]
    assert [call.alternatives for call in asked["draft"].calls if call.kind == "propose"] == [2, 2]
    kept = Samples.load(tmp_path / "s.jsonl")
    assert (kept.examples, kept.listed) == (found.examples, 2)
    handed = [[place.handed for place in one.deferral or ()] for one in kept.examples]
    assert handed == [[False, True, False, False], [False, True]]
    again = await collect(EXAMPLES, path=tmp_path / "s.jsonl", listed=2, **asked)
    assert (again.examples, again.there) == (found.examples, 2)
    training = train_deferral(kept)
    result = await fuse("Q", method=Defer(gate=training.gate), unit="token", **servers())
    assert result.text == " a c d"
    assert [token.source for token in result.tokens] == ["draft", "assistant", "draft", "draft"]


def stated(ids: Any) -> list[float]:
    """The draft's state: how many tokens there are, and their sum."""
    return [float(len(ids)), float(sum(ids))]


@examples(15)
@given(ONE, ONE, TEXTS, TEXTS)
async def test_states_are_those_before_each_token(
    draft: toys.ToyModel, assistant: toys.ToyModel, prompt: str, answer: str
) -> None:
    models: dict[str, Any] = {"draft": ScriptedProvider(toys.Plain(draft), states=stated)}
    models["assistant"] = ScriptedProvider(toys.Plain(assistant))
    found = await collect([{"prompt": prompt, "answer": answer}], **models, unit="token", hidden_states=True)
    [one] = found.examples
    wanted = naive(prompt, answer, draft, assistant, 0)
    assert [(place.start, place.p, place.q) for place in one.deferral or ()] == [
        (place.start, place.p, place.q) for place in wanted
    ]
    ids = VOCABULARY.encode((prompt + answer).encode())
    ends = {len(VOCABULARY.decode(ids[:at])) - len(prompt): stated(ids[:at]) for at in range(1, len(ids) + 1)}
    for place in one.deferral or ():
        assert list(state_from_text(place.state or "", 2)) == ends[place.start]


async def test_a_gate_on_states_is_trained_and_decides(tmp_path: Path) -> None:
    asked = servers(states=stated)
    found = await collect(EXAMPLES, path=tmp_path / "s.jsonl", hidden_states=True, **asked)
    assert [call.kind for call in asked["draft"].calls[:3]] == ["propose", "propose", "score"]
    assert [call.kind for call in asked["draft"].calls].count("hidden_states") == 2
    kept = Samples.load(tmp_path / "s.jsonl")
    assert (kept.examples, kept.listed, kept.hidden_states) == (found.examples, None, 2)
    with pytest.raises(SettingError, match="with hidden states: of 2 numbers, not none: give collect another file"):
        await collect(EXAMPLES, path=tmp_path / "s.jsonl", **servers(states=stated))
    training = train_deferral(kept, hidden_states=True)
    method = Defer(gate=training.gate)
    result = await fuse("Q", method=method, unit="token", **servers(states=stated))
    assert result.text == " a c d"
    assert [token.source for token in result.tokens] == ["draft", "assistant", "draft", "draft"]
    with pytest.raises(
        UnsupportedError, match="the draft does not report hidden states, which training a gate on them"
    ):
        await collect(EXAMPLES, hidden_states=True, **servers())


async def test_samples_without_lists_are_what_they_were(tmp_path: Path) -> None:
    plain = await collect(EXAMPLES, path=tmp_path / "s.jsonl", unit="token", **servers())
    assert plain.listed is None
    assert "listed" not in (tmp_path / "s.jsonl").read_text()
    assert "deferral" not in (tmp_path / "s.jsonl").read_text()
    assert "state" not in (tmp_path / "s.jsonl").read_text()
    listed = await collect(EXAMPLES, listed=2, **servers())
    assert [one.samples for one in listed.examples] == [one.samples for one in plain.examples]
    assert listed.digest == plain.digest
    with pytest.raises(SettingError, match="holds samples with listed=None, not 2: give collect another file"):
        await collect(EXAMPLES, path=tmp_path / "s.jsonl", listed=2, **servers())


class Unheard(ScriptedProvider):
    """Refuses to score an end."""

    async def score(self, *args: Any, end: bool = False, **options: Any) -> Any:
        if end:
            raise UnsupportedError("no end")
        return await super().score(*args, **options)


class Silent(ScriptedProvider):
    """Does not score texts."""

    async def describe(self) -> ServerInfo:
        info = await super().describe()
        return replace(info, capabilities=replace(info.capabilities, score=False))


async def test_an_end_that_cannot_be_scored_is_left_out() -> None:
    models = servers() | {"assistant": Unheard.from_texts(ASSISTANT)}
    found = await collect(EXAMPLES[:1], listed=2, **models)
    [one] = found.examples
    assert [place.draft for place in one.deferral or ()] == [" a", " b", " d"]
    assert one.deferral_skipped == 1


async def test_what_endpoints_lack_is_refused_before_anything_is_asked() -> None:
    other = ScriptedProvider.from_texts({"Q": [" x", "yz"]})
    for models, words in (
        (servers(top_k=1), "the draft lists 1 other tokens at a place, and listed=2 are wanted"),
        (servers(top_k=0), "the draft lists no other tokens at a place"),
        (servers() | {"assistant": other}, "the models are not known to have one tokenizer"),
        (servers() | {"draft": Silent.from_texts(DRAFT)}, "the draft's server does not score texts, which training a"),
    ):
        with pytest.raises(UnsupportedError, match=words) as caught:
            await collect(EXAMPLES, listed=2, **models)
        assert caught.value.hint
        assert models["draft"].requests == 0
    with pytest.raises(SettingError, match="listed must be at most 100, not 101"):
        await collect(EXAMPLES, listed=101, **servers())
