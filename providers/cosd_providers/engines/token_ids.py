"""The base of engines that send and receive only token ids: vLLM and SGLang.

A text is encoded first; all requests about the text then contain its ids. A server shows the ids of its tokens, but not
their bytes. `TokenTexts` derives the bytes from the texts that come with the ids, if these texts are unambiguous. If
they are ambiguous, it decodes the token after a plain token, together with earlier tokens that leave the same character
unfinished.

An engine supplies a client (`TokenIdsClient`), which builds the requests and reads the answers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Context, Piece, Proposal, Question, Token
from cosd_providers.drafting import IdsDraft, Next
from cosd_providers.engine import silent
from cosd_providers.engines.tokenizing import Encoding, TokenizedFacts, TokenizingClient, TokenizingEngine
from cosd_providers.errors import ContextLengthError, InvalidRequestError, UnsupportedError
from cosd_providers.greedy import (
    TIES,
    Choice,
    Continuation,
    Position,
    with_alternatives,
    with_listed,
    within,
)
from cosd_providers.proposing import Rounds
from cosd_providers.sampling import DraftOptions
from cosd_providers.strategies import Strategy
from cosd_providers.text import LOST, sendable
from cosd_providers.tokenizers import encoded
from cosd_providers.usage import Usage
from cosd_providers.vocabulary import is_plain, keeps_spaces

__all__ = [
    "LETTERS",
    "IdAnswer",
    "IdScoring",
    "IdStep",
    "ListedId",
    "TokenIdsClient",
    "TokenIdsEngine",
    "TokenIdsFacts",
    "TokenTexts",
    "beginning_of",
    "id_step",
    "others_than",
]

LETTERS = "a \u00e9 a"
"""A text whose last token is plain, i.e. consists of whole characters and is not special."""

_ANCHORS = ("\n", ",")  # never merged with the next text by tokenizers that put a space before every text
_LONGEST = 6  # greatest number of tokens to decode together, to finish a character
_LONG = 16  # a text with more characters may contain more than the text of the answer's own tokens
_UNKNOWN = b"\xff unknown"
"""Placeholder for bytes that are not known yet; no text has these bytes."""

ListedId = tuple[int, float, str | None]
"""A listed token: its id, its probability, and its text, decoded separately (None if the server does not show it)."""

_Run = tuple[int, ...]
"""Ids to decode together: a token's id, preceded by the ids of earlier tokens that leave its character unfinished."""


# Answers.


@dataclass(frozen=True, slots=True)
class IdStep:
    """A token that the server chose.

    Attributes:
        id: its id.
        prob: its probability.
        text: its text, decoded separately; None if the server does not show it.
        best: the probability of the most probable token.
        tied: the ids of all listed tokens with the probability `best`.
        more: whether unlisted tokens may have the probability `best`, too.
        others: the other tokens listed at the position.
    """

    id: int
    prob: float
    text: str | None
    best: float
    tied: tuple[int, ...]
    more: bool
    others: tuple[ListedId, ...] = ()


@dataclass(frozen=True, slots=True)
class IdAnswer:
    """Tokens that the server wrote: an answer, or an event of a stream.

    Attributes:
        steps: the tokens.
        text: the text of the tokens.
        stopped: whether the last token ended the answer; it is then not in the text.
        whole: whether the last token in the text is the only one that completes a character or has any text.
    """

    steps: Sequence[IdStep]
    text: str
    stopped: bool
    whole: bool = False


@dataclass(frozen=True, slots=True)
class IdScoring:
    """The probabilities of given ids.

    Attributes:
        own: the tokens of the given ids; an unknown probability is 0.
        listed: the most probable tokens at the position of each given id.
        after: the most probable token after the last id; None if it is unknown.
        ends: ends of sequence at the position after the last id.
    """

    own: Sequence[ListedId] = ()
    listed: Sequence[Sequence[ListedId]] = ()
    after: IdStep | None = None
    ends: Sequence[ListedId] = ()

    @property
    def behind(self) -> list[ListedId]:
        """All tokens listed at the position after the last id."""
        one = self.after
        return [] if one is None else [*one.others, (one.id, one.prob, one.text)]


def id_step(own: ListedId, listed: Sequence[ListedId]) -> IdStep:
    """Create the step for a token that the server chose, from the most probable tokens listed at its position."""
    best = max(value for _, value, _ in listed)
    tied = tuple(sorted(token_id for token_id, value, _ in listed if value == best))
    return IdStep(*own, best, tied, len(tied) == len(listed), tuple(others_than(own[0], listed)))


def others_than(token_id: int | None, listed: Iterable[ListedId]) -> list[ListedId]:
    """The listed tokens except the token with this id."""
    return [one for one in listed if one[0] != token_id]


def beginning_of(read: Sequence[int], plain: Sequence[Sequence[int]]) -> list[int] | None:
    """Find the special tokens that the server puts before a text's own ids; None if the own ids are not found.

    Args:
        read: the ids that the server reads for the text.
        plain: for each of the text's own ids, all ids that the server may show in its place.
    """
    for at in range(len(read) - len(plain) + 1):
        if all(one in own for one, own in zip(read[at:], plain, strict=False)):
            return [*read[:at]]
    return None


@dataclass(frozen=True, slots=True)
class TokenIdsFacts(TokenizedFacts):
    """Facts about a server whose requests contain ids.

    Attributes:
        anchored: the text of `anchor`, decoded after other tokens.
        spaced: whether the tokenizer puts a space before every text, as SentencePiece tokenizers do.
        spelt: the bytes of runs of ids; None for a run that leaves a character unfinished. Not part of a snapshot.
        begun: for each run that leaves a character unfinished, the number of bytes before that character.
        lossy: ids of tokens whose bytes do not form a complete character, so the server does not show their text.
        specials: the ids of tokens without text, with the names of these tokens.
        ends: the ids in `specials` that end a sequence.
    """

    anchored: str
    spaced: bool = field(kw_only=True)
    spelt: Annotated[dict[_Run, bytes | None], Field(exclude=True)] = field(default_factory=dict[_Run, "bytes | None"])
    begun: Annotated[dict[_Run, int], Field(exclude=True)] = field(default_factory=dict[_Run, int])
    lossy: Annotated[set[int], Field(exclude=True)] = field(default_factory=set[int])
    specials: dict[int, str] = field(default_factory=dict[int, str])
    ends: set[int] = field(default_factory=set[int])


# Requests, and the bytes of ids.


_F = TypeVar("_F", bound=TokenIdsFacts)


class TokenIdsClient(TokenizingClient[_F], Generic[_F]):
    """Requests to one server; see `TokenizingClient`. A local tokenizer, if given, replaces the server's tokenizer.

    Attributes:
        least: the smallest number of most probable tokens to request in a draft.
        streamed: the largest number of tokens to request in one stream.
        cut_is_full: whether a shortened answer always means that the context is full.
        most: the largest number of most probable tokens that a request may ask for at one position.
    """

    most: int
    least = 1
    streamed = 2**31
    cut_is_full = False

    @abstractmethod
    async def written(
        self, prompts: Sequence[list[int]], wanted: int, usage: Usage, *, singly: bool = False, top: int = TIES
    ) -> list[IdAnswer]:
        """Request greedy answers to several prompts, in order, with lists of prompts or (`singly`) one request each."""

    @abstractmethod
    def events(
        self,
        ids: Sequence[int],
        wanted: int,
        options: DraftOptions,
        *,
        top: int,
        drawn: int,
        attempt: int,
        usage: Usage,
    ) -> AsyncGenerator[IdAnswer, None]:
        """Stream one answer; each token is yielded once.

        Args:
            ids: the prompt, and the draft so far.
            wanted: the largest number of tokens.
            options: the settings that determine how the tokens are chosen.
            top: the number of most probable tokens to list.
            drawn: the number of tokens in the draft so far.
            attempt: number of this attempt, from 1.
            usage: the ledger, in which the answer is billed however the stream ends.

        Raises:
            ResponseError: the stream ended before the answer was complete.
        """

    @abstractmethod
    async def scores(
        self, ids: list[int], first: int, usage: Usage, *, top: int = TIES, ends: Sequence[int] = ()
    ) -> IdScoring:
        """Request the probabilities of ids from index `first` (at least 1) on, and of the `ends` after the last id."""

    @abstractmethod
    async def decode_runs(self, runs: Sequence[Sequence[int]]) -> list[str]:
        """Decode each run of ids to text, with special tokens shown."""

    @abstractmethod
    async def decode_plain(self, runs: Sequence[Sequence[int]]) -> list[str]:
        """Decode each run of ids to text, without special tokens."""

    @abstractmethod
    async def ends(self, token_id: int, usage: Usage) -> bool:
        """Find out whether this token ends an answer."""

    @abstractmethod
    async def encode_texts(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text on the server, without added special tokens."""

    async def encode_alone(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text separately, without added special tokens."""
        if self.tokenizer is None:
            return await self.encode_texts(texts)
        return [Encoding(tokens=[piece.id for piece in await encoded(self.tokenizer, text)]) for text in texts]

    async def spaces(self, plain: Sequence[int], shown: str) -> bool:
        """Test whether the tokenizer puts a space before every text. (A decoder may hide the first space.)

        Args:
            plain: the ids of `LETTERS`.
            shown: the text that the ids decode to.
        """
        if self.tokenizer is not None:
            return b"".join(self.tokenizer.token(one) or b"" for one in plain).startswith(b" ")
        return shown.startswith(" ") or await self.decode([*plain, *plain]) == f"{shown} {shown}"

    async def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text into the ids that the model reads, including special tokens."""
        beginning = self.facts.beginning if self._special_tokens else []
        return [[*beginning, *ids] for ids in await self.ids(texts)]

    async def with_ends(self, facts: _F) -> _F:
        """Use these facts, find out which tokens end an answer, and return the facts with these tokens.

        A server that decodes speculatively may refuse to force a token. An end is then known once it has ended an
        answer.
        """
        self.take(facts)
        with suppress(InvalidRequestError):
            await TokenTexts(self, Usage()).know((token_id,) for token_id in await self.possible_ends())
        return replace(facts, info=replace(facts.info, ends=(*sorted(facts.ends),)))

    def listed(self, alternatives: int) -> int:
        """The number of most probable tokens to request, which allows for ties and alternatives."""
        return max(TIES, min(1 + alternatives, self.most))

    def drafted(self, alternatives: int) -> int:
        """The number of most probable tokens to request in a draft, which does not need to show ties."""
        return max(self.least, min(1 + alternatives, self.most))

    def room(self, ids: Sequence[int], wanted: int) -> int:
        """The number of tokens that fit after a prompt, up to `wanted`; 0 or less if none fits."""
        context, longest = self.facts.info.context, self.facts.info.longest_prompt
        if longest is not None and len(ids) > longest:
            return 0
        return wanted if context is None else min(wanted, context - len(ids))

    def unlike(self, route: str) -> UnsupportedError:
        """Create the error for a route or a local tokenizer whose encoding differs from the model's."""
        whose = f"the server's {route}" if self.tokenizer is None else "the tokenizer that was given"
        words = f"{whose} encodes text differently from the model that is served: it is another one"
        return UnsupportedError(words, endpoint=self.transport.endpoint)

    def too_long(self, ids: Sequence[int]) -> ContextLengthError:
        """Create the error for a prompt that leaves no room for an answer."""
        longest = self.facts.info.longest_prompt or (self.facts.info.context or 1) - 1
        words = f"the text has {len(ids)} tokens, the server takes at most {longest}"
        return ContextLengthError(words, endpoint=self.transport.endpoint)


class TokenTexts:
    """Finder of the bytes that a server's ids represent. Known bytes are kept in `TokenIdsFacts`.

    Args:
        client: requests to the server.
        usage: the ledger that counts the requests.

    Attributes:
        open_run: the ids at the end of a draft that leave a character unfinished.
        quiet: the number of tokens without text at the end of a draft.
    """

    def __init__(self, client: TokenIdsClient[Any], usage: Usage) -> None:
        self.usage = usage
        self.open_run: _Run = ()
        self.quiet = 0
        self._client = client
        self._facts: TokenIdsFacts = client.facts
        self._heard: dict[_Run, bytes | None] = {}  # bytes from texts that may begin with some of the prompt's text

    def note(self, ids: Sequence[int], texts: Sequence[str | None], text: str) -> None:
        """Remember the bytes of tokens if their separately decoded texts join to the text of all tokens together."""
        shown = [one or "" for one in texts]
        if self._client.tokenizer is not None or LOST in text or "" in shown:
            return
        if len(shown) == 1 and text == " " + shown[0]:
            shown = [text]
        if "".join(shown) == text:
            for token_id, one in zip(ids, shown, strict=True):
                self._facts.spelt.setdefault((token_id,), one.encode())

    async def learn(self, answer: IdAnswer, run: _Run = ()) -> None:
        """Remember the bytes that an answer, or an event of a stream, shows for its tokens.

        Args:
            answer: the answer or event.
            run: the ids before the answer that leave a character unfinished.
        """
        if answer.steps and answer.stopped:
            await self.ended(answer.steps[-1].id, named=answer.steps[-1].text is not None)
        shown = answer.steps[:-1] if answer.stopped else answer.steps
        ids = [step.id for step in shown if step.id not in self._facts.specials]
        text, local = answer.text, self._client.tokenizer is not None
        if not answer.whole:
            self.note([step.id for step in shown], [step.text for step in shown], text)
        elif ids and text and not (run or local) and LOST not in text and len(text) <= _LONG:
            self._heard |= {tuple(ids[:count]): None for count in range(1, len(ids))}
            self._heard[tuple(ids)] = text.encode()

    async def walk(self, ids: Sequence[int], run: _Run = ()) -> list[_Run]:
        """Find, before each token and after the last, the run of ids that leave a character unfinished.

        Args:
            ids: consecutive ids.
            run: the ids before `ids` that leave a character unfinished.
        """
        ahead = range(1, _LONGEST)
        if not ids or run or self._says(tuple(ids)) is _UNKNOWN:
            await self.know([*((token_id,) for token_id in ids), *((*run, *ids[:more]) for more in ahead if run)])
        runs = [run]
        for at, token_id in enumerate(ids):
            if self._says((*run, token_id)) is _UNKNOWN:
                await self.know((*run, *ids[at : at + more]) for more in (ahead if run else (1,)))
            run = self.after(run, token_id)
            runs.append(run)
        return runs

    async def spelt(self, ids: Sequence[int]) -> list[bytes]:
        """Find the bytes of each id in an encoded text; a special token has the bytes of its name.

        If a token leaves a character unfinished, only the bytes before that character are known. The token then gets
        these bytes and one byte of the character, unless an earlier token already has that byte.
        """
        runs = await self.walk(ids)
        found: list[bytes] = []
        held: list[tuple[int, int]] = []  # indices of unfinished tokens, with the bytes up to their ends
        for run, token_id in zip(runs, ids, strict=False):
            if token_id in self._facts.specials:
                found.append(self._facts.specials[token_id].encode())
            elif (data := self._says((*run, token_id))) is None:
                held.append((len(found), self._facts.begun[*run, token_id] + 1))
                found.append(b"")
            else:
                done = 0
                for at, end in held:
                    found[at], done = data[done:end], max(done, end)
                found.append(data[done:])
                held = []
        return found

    def after(self, run: _Run, token_id: int) -> _Run:
        """The run of ids that leave a character unfinished after a token whose bytes are known."""
        if token_id in self._facts.specials:
            return run
        return (*run, token_id) if self._says((*run, token_id)) is None else ()

    def open(self, ids: Iterable[int]) -> _Run:
        """The ids that leave a character unfinished at the end of ids whose bytes are known."""
        run: _Run = ()
        for token_id in ids:
            run = self.after(run, token_id)
        return run

    def choice(self, run: _Run, token_id: int, prob: float | None) -> Choice:
        """Create a choice for a token whose bytes are known.

        Args:
            run: the ids before the token that leave a character unfinished.
            token_id: its id.
            prob: its probability.
        """
        if token_id in self._facts.specials:
            end = token_id in self._facts.ends
            name = self._facts.specials[token_id]
            shown = name.encode() if self._client.is_chat and not end else b""
            return Choice(token_id, Token(shown, prob, end=end, name=(name or None) if end else None))
        data = self._says((*run, token_id))
        assert data is not _UNKNOWN
        return Choice(token_id, Token(data or b"", prob), open=data is None, sure=token_id not in self._facts.lossy)

    def other(self, token_id: int, prob: float, text: str | None, *, spaced: bool) -> Choice:
        """Create a choice for a token that the server did not choose. Unknown bytes are not requested.

        Args:
            token_id: its id.
            prob: its probability.
            text: its text, decoded separately.
            spaced: whether the server's texts keep the space before a word.
        """
        if self._says((token_id,)) is not _UNKNOWN:
            return self.choice((), token_id, prob)
        if (tokenizer := self._client.tokenizer) is not None:
            return Choice(token_id, Token(tokenizer.token(token_id) or b"", prob))
        said = text or ""
        return Choice(token_id, Token(said.encode(), prob), sure=spaced and is_plain(said))

    async def others(self, lists: Sequence[Sequence[ListedId]]) -> list[list[Choice]]:
        """Create choices for the tokens in each list; unknown bytes are found out for all lists together."""
        await self.know((token_id,) for listed in lists for token_id, _, _ in listed)
        return [[self.choice((), token_id, prob) for token_id, prob, _ in listed] for listed in lists]

    async def first(self, answer: IdAnswer, alternatives: int) -> Token:
        """Return the first token of an answer, with its id and the next most probable tokens."""
        await self.learn(answer)
        [step] = answer.steps[:1]
        await self.know([(step.id,)])
        others = [self.other(*one, spaced=False) for one in step.others]
        return with_listed(Position(self.choice((), step.id, step.prob), others), alternatives)

    async def ended(self, token_id: int, *, named: bool = True) -> None:
        """Remember that this token ends an answer. Unless `named` is set, request its name."""
        if token_id not in self._facts.ends:
            if not named and token_id not in self._facts.specials:
                [name] = await self._shown([(token_id,)])
                self._facts.specials[token_id] = name.strip()
            self._facts.specials.setdefault(token_id, "")
            self._facts.ends.add(token_id)

    async def know(self, runs: Iterable[_Run]) -> None:
        """Find out the bytes of runs of ids, unless they are already known."""
        new = [run for run in dict.fromkeys(runs) if self._says(run) is _UNKNOWN]
        if not new:
            return
        if (tokenizer := self._client.tokenizer) is not None:
            found = {run[-1]: tokenizer.token(run[-1]) for run in new}
            self._facts.spelt.update({(n,): data for n, data in found.items() if data is not None})
            await self._specials({n: "" for n, data in found.items() if data is None})
            return
        texts = await self._client.decode_plain(self._anchored(new))
        for run, text in zip(new, self._bare(texts), strict=True):
            data = text.replace(LOST, "").encode()  # bytes lost inside a text can never become a character
            self._facts.spelt[run] = None if text.endswith(LOST) else data
            self._facts.begun[run] = len(data)
            if len(run) == 1 and LOST in text:
                self._facts.lossy.add(run[0])
        quiet = [run for run in new if len(run) == 1 and self._facts.spelt[run] == b""]
        shown = await self._shown(quiet) if quiet else []
        await self._specials({run[0]: text.strip() for run, text in zip(quiet, shown, strict=True) if text})

    async def _shown(self, runs: Sequence[_Run]) -> list[str]:
        """Request the text of each run, with special tokens shown."""
        return self._bare(await self._client.decode_runs(self._anchored(runs)))

    def _anchored(self, runs: Sequence[_Run]) -> list[list[int]]:
        """Put the anchor before each run, so that the run's text keeps the space before a word."""
        return [[self._facts.anchor, *run] for run in runs]

    def _bare(self, texts: Iterable[str]) -> list[str]:
        """Remove the anchor's text from the front of each text."""
        return [text.removeprefix(self._facts.anchored) for text in texts]

    async def _specials(self, names: dict[int, str]) -> None:
        """Remember tokens without text, and find out which of them end an answer."""
        new = [n for n in names if n not in self._facts.specials]
        ends = await concurrently([partial(self._client.ends, n, self.usage) for n in new])
        for token_id, end in zip(new, ends, strict=True):
            if end:
                self._facts.ends.add(token_id)
            self._facts.specials[token_id] = names[token_id]

    def _says(self, run: _Run) -> bytes | None:
        """The bytes of a run; None if the run leaves a character unfinished; `_UNKNOWN` if the bytes are unknown."""
        if run[-1] in self._facts.specials:
            return b""
        if self._client.tokenizer is not None:
            run = run[-1:]
        return self._facts.spelt[run] if run in self._facts.spelt else self._heard.get(run, _UNKNOWN)


# Proposals.


@dataclass(slots=True)
class _Round:
    """The tokens that the server wrote after one continuation, each with the run before it (see `TokenTexts.walk`)."""

    prompt: list[int]
    found: list[IdStep]
    runs: Sequence[_Run] = field(default=())


class _IdsRounds(Rounds):
    """The rounds of requests for one `propose` call; see `Rounds`.

    Args:
        client: requests to the server.
        context: the prompt, and the response so far.
        usage: the ledger that counts the requests.
        alternatives: the number of other tokens to list with each token.
        echo: whether the text is scored first.
        singly: whether each prompt is sent in a separate request.
    """

    def __init__(
        self,
        client: TokenIdsClient[Any],
        context: Context,
        usage: Usage,
        *,
        alternatives: int = 0,
        echo: bool = False,
        singly: bool = False,
    ) -> None:
        super().__init__(context, alternatives)
        self._client = client
        self._usage = usage
        self._echo = echo
        self._singly = singly
        self._texts = TokenTexts(client, usage)
        self._top = client.listed(alternatives)
        self._heads: dict[int, list[int]] = {}  # the ids that the model reads before each place

    async def encode(self, place: int) -> list[int]:
        """Return the ids that the model reads up to a place."""
        await self.prepare([place])
        return self._heads[place]

    async def prepare(self, places: Iterable[int]) -> None:
        """Encode the text up to each place, for all places together."""
        new = sorted({*places} - {*self._heads})
        texts = [self._before(place) for place in new]
        self._heads |= zip(new, await self._client.prompts(texts), strict=True)

    async def ask(self, open_: list[Continuation]) -> list[Iterable[Position]]:
        """Find the next positions of each open continuation; see `Rounds`."""
        await self.prepare(one.question.start for one in open_)
        return await super().ask(open_)

    async def _scored(self, open_: Sequence[Continuation]) -> dict[int, Iterable[Position]]:
        """Use the scored text to answer each place whose preceding ids are a prefix of the whole text's ids."""
        if not self._echo:
            return {}
        whole = await self.encode(len(self._text))
        heads = {one.question.start: self._heads[one.question.start] for one in open_}
        places = {start: len(head) for start, head in heads.items() if head and whole[: len(head)] == head}
        if len(places) < 2 or self._client.room(whole, 1) < 1:
            return {}
        start = min(places)
        positions = await self._positions(whole, places[start], sendable(self._text[start:]))
        return self._along(open_, whole, places, positions)

    async def _room(self, one: Continuation, wanted: int) -> int:
        return self._client.room(self._ids(one), wanted)

    async def _too_long(self, one: Continuation) -> ContextLengthError:
        return self._client.too_long(self._ids(one))

    async def _written(self, open_: Sequence[Continuation], count: int) -> Sequence[Sequence[Position]]:
        prompts = [self._ids(one) for one in open_]
        answers = await self._client.written(prompts, count, self._usage, singly=self._singly, top=self._top)
        return await self._read(open_, prompts, answers)

    def _ids(self, one: Continuation) -> list[int]:
        return [*self._heads[one.question.start], *one.ids]

    async def _read(
        self, open_: Sequence[Continuation], prompts: Sequence[list[int]], answers: Sequence[IdAnswer]
    ) -> list[Sequence[Position]]:
        """Convert several answers to positions, each with all equally probable tokens."""
        rounds = [_Round(ids, [*answer.steps]) for ids, answer in zip(prompts, answers, strict=True)]
        before = [self._texts.open(one.ids) for one in open_]
        for answer, run in zip(answers, before, strict=True):
            await self._texts.learn(answer, run)
        await self._widen([(one, at) for one in rounds for at, step in enumerate(one.found) if step.more])
        await self._texts.know((step.id,) for one in rounds for step in one.found)
        for run, one in zip(before, rounds, strict=True):
            one.runs = await self._texts.walk([step.id for step in one.found], run)
        tied = [
            (*run, other)
            for one in rounds
            for run, step in zip(one.runs, one.found, strict=False)
            for other in step.tied
        ]
        await self._texts.know(tied)
        lower = await self._texts.others([self._lower(step) for one in rounds for step in one.found])
        steps = [(run, step) for one in rounds for run, step in zip(one.runs, one.found, strict=False)]
        found = iter([self._position(*step, others) for step, others in zip(steps, lower, strict=True)])
        return [[*islice(found, len(one.found))] for one in rounds]

    async def _widen(self, doubts: Sequence[tuple[_Round, int]]) -> None:
        """Repeat requests with longer lists if all listed tokens are equally probable: there may be more ties."""
        if not doubts:
            return
        prompts = [[*one.prompt, *(step.id for step in one.found[:at])] for one, at in doubts]
        top = self._client.most
        answers = await self._client.written(prompts, 1, self._usage, singly=self._singly, top=top)
        for (one, at), answer in zip(doubts, answers, strict=True):
            [again] = answer.steps
            tied = again.tied if one.found[at].id in again.tied else ()  # probabilities vary slightly between requests
            one.found[at] = replace(one.found[at], tied=tied)

    def _lower(self, step: IdStep) -> list[ListedId]:
        """The listed tokens that are less probable than the server's own; empty if no alternatives are requested."""
        return [one for one in step.others if one[1] < step.prob] if self._alternatives else []

    def _position(self, run: _Run, step: IdStep, lower: Sequence[Choice]) -> Position:
        """Create the position of a step: the server's token, the tokens that tie with it, and the tokens in `lower`."""
        alone = step.tied in ((), (step.id,))
        value = step.prob if alone else step.best
        others = [] if alone else [self._texts.choice(run, n, value) for n in step.tied if n != step.id]
        return Position(self._texts.choice(run, step.id, value), [*others, *lower])

    async def _positions(self, ids: list[int], first: int, text: str) -> list[Position | None]:
        """Return the model's choice at each position from `first` on, and after the last id; None if uncertain.

        Args:
            ids: the ids of a text as the model reads it.
            first: the number of ids before the first position, at least 1. The position is between two characters.
            text: the text of the ids from `first` on.
        """
        scored = await self._client.scores(ids, first, self._usage, top=self._top)
        own, after = ids[first:], scored.after
        self._texts.note(own, [one for _, _, one in scored.own], text)
        runs = await self._texts.walk(own)
        best = [_best(listed) for listed in scored.listed]
        lists = [others_than(one and one[0], listed) for listed, one in zip(scored.listed, best, strict=True)]
        best.append((after.id, after.prob) if after is not None and len(after.tied) == 1 else None)
        lists.append([] if after is None else [*after.others])
        await self._texts.know((*run, one[0]) for run, one in zip(runs, best, strict=True) if one is not None)
        others = await self._texts.others([listed if self._alternatives else [] for listed in lists])
        return [
            None if one is None else Position(self._texts.choice(run, *one), more)
            for run, one, more in zip(runs, best, others, strict=True)
        ]


def _best(listed: Sequence[ListedId]) -> tuple[int, float] | None:
    """The most probable token; None if several tokens are equally probable, or none is listed."""
    best = max((value for _, value, _ in listed), default=0.0)
    first = [token_id for token_id, value, _ in listed if value == best]
    return (first[0], best) if len(first) == 1 else None


# The provider.


_C = TypeVar("_C", bound=TokenIdsClient[Any])


class TokenIdsEngine(TokenizingEngine[_F, _C], Generic[_F, _C]):
    """An engine whose requests contain only ids. See `contract.Provider`."""

    _several: Strategy
    """The default strategy for several places in a text."""

    async def _draft(
        self,
        facts: _F,  # noqa: ARG002 - the client has them
        context: Context,
        continuation: Any,
        max_tokens: int,
        options: DraftOptions,
        usage: Usage,
    ) -> IdsDraft:
        prompt, text = context.prompt, context.text
        if options.raw:
            start = await self._client.path(context)
        elif continuation is None:
            [start] = await self._client.prompts([prompt + sendable(text)])
        else:
            start = [*continuation]
        self._client.check_something(start)
        stream = partial(self._stream, TokenTexts(self._client, usage), options, len(start))
        return IdsDraft(stream, start, max_tokens, alone=not (context.ids or text), raw=options.raw)

    async def _stream(
        self, texts: TokenTexts, options: DraftOptions, start: int, ids: Sequence[int], left: int, attempt: int
    ) -> AsyncGenerator[Next, None]:
        """Send one request for a draft. The first `start` ids precede the draft; see `drafting.IdsStream`."""
        client, alternatives, seen, ended = self._client, options.alternatives, 0, False
        if not options.raw and texts.quiet > _LONGEST:  # otherwise each token without text would need its own request
            left += 2 * texts.quiet
        wanted, spaced, run = client.room(ids, min(left, client.streamed)), False, texts.open_run
        if wanted < 1:
            raise client.too_long(ids)
        more: dict[str, Any] = {"top": client.drafted(alternatives), "attempt": attempt, "usage": texts.usage}
        async with aclosing(client.events(ids, wanted, options, drawn=len(ids) - start, **more)) as events:
            async for event in events:
                seen += len(event.steps)
                await texts.learn(event, run)
                if alternatives:
                    others = [one for step in event.steps for one in step.others]
                    await texts.know((n,) for n, _, text in others if text is None or options.raw)
                runs = await texts.walk([step.id for step in event.steps], run)
                for step, before, after in zip(event.steps, runs, runs[1:], strict=False):
                    spaced = spaced or keeps_spaces(said or "" for _, _, said in step.others)
                    choice = texts.choice(before, step.id, step.prob)
                    beside = [texts.other(*one, spaced=spaced) for one in step.others] if alternatives else ()
                    run = texts.open_run = after
                    texts.quiet = 0 if choice.token.data else texts.quiet + 1
                    ended = ended or choice.token.end
                    choose = with_listed if options.raw else with_alternatives
                    yield replace(choice, token=choose(Position(choice, beside), alternatives))
        if ended or seen >= wanted:
            return
        if client.cut_is_full:
            yield "full"
        elif not seen:
            raise silent(self._transport.endpoint)

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """Request the next tokens, with a list of contexts or one request for each; see `contract.IdContexts`."""
        await self.facts()
        client, texts = self._client, TokenTexts(self._client, usage)
        paths = [await client.path(context) for context in contexts]
        fits = [path for path in paths if client.room(path, 1) > 0]
        way: Strategy = "singles" if self._strategy == "singles" or len(contexts) == 1 else "list"
        top = client.drafted(alternatives)
        answers = iter(await client.written(fits, 1, usage, singly=way == "singles", top=top) if fits else ())
        usage.answered_by(way, len(fits))
        return [await texts.first(next(answers), alternatives) if client.room(path, 1) > 0 else None for path in paths]

    async def propose(
        self,
        context: Context,
        questions: Sequence[Question] | None,
        *,
        alternatives: int = 0,
        usage: Usage,
    ) -> list[Proposal | None]:
        """Answer all questions, and repeat requests that may not show all ties; see `contract.Provider`."""
        prompt, text = context.prompt, context.text
        await self.facts()
        everywhere = questions is None
        questions = await self._places(context, questions)
        for question in questions:
            self._client.check_something(prompt + sendable(text[: question.start]))
        several = len(questions) > 1
        usual: Strategy = "echo" if everywhere else self._several if several else "singles"
        way = self._strategy or usual
        more: dict[str, Any] = {"singly": way == "singles", "echo": way == "echo" and several}
        rounds = _IdsRounds(self._client, context, usage, alternatives=alternatives, **more)
        return await rounds.propose(questions, way, usage)

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """Score a text in one request; see `contract.Provider`.

        If the prompt is empty and the model has no beginning of sequence, the first token has no probability.
        """
        await self.facts()
        whole, size = context.prompt + sendable(context.text), len(context.prompt.encode())
        pieces = await self.tokenize(whole)
        [ids] = await self._client.prompts([whole])
        behind = accumulate(len(piece.data) for piece in pieces)
        first = sum(at <= size for at in behind)  # index of the first token that ends after the prompt
        if first >= len(pieces) and not end:
            return []
        place = max(len(ids) - len(pieces) + first, 1)
        scored, others = await self._listed(ids, place, alternatives, end=end, usage=usage)
        raw = [Token(piece.data, 0.0 if at < first else None) for at, piece in enumerate(pieces)]
        at = len(pieces) - len(scored.own)
        for piece, (token_id, prob, _), beside in zip(pieces[at:], scored.own, others, strict=False):
            position = Position(Choice(token_id, Token(piece.data, prob)), beside)
            raw[at] = with_alternatives(position, alternatives)
            at += 1
        found = within(raw, size)
        return [*found, with_alternatives(self._end(scored, others), alternatives)] if end else found

    async def score_ids(
        self, context: Context, first: int, *, alternatives: int = 0, end: bool = False, usage: Usage
    ) -> list[Token]:
        """Score ids in one request; see `contract.IdScores`."""
        await self.facts()
        ids = await self._client.path(context)
        start = len(ids) - len(context.ids or ()) + first
        found = [Token(b"", None, id=ids[0])] if not start and ids else []
        scored, others = await self._listed(ids, max(start, 1), alternatives, end=end, usage=usage)
        for (token_id, prob, _), beside in zip(scored.own, others, strict=False):
            found.append(with_listed(Position(Choice(token_id, Token(b"", prob)), beside), alternatives))
        return [*found, with_listed(self._end(scored, others), alternatives)] if end else found

    async def _listed(
        self, ids: list[int], place: int, alternatives: int, *, end: bool, usage: Usage
    ) -> tuple[IdScoring, list[list[Choice]]]:
        """Score ids from index `place` on; also return the other tokens listed at each id and after the last id."""
        client = self._client
        if client.room(ids, 1) < 1:
            raise client.too_long(ids)
        ends = sorted(client.facts.ends) if end and ids else []
        scored = await client.scores(ids, place, usage, top=client.listed(alternatives), ends=ends)
        pairs = zip(scored.listed, scored.own, strict=True)
        lists = [*(others_than(own, listed) for listed, (own, _, _) in pairs), scored.behind]
        texts = TokenTexts(client, usage)
        return scored, await texts.others(lists if alternatives else [[] for _ in lists])

    def _end(self, scored: IdScoring, others: Sequence[Sequence[Choice]]) -> Position:
        """The most probable end of sequence after a text, with the other tokens listed at the same position."""
        facts: Mapping[int, str] = self._client.facts.specials
        ends = self._client.facts.ends
        known = {token_id: value for token_id, value, _ in (*scored.ends, *scored.behind) if token_id in ends}
        token_id = max(known, key=lambda n: known[n], default=-1)
        token = Token(b"", known.get(token_id), end=True, name=facts.get(token_id) or None)
        return Position(Choice(token_id, token), others[-1])

    async def encode(self, text: str) -> list[Piece]:
        """Encode the beginning of a response; see `TokenizingEngine.encode`.

        If the tokenizer puts a space before every text, the text is encoded after an anchor.
        """
        facts = await self.facts()
        if not (text and facts.spaced):
            return await super().encode(text)
        for anchor in _ANCHORS:
            pieces = await super().encode(anchor + text)
            ends = [*accumulate(len(piece.data) for piece in pieces)]
            if len(anchor) in ends:
                return pieces[ends.index(len(anchor)) + 1 :]
        words = "the server's tokenizer puts a space before every text, and merges this one with what is before it"
        raise UnsupportedError(words, endpoint=self._transport.endpoint)

    async def count_tokens(self, text: str) -> int:
        """Count the tokens of a text, without finding out their bytes; see `contract.TokenCounts`."""
        await self.facts()
        [ids] = await self._client.ids([text])
        return len(ids)

    async def tokenize(self, text: str) -> list[Piece]:
        """Encode a text without added tokens.

        If several tokens share a character, the server does not show which bytes belong to which token (see
        `TokenTexts.spelt`).
        """
        await self.facts()
        if self._client.tokenizer is not None and not self._client.head.text:
            return await encoded(self._client.tokenizer, text)
        [ids] = await self._client.ids([text])
        found = await TokenTexts(self._client, Usage()).spelt(ids)
        joined = b"".join(found)
        if joined == b" " + text.encode():  # SentencePiece tokenizers put a space before a text
            at = next(at for at, data in enumerate(found) if data)
            found[at], joined = found[at][1:], text.encode()
        if joined != text.encode():
            words = "the bytes of the server's tokens do not join to the text"
            hint = "Give the model's tokenizer as `tokenizer`."
            raise UnsupportedError(words, endpoint=self._transport.endpoint, hint=hint)
        return [Piece(token_id, data) for token_id, data in zip(ids, found, strict=True)]
