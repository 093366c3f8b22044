"""Requests to the models of one answer, in which each model follows its own path through the answer."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Self, TypeVar

from cosd_api.decoding.calls import Calls, placed
from cosd_api.decoding.chance import Chance
from cosd_api.decoding.characters import Characters
from cosd_api.decoding.commands import Loss, StartDraft
from cosd_api.decoding.encodings import Encodings
from cosd_api.decoding.open_stream import OpenStream
from cosd_api.decoding.passage import Passage
from cosd_api.decoding.paths import Path, Paths, Trail
from cosd_api.decoding.run import AnswerJob
from cosd_api.decoding.tasks import AnswerTasks
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import DraftEnd, IdScores, Proposal, Question, Token, WordEnds
from cosd_providers.errors import ProviderError, UnsupportedError
from cosd_providers.messages import Message, RenderedPrompt
from cosd_providers.sampling import other_seed
from cosd_providers.text import merge, sendable
from cosd_providers.tokenizers import words_of

_log = logging.getLogger("cosd_api")

_T = TypeVar("_T")


class Asker(ABC):
    """Access to the models of one answer. The answer may continue without models that fail.

    Models are numbered from 0, and the draft is model 0. A model that accepts ids is sent its own path (`Paths`); any
    other model is sent text. In both cases, the tokens of passages, proposals and scores consist of whole characters.

    Args:
        job: the models, limits, settings and record of the answer.

    Attributes:
        calls: sends the requests.
        models: indices of the models that are not lost, in the order in which the user gave them.
        count: number of models, including lost models.
        chance: source of the answer's random numbers.
    """

    def __init__(self, job: AnswerJob) -> None:
        self.calls = Calls(job.turns, job.budget, job.timeline, room=job.room)
        self.count = len(job.turns)
        self.chance = Chance(job.seed, job.turns[0].prompt)
        self.models = [model for model in range(self.count) if model - 1 not in job.without]
        self._job = job
        self._encodings = Encodings(job.turns)
        self._paths = Paths(job.turns, job.routes.by_ids, same=job.routes.same_ids)
        self._lost = {at: Loss(0, error, before=True) for at, error in job.without.items()}
        self._numbers = count(1)
        self._streams: dict[int, OpenStream] = {}
        self._tasks = AnswerTasks()

    def fresh(self) -> Self:
        """Make a copy for another answer to the same prompt by the same models."""
        other = copy(self)
        other._streams, other._paths = {}, self._paths.fresh()
        return other

    @property
    @abstractmethod
    def text(self) -> bytes:
        """The answer so far."""

    @property
    @abstractmethod
    def heard_until(self) -> int:
        """The number of leading tokens of the answer that count as verified by a model that fails now."""

    async def continuation(
        self,
        model: int,
        text: bytes,
        *,
        max_tokens: int,
        enough: Callable[[Sequence[Token]], bool] = lambda _: False,
        alternatives: int = 0,
        after: Passage | None = None,
        temperature: float = 0,
        seed: int | None = None,
        turn: RenderedPrompt | None = None,
        inside: bool = True,
    ) -> Passage:
        """Let a model continue `text` on its own path until `enough` returns True.

        Args:
            model: index of the model.
            text: the answer so far.
            max_tokens: maximum number of tokens.
            enough: called with the tokens so far; returns True if no more tokens are needed, which ends the request.
            alternatives: number of other tokens to list with each token.
            after: the passage with which the text ends. A model that is sent text continues from the passage's own
                tokens if it can.
            temperature: 0 to write the model's most probable tokens, 1 to draw tokens from its own distribution.
            seed: seed of the random draws, which must be different for each request; see `chance`.
            turn: the prompt that the text follows; by default, the prompt of the answer.
            inside: whether the model first completes a token that it wrote itself, if the text ends inside that token.

        Raises:
            ProviderError: the model failed, or a limit is reached.
        """
        tokens: list[Token] = []
        ends: list[DraftEnd] = []

        def take(item: Token | DraftEnd) -> bool:
            if isinstance(item, DraftEnd):
                ends.append(item)
                return False
            tokens.append(item)
            return not item.end and enough(tokens)

        command = StartDraft(
            next(self._numbers),
            text,
            max_tokens,
            None if after is None or after.end is None else after.end.continuation,
            (),
            alternatives=alternatives,
            temperature=temperature,
            seed=seed,
        )
        await self._with_place(model, self._generate(model, command, take, turn=turn, inside=inside))
        return Passage(tuple(tokens), command.draft, ends[0] if ends else None)

    async def read(
        self, model: int, text: bytes, take: Callable[[Token | DraftEnd, int], bool], *, max_tokens: int
    ) -> None:
        """Let a model continue `text` on its own path, and pass each token to `take` as it arrives.

        Args:
            model: index of the model.
            text: the answer so far, or a possible continuation of it.
            take: called with each token and finally with a `DraftEnd`, together with the number of the request. It
                returns True if no more tokens are needed, which ends the request.
            max_tokens: maximum number of tokens.

        Raises:
            ProviderError: the model failed, or a limit is reached.
        """
        command = StartDraft(next(self._numbers), text, max_tokens, None, ())
        await self._with_place(model, self._generate(model, command, lambda item: take(item, command.draft)))

    async def _generate(
        self,
        model: int,
        command: StartDraft,
        take: Callable[[Token | DraftEnd], bool],
        *,
        turn: RenderedPrompt | None = None,
        began: Callable[[Trail], None] | None = None,
        inside: bool = True,
    ) -> None:
        """Let a model continue a text on its own path; `take` receives whole characters. See `Calls.generate`."""
        beyond = self._paths.beyond(model, command.text) if inside and turn is None else None
        path = beyond[0] if beyond else await self._path(model, command.text) if turn is None else None
        if path is None:
            await self.calls.generate(model, command, take, turn=turn)
            return
        trail = self._paths.begin(model, path, ahead=began is not None)
        if began is not None:
            began(trail)
        await self._along(model, command, take, trail, beyond[1] if beyond else None)

    async def _along(
        self,
        model: int,
        command: StartDraft,
        take: Callable[[Token | DraftEnd], bool],
        trail: Trail,
        rest: Token | None,
    ) -> None:
        """Send requests with ids, each continuing the previous request, until enough whole characters have arrived."""
        characters, left, drawn = Characters(), command.max_tokens, 0
        over, ended, ends = False, False, list[DraftEnd]()
        ids, data = [*trail.path.ids], bytearray(trail.path.text)

        def raw(item: Token | DraftEnd) -> bool:
            nonlocal drawn
            if isinstance(item, DraftEnd):
                ends.append(item)
                return False
            trail.add(item)
            ids.append(item.id or 0)
            data.extend(item.data)
            drawn += 1
            return feed(item)

        def feed(item: Token) -> bool:
            nonlocal left, over, ended
            for token in characters.feed(item)[:left]:
                left, ended = left - 1, token.end
                over = take(token) or over
            return over

        if rest is not None:
            feed(rest)
        while not over:
            if not left:
                take(DraftEnd("limit"))
                break
            seed = other_seed(command.seed, drawn)
            now: dict[str, Any] = {"text": bytes(data), "ids": tuple(ids), "max_tokens": left, "seed": seed}
            more = replace(command, continuation=None, **now)
            await self.calls.generate(model, more, raw)
            if over:
                break
            end = ends.pop()
            if end.reason != "limit" or not left:
                take(end if ended or end.reason != "end" else DraftEnd("limit"))
                break

    async def read_on(
        self,
        model: int,
        *,
        max_tokens: int,
        ahead: int,
        enough: Callable[[Sequence[Token]], bool],
        alternatives: int = 0,
    ) -> Passage:
        """Continue the answer greedily, like `continuation`, but leave the request open for the next call.

        The next call continues to read the open request if a new request would write the same tokens. That is the case
        if the answer has continued with the tokens that the model wrote in the open request, and if these tokens are on
        the model's own path.

        Args:
            model: index of the model.
            max_tokens: maximum number of tokens.
            ahead: maximum number of tokens that a request may write; at least `max_tokens`.
            enough: see `continuation`.
            alternatives: number of other tokens to list with each token, which must be the same in all calls.

        Raises:
            ProviderError: the model failed, or a limit is reached. If an open request fails, a new request is tried
                first.
        """
        stream = self._streams.pop(model, None)
        followed = await self._follows(model, stream)
        fresh = stream is None or followed is None
        if stream is None or followed is None:
            if stream is not None:
                stream.scope.cancel()
            stream, followed = self._begin(model, ahead, alternatives), (0, list[Token]())
        at, begun = followed
        tokens: list[Token] = []
        while True:
            for token in (*begun, *stream.tokens[at:]):
                at, begun = (at, []) if begun else (at + 1, begun)
                tokens.append(token)
                if not token.end and enough(tokens):
                    self._streams[model] = stream
                    stream.read(at)
                    return Passage(tuple(tokens), stream.number, None)
                if not token.end and len(tokens) == max_tokens:
                    self._streams[model] = stream
                    stream.read(at)
                    return Passage(tuple(tokens), stream.number, DraftEnd("limit"))
            begun = []
            stream.read(at)
            if stream.end is not None and (fresh or stream.end.reason != "limit"):
                return Passage(tuple(tokens), stream.number, stream.end)
            if stream.error is not None and fresh:
                raise stream.error
            if stream.over:
                stream, at, fresh, tokens = self._begin(model, ahead, alternatives), 0, True, []
            await stream.more()

    def _begin(self, model: int, max_tokens: int, alternatives: int) -> OpenStream:
        """Let a model continue the answer in a background request, and return the stream of its tokens."""
        command = StartDraft(next(self._numbers), self.text, max_tokens, None, (), alternatives=alternatives)
        stream = OpenStream(command.text, command.draft)

        async def write() -> None:
            with stream.scope:
                try:
                    await self._with_place(model, self._generate(model, command, stream.take, began=stream.began))
                except Exception as error:  # noqa: BLE001 - `read_on` raises it
                    stream.failed(error)

        self._tasks.start(write)
        return stream

    async def _follows(self, model: int, stream: OpenStream | None) -> tuple[int, list[Token]] | None:
        """Find how far the answer has followed an open stream; None if a new request has to be sent.

        Returns:
            The number of the stream's tokens that the answer contains and, if the answer ends inside a token, the rest
            of that token. None if a new request might not continue with
            the stream's tokens.
        """
        if stream is None or stream.error is not None:
            return None
        if stream.trail is None:
            tokens = stream.own(self.text)
            same = tokens is not None and await self._encodings.reads_as(model, stream.start, tokens)
            return (len(tokens), []) if same and tokens is not None else None
        while not stream.over and stream.behind(self.text):
            await stream.more()
        count, rest = stream.followed(self.text)
        stream.read(count + len(rest))
        return (count + len(rest), rest) if count + len(rest) and self._paths.follows(stream.trail, self.text) else None

    async def propose(
        self, model: int, text: bytes, questions: Sequence[Question], *, alternatives: int = 0
    ) -> list[Proposal | None]:
        """Ask a model for its own choice of one token at each of several places of `text`, on its own path.

        The path covers the whole text, so text after a place can affect the tokens before the place. See
        `contract.Provider.propose`.

        Raises:
            ProviderError: the model failed, or a limit is reached.
        """
        return await self._with_place(model, self._proposed(model, text, questions, alternatives))

    async def _proposed(
        self, model: int, text: bytes, questions: Sequence[Question], alternatives: int
    ) -> list[Proposal | None]:
        paths = [await self._path_at(model, text, question.start) for question in questions]
        known = [path for path in paths if path is not None]
        if len(known) < len(paths):
            return await self.calls.propose(model, text, questions, alternatives=alternatives)
        return await self._chosen(model, known, alternatives)

    async def _chosen(self, model: int, paths: Sequence[Path], alternatives: int) -> list[Proposal | None]:
        """The model's most probable next token after each path, extended to whole characters."""
        found: list[Proposal | None] = [None] * len(paths)
        trails = [Trail(model, path) for path in paths]
        joined = [Characters() for _ in paths]
        left = [*range(len(paths))]
        while left:
            here = [trails[at].path for at in left]
            asked = await self._after(model, here, alternatives)
            open_ = list[int]()
            for at, proposal in zip(left, asked, strict=True):
                if proposal is None:
                    tokens = joined[at].flush()
                else:
                    trails[at].add(proposal.tokens[0])
                    tokens = joined[at].feed(proposal.tokens[0])
                if tokens:
                    found[at] = Proposal(len(paths[at].text), (tokens[0],))
                elif proposal is not None:
                    open_.append(at)
            left = open_
        return found

    async def _after(self, model: int, paths: Sequence[Path], alternatives: int) -> list[Proposal | None]:
        """The model's most probable raw token after each path, found in one request if all paths have the same text."""
        longest = max((path.text for path in paths), key=len)
        if not all(longest.startswith(path.text) for path in paths):
            return [one for path in paths for one in await self._after(model, [path], alternatives)]
        questions, ids = [Question(len(path.text), ()) for path in paths], [path.ids for path in paths]
        return await self.calls.propose(model, longest, questions, alternatives=alternatives, paths=ids)

    async def _path(self, model: int, text: bytes) -> Path | None:
        """The model's own path through a text; None if the model is sent text."""
        self._paths.forget(self.text)
        return await self._paths.path(model, text)

    async def _path_at(self, model: int, text: bytes, at: int) -> Path | None:
        """The model's own path up to byte `at` of a text; if possible, the start of its path through all the text."""
        whole = await self._path(model, text)
        here = None if whole is None else whole.before(at)
        return here if whole is None or here is not None else await self._path(model, text[:at])

    async def score(self, model: int, text: bytes, start: int, *, end: bool = False, ahead: bytes = b"") -> list[Token]:
        """Score the tokens of a model's own path through `text` that end after byte `start`.

        Args:
            model: index of the model.
            text: the answer so far, followed by the text to score.
            start: byte offset at which the text to score begins. A token that extends across this offset is scored as a
                whole.
            end: whether to score the end of sequence after `text` as an additional token, whose probability is None if
                the endpoint does not report it.
            ahead: known text after `text`. If the model is sent ids, they include `ahead`, and a token that extends
                across the end of `text` is scored as a whole.

        Raises:
            ProviderError: the model failed, or a limit is reached.
        """
        try:
            return await self._with_place(model, self._scored(model, text, start, end=end, ahead=ahead))
        except UnsupportedError:
            if not end:
                raise
        tokens = await self._with_place(model, self._scored(model, text, start)) if text[start:] else []
        return [*tokens, Token(b"", None, end=True)]

    async def _scored(
        self, model: int, text: bytes, start: int, *, end: bool = False, ahead: bytes = b""
    ) -> list[Token]:
        path = await self._path(model, text + ahead)
        if path is None or not self._scores_ids(model):
            return await self.calls.score(model, text, start, end=end)
        path = path.over(len(text))
        tokens = await self.calls.score_path(model, path, bisect_right(path.ends, start), end=end)
        return [*_joined(one for one in tokens if not one.end), *(one for one in tokens if one.end)]

    def _scores_ids(self, model: int) -> bool:
        return isinstance(self._job.turns[model].on_path, IdScores)

    async def score_behind(self, model: int, text: bytes, data: bytes, *, end: bool = False) -> list[Token]:
        """Score the tokens of `data` on a model's own path through `text` and `data`.

        Unlike `score`, this method cuts a token that extends across the end of `text`. With `end`, the end of sequence
        is scored as an additional token.

        Raises:
            ProviderError: the model failed, or a limit is reached.
        """
        path, turn = await self._path(model, text + data), self._job.turns[model]
        if (path is not None and self._scores_ids(model)) or turn.lead:  # the lead must directly follow the prompt
            tokens = await self._with_place(model, self._scored(model, text + data, len(text), end=end))
            before = sum(len(token.data) for token in tokens) - len(data)  # how much of `text` is in the first token
            return [replace(tokens[0], data=tokens[0].data[before:]), *tokens[1:]] if before > 0 else tokens
        longer = RenderedPrompt(turn.provider, turn.prompt + sendable(text))
        return await self._with_place(model, self.calls.score(model, data, 0, end=end, turn=longer))

    async def tokens(self, model: int, text: bytes) -> Mapping[int, bytes] | None:
        """Map byte offsets of a text to the tokens of the model's own path that begin there.

        Tokens are joined to whole characters. If the model is sent text, bytes that are not valid UTF-8 are left out.

        Returns:
            None if the path cannot be determined.

        Raises:
            ProviderError: the model failed.
        """
        path = await self._path(model, text)
        if path is None:
            known = await self._encodings.tokens(model, text)
            if known is None or sendable(text).encode() == text:
                return known
            seen = {at: len(sendable(text[:at]).encode()) for at in range(len(text) + 1)}
            return {at: known[place] for at, place in seen.items() if place in known}
        found, at = dict[int, bytes](), 0
        for token in merge(Token(piece.data, None) for piece in path.pieces(0)):
            found[at] = token.data
            at += len(token.data)
        return found

    async def reads_as(self, model: int, text: bytes, tokens: Sequence[Token]) -> bool:
        """Test whether a model's own path keeps the tokens that it wrote after `text` as they are.

        Raises:
            ProviderError: the model failed.
        """
        data = b"".join(token.data for token in tokens)
        path = await self._path(model, text + data)
        if path is not None:
            return self._paths.wrote(model, path)
        return await self._encodings.reads_as(model, text, tokens)

    async def begun(self, model: int, text: bytes, choices: Sequence[Token]) -> None:
        """Record that a model would write any of these tokens after a text, so its path may contain them."""
        path = await self._path(model, text)
        for token in choices:
            if path is not None and token.id is not None:
                self._paths.begin(model, path, [token])

    async def score_prompt(self, model: int) -> list[Token]:
        """Score a model's own encoding of the prompt as plain text, token by token; see `AnswerJob.plain`.

        The probability of the first token is None if the model has no beginning-of-sequence token to put before it.

        Raises:
            ProviderError: the model failed, or a limit is reached.
        """
        provider, text = self._job.plain[model].provider, self._job.plain[model].prompt.encode()
        turn = RenderedPrompt(provider, "")
        return await self._with_place(model, self.calls.score(model, text, 0, turn=turn)) if text else []

    async def ask_all(self, ask: Callable[[int], Awaitable[_T]], models: Sequence[int] | None = None) -> dict[int, _T]:
        """Ask all models at the same time, except those that are lost.

        If the answer may continue without a model that fails, the model is lost from now on. The answer never continues
        without the first model, the draft.

        Args:
            ask: called with the index of each model.
            models: the models to ask; by default, all models.

        Returns:
            The answer of each model, in the order in which the user gave the models.

        Raises:
            ProviderError: a model failed, and the answer cannot continue without it.
        """
        found: dict[int, _T] = {}
        failed: dict[int, Exception] = {}

        async def one(model: int) -> None:
            try:
                found[model] = await ask(model)
            except Exception as error:
                if not model or not self._job.survives(error):
                    raise
                failed[model] = error

        await concurrently([partial(one, model) for model in self.models if models is None or model in models])
        for model, error in failed.items():
            self._lose(model, error)
        return {model: found[model] for model in self.models if model in found}

    def _lose(self, model: int, error: Exception) -> None:
        _log.debug("a model failed: %s", type(error).__name__)
        self.models.remove(model)
        if (stream := self._streams.pop(model, None)) is not None:
            stream.scope.cancel()
        self._lost[model - 1] = Loss(self.heard_until, error)

    async def rendered(self, model: int, messages: Sequence[Message]) -> RenderedPrompt:
        """Render a conversation other than the prompt for a model."""
        assert self._job.render is not None
        return await self._with_place(model, self._job.render(model, messages))

    async def continues(self, model: int) -> bool:
        """Test whether a model continues a partial answer. If it does not, it accepts only messages."""
        return (await self._job.turns[model].provider.describe()).capabilities.continues

    async def splitter(self, model: int) -> WordEnds | None:
        """A function that splits text into words like the model's tokenizer; None if the tokenizer is not known."""
        return await words_of(self._job.turns[model].provider)

    async def _with_place(self, model: int, work: Awaitable[_T]) -> _T:
        try:
            return await work
        except ProviderError as error:
            placed(error, self._job.turns[model].provider)
            raise


def _joined(tokens: Iterable[Token]) -> list[Token]:
    """Join raw tokens into tokens of whole characters, including an incomplete last character."""
    characters = Characters()
    found = [whole for token in tokens for whole in characters.feed(token)]
    return [*found, *characters.flush()]
