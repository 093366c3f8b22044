"""Algorithm 1, judged token by token as text: the naive reference, whatever the order of events; failures; costs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cosd_api
from cosd_api import AgreementVerifier, Fusion, FusionResult, MatchVerifier, RuleVerifier, fuse
from cosd_providers import ProviderError
from cosd_providers.contract import Context, Proposal, Token
from cosd_providers.testing import Fault, ScriptedProvider
from naive import reference
from support import virtual_time
from support.drawn import decoder_examples
from toys import toy_models as toys
from toys.id_models import Written
from toys.literal_tasks import WAYS, Fails, Task, check, check_asked, failures, fused, outs, tasks
from toys.unsteady import Order, broken, orders


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


@decoder_examples
@given(tasks(), orders(), st.sampled_from(WAYS))
async def test_equal_under_every_schedule(task: Task, order: Order, way: dict[str, Any]) -> None:
    servers = task.servers(order)
    result = await fused(task, servers, **way)
    check(result, task.expected())
    if way.get("ask") != "all":
        check_asked(result, task)
    assert all(one.open_requests == 0 for one in (servers["draft"], *servers["assistant"]))


@decoder_examples
@given(tasks(), orders(), st.floats(0, 1.2))
async def test_equal_where_only_the_drafts_probability_counts(task: Task, order: Order, alpha: float) -> None:
    task = replace(task, verifier=AgreementVerifier(alpha=alpha))
    check(await fused(task, task.servers(order)), task.expected())


@decoder_examples
@given(tasks(longest_merge=6), orders())
async def test_equal_where_characters_are_never_finished(task: Task, order: Order) -> None:
    check(await fused(task, task.servers(order)), task.expected())


@decoder_examples
@given(tasks(), orders(), st.integers(1, 4))
async def test_text_only_endpoints_follow_their_rounds(task: Task, order: Order, length: int) -> None:
    result = await fused(task, task.servers(order, token_ids=False), draft_length=length)
    check(result, task.expected(ids_kept=False, round_length=length))


@decoder_examples
@given(tasks(), orders(), st.sampled_from((RuleVerifier(alpha=0), RuleVerifier(alpha=1, beta=math.inf))))
async def test_a_rule_that_never_fires_gives_the_drafts_own_text(task: Task, order: Order, never: RuleVerifier) -> None:
    task = replace(task, verifier=never)
    servers = task.servers(order)
    result = await fused(task, servers)
    check(result, replace(task, assistants=()).expected())
    assert not any(one.calls for one in servers["assistant"])


@decoder_examples
@given(tasks(same_tokenizer=True, max_assistants=1, may_hide_end=False), orders())
async def test_a_verifier_that_always_fires_gives_the_assistants_own_text(task: Task, order: Order) -> None:
    task = replace(task, verifier=MatchVerifier())
    result = await fused(task, task.servers(order))
    check(result, task.expected())
    (assistant,) = task.assistants
    text, own = task.prompt, []
    while True:  # the assistant starts afresh from its encoding of the text after every token
        token = next(reference.generate(assistant, text, patience=3), None)
        if token is None:
            return
        own.append(reference.Out(token.data, 0, token.end))
        text += token.data
        done = reference.finished(own, task.stop, task.max_tokens)
        if done:
            break
    if all(is_unique(assistant, task.prompt, own, at) for at in range(len(own))):
        assert b"".join(one.data for one in result.tokens) == done.text


def is_unique(model: toys.Model, prompt: bytes, tokens: Sequence[reference.Out], at: int) -> bool:
    """Whether the model's most probable token there is the only one: ties go to the draft's."""
    sent = (prompt + reference.text_of(tokens[:at])).decode("utf-8", "ignore").encode()
    probs = sorted(model.next(list(model.vocabulary.encode(sent))))
    return probs[-1] > probs[-2]


async def ended(task: Task, servers: dict[str, Any], **settings: Any) -> tuple[str, str]:
    """The text of an answer, or its error and what was verified until then."""
    try:
        return "", (await fused(task, servers, **settings)).text
    except ProviderError as error:
        partial: Any = error.partial
        return str(error), "" if partial is None else partial.text


@decoder_examples
@given(tasks(), orders(), orders(), st.integers(0, 20), st.integers(0, 20), st.sampled_from(WAYS[:-1]))
async def test_whether_an_answer_succeeds_does_not_depend_on_timing(
    task: Task, one: Order, other: Order, draft: int, ask: int, way: dict[str, Any]
) -> None:
    """Servers that break where a text gets too long for them: the same answer, or the same error, every time."""
    found = list[tuple[str, str]]()
    for order, settings in ((one, {}), (other, way)):
        servers = task.servers(order, lambda _, start, __: start > ask, breaks=lambda _, end: end > draft)
        found.append(await ended(task, servers, **settings))
    assert found[0][0] == found[1][0]
    assert found[0][0] or found[0] == found[1]
    whole = await fused(task, task.servers(one))
    assert all(whole.text.startswith(text) for _, text in found)


@decoder_examples
@given(tasks(), orders(), failures(), st.sampled_from(WAYS[:-1]))
async def test_without_an_assistant_that_fails_for_good(
    task: Task, order: Order, fails: Fails, way: dict[str, Any]
) -> None:
    """It is lost at the same place, and the same tokens are unverified, under every schedule."""
    result = await fused(task, task.servers(order, fails), on_assistant_error="draft", **way)
    check(result, task.expected(fails=fails))


@decoder_examples
@given(tasks(), orders(), st.integers(1, 12), st.floats(0.1, 20))
async def test_an_answer_that_is_stopped_is_a_beginning_of_the_whole_one(
    task: Task, order: Order, most: int, seconds: float
) -> None:
    wanted = task.expected()
    for limit in ({"max_requests": most}, {"timeout": seconds}):
        result = await fused(task, task.servers(order), on_budget="end", **limit)
        tokens = outs(result)
        assert tokens == list(wanted.tokens[: len(tokens)])
        assert result.kept_tokens == sum(one.source < 0 for one in tokens)
        assert result.finish_reason == "budget" or tokens == list(wanted.tokens)


async def test_reference_and_decoder_agree_on_a_long_answer() -> None:
    """One long case that is always run: 80 tokens over four models."""
    vocabulary = toys.Vocabulary((*toys.SINGLE, *toys.LONGER, b""), len(toys.SINGLE) + len(toys.LONGER), "longest")
    draft, *assistants = (toys.ToyModel(vocabulary, seed=seed, language=1, fluency=7) for seed in range(4))
    task = Task(b"a", draft, tuple(assistants), RuleVerifier(alpha=0.6, beta=0.8), 80, ())
    check(await fused(task, task.servers([((0.0, 0.1), seed) for seed in range(4)])), task.expected())


class OneByOne(ScriptedProvider):
    """Refuses questions about several places in one request."""

    async def propose(self, context: Context, questions: Any, **options: Any) -> list[Proposal | None]:
        found = await super().propose(context, questions, **options)
        if len(questions) > 1:
            raise broken("too many")
        return found

    async def next_tokens(self, contexts: Sequence[Context], **options: Any) -> list[Token | None]:
        found = await super().next_tokens(contexts, **options)
        if len(contexts) > 1:
            raise broken("too many")
        return found


@pytest.mark.parametrize("ids", [False, True])
async def test_questions_that_fail_together_are_asked_again_one_by_one(ids: bool) -> None:
    draft, asked = ScriptedProvider(says(b"cdefgh", 0.3), ids=ids), OneByOne(says(b"cdexgh", 0.9), ids=ids)
    asked.request_delay = 1
    result = await fuse("Q", draft=draft, assistant=asked, unit="token" if ids else "literal")
    assert (result.text, result.replacements, result.failures) == ("cdexgh", 1, {})
    assert any(len(call.questions or call.contexts or ()) > 1 for call in asked.calls)


def says(text: bytes, prob: float) -> Written:
    """A model that writes these letters, whatever stood before, each with this probability."""
    return Written((*text,), prob=prob)


GONE = Fault(broken("gone"))


async def beside_failure(*assistants: tuple[bytes, float] | None, **settings: Any) -> FusionResult:
    """An answer whose draft is unsure; None is an assistant that fails at once, and the others answer later."""
    asked = [
        ScriptedProvider(
            says(*(one or (b"", 0.0))), request_delay=at + 1.0 if one else 0.0, faults=() if one else [GONE]
        )
        for at, one in enumerate(assistants)
    ]
    given: dict[str, Any] = {"unit": "literal", "max_tokens": 1, "on_assistant_error": "draft", **settings}
    return await fuse("Q", draft=ScriptedProvider(says(b"ab", 0.3)), assistant=asked, **given)


async def test_an_assistant_that_nobody_could_have_been_surer_than_makes_up_for_one_that_failed() -> None:
    """One that is certain and listed first wins anyway; one that is listed later only ties with the lost one."""
    sure = await beside_failure((b"x", 1.0), None)
    assert (sure.text, sure.failures, sure.unverified_tokens) == ("x", {}, 0)
    assert (await beside_failure((b"x", 1.0), None, on_assistant_error="raise")).text == "x"
    for others in ((None, (b"x", 1.0)), ((b"x", 0.9), None)):
        lost = await beside_failure(*others)
        assert (lost.text, len(lost.failures), lost.unverified_tokens) == ("x", 1, 1)
        with pytest.raises(ProviderError, match="gone"):
            await beside_failure(*others, on_assistant_error="raise")


async def test_one_that_failed_is_lost_beside_one_that_is_certain_and_one_that_is_not_heard_any_more() -> None:
    result = await beside_failure(None, (b"x", 1.0), (b"x", 0.5))
    assert (result.text, list(result.failures)) == ("x", ["assistant 1"])


async def test_what_was_lost_before_is_verified_where_one_is_certain() -> None:
    asked = [
        ScriptedProvider(Written((*b"ax",), {0: {97: 0.9}}, prob=1.0)),
        ScriptedProvider(says(b"", 1.0), faults=[GONE]),
    ]
    options: dict[str, Any] = {"unit": "literal", "max_tokens": 2, "on_assistant_error": "draft"}
    result = await fuse("Q", draft=ScriptedProvider(says(b"ab", 0.3)), assistant=asked, **options)
    assert [(one.text, one.verified) for one in result.tokens] == [("a", False), ("x", True)]


async def lines_of(length: int, *, ids: bool, replaces: bool, late: float) -> float:
    """Lines of the library that run for each token of an answer, every fourth of which is contested."""
    count, folder = 0, str(Path(cosd_api.__file__).parent)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename.startswith(folder) else None

    beside = {place: {97: 0.3} for place in range(0, length, 4)}
    draft, assistant = Written((97,) * length, beside, prob=0.9), Written((98 if replaces else 97,) * length, prob=0.9)
    asked = ScriptedProvider(assistant, ids=ids, request_delay=late)
    writer = ScriptedProvider(draft, ids=ids, token_delay=1)
    async with Fusion(draft=writer, assistant=asked, unit="token" if ids else "literal") as fusion:
        await fusion.generate("Q", max_tokens=1)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            result = await fusion.generate("Q", max_tokens=length)
        finally:
            sys.settrace(before)
    assert len(result.tokens) == length
    return count / length


@pytest.mark.parametrize("ids", [False, True])
async def test_a_token_of_a_long_answer_takes_no_more_steps(ids: bool) -> None:
    for replaces, late in ((False, 3), (True, 3), (False, 999)):
        short, long = [await lines_of(length, ids=ids, replaces=replaces, late=late) for length in (64, 320)]
        assert long < 1.1 * short
