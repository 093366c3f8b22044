"""`Fusion`: two or more models that write one text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import islice
from typing import Any, Literal, Self, overload

from cosd_api.alignment import Unit
from cosd_api.endpoints import Endpoints
from cosd_api.errors import SettingError
from cosd_api.estimate import Estimate, Past, estimate
from cosd_api.result import FusionResult
from cosd_api.settings import (
    Asking,
    Bounds,
    OnAssistantError,
    OnBudget,
    Plan,
    Prompt,
    check_choice,
    check_count,
    check_hedge,
    check_prompt,
    check_unit,
    refuse,
)
from cosd_api.stream import FusionStream, settled
from cosd_api.verification import RuleVerifier, Verifier, needs_q
from cosd_providers.contract import Provider
from cosd_providers.errors import ProviderError
from cosd_providers.messages import OnSpecialTokens

DEFAULT_MAX_TOKENS = 256


class Fusion:
    """A draft model that writes, assistants that are asked, and a verifier that decides whose word stands.

    Owns the connections to the endpoints that it was given as URLs, and what it learned of the servers; both stay
    for its lifetime, so keep one for many prompts. Constructing does no I/O. It can serve many prompts at once.

    Args:
        draft: URL of a server, or a provider (`cosd_api.connect`).
        assistant: the same, or several of them: every assistant judges every unit, and of those that would replace
            it the surest does.
        verifier: `RuleVerifier(alpha=0.5, beta=0.5)` by default, as in the paper. `AgreementVerifier` for an assistant
            that does not tell the probabilities of its tokens.
        unit: what is judged together: `"token"` (Algorithm 1 to the letter), or `"word"` for models with different
            tokenizers. By default the two encodings of a test text are compared; `"word"` when in doubt.
        draft_length: the paper's fixed rounds of K draft tokens, each followed by its verification. By default one
            draft streams on and verification keeps up with it. It is a matter of cost only: the text is the same.
        max_ahead: at most so many tokens are drafted beyond what is verified. By default there is no bound.
        hedge: while a verdict is out, up to so many drafts are already started from what the draft itself found nearly
            as probable. A replacement that is one of them goes on without a restart; the others are cancelled. The
            text is the same; the draft's endpoint has up to `hedge` more streams at a time, and writes more tokens
            (`max_ahead` bounds each of the drafts by itself). Where two in a row fail there are no more in this answer.
        in_flight: requests to one assistant at a time. With 2 what comes up while one is out is asked at once: a little
            faster, and many more requests.
        batch_wait: seconds that a first question waits, while drafting goes on, for more to be asked with it: fewer
            requests, and a slower answer.
        ask: `"contestable"` asks an assistant only where its answer could change the text; `"all"` asks about
            every unit, for those who want to see what it says everywhere. The text is the same.
        on_assistant_error: what happens where an answer waits for an assistant that has failed for good: `"raise"`
            ends it with the error, whose `partial` is the result so far. `"draft"` goes on without it: what it might
            have changed has `token.verified` False, and a warning says since where and why. Nothing counts that it said
            about later places, and the draft begins anew there: the answer depends on where it failed, and not on when.
            One that is down from the start is left out of the whole answer; one that cannot be used at all (no such
            model, say) is an error either way. The answers of the next 30 seconds leave it out, too, where trying again
            takes time; then one of them tries it. One that hangs has failed when its `connect(timeout=...)` is over.
        on_special_tokens: where a message holds a special token of a model as text (`<|im_end|>`), it stays text with
            an endpoint that takes token ids. With one that takes text only the model reads it as the token: `"warn"`
            says so in the result's warnings, `"refuse"` is an error before the first token.

    Raises:
        SettingError: a setting that a fusion cannot take, with the reason.
        cosd_providers.ProviderError: from every method, where an endpoint failed.
    """

    def __init__(
        self,
        *,
        draft: str | Provider,
        assistant: str | Provider | Sequence[str | Provider],
        verifier: Verifier | None = None,
        unit: Unit | None = None,
        draft_length: int | None = None,
        max_ahead: int | None = None,
        hedge: int = 0,
        in_flight: int = 1,
        batch_wait: float = 0.0,
        ask: Asking = "contestable",
        on_assistant_error: OnAssistantError = "raise",
        on_special_tokens: OnSpecialTokens = "warn",
        **refused: Any,
    ) -> None:
        refuse(refused, Fusion.__init__)
        self._plan = Plan.checked(
            verifier=verifier if verifier is not None else RuleVerifier(),
            draft_length=draft_length,
            max_ahead=max_ahead,
            hedge=hedge,
            in_flight=in_flight,
            batch_wait=batch_wait,
            ask=ask,
            on_assistant_error=on_assistant_error,
            on_special_tokens=on_special_tokens,
        )
        asks_q, spares = needs_q(self._plan.verifier), on_assistant_error == "draft"
        self._endpoints = Endpoints(draft, assistant, unit=check_unit(unit), needs_q=asks_q, spares=spares)
        check_hedge(self._plan.hedge, self._endpoints.draft)
        self._past = Past()

    async def __aenter__(self) -> Self:
        await self._endpoints.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._endpoints.__aexit__(*exc)

    def __repr__(self) -> str:
        names = ", ".join(provider.name for provider in self._endpoints.assistants)
        return f"Fusion(draft={self._endpoints.draft.name}, assistant={names}, verifier={self._plan.verifier!r})"

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] | None = None,
        timeout: float | None = None,
        max_requests: int | None = None,
        max_billed_tokens: int | None = None,
        on_budget: OnBudget = "raise",
        **refused: Any,
    ) -> FusionStream:
        """The answer as it becomes final, token by token::

            async with fusion.stream(prompt) as stream:
                async for token in stream:
                    print(token.text, end="")
            stream.result

        Leaving the block early cancels what is under way at every server.

        Args:
            prompt: text that all models go on from; or a conversation, a list of messages (`Message`, or dictionaries
                with `role` and `content`), which each of them reads through its own chat template. Of a last message of
                the assistant it is the rest that is written.
            max_tokens: of the answer, its end of sequence included.
            stop: strings; the answer ends before the first one.
            timeout: seconds for the whole answer.
            max_requests: generation requests to all endpoints together, those sent again included.
            max_billed_tokens: tokens read and written by all endpoints together, as they bill them; see
                `cosd_api.budget.Budget` for what counts when, and what does not.
            on_budget: at one of these three limits `"raise"` raises `BudgetError`; `"end"` ends the answer with what is
                verified (`finish_reason="budget"`, and `stop_reason` says which), unless no server is known yet.

        Raises:
            SettingError: e.g. `temperature`: the draft is greedy by definition.
            ProviderError: while reading; its `partial` is the result so far, None where nothing was begun.
        """
        refuse(refused, Fusion.stream)
        bounds = Bounds.checked(max_tokens, stop, timeout, max_requests, max_billed_tokens, on_budget)
        return FusionStream(self._endpoints, self._plan, check_prompt(prompt), bounds, self._past)

    async def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - so it is called everywhere
        max_requests: int | None = None,
        max_billed_tokens: int | None = None,
        on_budget: OnBudget = "raise",
        **refused: Any,
    ) -> FusionResult:
        """The whole answer at once. Arguments and errors are those of `stream`."""
        refuse(refused, Fusion.generate)
        bounds = Bounds.checked(max_tokens, stop, timeout, max_requests, max_billed_tokens, on_budget)
        return await self._generate(prompt, bounds)

    async def _generate(self, prompt: Prompt, bounds: Bounds) -> FusionResult:
        async with FusionStream(self._endpoints, self._plan, check_prompt(prompt), bounds, self._past) as stream:
            return await stream.finished()

    @overload
    def map(
        self,
        prompts: Iterable[Prompt],
        *,
        concurrency: int = 8,
        on_error: Literal["raise"] = "raise",
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] | None = None,
        timeout: float | None = None,
        max_requests: int | None = None,
        max_billed_tokens: int | None = None,
        on_budget: OnBudget = "raise",
        **refused: Any,
    ) -> AsyncGenerator[FusionResult, None]: ...
    @overload
    def map(
        self,
        prompts: Iterable[Prompt],
        *,
        concurrency: int = 8,
        on_error: Literal["return"],
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] | None = None,
        timeout: float | None = None,
        max_requests: int | None = None,
        max_billed_tokens: int | None = None,
        on_budget: OnBudget = "raise",
        **refused: Any,
    ) -> AsyncGenerator[FusionResult | ProviderError | SettingError, None]: ...
    async def map(
        self,
        prompts: Iterable[Prompt],
        *,
        concurrency: int = 8,
        on_error: Literal["raise", "return"] = "raise",
        max_tokens: int = DEFAULT_MAX_TOKENS,
        stop: str | Sequence[str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
        max_requests: int | None = None,
        max_billed_tokens: int | None = None,
        on_budget: OnBudget = "raise",
        **refused: Any,
    ) -> AsyncGenerator[FusionResult | ProviderError | SettingError, None]:
        """The answers to many prompts, in their order, at most `concurrency` under way at once.

        `prompts` is read as it is needed. Leaving the loop cancels what is under way. The first error ends it; with
        `on_error="return"` a `ProviderError` (its `partial` is what there is of the answer), or the `SettingError` of a
        prompt that is none, stands in its place instead. Limits are each answer's own. The rest is as with `stream`.
        """
        refuse(refused, Fusion.map)
        if isinstance(prompts, str):
            raise SettingError("map takes several prompts; for one, use generate or stream")
        check_count("concurrency", concurrency)
        check_choice("on_error", on_error, Literal["raise", "return"])
        bounds = Bounds.checked(max_tokens, stop, timeout, max_requests, max_billed_tokens, on_budget)
        waiting = iter(prompts)
        # Plain tasks, not a task group: a generator may be closed from another task than the one that runs it.
        tasks: list[asyncio.Task[FusionResult]] = []
        try:
            while True:
                work = (self._generate(prompt, bounds) for prompt in islice(waiting, concurrency - len(tasks)))
                tasks.extend(asyncio.create_task(one) for one in work)  # noqa: TID251
                if not tasks:
                    return
                await asyncio.wait(tasks[:1])
                error = tasks[0].exception()
                if isinstance(error, ProviderError | SettingError) and on_error == "return":
                    yield error
                else:
                    yield tasks[0].result()
                tasks.pop(0)
        finally:
            for task in tasks:
                task.cancel()
            await settled(tasks)

    async def estimate(self, prompt: Prompt, *, max_tokens: int = DEFAULT_MAX_TOKENS, **refused: Any) -> Estimate:
        """What an answer to `prompt` may cost, at each endpoint: see `Estimate`.

        Nothing of it is generated. Servers are asked what they are, unless that is known (some by a few requests of one
        token), and how many tokens the prompt has.
        """
        refuse(refused, Fusion.estimate)
        check_count("max_tokens", max_tokens)
        return await estimate(self._endpoints, self._plan, self._past, check_prompt(prompt), max_tokens)
