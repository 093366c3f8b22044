"""The requests of one answer to its models, which are limited, counted, recorded and checked."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from typing import Any

import anyio.lowlevel

from cosd_api.budget import Budget
from cosd_api.decoding.commands import StartDraft, Watch
from cosd_api.decoding.speeds import Clock, Speeds
from cosd_api.decoding.timeline import RequestKind, RequestSpan, Timeline
from cosd_api.paths.own_ids import Path
from cosd_providers.contract import Context, DraftEnd, HiddenStates, Proposal, Provider, Question, Token
from cosd_providers.errors import BudgetError, ProviderError, ResponseError, UnsupportedError
from cosd_providers.forwarding import by_given_ids, by_ids
from cosd_providers.messages import RenderedPrompt
from cosd_providers.text import merge, sendable
from cosd_providers.usage import Usage

HELD_SECONDS = 2.0
"""Number of seconds after which a draft that waits for a slow reader is given up, to be continued later if possible.

A server writes on while the stream is not read, into the buffers of both systems: over a megabyte on one machine.
"""


class Calls:
    """Access to the models of one answer. Model 0 is the draft, and model 1 is the first assistant.

    Args:
        turns: the models with their rendered prompts.
        budget: the limits on the cost of all models together.
        timeline: the record of the requests.
        room: returns an event to wait for if the reader of the answer is too slow, else None. While a draft waits, its
            further text is not read from the server; see `HELD_SECONDS`.
        speeds: the models' speeds, which the requests measure.

    Attributes:
        draft_requests, assistant_requests, drafted_tokens: see `FusionResult`.
        reencoded: whether an endpoint has encoded its own text into tokens that it had not written.
    """

    def __init__(
        self,
        turns: Sequence[RenderedPrompt],
        budget: Budget,
        timeline: Timeline,
        *,
        room: Callable[[], asyncio.Event | None] | None = None,
        speeds: Speeds | None = None,
    ) -> None:
        self.turns = turns
        self.speeds = speeds or Speeds()
        self.draft_requests = 0
        self.assistant_requests = 0
        self.drafted_tokens = 0
        self.reencoded = False
        self._budget = budget
        self._timeline = timeline
        self._room = room
        self._sizes = [len(turn.prompt.encode()) for turn in turns]
        self._questions = count(1)
        self._watches: dict[int, RequestSpan] = {}

    async def generate(
        self,
        model: int,
        command: StartDraft,
        take: Callable[[Token | DraftEnd], bool],
        *,
        counts: Callable[[], bool] = lambda: True,
        turn: RenderedPrompt | None = None,
        question: bool = False,
    ) -> None:
        """Let a model continue a text according to a command.

        Args:
            model: index of the model.
            command: the text to continue, and the settings.
            take: called with each token and finally with one `DraftEnd`. It returns True if no more tokens are needed,
                which ends the request.
            counts: returns False when further tokens no longer count towards the limits, because the request now
                continues only to receive its bill. Called only if tokens are limited or the reader is slow.
            turn: the prompt that the text follows; by default, the prompt of the answer.
            question: whether the request asks an assistant for its word, rather than the draft model for a draft.

        Raises:
            ProviderError: the model failed (see `contract.Provider.generate`), or a limit is reached.
        """
        items = self.items(model, command, counts=counts, turn=turn, question=question)
        await _until(take, items)

    async def items(
        self,
        model: int,
        command: StartDraft,
        *,
        counts: Callable[[], bool] = lambda: True,
        turn: RenderedPrompt | None = None,
        question: bool = False,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Let a model continue a text according to a command, and yield each token and finally one `DraftEnd`.

        The next token is read from the server when the caller asks for it. Closing the generator ends the request. See
        `generate` for the arguments and errors.
        """
        self._budget.check()
        self.draft_requests += not question
        self.assistant_requests += question
        if command.own and command.continuation is None and command.ids is None:
            await self._compare_encodings(model, command)
        kind: RequestKind = "question" if question else "draft"
        async with aclosing(self._write(model, command, kind=kind, counts=counts, turn=turn)) as items:
            async for item in items:
                yield item

    async def watch(
        self, watch: Watch, take: Callable[[Token | DraftEnd], bool], *, counts: Callable[[], bool] = lambda: True
    ) -> None:
        """Let an assistant write from a place in the answer; see `generate` for `take` and `counts`.

        Raises:
            ProviderError: the model failed, or a limit is reached.
        """
        self._budget.check()
        self.assistant_requests += 1
        also: Any = {"alternatives": watch.alternatives, "ids": watch.ids}
        command = StartDraft(watch.watch, watch.text, watch.max_tokens, None, (), **also)
        await _until(take, self._write(1 + watch.assistant, command, kind="watch", counts=counts))

    def count_answered(self, watch: int, assistant: int) -> None:
        """Count a place that a watch has answered, both in the assistant's ledger and in the record of the request."""
        self._watches[watch].places += 1
        self._budget.answered_by(1 + assistant, "watch")

    async def _write(
        self,
        model: int,
        command: StartDraft,
        *,
        kind: RequestKind,
        counts: Callable[[], bool],
        turn: RenderedPrompt | None = None,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Send one request in which a model writes; see `items`."""
        size = (self._sizes[model] if turn is None else len(turn.prompt.encode())) + len(command.text)
        turn, own = turn or self.turns[model], turn is None
        drafts = kind == "draft"
        last: Token | DraftEnd | None = None
        clock = Clock(self.speeds, model, kind, anyio.current_time, continues=bool(command.text))

        def waits() -> asyncio.Event | None:
            return self._room() if self._room is not None and kind != "watch" and counts() else None

        with self._timeline.request(model, kind, command.draft, at=len(command.text)) as span:
            if kind == "watch":
                self._watches[command.draft] = span
            span.max_tokens, span.temperature, span.seed = command.max_tokens, command.temperature, command.seed
            span.ids, span.other_prompt = None if command.ids is None else len(command.ids), not own
            with self._budget.spending(model, [size], drafts=drafts) as usage:
                span.usage = usage
                async with aclosing(self._paused(turn, command, usage, waits, clock)) as stream:
                    async for item in stream:
                        if isinstance(item, Token):
                            if item.prob is not None and not 0 <= item.prob <= 1:
                                raise _no_probability(item.prob, turn.provider.name)
                            self.drafted_tokens += drafts
                            span.tokens += 1
                            clock.token()
                            if span.first is None:
                                span.first = self._timeline.now()
                            try:
                                yield item
                            except GeneratorExit:  # no more tokens are needed; the caller may have cancelled this task
                                await anyio.lowlevel.checkpoint_if_cancelled()
                                return
                            usage.written += 1
                            if self._budget.counts_tokens and counts():
                                self._budget.check_tokens()
                        else:
                            _check_end(item, last, turn.provider.name)
                            span.finish = item.reason
                            yield item
                        last = item
            if not isinstance(last, DraftEnd):
                raise ResponseError("generate() ended without a DraftEnd", endpoint=turn.provider.name)

    async def _paused(
        self,
        turn: RenderedPrompt,
        command: StartDraft,
        usage: Usage,
        waits: Callable[[], asyncio.Event | None],
        clock: Clock,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        """Yield the items of a request, which waits for a slow reader, and is given up and continued if it waits long.

        Only greedy text that continues from ids is given up, because it is certain to continue with the same tokens.
        """
        held = HELD_SECONDS if command.ids is not None and not (command.temperature or command.states) else math.inf
        while True:
            given = list[Token]()
            async with aclosing(_stream(turn, command, usage)) as stream:
                async for item in stream:
                    yield item
                    if isinstance(item, DraftEnd):  # after it, the provider notes the bill
                        continue
                    given.append(item)
                    if (room := waits()) is not None:
                        follows = item.id is not None and not item.end and len(given) < command.max_tokens
                        with anyio.move_on_after(held if follows else math.inf) as scope:
                            await room.wait()
                        if scope.cancelled_caught:
                            break
                    clock.start()
                else:
                    return
            await room.wait()
            self._budget.check()
            command = replace(
                command,
                text=command.text + b"".join(token.data for token in given),
                ids=(*(command.ids or ()), *(token.id or 0 for token in given)),
                max_tokens=command.max_tokens - len(given),
                continuation=None,
            )
            clock.start()

    async def propose(
        self,
        model: int,
        text: bytes,
        questions: Sequence[Question],
        *,
        number: int | None = None,
        alternatives: int = 0,
        paths: Sequence[tuple[int, ...]] | None = None,
    ) -> list[Proposal | None]:
        """Ask a model for its own choices at several places of `text`; see `contract.Provider.propose`.

        If `paths` is given, it contains the ids before each place, and the model is asked for the next token after
        these ids; see `contract.IdContexts.next_tokens`.

        Raises:
            ProviderError: the model failed, or a limit is reached.
        """
        turn = self.turns[model]
        provider = turn.provider if paths is None else turn.on_path
        self._budget.check()
        self.assistant_requests += 1
        sizes = [self._sizes[model] + question.start for question in questions]
        number = next(self._questions) if number is None else number
        began, first = anyio.current_time(), not text[: questions[0].start]
        with self._timeline.request(model, "question", number, at=questions[0].start, places=len(sizes)) as span:
            with self._budget.spending(model, sizes) as usage:
                span.usage = usage
                also = {"alternatives": alternatives} if alternatives else {}  # not every provider knows the keyword
                if paths is None:
                    proposals = await provider.propose(Context(turn.prompt, text), questions, usage=usage, **also)
                else:
                    places = [one.start for one in questions]
                    contexts = [Context(turn.prompt, text[:at], ids) for at, ids in zip(places, paths, strict=True)]
                    tokens = await by_ids(provider).next_tokens(contexts, usage=usage, **also)
                    proposals = [
                        None if token is None else Proposal(at, (token,))
                        for at, token in zip(places, tokens, strict=True)
                    ]
            if len(proposals) != len(questions):
                words = f"propose() gave {len(proposals)} answers to {len(questions)} questions"
                raise ResponseError(words, endpoint=provider.name)
            for proposal in proposals:
                check_probs(proposal.tokens if proposal is not None else (), provider.name)
        if model and not first:  # the first question reads the prompt
            self.speeds.questions.add(anyio.current_time() - began)
        return proposals

    async def score(
        self,
        model: int,
        text: bytes,
        start: int,
        *,
        end: bool = False,
        alternatives: int = 0,
        turn: RenderedPrompt | None = None,
    ) -> list[Token]:
        """Score the tokens of a model's own encoding of `text` that end after byte `start`.

        With `end`, the end of sequence is scored as an additional token, whose probability is None if it is not
        reported. For `alternatives`, see `contract.Provider.score`. The text follows the prompt of `turn`, which is the
        answer's prompt by default.

        Raises:
            ProviderError: the model failed, or a limit is reached.
        """
        turn = turn or self.turns[model]
        provider = turn.provider
        self._budget.check()
        self.assistant_requests += 1
        size = len(turn.prompt.encode()) + len(text)
        with self._timeline.request(model, "score", next(self._questions), at=start) as span:
            with self._budget.spending(model, [size]) as usage:
                span.usage = usage
                also: dict[str, Any] = {"end": True} if end else {}  # not every provider knows the keyword
                also |= {"alternatives": alternatives} if alternatives else {}
                tokens = await provider.score(Context(turn.prompt, text), usage=usage, **also)
            check_probs(tokens, provider.name)
        start = len(sendable(text[:start]).encode())  # bytes that are not valid UTF-8 are not sent
        at, following = 0, list[Token]()
        for token in tokens:
            at += len(token.data)
            if at > start or token.end:
                following.append(token)
        return following

    async def score_path(
        self, model: int, path: Path, first: int, *, end: bool = False, alternatives: int = 0
    ) -> list[Token]:
        """Score the tokens of a model's own path through the answer, from index `first` on.

        With `end`, the end of sequence is scored as an additional token. See `score` for the other arguments.

        Raises:
            ProviderError: the model failed, or a limit is reached.
        """
        turn, pieces = self.turns[model], path.pieces(first)
        provider = turn.on_path
        self._budget.check()
        self.assistant_requests += 1
        size, start = self._sizes[model] + len(path.text), len(path.text) - sum(len(piece.data) for piece in pieces)
        with self._timeline.request(model, "score", next(self._questions), at=start) as span:
            with self._budget.spending(model, [size]) as usage:
                span.usage = usage
                also: dict[str, Any] = {"end": True} if end else {}
                also |= {"alternatives": alternatives} if alternatives else {}
                context = Context(turn.prompt, path.text, path.ids)
                tokens = await by_given_ids(provider).score_ids(context, first, usage=usage, **also)
            check_probs(tokens, provider.name)
        if [token.id for token in tokens if not token.end] != [piece.id for piece in pieces]:
            raise ResponseError(
                "score_ids() gave other tokens than the ids that it was asked about", endpoint=provider.name
            )
        own = [replace(token, data=piece.data) for token, piece in zip(tokens, pieces, strict=False)]
        return [*own, *tokens[len(own) :]]

    async def _compare_encodings(self, model: int, command: StartDraft) -> None:
        """Record in `reencoded` whether a text-only endpoint encodes its own text into tokens that it did not write."""
        turn = self.turns[model]
        if self.reencoded or not (await turn.provider.describe()).capabilities.tokenize:
            return
        try:
            pieces = await turn.provider.tokenize(turn.prompt + sendable(command.text))
        except UnsupportedError:  # the encoding of this text cannot be determined
            return
        tokens = [token.data for token in merge(Token(piece.data, None) for piece in pieces)]
        self.reencoded = tokens[-len(command.own) :] != list(command.own)


async def _until(take: Callable[[Token | DraftEnd], bool], items: AsyncGenerator[Token | DraftEnd, None]) -> None:
    """Pass each item to `take`, until `take` returns True for a token."""
    async with aclosing(items):
        async for item in items:
            if take(item) and isinstance(item, Token):
                return


def _stream(turn: RenderedPrompt, command: StartDraft, usage: Usage) -> AsyncGenerator[Token | DraftEnd, None]:
    """The tokens, and finally the end, that a model writes for a command."""
    # Keywords are passed only if they are needed, because a provider may not know them.
    also: dict[str, Any] = {"alternatives": command.alternatives} if command.alternatives else {}
    if command.temperature:
        also |= {"temperature": command.temperature, "seed": command.seed}
    provider = turn.provider if command.ids is None else turn.on_path
    generate: Callable[..., AsyncGenerator[Token | DraftEnd, None]] = provider.generate
    if command.states:
        generate = _with_states(turn.provider).generate_with_states
    return generate(
        Context(turn.prompt, command.text, command.ids),
        max_tokens=command.max_tokens,
        continuation=command.continuation,
        usage=usage,
        **also,
    )


def _with_states(provider: Provider) -> HiddenStates:
    """Return the provider if it can report hidden states.

    Raises:
        UnsupportedError: the provider cannot report hidden states.
    """
    if isinstance(provider, HiddenStates):
        return provider
    raise UnsupportedError("the provider has no generate_with_states()", endpoint=provider.name)


def placed(error: Exception, provider: Provider) -> Exception:
    """Add the endpoint to an error, except to an error about a limit, which concerns no single endpoint."""
    if isinstance(error, ProviderError) and not error.endpoint and not isinstance(error, BudgetError):
        error.endpoint = provider.name
    return error


def check_probs(tokens: Iterable[Token], endpoint: str) -> None:
    """Refuse numbers that are not probabilities, because a verdict based on them would be meaningless."""
    for token in tokens:
        if token.prob is not None and not 0 <= token.prob <= 1:
            raise _no_probability(token.prob, endpoint)


def _no_probability(value: float, endpoint: str) -> ResponseError:
    words = f"the probability of a token is {value!r}, which is not between 0 and 1"
    return ResponseError(words, endpoint=endpoint, hint="A logarithm becomes a probability by math.exp.")


def _check_end(end: DraftEnd, last: Token | DraftEnd | None, endpoint: str) -> None:
    """Refuse an end that violates the contract of `generate`, because drafting might never stop after it."""
    if end.reason == "limit" and last is None:
        raise ResponseError("generate() reached its limit without a token", endpoint=endpoint)
    if end.reason == "end" and not (isinstance(last, Token) and last.end):
        raise ResponseError("generate() ended without an end token before", endpoint=endpoint)
