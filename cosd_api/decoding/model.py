"""The models of one answer, each of which follows its own path through the answer."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from cosd_api.common.tasks import AnswerTasks
from cosd_api.decoding.answer_job import AnswerJob
from cosd_api.decoding.calls import Calls, placed
from cosd_api.decoding.chance import Chance
from cosd_api.decoding.characters import Characters
from cosd_api.decoding.commands import Contender, DecidedSegment, Loss, StartDraft
from cosd_api.decoding.encodings import Encodings
from cosd_api.decoding.passage import Passage, is_stuck, joined, numbered
from cosd_api.decoding.reusable_stream import ReusableStream
from cosd_api.decoding.word_ends import unicode_words
from cosd_api.paths.own_ids import Path, Paths, Trail
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import DraftEnd, IdScores, Proposal, Question, Token, WordEnds
from cosd_providers.errors import UnsupportedError
from cosd_providers.messages import Message, RenderedPrompt
from cosd_providers.sampling import other_seed
from cosd_providers.text import merge, sendable
from cosd_providers.tokenizers import words_of

if TYPE_CHECKING:
    from cosd_api.decoding.program import Answer

_log = logging.getLogger("cosd_api")

_Item = TypeVar("_Item")
_T = TypeVar("_T")

Items = AsyncGenerator[Token | DraftEnd, None]
"""The tokens of a request as they arrive, and finally its end."""


class Lost(Exception):  # noqa: N818 - it ends a program's use of a model, and is no error of the answer
    """A model has failed, and the answer continues without it."""


@dataclass(frozen=True)
class Shared:
    """The job, the requests and the lost models of one answer, which all its models share."""

    job: AnswerJob
    calls: Calls
    chance: Chance
    encodings: Encodings
    paths: Paths
    lost: dict[int, Loss]
    alive: list[int]
    tasks: AnswerTasks = field(default_factory=AnswerTasks)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @classmethod
    def of(cls, job: AnswerJob) -> Shared:
        """Begin the requests of an answer."""
        return cls(
            job,
            Calls(job.turns, job.budget, job.timeline, room=job.room),
            Chance(job.program.seed, job.turns[0].prompt),
            Encodings(job.turns),
            Paths(job.turns, job.routes.by_ids, same=job.routes.same_ids),
            {at: Loss(0, error, before=True) for at, error in job.without.items()},
            [model for model in range(len(job.turns)) if model - 1 not in job.without],
        )

    def fresh(self) -> Shared:
        """Make a copy for another answer to the same prompt by the same models."""
        return replace(self, paths=self.paths.fresh())


class Stream:
    """An open request of a model. Iterating yields its tokens; each is read from the server when it is asked for.

    Attributes:
        model: the model that writes.
        number: number of the request, in the series of drafts.
        end: the end of the request; None until it has ended by itself.
    """

    def __init__(self, model: Model, number: int, items: Items) -> None:
        self.model, self.number = model, number
        self.end: DraftEnd | None = None
        self._items = items

    @property
    def stuck(self) -> bool:
        """True if the model cannot continue, because its context is full or a filter intervened."""
        return is_stuck(self.end)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Token:
        with self.model.asking():
            async for item in self._items:
                if isinstance(item, Token):
                    return item
                self.end = item
        raise StopAsyncIteration


class Model:
    """One model of an answer in progress. Its methods send requests, which are limited, billed and recorded.

    A model whose server accepts ids is sent its own path (`Paths`); any other model is sent text. In both cases, the
    tokens of passages, proposals and scores consist of whole characters. If the model fails and the answer may continue
    without it, each method raises `Lost`. The answer never continues without the first model, the draft. Every method
    may also raise a `ProviderError`: the model failed and the answer cannot continue, or a limit is reached.

    Attributes:
        index: index of the model; 0 is the draft.
        name: the model's name in results.
    """

    def __init__(self, answer: Answer, shared: Shared, index: int) -> None:
        self.index = index
        self.name = shared.job.names[index]
        self._answer, self._shared = answer, shared
        self._calls, self._paths = shared.calls, shared.paths
        self._turn = shared.job.turns[index]
        self._open: ReusableStream | None = None

    @property
    def alive(self) -> bool:
        """False if the model is lost."""
        return self.index in self._shared.alive

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Turn a failure of the model into its loss, if the answer may continue without it.

        Raises:
            Lost: the model has failed, now or before.
        """
        lost = Lost(f"the {self.name} has failed")
        if not self.alive:
            raise lost
        try:
            yield
        except Lost:
            raise
        except Exception as error:
            placed(error, self._turn.provider)
            if not self.index or not self._shared.job.survives(error):
                raise
            self._lose(error)
            raise lost from error

    def _lose(self, error: Exception) -> None:
        if not self.alive:
            return
        _log.debug("a model failed: %s", type(error).__name__)
        self._shared.alive.remove(self.index)
        if self._open is not None:
            self._open.scope.cancel()
            self._open = None
        self._shared.lost[self.index - 1] = Loss(self._answer.written, error)

    async def write(
        self,
        max_tokens: int | None = None,
        *,
        text: bytes | None = None,
        until: Callable[[Sequence[Token]], bool] | None = None,
        listed: int = 0,
        after: Passage | None = None,
        draw: tuple[str | int, ...] | None = None,
        prompt: RenderedPrompt | None = None,
        inside: bool = True,
    ) -> Passage:
        """Let the model continue the answer, or another text.

        Args:
            max_tokens: maximum number of tokens; by default, all that may still be written.
            text: the text to continue; by default, the answer so far.
            until: called with the tokens so far; returns True if no more tokens are needed, which ends the request. By
                default, a stop string ends it.
            listed: number of other tokens to list with each token.
            after: the passage with which the text ends. A model that is sent text continues from the passage's own
                tokens if it can.
            draw: name of the draw, from which its seed is computed; see `Chance`. The tokens are then drawn from the
                model's own distribution. By default, the model writes its most probable tokens.
            prompt: another prompt, made by `rendered`, which the text follows; the text is then empty by default.
            inside: whether the model first completes a token that it wrote itself, if the text ends inside that token.
        """
        text = text if text is not None else self._answer.text if prompt is None else b""
        until = until or self._answer.stops
        tokens: list[Token] = []
        end: DraftEnd | None = None
        with self.asking():
            command = replace(
                self._command(text, max_tokens, listed),
                continuation=None if after is None or after.end is None else after.end.continuation,
                temperature=0 if draw is None else 1,
                seed=None if draw is None else self._shared.chance.seed(*draw),
            )
            async with aclosing(await self._items(command, turn=prompt, inside=inside)) as items:
                async for item in items:
                    if isinstance(item, DraftEnd):
                        end = item
                        continue
                    tokens.append(item)
                    if not item.end and until(tokens):
                        break
        return Passage(self, tuple(tokens), command.draft, end, text)

    @asynccontextmanager
    async def stream(self, max_tokens: int | None = None, *, text: bytes | None = None) -> AsyncIterator[Stream]:
        """Open a request in which the model continues the answer or `text`. Leaving the block ends the request."""
        with self.asking():
            command = self._command(self._answer.text if text is None else text, max_tokens, 0)
            items = await self._items(command)
        async with aclosing(items):
            yield Stream(self, command.draft, items)

    async def finish(self, why: str | DecidedSegment) -> None:
        """Let the model write the rest of the answer, as one segment. Each token is final as soon as it arrives.

        Args:
            why: the reason, or the decision to choose the model. The winner's text is added when it is known.

        Raises:
            Over: the answer is complete.
            Lost: the model has failed. Its tokens are kept.
        """
        if isinstance(why, str):
            why = DecidedSegment((Contender((self.index - 1,), b"", False),), 0, why)
        while True:
            async with self.stream() as stream:
                with self._answer.segment(stream, why) as segment:
                    async for token in stream:
                        segment.append([token])
                    self._answer.end_if_stuck(stream)

    def _command(self, text: bytes, max_tokens: int | None, listed: int) -> StartDraft:
        most = self._answer.left if max_tokens is None else max_tokens
        return StartDraft(next(self._shared.numbers), text, most, None, (), alternatives=listed)

    async def _items(
        self,
        command: StartDraft,
        *,
        turn: RenderedPrompt | None = None,
        began: Callable[[Trail], None] | None = None,
        inside: bool = True,
    ) -> Items:
        """Let the model continue a text on its own path, and return the items, of whole characters."""
        beyond = self._paths.beyond(self.index, command.text) if inside and turn is None else None
        path = beyond[0] if beyond else await self._path(command.text) if turn is None else None
        if path is None:
            return self._calls.items(self.index, command, turn=turn)
        trail = self._paths.begin(self.index, path, ahead=began is not None)
        if began is not None:
            began(trail)
        return self._along(command, trail, beyond[1] if beyond else None)

    async def _along(self, command: StartDraft, trail: Trail, rest: Token | None) -> Items:
        """Send requests with ids, each continuing the previous request, and yield whole characters."""
        characters, left, drawn, ended = Characters(), command.max_tokens, 0, False
        ids, data = [*trail.path.ids], bytearray(trail.path.text)
        if rest is not None:
            for token in characters.feed(rest)[:left]:
                left -= 1
                yield token
        end = DraftEnd("limit")
        while end.reason == "limit" and left:
            seed = other_seed(command.seed, drawn)
            now: dict[str, Any] = {"text": bytes(data), "ids": tuple(ids), "max_tokens": left, "seed": seed}
            async with aclosing(self._calls.items(self.index, replace(command, continuation=None, **now))) as items:
                async for item in items:
                    if isinstance(item, DraftEnd):
                        end = item
                        continue
                    trail.add(item)
                    ids.append(item.id or 0)
                    data.extend(item.data)
                    drawn += 1
                    for token in characters.feed(item)[:left]:
                        left, ended = left - 1, token.end
                        yield token
        yield end if ended or end.reason != "end" else DraftEnd("limit")

    async def read_on(self, max_tokens: int, *, until: Callable[[Sequence[Token]], bool], listed: int = 0) -> Passage:
        """Continue the answer greedily, like `write`, but leave the request open for the next call.

        The next call continues to read the open request if a new request would write the same tokens. That is the case
        if the answer has continued with the tokens that the model wrote in the open request, and if these tokens are on
        the model's own path. If an open request fails, a new request is tried first.

        Args:
            max_tokens: maximum number of tokens of the passage, and of a request.
            until: see `write`.
            listed: number of other tokens to list with each token, which must be the same in all calls.
        """
        with self.asking():
            return await self._read_on(max_tokens, until, listed)

    async def _read_on(self, max_tokens: int, until: Callable[[Sequence[Token]], bool], listed: int) -> Passage:
        text, stream, self._open = self._answer.text, self._open, None
        followed = await self._follows(stream)
        fresh = stream is None or followed is None
        if stream is None or followed is None:
            if stream is not None:
                stream.scope.cancel()
            stream, followed = self._begin(max_tokens, listed), (0, list[Token]())
        at, begun = followed
        tokens: list[Token] = []
        while True:
            for token in (*begun, *stream.tokens[at:]):
                at, begun = (at, []) if begun else (at + 1, begun)
                tokens.append(token)
                enough = not token.end and until(tokens)
                if enough or (not token.end and len(tokens) == max_tokens):
                    self._open = stream
                    stream.read(at)
                    return Passage(self, tuple(tokens), stream.number, None if enough else DraftEnd("limit"), text)
            begun = []
            stream.read(at)
            if stream.end is not None and (fresh or stream.end.reason != "limit"):
                return Passage(self, tuple(tokens), stream.number, stream.end, text)
            if stream.error is not None and fresh:
                raise stream.error
            if stream.over:
                stream, at, fresh, tokens = self._begin(max_tokens, listed), 0, True, []
            await stream.more()

    def _begin(self, max_tokens: int, listed: int) -> ReusableStream:
        """Let the model continue the answer in a background request, and return the stream of its tokens."""
        command = self._command(self._answer.text, max_tokens, listed)
        stream = ReusableStream(command.text, command.draft)

        async def write() -> None:
            with stream.scope:
                try:
                    async with aclosing(await self._items(command, began=stream.began)) as items:
                        async for item in items:
                            stream.take(item)
                except Exception as error:  # noqa: BLE001 - `read_on` raises it
                    stream.failed(error)

        self._shared.tasks.start(write)
        return stream

    async def _follows(self, stream: ReusableStream | None) -> tuple[int, list[Token]] | None:
        """Find how far the answer has followed an open stream; None if a new request has to be sent.

        Returns:
            The number of the stream's tokens that the answer contains and, if the answer ends inside a token, the rest
            of that token. None if a new request might not continue with
            the stream's tokens.
        """
        if stream is None or stream.error is not None:
            return None
        text = self._answer.text
        if stream.trail is None:
            tokens = stream.own(text)
            same = tokens is not None and await self._shared.encodings.reads_as(self.index, stream.start, tokens)
            return (len(tokens), []) if same and tokens is not None else None
        while not stream.over and stream.is_beginning_of(text):
            await stream.more()
        count, rest = stream.followed(text)
        stream.read(count + len(rest))
        return (count + len(rest), rest) if count + len(rest) and self._paths.follows(stream.trail, text) else None

    async def choices(self, passage: Passage, *, listed: int = 0) -> Sequence[Token | None]:
        """The model's own token at the place of every token of a passage, in one request; None where it gave none."""
        if passage.model is self:
            return passage.tokens
        places = numbered(passage.tokens, len(passage.before))
        questions = [Question(at, (token.data,)) for at, token in places]
        found = await self.propose(passage.before + passage.data, questions, listed=listed) if questions else []
        return [None if one is None else one.tokens[0] for one in found]

    async def next(self, place: Token | None = None, *, listed: int = 0) -> Token | None:
        """The model's own next token after the answer; None if it gave none.

        Args:
            place: the token that another model would write there, if one is known.
            listed: number of other tokens to list with the token.
        """
        question = Question(len(self._answer.text), () if place is None else (place.data,))
        [found] = await self.propose(self._answer.text, [question], listed=listed)
        return None if found is None else found.tokens[0]

    async def propose(self, text: bytes, questions: Sequence[Question], *, listed: int = 0) -> list[Proposal | None]:
        """Ask the model for its own choice of one token at each of several places of `text`, on its own path.

        The path covers the whole text, so text after a place can affect the tokens before the place. See
        `contract.Provider.propose`.
        """
        with self.asking():
            paths = [await self._path_at(text, question.start) for question in questions]
            known = [path for path in paths if path is not None]
            if len(known) < len(paths):
                return await self._calls.propose(self.index, text, questions, alternatives=listed)
            return await self._chosen(known, listed)

    async def _chosen(self, paths: Sequence[Path], listed: int) -> list[Proposal | None]:
        """The model's most probable next token after each path, extended to whole characters."""
        found: list[Proposal | None] = [None] * len(paths)
        trails = [Trail(self.index, path) for path in paths]
        parts = [Characters() for _ in paths]
        left = [*range(len(paths))]
        while left:
            here = [trails[at].path for at in left]
            asked = await self._after(here, listed)
            open_ = list[int]()
            for at, proposal in zip(left, asked, strict=True):
                if proposal is None:
                    tokens = parts[at].flush()
                else:
                    trails[at].add(proposal.tokens[0])
                    tokens = parts[at].feed(proposal.tokens[0])
                if tokens:
                    found[at] = Proposal(len(paths[at].text), (tokens[0],))
                elif proposal is not None:
                    open_.append(at)
            left = open_
        return found

    async def _after(self, paths: Sequence[Path], listed: int) -> list[Proposal | None]:
        """The model's most probable raw token after each path, found in one request if all paths have the same text."""
        longest = max((path.text for path in paths), key=len)
        if not all(longest.startswith(path.text) for path in paths):
            return [one for path in paths for one in await self._after([path], listed)]
        questions, ids = [Question(len(path.text), ()) for path in paths], [path.ids for path in paths]
        return await self._calls.propose(self.index, longest, questions, alternatives=listed, paths=ids)

    async def _path(self, text: bytes) -> Path | None:
        """The model's own path through a text; None if the model is sent text."""
        self._paths.forget(self._answer.text)
        return await self._paths.path(self.index, text)

    async def _path_at(self, text: bytes, at: int) -> Path | None:
        """The model's own path up to byte `at` of a text; if possible, the start of its path through all the text."""
        whole = await self._path(text)
        here = None if whole is None else whole.before(at)
        return here if whole is None or here is not None else await self._path(text[:at])

    async def score(self, data: bytes, *, end: bool = False, ahead: bytes = b"") -> list[Token]:
        """Score the tokens of the model's own path through the answer and `data` that end inside `data`.

        Args:
            data: the text to score. A token that begins in the answer and ends in `data` is scored as a whole.
            end: whether to score the end of sequence after `data` as an additional token, whose probability is None if
                the endpoint does not report it.
            ahead: known text after `data`. If the model is sent ids, they include `ahead`, and a token that extends
                across the end of `data` is scored as a whole.
        """
        before = self._answer.text
        with self.asking():
            try:
                return await self._scored(before + data, len(before), end=end, ahead=ahead)
            except UnsupportedError:
                if not end:
                    raise
            tokens = await self._scored(before + data, len(before)) if data else []
        return [*tokens, Token(b"", None, end=True)]

    async def _scored(self, text: bytes, start: int, *, end: bool = False, ahead: bytes = b"") -> list[Token]:
        path = await self._path(text + ahead)
        if path is None or not self._scores_ids:
            return await self._calls.score(self.index, text, start, end=end)
        path = path.over(len(text))
        tokens = await self._calls.score_path(self.index, path, bisect_right(path.ends, start), end=end)
        return [*_whole(one for one in tokens if not one.end), *(one for one in tokens if one.end)]

    @property
    def _scores_ids(self) -> bool:
        return isinstance(self._turn.on_path, IdScores)

    async def score_behind(self, data: bytes, *, end: bool = False) -> list[Token]:
        """Score the tokens of `data` on the model's own path through the answer and `data`.

        Unlike `score`, this method cuts a token that extends across the end of the answer. With `end`, the end of
        sequence is scored as an additional token.
        """
        text, turn = self._answer.text, self._turn
        with self.asking():
            path = await self._path(text + data)
            if (path is not None and self._scores_ids) or turn.lead:  # the lead must directly follow the prompt
                tokens = await self._scored(text + data, len(text), end=end)
                before = len(joined(tokens)) - len(data)  # how much of the answer is in the first token
                return [replace(tokens[0], data=tokens[0].data[before:]), *tokens[1:]] if before > 0 else tokens
            longer = RenderedPrompt(turn.provider, turn.prompt + sendable(text))
            return await self._calls.score(self.index, data, 0, end=end, turn=longer)

    async def score_prompt(self) -> list[Token]:
        """Score the model's own encoding of the prompt as plain text, token by token; see `AnswerJob.plain`.

        The probability of the first token is None if the model has no beginning-of-sequence token to put before it.
        """
        plain = self._shared.job.program.plain[self.index]
        text, turn = plain.prompt.encode(), RenderedPrompt(plain.provider, "")
        with self.asking():
            return await self._calls.score(self.index, text, 0, turn=turn) if text else []

    async def tokens(self, text: bytes) -> Mapping[int, bytes] | None:
        """Map byte offsets of a text after the prompt to the tokens of the model's own path that begin there.

        Tokens are joined to whole characters. If the model is sent text, bytes that are not valid UTF-8 are left out.

        Returns:
            None if the path cannot be determined.
        """
        with self.asking():
            path = await self._path(text)
            if path is None:
                known = await self._shared.encodings.tokens(self.index, text)
                if known is None or sendable(text).encode() == text:
                    return known
                seen = {at: len(sendable(text[:at]).encode()) for at in range(len(text) + 1)}
                return {at: known[place] for at, place in seen.items() if place in known}
        found, at = dict[int, bytes](), 0
        for token in merge(Token(piece.data, None) for piece in path.pieces(0)):
            found[at] = token.data
            at += len(token.data)
        return found

    async def reads_as(self, tokens: Sequence[Token]) -> bool:
        """Test whether the model's own path keeps the tokens that it wrote after the answer as they are."""
        text = self._answer.text
        with self.asking():
            path = await self._path(text + joined(tokens))
            if path is not None:
                return self._paths.wrote(self.index, path)
            return await self._shared.encodings.reads_as(self.index, text, tokens)

    async def begun(self, choices: Sequence[Token]) -> None:
        """Record that the model would write any of these tokens after the answer, so its path may contain them."""
        with self.asking():
            path = await self._path(self._answer.text)
        for token in choices:
            if path is not None and token.id is not None:
                self._paths.begin(self.index, path, [token])

    async def several(self, ask: Callable[[_Item], Awaitable[_T]], items: Iterable[_Item]) -> list[_T]:
        """Ask the model about several items at the same time, and return the results in order."""
        return await concurrently([partial(ask, item) for item in items])

    async def words(self) -> WordEnds:
        """A function that splits text into words like the model's tokenizer, or by Unicode if that is not known."""
        with self.asking():
            return await words_of(self._turn.provider) or unicode_words

    async def continues(self) -> bool:
        """Test whether the model continues a partial answer. If it does not, it accepts only messages."""
        with self.asking():
            return (await self._turn.provider.describe()).capabilities.continues

    async def rendered(self, messages: Sequence[Message]) -> RenderedPrompt:
        """Render a conversation other than the prompt for the model; see `write`."""
        assert self._shared.job.program.render is not None
        with self.asking():
            return await self._shared.job.program.render(self.index, messages)


def _whole(tokens: Iterable[Token]) -> list[Token]:
    """Join raw tokens into tokens of whole characters, including an incomplete last character."""
    characters = Characters()
    found = [whole for token in tokens for whole in characters.feed(token)]
    return [*found, *characters.flush()]
