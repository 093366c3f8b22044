"""Requests to servers that send and receive only token ids, vLLM and SGLang, and the bytes of their tokens.

A text is encoded first; all requests about the text then contain its ids. A server shows the ids of its tokens, but not
their bytes. `TokenTexts` derives the bytes from the texts that come with the ids, if these texts are unambiguous. If
they are ambiguous, it decodes the token after a plain token, together with earlier tokens that leave the same character
unfinished.

A rendered conversation is continued by a view of the client (`TokenIdsClient.of_chat`). In this view, the beginning of
sequence is part of the prompt's text, and special tokens in an answer, such as `<think>`, are text. If a message
contains the text of a special token, the start of the prompt is sent as ids (`Head`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Self

from anyio import to_thread
from pydantic import BaseModel, Field

from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Capabilities, Context, Token
from cosd_providers.engine import NO_TEMPLATE, ServerFacts, nothing_to_continue
from cosd_providers.errors import ContextLengthError, InvalidRequestError, ResponseError, StatusError, UnsupportedError
from cosd_providers.greedy import TIES, Choice, Position, with_listed
from cosd_providers.http.transport import Transport
from cosd_providers.sampling import DraftOptions
from cosd_providers.text import LOST
from cosd_providers.token_counts import Recent
from cosd_providers.tokenizers import Tokenizer, encoded
from cosd_providers.usage import Usage
from cosd_providers.vocabulary import ENDS, is_plain, looks_special

GREEDY: dict[str, object] = {
    "temperature": 0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "n": 1,
    "stop": [],
    "ignore_eos": False,
    "skip_special_tokens": True,
}
"""Fields for greedy decoding that servers share."""

LETTERS = "a \u00e9 a"
"""A text whose last token is plain, i.e. consists of whole characters and is not special."""

MARKER = re.compile(r"<[^<>\s]{1,60}>|\[[^\[\]\s]{1,60}\]")
"""A string that may be a special token."""

ListedId = tuple[int, float, str | None]
"""A listed token: its id, its probability, and its text, decoded separately (None if the server does not show it)."""

Run = tuple[int, ...]
"""Ids to decode together: a token's id, preceded by the ids of earlier tokens that leave its character unfinished."""

MOST = 64
"""The number of most probable tokens to request at one position at most, if the server has no limit of its own."""

_LONGEST = 6  # greatest number of tokens to decode together, to finish a character
_LONG = 16  # a text with more characters may contain more than the text of the answer's own tokens
_UNKNOWN = b"\xff unknown"
"""Placeholder for bytes that are not known yet; no text has these bytes."""

_MANY = 4096  # number of ids whose text is requested together, to find the whole vocabulary
_REMEMBERED = 32  # number of encodings to cache; they may be long
_REFUSALS = (400, 422, 500)  # HTTP statuses that report an error in the chat template
_TALK = ({"role": "user", "content": "a"}, {"role": "assistant", "content": "a"})  # shows the end of a turn


class Encoding(BaseModel):
    """A text encoded as ids, in the format of the server's response."""

    tokens: list[int]
    token_strs: list[str] | None = None  # the vocabulary entries for the ids; None if the server does not show them
    max_model_len: int | None = None  # size of the model's context in tokens


@dataclass(frozen=True, slots=True)
class Head:
    """The start of a prompt, whose ids are fixed; empty if the whole prompt is encoded as text."""

    text: str = ""
    ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class IdStep:
    """A token that the server chose."""

    id: int
    prob: float
    text: str | None  # its text, decoded separately; None if the server does not show it
    best: float  # the probability of the most probable token
    tied: tuple[int, ...]  # the ids of all listed tokens with the probability `best`
    more: bool  # whether unlisted tokens may have the probability `best`, too
    others: tuple[ListedId, ...] = ()  # the other tokens listed at the position


@dataclass(frozen=True, slots=True)
class IdAnswer:
    """Tokens that the server wrote: an answer, or an event of a stream."""

    steps: Sequence[IdStep]
    text: str
    stopped: bool  # whether the last token ended the answer; it is then not in the text
    whole: bool = False  # whether the last token in the text is the only one that completes a character or has any text


@dataclass(frozen=True, slots=True)
class IdScoring:
    """The probabilities of given ids."""

    own: Sequence[ListedId] = ()  # the tokens of the given ids; an unknown probability is 0
    listed: Sequence[Sequence[ListedId]] = ()  # the most probable tokens at the position of each given id
    after: IdStep | None = None  # the most probable token after the last id; None if it is unknown
    ends: Sequence[ListedId] = ()  # ends of sequence at the position after the last id

    @property
    def listed_after(self) -> list[ListedId]:
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

    The server reads the ids `read`. In place of each own id, it may show any of the ids in `plain`.
    """
    for at in range(len(read) - len(plain) + 1):
        if all(one in own for one, own in zip(read[at:], plain, strict=False)):
            return [*read[:at]]
    return None


def abilities(most: int, *, sampling: bool) -> Capabilities:
    """Return the abilities of a server that lists at most `most` tokens at a position, including its own token."""
    able = Capabilities(token_ids=True, end_prob=True, tokenize=True, score=True, sampling=sampling, ids=True)
    return replace(able, top_k=most - 1, score_top_k=most - 1, finds_allowed=True)


@dataclass(frozen=True, slots=True)
class TokenIdsFacts(ServerFacts):
    """Facts about a server whose requests contain ids."""

    beginning: list[int]  # the special tokens that the server puts before every text
    anchor: int  # the id of a plain token; tokens that are decoded after it keep the space before a word
    anchored: str  # the text of `anchor`, decoded after other tokens
    # whether the tokenizer puts a space before every text, as SentencePiece tokenizers do
    spaced: bool = field(kw_only=True)
    most: int = MOST  # the largest number of most probable tokens that a request may ask for at one position
    # a separator between runs of ids that are decoded together (vLLM): its ids and its text
    between: tuple[Sequence[int], str] = ((), "")
    adapter: str | None = None  # the adapter (LoRA) to name in each request (SGLang); None for the model itself
    # the bytes of runs of ids; None for a run that leaves a character unfinished. Not part of a snapshot
    spelt: Annotated[dict[Run, bytes | None], Field(exclude=True)] = field(default_factory=dict[Run, "bytes | None"])
    # for each run that leaves a character unfinished, the number of bytes before that character
    begun: Annotated[dict[Run, int], Field(exclude=True)] = field(default_factory=dict[Run, int])
    # ids of tokens whose bytes do not form a complete character, so the server does not show their text
    lossy: Annotated[set[int], Field(exclude=True)] = field(default_factory=set[int])
    # the ids of tokens without text, with the names of these tokens
    specials: dict[int, str] = field(default_factory=dict[int, str])
    ends: set[int] = field(default_factory=set[int])  # the ids in `specials` that end a sequence
    # the bytes of each id from 0 on, once they are needed; empty if they are unknown. Not part of a snapshot
    vocabulary: Annotated[list[bytes], Field(exclude=True)] = field(default_factory=list[bytes])
    # for each id that was forced, the text of the answer, and whether it ended there. Not part of a snapshot
    forced: Annotated[dict[int, tuple[str, bool]], Field(exclude=True)] = field(
        default_factory=dict[int, "tuple[str, bool]"]
    )


class TokenIdsClient(ABC):
    """Requests to one server."""

    facts: TokenIdsFacts  # known facts about the server, available after discovery
    model: str
    adapter: str | None = None
    head = Head()  # the start of all prompts, which is sent as fixed ids and never encoded by the server
    is_chat = False  # whether texts are rendered conversations
    least = 1  # the smallest number of most probable tokens to request in a draft
    streamed = 2**31  # the largest number of tokens to request in one stream
    cut_is_full = False  # whether a shortened answer always means that the context is full
    # whether all requests of a draft have the same seed, because the server draws by seed and position
    keeps_seed = False

    def __init__(
        self, transport: Transport, extra: Mapping[str, object], special_tokens: bool, tokenizer: Tokenizer | None
    ) -> None:
        self.transport = transport
        self.tokenizer = tokenizer  # the model's own tokenizer, which replaces the server's; None if the user gave none
        self._extra = extra
        self._special_tokens = special_tokens  # whether to put the model's special tokens before a text, if it has any
        self._ids = Recent[str, list[int]](_REMEMBERED)  # ids of recent texts, without added special tokens

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without texts and facts."""
        kept = {name: value for name, value in self.__dict__.items() if name != "facts"}
        return {**kept, "_ids": Recent[str, list[int]](_REMEMBERED)}

    def take(self, facts: TokenIdsFacts) -> None:
        """Use these facts about the server."""
        self.facts = replace(facts, beginning=[]) if self.is_chat else facts
        self.model, self.adapter = facts.info.model, facts.adapter

    def of_chat(self, head: Head) -> Self:
        """Return a view of this client for rendered conversations, whose start is sent as ids."""
        view = copy(self)
        view.is_chat, view.head, view._special_tokens = True, head, False
        return view

    def check_something(self, prompt: str | Sequence[int]) -> None:
        """Refuse an empty prompt unless a beginning of sequence is added.

        Raises:
            InvalidRequestError: prompt and text are empty, and the model has no beginning of sequence.
        """
        if not prompt and not (self._special_tokens and self.facts.beginning):
            raise nothing_to_continue(self.transport.endpoint)

    @abstractmethod
    async def written(
        self, prompts: Sequence[list[int]], wanted: int, usage: Usage, *, singly: bool = False, top: int = TIES
    ) -> list[IdAnswer]:
        """Request greedy answers to several prompts, in order, with lists of prompts or (`singly`) one request each."""

    @abstractmethod
    def events(
        self, ids: Sequence[int], wanted: int, options: DraftOptions, usage: Usage, attempt: int
    ) -> AsyncGenerator[IdAnswer, None]:
        """Stream an answer of at most `wanted` tokens to ids; each token is yielded once.

        The answer is billed however the stream ends. The seed in `options` is for this request, unless the server
        `keeps_seed`. `attempt` is the number of this attempt, from 1.

        Raises:
            ResponseError: the stream ended before the answer was complete.
        """

    @abstractmethod
    async def scores(
        self, ids: list[int], first: int, usage: Usage, *, top: int = TIES, ends: Sequence[int] = ()
    ) -> IdScoring:
        """Request the probabilities of ids from index `first` (at least 1) on, and of the `ends` after the last id."""

    @abstractmethod
    async def best_of(self, ids: list[int], able: Sequence[int], usage: Usage) -> list[ListedId]:
        """Request the most probable of the tokens `able` after ids, and the most probable of all tokens."""

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

    @abstractmethod
    async def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text, with special tokens shown."""

    @abstractmethod
    async def templated(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Encoding:
        """Render a conversation with the model's chat template, up to the answer."""

    def without_template(self, error: StatusError) -> UnsupportedError | None:  # noqa: ARG002 - a hook
        """Return the error to raise if the refusal means that the server cannot render; None for other refusals."""
        return None

    async def possible_ends(self) -> list[int]:
        """Find the tokens with common names of ends of sequence, and the special tokens of the chat template."""
        ids = await self._named_ends()
        with suppress(StatusError, ResponseError):  # the model may lack a template, or the template may fail
            talk = await self.templated(_TALK)
            shown = talk.token_strs
            ids |= {n for at, n in enumerate(talk.tokens) if shown is None or looks_special(shown[at])}
        return sorted(ids)

    async def _named_ends(self) -> set[int]:
        """Find the single tokens that encode a common name of an end, possibly after a token for a space."""
        own = self.tokenizer
        if own is None:
            found = [one.tokens for one in await self.encode_alone(ENDS)]
        else:
            found = []
            for name in ENDS:
                with suppress(UnsupportedError):  # the tokenizer may have no token for some of the characters
                    found.append([piece.id for piece in own.encode(name)])
        return {ids[-1] for ids in found if 0 < len(ids) < 3}

    def split(self, text: str) -> tuple[Head, str]:
        """Split a text into its head and its rest; the head is empty if the text does not begin with `self.head`."""
        return (self.head, text[len(self.head.text) :]) if text.startswith(self.head.text) else (Head(), text)

    async def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without added special tokens; the ids of recent texts are cached."""
        known = {text: self._ids[text] for text in texts if text in self._ids}
        new = [self.split(text) for text in dict.fromkeys(texts) if text not in known]
        if new:
            for (head, rest), found in zip(new, await self.encode_alone([rest for _, rest in new]), strict=True):
                known[head.text + rest] = [*head.ids, *found.tokens]
        for text, ids in known.items():
            self.encoded(text, ids)
        return [known[text] for text in texts]

    def encoded(self, text: str, ids: list[int]) -> None:
        """Cache the ids of a text, without added special tokens."""
        self._ids.keep(text, ids)

    async def path(self, context: Context) -> list[int]:
        """Return the ids to send for a context by ids: the encoding of the prompt alone, then the context's ids."""
        [prompt] = await self.ids([context.prompt])
        found = [*(self.facts.beginning if self._special_tokens else ()), *prompt, *(context.ids or ())]
        self.check_something(found)
        return found

    async def headed(self, pieces: Sequence[str]) -> Head | None:
        """Encode each piece separately, and return all but the last as a head; None if the ids decode differently.

        The ids decode to a different text if the tokenizer puts a space before every text that it encodes.
        """
        found = await self.encode_alone(pieces)
        if await self.decode([n for one in found for n in one.tokens]) != "".join(pieces):
            return None
        return Head("".join(pieces[:-1]), [n for one in found[:-1] for n in one.tokens])

    async def template(self, content: str) -> str:
        """Render a user's message with the model's chat template, up to the answer."""
        return await self.decode((await self.templated([{"role": "user", "content": content}])).tokens)

    async def rendered(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """Render a conversation with the model's chat template, up to the answer.

        The text is decoded from the ids that the server's own chat route reads, and is checked to encode to the same
        ids.

        Raises:
            TemplateRefusal: the template refuses the conversation.
            UnsupportedError: the server does not render conversations, or the text encodes to other ids.
        """
        try:
            found = await self.templated(messages, tools)
            text = await self.decode(found.tokens)
        except StatusError as error:
            if (unsupported := self.without_template(error)) is not None:
                raise unsupported from None
            if error.status not in _REFUSALS:
                raise
            raise TemplateRefusal(str(error.args[0])) from None
        shown = found.token_strs
        names = MARKER.findall(text) if shown is None else filter(looks_special, shown)
        for one in (text, _unspaced(text, names)):
            if await self.ids([one]) == [found.tokens]:
                return one
        words = "the server does not give back the text of a rendered conversation: its tokenizer changes it"
        raise UnsupportedError(words, endpoint=self.transport.endpoint, hint=NO_TEMPLATE)

    async def encode_alone(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode each text separately, without added special tokens."""
        if self.tokenizer is None:
            return await self.encode_texts(texts)
        return [Encoding(tokens=[piece.id for piece in await encoded(self.tokenizer, text)]) for text in texts]

    async def spaces(self, plain: Sequence[int], shown: str) -> bool:
        """Test whether the tokenizer puts a space before every text. (A decoder may hide the first space.)

        `plain` are the ids of `LETTERS`, which decode to `shown`.
        """
        if self.tokenizer is not None:
            return b"".join(self.tokenizer.token(one) or b"" for one in plain).startswith(b" ")
        return shown.startswith(" ") or await self.decode([*plain, *plain]) == f"{shown} {shown}"

    async def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode each text into the ids that the model reads, including special tokens."""
        beginning = self.facts.beginning if self._special_tokens else []
        return [[*beginning, *ids] for ids in await self.ids(texts)]

    async def with_ends(self, facts: TokenIdsFacts) -> TokenIdsFacts:
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
        return max(TIES, min(1 + alternatives, self.facts.most))

    def drafted(self, alternatives: int) -> int:
        """The number of most probable tokens to request in a draft, which does not need to show ties."""
        return max(self.least, min(1 + alternatives, self.facts.most))

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


def _unspaced(text: str, names: Iterable[str]) -> str:
    """Remove the space after each of the special tokens `names` from a decoded text.

    Some SentencePiece tokenizers put a space after every special token, and their decoders keep it. Removing it
    restores the text that was encoded.
    """
    known = "|".join(sorted({re.escape(name) for name in names}))
    return re.sub(f"({known}) ", r"\1", text) if known else text


class TokenTexts:
    """Finder of the bytes that a server's ids represent. Known bytes are kept in `TokenIdsFacts`."""

    def __init__(self, client: TokenIdsClient, usage: Usage) -> None:
        self.usage = usage
        self.open_run: Run = ()  # the ids at the end of a draft that leave a character unfinished
        self.textless = 0  # the number of tokens without text at the end of a draft
        self._client = client
        self._facts: TokenIdsFacts = client.facts
        self._heard: dict[Run, bytes | None] = {}  # bytes from texts that may begin with some of the prompt's text

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

    async def learn(self, answer: IdAnswer, run: Run = ()) -> None:
        """Remember the bytes that an answer, or an event of a stream, shows for its tokens; `run` precedes it."""
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

    async def walk(self, ids: Sequence[int], run: Run = ()) -> list[Run]:
        """Find, before each id and after the last, the run of ids that leave a character unfinished, first `run`."""
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

    def after(self, run: Run, token_id: int) -> Run:
        """The run of ids that leave a character unfinished after a token whose bytes are known."""
        if token_id in self._facts.specials:
            return run
        return (*run, token_id) if self._says((*run, token_id)) is None else ()

    def open(self, ids: Iterable[int]) -> Run:
        """The ids that leave a character unfinished at the end of ids whose bytes are known."""
        run: Run = ()
        for token_id in ids:
            run = self.after(run, token_id)
        return run

    def choice(self, run: Run, token_id: int, prob: float | None) -> Choice:
        """Create a choice for a token whose bytes are known; `run` are the ids before it, as in `walk`."""
        if token_id in self._facts.specials:
            end = token_id in self._facts.ends
            name = self._facts.specials[token_id]
            shown = name.encode() if self._client.is_chat and not end else b""
            return Choice(token_id, Token(shown, prob, end=end, name=(name or None) if end else None))
        data = self._says((*run, token_id))
        assert data is not _UNKNOWN
        return Choice(token_id, Token(data or b"", prob), open=data is None, sure=token_id not in self._facts.lossy)

    def other(self, token_id: int, prob: float, text: str | None, *, spaced: bool) -> Choice:
        """Create a choice for a token that the server did not choose, with this text, decoded separately.

        Unknown bytes are not requested. `spaced` tells that the server's texts keep the space before a word.
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

    async def first(self, answers: Sequence[IdAnswer], alternatives: int) -> list[Token]:
        """Return the first token of each answer, with its id and the next most probable tokens."""
        for answer in answers:
            await self.learn(answer)
        steps = [answer.steps[0] for answer in answers]
        known = [(step.id,) for step in steps]
        if alternatives > 1:  # the bytes of the runner-up alone are of no use to anyone
            known += [(n,) for step in steps for n, _, _ in step.others]
        await self.know(known)
        others = [[self.other(*one, spaced=False) for one in step.others] for step in steps]
        choices = [self.choice((), step.id, step.prob) for step in steps]
        return [with_listed(Position(*one), alternatives) for one in zip(choices, others, strict=True)]

    async def allowed(self, allowed: Callable[[bytes], bool]) -> list[int]:
        """The ids of all tokens, including ends, whose bytes are allowed.

        Without a local tokenizer, parts of characters are not among them, because the server does not show their bytes.
        """
        shown = await self._vocabulary()
        able = await to_thread.run_sync(lambda: [n for n, data in enumerate(shown) if data and allowed(data)])
        special = {n for n in able if looks_special(shown[n].decode(errors="replace"))}
        await self.know((n,) for n in special)
        able = [n for n in able if n not in special or self.choice((), n, None).token.data == shown[n]]
        return [*able, *(sorted(self._facts.ends) if allowed(b"") else ())]

    async def _vocabulary(self) -> list[bytes]:
        """The bytes of each id from 0 on, and of special tokens their names; unknown bytes are empty."""
        found, step = list[bytes](), _MANY
        while step and not self._facts.vocabulary and (len(found) < _MANY or any(found[-_MANY:])):
            ids = range(len(found), len(found) + step)
            try:
                found += await self._entries(ids)
            except StatusError as error:
                if error.status not in _REFUSALS:
                    raise
                step //= 2  # some servers refuse ids beyond the last
        self._facts.vocabulary[:] = self._facts.vocabulary or found
        return self._facts.vocabulary

    async def _entries(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of ids that may not exist."""
        if (tokenizer := self._client.tokenizer) is not None:
            return [tokenizer.token(n) or b"" for n in ids]
        return [b"" if LOST in text else text.encode() for text in await self._shown([(n,) for n in ids])]

    async def ended(self, token_id: int, *, named: bool = True) -> None:
        """Remember that this token ends an answer. Unless `named` is set, request its name."""
        if token_id not in self._facts.ends:
            if not named and token_id not in self._facts.specials:
                [name] = await self._shown([(token_id,)])
                self._facts.specials[token_id] = name.strip()
            self._facts.specials.setdefault(token_id, "")
            self._facts.ends.add(token_id)

    async def know(self, runs: Iterable[Run]) -> None:
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

    async def _shown(self, runs: Sequence[Run]) -> list[str]:
        """Request the text of each run, with special tokens shown."""
        return self._bare(await self._client.decode_runs(self._anchored(runs)))

    def _anchored(self, runs: Sequence[Run]) -> list[list[int]]:
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

    def _says(self, run: Run) -> bytes | None:
        """The bytes of a run; None if the run leaves a character unfinished; `_UNKNOWN` if the bytes are unknown."""
        if run[-1] in self._facts.specials:
            return b""
        if self._client.tokenizer is not None:
            run = run[-1:]
        return self._facts.spelt[run] if run in self._facts.spelt else self._heard.get(run, _UNKNOWN)
