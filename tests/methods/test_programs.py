"""Random programs on toy models: text, bill and trace agree, and nothing stays open, whatever ends the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any, ClassVar

import anyio
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import FusionResult, fuse
from cosd_api.decoding.commands import Contender, DecidedSegment
from cosd_api.decoding.model import Lost, Model
from cosd_api.decoding.passage import Passage
from cosd_api.decoding.program import Answer, Over
from cosd_api.methods.base import Program
from cosd_providers.errors import ConnectError
from cosd_providers.testing import Fault, ScriptedProvider
from cosd_providers.text import readable
from support.drawn import examples
from toys import contests
from toys import toy_models as toys

Step = tuple[str, int, int]


@dataclass(frozen=True, kw_only=True)
class Drawn(Program):
    """Repeats some steps; each has a name, a model and a number of tokens. A model writes the rest if nothing grows."""

    name: ClassVar[str] = "drawn"
    symmetric: ClassVar[bool] = True

    steps: tuple[Step, ...] = ()
    catches: bool = True

    def options(self) -> dict[str, Any]:
        return {"steps": [[*step] for step in self.steps]}

    async def write(self, answer: Answer, *models: Model) -> None:
        before = -1
        for at, (name, who, count) in enumerate(cycle(self.steps)):
            heard = answer.models
            model = heard[who % len(heard)]
            if not at % len(self.steps):
                if len(answer.text) == before:
                    await models[0].finish("nothing grows")
                before = len(answer.text)
            try:
                await getattr(self, name)(answer, model, count)
            except Lost:
                assert not all(one.alive for one in heard)
                if not self.catches:
                    raise

    async def passage(self, answer: Answer, model: Model, count: int) -> None:
        answer.append(await model.write(count), "a passage")

    async def part(self, answer: Answer, model: Model, count: int) -> None:
        passage = await model.write(1 + count, until=lambda _: False)
        answer.append(passage.first(count) if len(passage.data) > count else passage, "a part of a passage")

    async def stream(self, answer: Answer, model: Model, count: int) -> None:
        async with model.stream() as stream:
            with answer.segment(stream, "a stream") as segment:
                async for token in stream:
                    segment.append([token])
                    count -= 1
                    if not count:
                        segment.why += " that was left"
                        break
                answer.end_if_stuck(stream)

    async def read_on(self, answer: Answer, model: Model, count: int) -> None:
        answer.append(await model.read_on(4, until=lambda tokens: len(tokens) >= count), "an open stream")

    async def choices(self, answer: Answer, model: Model, count: int) -> None:
        passage = await answer.models[0].write(count, listed=1)
        found = await answer.all(partial(Model.choices, passage=passage, listed=1))
        for at, drafted in enumerate(passage.tokens):
            token = (found[model][at] if model in found else None) or drafted
            others = [(one, several[at]) for one, several in found.items() if one is not model]
            options = [Contender((one.index - 1,), own.data, own.end) for one, own in others if own is not None]
            chosen = Contender((model.index - 1,), token.data, token.end)
            if not answer.choose(token, model, DecidedSegment((chosen, *options), 0, "a choice"), passage, at):
                break
        else:
            answer.end_if_stuck(passage)

    async def next(self, answer: Answer, model: Model, count: int) -> None:
        if (token := await model.next(listed=count)) is not None:
            answer.append(Passage(model, (replace(token, alternatives=()),), 0, None), "the next token")

    async def scored(self, answer: Answer, model: Model, count: int) -> None:
        found = await answer.all(partial(Model.write, max_tokens=count))
        texts = [one.data for one in found.values()]
        await answer.all(lambda one: one.several(one.score, texts))
        best = found.get(model) or next(iter(found.values()))
        options = tuple(Contender((one.index - 1,), text.data, text.ends) for one, text in found.items())
        answer.append(best, DecidedSegment(options, [*found.values()].index(best), "a scored text"))

    async def scratch(self, answer: Answer, model: Model, count: int) -> None:
        if answer.text:
            return

        async def twice(other: Answer) -> None:
            for _ in range(2):
                other.append(await other.models[0].write(count), "on a scratch copy")

        other = await answer.scratch(twice)
        entry = Contender(tuple(one - 1 for one in other.sources), other.text, other.ended)
        answer.copy(other, DecidedSegment((entry,), 0, f"a copy, and not of {model.name} alone"))


NAMES = ("passage", "part", "stream", "read_on", "choices", "next", "scored", "scratch")
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=4)
PROGRAMS = st.builds(lambda steps, catches: Drawn(steps=tuple(steps), catches=catches), STEPS, st.booleans())


def providers(task: contests.Task, delays: Sequence[float], faults: dict[int, Fault]) -> list[ScriptedProvider]:
    return [
        ScriptedProvider(
            toys.Plain(model),
            request_delay=delays[2 * at],
            token_delay=delays[2 * at + 1],
            faults=[faults[at]] if at in faults else [],
        )
        for at, model in enumerate(task.models)
    ]


async def answered(
    task: contests.Task, program: Drawn, delays: Sequence[float], faults: dict[int, Fault] | None = None, **more: Any
) -> FusionResult | None:
    """The result, if there is one; in any case, nothing is left open, and the bill is what the servers served."""
    models, result = providers(task, delays, faults or {}), None
    stop = [stop.decode() for stop in task.stop]
    try:
        result = await fuse(
            task.prompt.decode(), models=models, method=program, max_tokens=task.max_tokens, stop=stop, **more
        )
    finally:
        assert [model.open_requests for model in models] == [0] * len(models)
    assert result.trace.replay() == result.text
    assert FusionResult.model_validate_json(result.model_dump_json()) == result
    assert [one.requests for one in result.usage.values()] == [model.requests for model in models]
    assert readable(b"".join(one.data for one in result.tokens)) == result.text
    assert len(result.tokens) <= task.max_tokens
    assert {one.reason for one in result.tokens} <= {one.reason for one in result.segments} | {
        "a stream",
        "on a scratch copy",
    }
    if result.text.isascii():  # what was proposed for the last segment may be longer than what is left
        assert "".join(one.candidates[one.winner].text for one in result.segments).startswith(result.text)
    return result


@examples(40)
@given(contests.tasks(), PROGRAMS, contests.delays(), contests.delays())
async def test_the_order_of_arrival_changes_nothing(
    task: contests.Task, program: Drawn, delays: list[float], others: list[float]
) -> None:
    one, other = [await answered(task, program, given) for given in (delays, others)]
    assert one is not None and other is not None
    assert (one.text, one.segments, one.finish_reason) == (other.text, other.segments, other.finish_reason)


@examples(40)
@given(contests.tasks(), PROGRAMS, contests.delays(), st.integers(0, 2), st.integers(1, 6), st.integers(0, 2))
async def test_a_model_that_fails_ends_the_answer_or_is_left_out(
    task: contests.Task, program: Drawn, delays: list[float], who: int, request: int, tokens: int
) -> None:
    fault = {who: Fault(ConnectError("gone"), request=request, tokens=tokens)}
    try:
        result = await answered(task, program, delays, fault, on_assistant_error="draft")
    except ConnectError:
        assert who == 0  # the answer never continues without the first model
    else:
        assert result is not None
        assert result.finish_reason in ("stop", "length")


@examples(40)
@given(contests.tasks(), PROGRAMS, contests.delays(), st.integers(1, 8))
async def test_a_budget_ends_it(task: contests.Task, program: Drawn, delays: list[float], most: int) -> None:
    result = await answered(task, program, delays, max_requests=most, on_budget="end")
    assert result is not None
    assert result.finish_reason == "budget" or sum(one.requests for one in result.usage.values()) <= most


@examples(40)
@given(contests.tasks(), PROGRAMS, contests.delays(), st.floats(0, 3))
async def test_whoever_waits_may_leave(
    task: contests.Task, program: Drawn, delays: list[float], seconds: float
) -> None:
    with anyio.move_on_after(seconds):
        await answered(task, program, delays)


async def test_over_passes_a_program_that_catches_every_error() -> None:
    class Stubborn(Drawn):
        name = "stubborn"

        async def write(self, answer: Answer, *models: Model) -> None:
            while True:
                try:
                    answer.append(await models[0].write(1), "again")
                except Exception:  # noqa: BLE001 - what a careless program does
                    continue

    model = ScriptedProvider.from_texts({"Q": [" a", " b"]})
    result = await fuse("Q", models=[model, model], method=Stubborn(), max_tokens=9)
    assert (result.text, result.finish_reason) == (" a b", "stop")
    assert not issubclass(Over, Exception)


async def test_an_answer_may_be_completed_by_one_of_several_tasks() -> None:
    class Hasty(Drawn):
        name = "hasty"

        async def write(self, answer: Answer, *models: Model) -> None:
            async def append(_: int) -> None:
                answer.append(await models[0].write(), "first")

            await models[0].several(append, range(3))

    model = ScriptedProvider.from_texts({"Q": [" a", " b"]})
    result = await fuse("Q", models=[model, model], method=Hasty())
    assert (result.text, len(result.segments)) == (" a b", 1)
