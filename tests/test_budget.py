"""What one answer may spend: time, requests, billed tokens; and what is left of it when a limit is reached."""

from __future__ import annotations

import pickle
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, FusionResult, RuleVerifier, connect, fuse
from cosd_api.budget import Budget
from cosd_providers import (
    BudgetError,
    BudgetTimeoutError,
    ServerError,
    Usage,
)
from cosd_providers.testing import Fault, ScriptedProvider, ScriptToken, TextModel
from fakes.llama_cpp import FakeLlamaCpp
from support.drawn import costly
from toys import toy_models as toys
from toys.lima import DRAFT, FUSED, TellsNoPrompt, Unheard, assistant, before_error, draft


def sent(result: FusionResult) -> int:
    return sum(usage.requests + usage.retries for usage in result.usage.values())


def test_a_request_that_is_sent_again_counts() -> None:
    ledgers = [Usage(), Usage()]
    budget = Budget(ledgers, max_requests=3)
    with budget.spending(0, [2], drafts=True) as drafting, budget.spending(1, [2]) as asking:
        drafting.sent(0.0)
        asking.sent(0.0)
        asking.sent_again()
        for refused in (drafting.sent_again, lambda: asking.sent(1.0)):
            with pytest.raises(BudgetError, match=r"^max_requests=3 is reached \(3 were sent\)\. Allow more") as caught:
                refused()
            assert caught.value.limit == "max_requests"
            assert not caught.value.retryable
        asking.closed(2.0)
        drafting.closed(3.0)
    assert (ledgers[0].requests, ledgers[1].requests, ledgers[1].retries) == (1, 1, 1)
    assert (ledgers[0].busy_seconds, ledgers[1].busy_seconds) == (3.0, 2.0)


def test_the_tokens_of_a_draft_under_way_count_as_they_come_and_once() -> None:
    ledgers = [Usage(), Usage()]
    budget = Budget(ledgers, max_billed_tokens=22)
    with budget.spending(1, [20]) as asking:
        asking.sent(0.0)
        asking.bill(5, 2)
    with budget.spending(0, [8], drafts=True) as drafting:
        budget.check()  # nothing was sent
        drafting.sent(0.0)
        for _ in range(12):
            drafting.written += 1
            budget.check_tokens()
        words = (
            r"^max_billed_tokens=22 is reached \(7 were billed, and about 15 more were read or written without a bill"
        )
        drafting.written += 1
        with pytest.raises(BudgetError, match=words):
            budget.check_tokens()
        drafting.bill(1, 11)  # what it had read, and written when it was left: the bill is right
        budget.check()
    assert (ledgers[0].prompt_tokens, ledgers[0].completion_tokens) == (1, 11)
    with budget.spending(1, [20]) as asking:
        asking.sent(0.0)  # 19 were billed
        with pytest.raises(BudgetError, match=r"\(19 were billed, and about 5 more"):
            asking.sent(0.0)
        asking.bill(3, 0)
    with pytest.raises(BudgetError, match=r"\(22 were billed\)"):
        budget.check()


def test_what_is_read_is_guessed_from_what_this_endpoint_was_billed() -> None:
    budget = Budget([Usage(), Usage()])
    with budget.spending(1, [400, 600]) as asking:
        assert asking.guess == 150  # four bytes a token, read once
        asking.sent(0.0)
        asking.bill(500, 2)
    with budget.spending(1, [400, 600, 1000]) as asking:
        assert asking.guess == 1000
    with budget.spending(0, [401], drafts=True) as drafting:
        assert drafting.guess == 101
    budget.expect(300, 400, counted=True)
    with budget.spending(0, [800], drafts=True) as drafting:
        assert drafting.guess == 600


@pytest.mark.parametrize(
    ("end", "stays", "unreported"), [("whole", 50, 1), ("left", 50, 0), ("failed", 0, 0), ("unsent", 0, 0)]
)
def test_what_is_never_billed_is_estimated(end: str, stays: int, unreported: int) -> None:
    ledgers = [Usage(), Usage()]
    budget = Budget(ledgers, max_billed_tokens=50)
    errors: dict[str, BaseException] = {"left": KeyboardInterrupt(), "failed": ServerError("broke")}
    with suppress(KeyboardInterrupt, ServerError), budget.spending(0, [100], drafts=True) as drafting:
        if end != "unsent":
            drafting.sent(0.0)
        if end in errors:
            raise errors[end]
    assert [one.unreported for one in ledgers] == [unreported, 0]
    assert [(one.prompt_tokens, one.estimated_tokens) for one in ledgers] == [(stays, stays), (0, 0)]
    with pytest.raises(BudgetError, match=r"\(50 were billed, 50 of them by estimate\)") if stays else nullcontext():
        budget.check()


@st.composite
def fusions(draw: st.DrawFn) -> dict[str, Any]:
    """Models, settings and delays."""
    writer, asked = draw(toys.model_sets(may_hide_end=False))
    alpha, beta = draw(toys.thresholds())
    delays = random.Random(draw(st.integers(0, 2**16)))

    def served(model: toys.ToyModel) -> ScriptedProvider:
        options: dict[str, Any] = {
            "request_delay": delays.choice((0, 0.001)),
            "token_delay": delays.choice((0, 0, 0.0005)),
        }
        return ScriptedProvider(toys.Plain(model), **options)

    return {
        "prompt": "a b",
        "draft": served(writer),
        "assistant": [served(model) for model in asked],
        "verifier": RuleVerifier(alpha=alpha, beta=beta),
        "unit": draw(st.sampled_from(("token", "word", "literal"))),
        "max_tokens": draw(st.integers(1, 16)),
        "stop": [one.decode() for one in draw(toys.stops())],
        "draft_length": draw(st.none() | st.integers(1, 5)),
    }


def plain(result: FusionResult) -> list[tuple[str, str]]:
    return [(token.text, token.source) for token in result.tokens]


def check_prefix(limited: FusionResult, whole: FusionResult, limit: str) -> None:
    assert plain(limited) == plain(whole)[: len(limited.tokens)]
    assert limited.text == "".join(token.text for token in limited.tokens) or "\\x" in whole.text
    if limited.finish_reason != "budget":
        assert (plain(limited), limited.finish_reason) == (plain(whole), whole.finish_reason)
    else:
        assert limited.stop_reason == limit


@costly(60)
@given(fusions(), st.integers(1, 12))
async def test_no_more_requests_than_allowed_and_a_beginning_of_the_answer(options: dict[str, Any], most: int) -> None:
    providers = [options["draft"], *options["assistant"]]
    limited = await fuse(**options, max_requests=most, on_budget="end")
    assert sum(provider.requests for provider in providers) == sent(limited) <= most
    assert all(provider.open_requests == 0 for provider in providers)
    check_prefix(limited, await fuse(**options), "max_requests")


class Watched(ScriptedProvider):
    """Sees that nothing is sent when the limit is billed."""

    most = 0
    seen: set[Usage]

    @asynccontextmanager
    async def _request(self, usage: Usage) -> AsyncGenerator[int]:
        self.seen.add(usage)
        billed = sum(one.prompt_tokens + one.completion_tokens for one in self.seen)
        async with super()._request(usage) as number:
            assert billed < self.most
            yield number


@costly(60)
@given(fusions(), st.integers(1, 120))
async def test_nothing_is_sent_beyond_the_billed_tokens(options: dict[str, Any], most: int) -> None:
    providers = [options["draft"], *options["assistant"]]
    prompt = len(await providers[0].tokenize("a b"))
    watched, seen = [Watched(provider.model) for provider in providers], set[Usage]()
    for one, provider in zip(watched, providers, strict=True):
        one.most, one.seen = most, seen
        one.request_delay, one.token_delay = provider.request_delay, provider.token_delay
    limits: dict[str, Any] = {"max_billed_tokens": most, "on_budget": "end"}
    limited = await fuse(**{**options, "draft": watched[0], "assistant": watched[1:]}, **limits)
    assert all(provider.open_requests == 0 for provider in watched)
    check_prefix(limited, await fuse(**options), "max_billed_tokens")
    assert (sum(provider.requests for provider in watched) == 0) == (most <= prompt)


_BASE = tuple(bytes([byte]) for byte in b"\n ,1ab\x80\x98\x9f\xa9\xb8\xc3\xe4\xf0\xff")
_WORDS = tuple(
    b"a\xc3\xa9|b1|\xe4|,|\xa9|a1b|\xf0| | ab| a|ba|  |\x9f|\n|\xc3|\xb8| 1|a|b a|\x80|"
    b" \xc3\xa9|b|aa|\x98|11|\xff|ab||\xc3\xa9|1|aba| b|a ".split(b"|")
)
_SHUFFLED = tuple(b"\n|\xff|\xe4|\xa9|1|\n|,|\x9f|\n|a|b| |\xb8|\x98|\xc3|\x80||\xf0".split(b"|"))


async def test_no_word_is_replaced_before_the_surest_assistant_was_asked() -> None:
    """Of two assistants that would replace a word, the limit leaves room for the less confident one alone."""

    def served(tokens: tuple[bytes, ...], seed: int, fluency: int, delay: float) -> ScriptedProvider:
        vocabulary = toys.Vocabulary(tokens, tokens.index(b""), "ranks")
        toy = toys.ToyModel(vocabulary, seed=seed, language=260, fluency=fluency)
        return ScriptedProvider(toys.Plain(toy), request_delay=delay)

    async def answered(**limits: Any) -> FusionResult:
        assistants = [served((*_BASE, b""), 0, 15, 0), served(_SHUFFLED, 0, 16, 0.001)]
        writer, rule = served(_WORDS, 455, 15, 0.001), RuleVerifier(alpha=0.5, beta=0.5)
        return await fuse("a b", draft=writer, assistant=assistants, verifier=rule, unit="word", max_tokens=1, **limits)

    whole = await answered()
    assert plain(whole) == [("一", "assistant 1")]
    for most in range(1, 40):
        check_prefix(await answered(max_billed_tokens=most, on_budget="end"), whole, "max_billed_tokens")


@pytest.mark.parametrize(
    ("kind", "least", "reads"), [(ScriptedProvider, 41, "40 tokens"), (Unheard, 11, "about 10 tokens")]
)
async def test_a_limit_that_no_answer_can_keep_is_refused(kind: Any, least: int, reads: str) -> None:
    prompt = "Q" * 40
    writer = kind(TextModel({prompt: [" a", " b", " c"]}))
    asked = assistant()
    words = (
        f"max_billed_tokens={least - 1} is less than any answer costs: the draft reads {reads} of prompt and writes "
        "at least one. Nothing was sent"
    )
    async with Fusion(draft=writer, assistant=asked) as fusion:
        with pytest.raises(BudgetError) as caught:
            await fusion.generate(prompt, max_billed_tokens=least - 1)
        assert str(caught.value) == f"{words}. Allow {least} at the very least."
        ended = await fusion.generate(prompt, max_billed_tokens=least - 1, on_budget="end")
        assert (ended.text, ended.finish_reason, ended.warnings) == ("", "budget", (words,))
        assert writer.requests == asked.requests == 0
        await fusion.generate(prompt, max_billed_tokens=least, on_budget="end")
        assert writer.requests == 1


async def test_a_limit_raises_with_what_is_verified() -> None:
    async with Fusion(draft=draft(), assistant=assistant()) as fusion, fusion.stream("Q:", max_requests=1) as stream:
        texts, error = await before_error(stream, BudgetError, r"^max_requests=1 is reached \(1 were sent\)")
    partial = error.partial
    assert isinstance(partial, FusionResult)
    assert (partial.text, partial.finish_reason, partial.stop_reason) == (" The capital is", "budget", "max_requests")
    assert "".join(texts) == partial.text
    assert (partial.draft_requests, partial.assistant_requests, sent(partial)) == (1, 0, 1)
    assert partial.settings.max_requests == 1
    again = pickle.loads(pickle.dumps(error))
    told = (type(again), again.limit, again.partial, str(again))
    assert told == (BudgetError, "max_requests", partial, str(error))


class BillsLate(ScriptedProvider):
    """Bills a draft when it is over, as most servers do."""

    async def generate(self, *args: Any, usage: Usage, **kwargs: Any) -> Any:
        own = Usage()
        usage.sent(0.0)
        try:
            async with aclosing(super().generate(*args, usage=own, **kwargs)) as stream:
                async for item in stream:
                    yield item
        finally:
            usage.closed(0.0)
            usage.bill(own.prompt_tokens, own.completion_tokens)


async def test_a_draft_is_stopped_by_its_own_tokens() -> None:
    script: dict[str, Sequence[ScriptToken]] = {"Q:": [f" {number}" for number in range(100)]}
    writer = BillsLate(TextModel(script))
    result = await fuse("Q:", draft=writer, assistant=assistant(), max_billed_tokens=12, on_budget="end")
    assert (result.finish_reason, result.stop_reason) == ("budget", "max_billed_tokens")
    assert result.drafted_tokens == result.usage["draft"].completion_tokens == 10  # and 2 of the prompt
    assert result.text == "".join(f" {number}" for number in range(9))  # the last word was not ended
    assert writer.open_requests == 0


async def test_what_a_draft_reads_counts_before_it_is_billed() -> None:
    """As long as nobody has billed its prompt, an assistant could be asked far beyond the limit."""
    prompt = "Q" * 400
    words: list[ScriptToken] = [(f" {number}", 0.2) for number in range(100)]
    writer, asked = BillsLate(TextModel({prompt: words})), ScriptedProvider.from_texts({prompt: words})
    with pytest.raises(BudgetError, match=r"^max_billed_tokens=401 is reached") as caught:
        await fuse(prompt, draft=writer, assistant=asked, unit="token", max_billed_tokens=401)
    assert asked.requests == 0
    assert caught.value.partial.usage["draft"].billed_tokens == 401


async def test_what_a_server_does_not_tell_is_estimated_and_said() -> None:
    prompt = "Q" * 400
    model = TextModel({prompt: [" a", " b", " c"]})
    result = await fuse(prompt, draft=TellsNoPrompt(model), assistant=ScriptedProvider(model), ask="all")
    assert (result.usage["draft"].prompt_tokens, result.usage["draft"].estimated_tokens) == (200, 200)
    told = result.warnings[0]
    assert told == (
        "draft does not always report how many tokens it reads: 200 of the 200 prompt tokens in its usage are "
        "estimated from the length of the text; limits and prices count them"
    )


class ClosesSlowly(BillsLate):
    """Bills a draft that was left while the next one is under way already."""

    closing: anyio.Event

    async def generate(self, *args: Any, usage: Usage, **kwargs: Any) -> Any:
        second = self.requests == 1
        written = 0
        try:
            async with aclosing(super().generate(*args, usage=usage, **kwargs)) as stream:
                async for item in stream:
                    yield item
                    written += 1
                    if second and written == 3:
                        self.closing.set()
        finally:
            if not second:
                usage.completion_tokens, told = 0, usage.completion_tokens
                with anyio.CancelScope(shield=True):
                    await self.closing.wait()
                usage.completion_tokens += told


async def test_what_one_draft_bills_late_does_not_hide_what_the_next_one_writes() -> None:
    numbers = [f" {number}" for number in range(200)]
    first: list[ScriptToken] = [" a", (" b", 0.2), *numbers[:8]]
    writer = ClosesSlowly(TextModel({"Q:": first, "Q: a X": numbers}), faults=[Fault(None, tokens=len(first))])
    writer.closing = anyio.Event()
    asked = ScriptedProvider(TextModel({"Q: a": [(" X", 0.9)]}), request_delay=0.01)
    result = await fuse("Q:", draft=writer, assistant=asked, unit="token", max_billed_tokens=40, on_budget="end")
    assert (result.finish_reason, result.stop_reason) == ("budget", "max_billed_tokens")
    before = result.usage["assistant"].billed_tokens + len("Q:")
    assert before + result.usage["draft"].completion_tokens <= 40


class BillsAtTheEnd(ScriptedProvider):
    """Bills a draft with its last event, and nothing of one that was left before."""

    async def generate(self, *args: Any, usage: Usage, **kwargs: Any) -> Any:
        own = Usage()
        usage.sent(0.0)
        async with aclosing(super().generate(*args, usage=own, **kwargs)) as stream:
            async for item in stream:
                yield item
        usage.bill(own.prompt_tokens, own.completion_tokens)


async def test_the_bill_of_a_complete_answer_is_waited_for() -> None:
    script: dict[str, Sequence[ScriptToken]] = {"Q:": [" The", " cap", "ital"]}
    writer = BillsAtTheEnd(TextModel(script))
    result = await fuse("Q:", draft=writer, assistant=assistant(), max_billed_tokens=6)
    assert (result.text, result.finish_reason) == (" The capital", "stop")
    assert result.usage["draft"].billed_tokens == len("Q:") + 4


async def test_an_answer_that_is_complete_when_a_limit_is_reached_is_complete() -> None:
    whole = await fuse("Q:", draft=draft(), assistant=assistant())
    billed = sum(usage.billed_tokens for usage in whole.usage.values())
    for limits in ({"max_requests": sent(whole)}, {"max_billed_tokens": billed}):
        result = await fuse("Q:", draft=draft(), assistant=assistant(), **limits)  # type: ignore[arg-type]
        assert (result.text, result.finish_reason) == (FUSED, "stop")
    with pytest.raises(BudgetError):
        await fuse("Q:", draft=draft(), assistant=assistant(), max_billed_tokens=billed - 1)
    with pytest.raises(BudgetError):
        await fuse("Q:", draft=draft(), assistant=assistant(), max_requests=2)


@pytest.mark.parametrize("late", ["draft", "assistant"])
async def test_time_ends_an_answer_with_what_is_verified(late: str) -> None:
    hangs = [Fault(None, tokens=5 if late == "draft" else 0)]
    writer = draft(faults=hangs if late == "draft" else ())
    asked = assistant(faults=hangs if late == "assistant" else ())
    async with Fusion(draft=writer, assistant=asked) as fusion:
        result = await fusion.generate("Q:", timeout=0.2, on_budget="end")
        assert (result.text, result.finish_reason, result.stop_reason) == (" The capital is", "budget", "timeout")
        assert writer.open_requests == asked.open_requests == 0
        assert (await fusion.generate("Q:", timeout=60)).text == FUSED


async def test_time_that_is_over_is_a_timeout_error() -> None:
    words = r"^the answer took longer than timeout=0\.2 seconds\. Allow more"
    with pytest.raises(TimeoutError, match=words) as caught:
        await fuse("Q:", draft=draft(), assistant=assistant(faults=[Fault(None)]), timeout=0.2)
    error = caught.value
    assert isinstance(error, BudgetTimeoutError)
    assert isinstance(error, BudgetError)
    assert (error.limit, error.partial.text, error.partial.stop_reason) == ("timeout", " The capital is", "timeout")
    assert type(pickle.loads(pickle.dumps(error))) is BudgetTimeoutError


async def test_time_that_is_over_before_anything_was_known_is_an_error() -> None:
    class Silent(ScriptedProvider):
        async def describe(self) -> Any:
            await anyio.sleep_forever()

    words = r"^the servers were not identified within timeout=0\.05 seconds, .* no text yet\. Allow more [^:]*\)\.$"
    with pytest.raises(BudgetTimeoutError, match=words) as caught:
        await fuse("Q:", draft=Silent(TextModel(DRAFT)), assistant=assistant(), timeout=0.05, on_budget="end")
    assert caught.value.partial is None


async def test_limits_are_each_answers_own_in_a_map() -> None:
    async with Fusion(draft=draft(), assistant=assistant()) as fusion:
        results = [one async for one in fusion.map(["Q:"] * 5, max_requests=2, on_budget="end")]
    assert [sent(result) for result in results] == [2] * 5
    assert {result.text for result in results} == {" The capital is Lima"}


async def test_map_gives_errors_in_their_place() -> None:
    error = ServerError("broke", status=500)
    writer = ScriptedProvider.from_texts({f"{number}:": [f" {number}"] for number in range(4)})
    writer.faults = [Fault(error, request=2)]
    async with Fusion(draft=writer, assistant=assistant()) as fusion:
        prompts = [f"{number}:" for number in range(4)]
        results = [one async for one in fusion.map(prompts, concurrency=1, on_error="return")]
        assert [one.text if isinstance(one, FusionResult) else one for one in results] == [" 0", error, " 2", " 3"]
        writer.faults = [Fault(error, request=6)]
        seen, _ = await before_error(fusion.map(prompts, concurrency=1), ServerError)
        assert seen == [" 0"]


@pytest.mark.usefixtures("no_waiting")
async def test_what_is_sent_again_over_http_counts_too() -> None:
    server = FakeLlamaCpp(TextModel({"Q:": [" The", " capital"]}))
    sent_out = 0

    def broken(request: httpx.Request) -> httpx.Response:
        nonlocal sent_out
        if b'"stream":true' not in request.content:
            return server.handle(request)
        sent_out += 1
        return httpx.Response(500, json={"error": {"message": "broken", "code": 500}})

    async with httpx.AsyncClient(transport=httpx.MockTransport(broken)) as client:
        provider = connect("http://gpu1", engine="llama.cpp", http_client=client)
        async with Fusion(draft=provider, assistant=assistant()) as fusion:
            learning = sent_out
            with pytest.raises(BudgetError) as caught:
                await fusion.generate("Q:", max_requests=2)
    assert sent_out - learning == 2
    usage = caught.value.partial.usage["draft"]
    assert (usage.requests, usage.retries) == (1, 1)
