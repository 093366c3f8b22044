"""The base of engines whose server sends and receives only token ids: vLLM and SGLang.

An engine supplies a client (`TokenIdsClient`), which builds the requests and reads the answers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, cast

from cosd_providers.allowed import is_allowed
from cosd_providers.contract import Context, Piece, Proposal, Provider, Question, Token
from cosd_providers.drafting import IdsDraft, Next
from cosd_providers.engine import Engine, EngineOptions, silent
from cosd_providers.engines.token_ids_client import (
    MARKER,
    Head,
    IdAnswer,
    IdScoring,
    IdStep,
    ListedId,
    Run,
    TokenIdsClient,
    TokenIdsFacts,
    TokenTexts,
    others_than,
)
from cosd_providers.errors import ContextLengthError
from cosd_providers.greedy import Choice, Continuation, Position, with_alternatives, with_listed, within
from cosd_providers.proposing import Rounds
from cosd_providers.sampling import DraftOptions
from cosd_providers.strategies import Strategy
from cosd_providers.text import sendable
from cosd_providers.tokenizers import encoded
from cosd_providers.usage import Usage
from cosd_providers.vocabulary import keeps_spaces

_ANCHORS = ("\n", ",")  # never merged with the next text by tokenizers that put a space before every text
_TEXTLESS = 6  # a draft that ends with more tokens without text asks for more tokens per request


@dataclass(slots=True)
class _Round:
    """The tokens that the server wrote after one continuation, each with the run before it (see `TokenTexts.walk`)."""

    prompt: list[int]
    found: list[IdStep]
    runs: Sequence[Run] = field(default=())


class _IdsRounds(Rounds):
    """The rounds of requests for one `propose` call; see `Rounds`."""

    def __init__(
        self, client: TokenIdsClient, context: Context, usage: Usage, strategy: Strategy, alternatives: int
    ) -> None:
        super().__init__(context, alternatives)
        self._client = client
        self._usage = usage
        self._echo = strategy == "echo"
        self._singly = strategy == "singles"
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
        if not self._echo or len(open_) < 2:
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
        top = self._client.facts.most
        answers = await self._client.written(prompts, 1, self._usage, singly=self._singly, top=top)
        for (one, at), answer in zip(doubts, answers, strict=True):
            [again] = answer.steps
            tied = again.tied if one.found[at].id in again.tied else ()  # probabilities vary slightly between requests
            one.found[at] = replace(one.found[at], tied=tied)

    def _lower(self, step: IdStep) -> list[ListedId]:
        """The listed tokens that are less probable than the server's own; empty if no alternatives are requested."""
        return [one for one in step.others if one[1] < step.prob] if self._alternatives else []

    def _position(self, run: Run, step: IdStep, lower: Sequence[Choice]) -> Position:
        """Create the position of a step: the server's token, the tokens that tie with it, and the tokens in `lower`."""
        alone = step.tied in ((), (step.id,))
        value = step.prob if alone else step.best
        others = [] if alone else [self._texts.choice(run, n, value) for n in step.tied if n != step.id]
        return Position(self._texts.choice(run, step.id, value), [*others, *lower])

    async def _positions(self, ids: list[int], first: int, text: str) -> list[Position | None]:
        """Return the model's choice at each position from `first` on, and after the last id; None if uncertain.

        There is at least 1 id before the first position, which is between two characters; `text` is the text after it.
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


_C = TypeVar("_C", bound=TokenIdsClient)


class TokenIdsEngine(Engine[TokenIdsFacts], Generic[_C]):
    """An engine whose requests contain only ids. See `contract.Provider`.

    Args:
        url: the server's URL, without `/v1`.
        tokenizer: the model's own tokenizer, in any form that `load_tokenizer` accepts. It saves the requests for
            encoding texts and for finding out the bytes of tokens.
        strategy: the kind of request for proposals (`strategies.Strategy`). All strategies return the same answers.
        add_special_tokens: whether to add the model's beginning of sequence to a prompt. Set it to False for prompts
            that were rendered with a chat template, because they already contain the beginning of sequence.
        options: as in `engine.Engine`: `model` (a name of the model, or of an adapter (LoRA) on top of it), `api_key`,
            `headers`, `extra_body` (e.g. `{"priority": 1}`), `timeout`, `http_client`, `limits`.

    Raises:
        ValueError: `extra_body` sets a field that the fusion controls, or the strategy is unknown.
    """

    strategies = ("echo", "list", "singles")
    by_ids = True

    _facts_type = TokenIdsFacts
    _client: _C
    _client_type: type[_C]
    _owned: AbstractSet[str]
    """Fields that a user's `extra_body` may not set."""

    _several: Strategy
    """The default strategy for several places in a text."""

    def __init__(
        self,
        url: str,
        *,
        tokenizer: object = None,
        strategy: Literal["echo", "list", "singles", "watch"] | None = None,
        add_special_tokens: bool = True,
        **options: Unpack[EngineOptions],
    ) -> None:
        super().__init__(url, owned=self._owned, strategy=strategy, tokenizer=tokenizer, **options)
        self._client = self._client_type(self._transport, self._extra, add_special_tokens, self._tokenizer)

    async def facts(self) -> TokenIdsFacts:
        """Return the facts about the server, and pass them to the client of this view."""
        self._client.take(await self.discovered())
        return self._client.facts

    async def _render(self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        await self.facts()
        return await self._client.rendered(messages, tools)

    async def begun(self, prompt: str) -> str:
        """Add the beginning of sequence to a rendered prompt if the user's own template has not written it."""
        await self.facts()
        own = (await self.discovered()).beginning
        if self._template is None or not own:
            return prompt
        beginning = await self._client.decode(own)
        return prompt if prompt.startswith(beginning) else beginning + prompt

    async def literal(self, pieces: Sequence[str]) -> Provider | None:
        """Return a view whose prompts are sent as ids up to the last piece, with each piece encoded separately."""
        await self.facts()
        head = await self._client.headed(pieces)
        return None if head is None else cast("Provider", self._continuing(head))

    async def _draft(self, context: Context, max_tokens: int, options: DraftOptions, usage: Usage) -> IdsDraft:
        prompt, text = context.prompt, context.text
        if options.raw:
            start = await self._client.path(context)
        elif options.continuation is None:
            [start] = await self._client.prompts([prompt + sendable(text)])
        else:
            start = [*options.continuation]
        self._client.check_something(start)
        stream = partial(self._stream, TokenTexts(self._client, usage), options, len(start))
        return IdsDraft(stream, start, max_tokens, alone=not (context.ids or text), raw=options.raw)

    async def _stream(
        self, texts: TokenTexts, options: DraftOptions, start: int, ids: Sequence[int], left: int, attempt: int
    ) -> AsyncGenerator[Next, None]:
        """Send one request for a draft. The first `start` ids precede the draft; see `drafting.IdsStream`."""
        client, alternatives, seen, ended = self._client, options.alternatives, 0, False
        if not options.raw and texts.textless > _TEXTLESS:  # otherwise each such token would need its own request
            left += 2 * texts.textless
        wanted, spaced, run = client.room(ids, min(left, client.streamed)), False, texts.open_run
        if wanted < 1:
            raise client.too_long(ids)
        asked = options if client.keeps_seed else replace(options, seed=options.seed_after(len(ids) - start))
        async with aclosing(client.events(ids, wanted, asked, texts.usage, attempt)) as events:
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
                    texts.textless = 0 if choice.token.data else texts.textless + 1
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
        strategy: Strategy = "singles" if self._strategy == "singles" or len(contexts) == 1 else "list"
        top = client.drafted(alternatives)
        answers = await client.written(fits, 1, usage, singly=strategy == "singles", top=top) if fits else []
        usage.answered_by(strategy, len(fits))
        found = iter(await texts.first(answers, alternatives))
        return [next(found) if client.room(path, 1) > 0 else None for path in paths]

    async def list_allowed(self, context: Context, allowed: Callable[[bytes], bool], *, usage: Usage) -> list[Token]:
        """Compare all tokens that are allowed (`TokenTexts.allowed`); see `contract.AllowedTokens`.

        The bytes of the vocabulary are requested once, unless a local tokenizer knows them.
        """
        await self.facts()
        client, texts = self._client, TokenTexts(self._client, usage)
        if context.ids is None:
            [path] = await client.prompts([context.prompt + sendable(context.text)])
            client.check_something(path)
        else:
            path = await client.path(context)
        able = await texts.allowed(allowed) if client.room(path, 1) > 0 else []
        [found] = await texts.others([await client.best_of(path, able, usage) if able else []])
        tokens = [replace(one.token, id=one.id) for one in found if one.token.prob]
        possible = any(is_allowed(one, allowed) for one in tokens)
        return sorted(tokens, key=lambda one: -(one.prob or 0.0)) if possible else []

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
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
        strategy = self._strategy or usual
        rounds = _IdsRounds(self._client, context, usage, strategy, alternatives)
        return await rounds.propose(questions, strategy, usage)

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """Score a text in one request; see `contract.Provider`.

        If the prompt is empty and the model has no beginning of sequence, the first token has no probability.
        """
        await self.facts()
        whole, size = context.prompt + sendable(context.text), len(context.prompt.encode())
        pieces = await self.tokenize(whole)
        [ids] = await self._client.prompts([whole])
        token_ends = accumulate(len(piece.data) for piece in pieces)
        first = sum(at <= size for at in token_ends)  # index of the first token that ends after the prompt
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
        lists = [*(others_than(own, listed) for listed, (own, _, _) in pairs), scored.listed_after]
        texts = TokenTexts(client, usage)
        return scored, await texts.others(lists if alternatives else [[] for _ in lists])

    def _end(self, scored: IdScoring, others: Sequence[Sequence[Choice]]) -> Position:
        """The most probable end of sequence after a text, with the other tokens listed at the same position."""
        specials, ends = self._client.facts.specials, self._client.facts.ends
        known = {token_id: value for token_id, value, _ in (*scored.ends, *scored.listed_after) if token_id in ends}
        token_id = max(known, key=lambda n: known[n], default=-1)
        token = Token(b"", known.get(token_id), end=True, name=specials.get(token_id) or None)
        return Position(Choice(token_id, token), others[-1])

    async def encode(self, text: str) -> list[Piece]:
        """Encode the beginning of a response like any other text; see `contract.IdContexts`.

        If the tokenizer puts a space before every text, the text is encoded after an anchor.

        Raises:
            UnsupportedError: the text may contain a special token, which the server would parse.
        """
        facts = await self.facts()
        if MARKER.search(text):
            raise self._unsupported("the server parses special tokens in a text, and this one may hold some")
        if not (text and facts.spaced):
            return await self.tokenize(text)
        for anchor in _ANCHORS:
            pieces = await self.tokenize(anchor + text)
            ends = [*accumulate(len(piece.data) for piece in pieces)]
            if len(anchor) in ends:
                return pieces[ends.index(len(anchor)) + 1 :]
        words = "the server's tokenizer puts a space before every text, and merges this one with what is before it"
        raise self._unsupported(words)

    async def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, with special tokens shown; see `contract.IdContexts`."""
        await self.facts()
        return await self._client.decode(ids)

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
            raise self._unsupported(words, "Give the model's tokenizer as `tokenizer`.")
        return [Piece(token_id, data) for token_id, data in zip(ids, found, strict=True)]

    async def _for_chat(self) -> Self:
        """Return a view that continues rendered prompts."""
        await self.discovered()
        return self._continuing(Head())

    def _continuing(self, head: Head) -> Self:
        view = copy(self)
        view._client = self._client.of_chat(head)
        return view
