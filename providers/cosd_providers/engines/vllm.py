"""vLLM, by `/v1/completions`, `/tokenize` and `/detokenize`.

Observed on 0.8.5 and 0.32, run on the CPU, and read in the source:

- A prompt is a text, ids, or a list of either; a text gets the model's special tokens, ids get nothing. With
  `return_token_ids` (0.10.2 and newer) prompt and answer come with their ids, so a generation continues from its own.
- The text of an answer is right. The strings of its tokens are not always: a token that leaves a character unfinished
  has an empty one, alternatives are keyed by string, so that equal ones hide each other, and in older versions
  SentencePiece's lose their space. Where two tokens are equally probable the place is asked again by ids; with
  `return_tokens_as_token_ids` every version has them. Behind a token that is not its own, an older server is asked by
  text, which it may read as other tokens.
- Behind ids that end inside a character the server repeats text of the prompt: it is never asked there. It writes the
  character's tokens again.
- The end of sequence is a token with a probability and a string; `finish_reason` is `"stop"`, `stop_reason` null or
  its id.
- `prompt_logprobs` are keyed by id. They do not use the prefix cache, and are refused in a stream.
- `max_tokens` beyond the context is cut in silence by new versions and refused by old ones: here it always fits.
- `/tokenize` renders messages, and with `/detokenize` that is a text with its special tokens: its ids are those that
  the chat route reads. (`/v1/chat/completions/render` answers 403 by default.) Such a text has its beginning of
  sequence; a second one is put before it unless `add_special_tokens` is off.
- With `skip_special_tokens` off, special tokens are text in an answer; the one that ends it never is.
- How many probabilities there may be at a place (`--max-logprobs`, 20 by default) is told when more are asked for.
- No route tells the end of sequence. Tokens with its common names, and those of the chat template, are forced, to see.
- Probabilities are those of the model itself at temperature 1 too. A request with a `seed` draws by random numbers of
  its own, from their beginning: one that continues a draft gets another seed.
- 0.6 and older refuse fields that they do not know: such servers are refused.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from pydantic import BaseModel

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Capabilities, Context, DraftEnd, Piece, Proposal, Question, ServerInfo, Token
from cosd_providers.drafting import DraftRequests, IdsDraft, Next
from cosd_providers.engine import (
    NO_TEMPLATE,
    Models,
    answer_cue,
    ask_only,
    broken_off,
    choose,
    miscounted,
    no_probs,
    own_stop,
    silent,
    unknown_bytes,
)
from cosd_providers.engines.openai.logprobs import TokenAligner
from cosd_providers.engines.openai.probe_client import CompletionsProbeClient
from cosd_providers.engines.openai.wire import Answer, Billed, Candidate, Completion, Ranked, Step, bill, steps
from cosd_providers.engines.tokenizing import (
    ENDS,
    Encoding,
    TokenizedFacts,
    TokenizingClient,
    TokenizingEngine,
    looks_special,
)
from cosd_providers.errors import (
    ContextLengthError,
    InvalidRequestError,
    ResponseError,
    StatusError,
    UnsupportedError,
)
from cosd_providers.greedy import (
    ROUNDING,
    TIES,
    Choice,
    Continuation,
    Draft,
    Position,
    boundaries,
    check_greedy,
    check_own,
    prob,
    with_alternatives,
    with_listed,
    within,
)
from cosd_providers.http.transport import MANY_IDLE, Transport
from cosd_providers.parsing import parse
from cosd_providers.probe_client import RawReply, RawRequest, RawScores
from cosd_providers.proposing import Rounds
from cosd_providers.sampling import DraftOptions
from cosd_providers.strategies import Strategy
from cosd_providers.text import sendable, whole
from cosd_providers.token_counts import Counts
from cosd_providers.tokenizers import Tokenizer
from cosd_providers.usage import Usage
from cosd_providers.vocabulary import kind_of, spell

__all__ = ["Vllm", "VllmClient", "VllmFacts"]

_Prompt = str | list[int]
"""A text, which the server encodes, or ids, which it takes as they are."""

_GREEDY: dict[str, object] = {
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
    "min_tokens": 0,
    "skip_special_tokens": True,
    "echo": False,
    "return_tokens_as_token_ids": False,
    "return_token_ids": True,
}
"""Greedy decoding. Fields left out fall back to the model's `generation_config.json`."""

_OWNED = {
    *_GREEDY,
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "best_of",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "include_stop_str_in_output",
    "length_penalty",
    "logit_bias",
    "logprob_token_ids",
    "logprobs",
    "max_tokens",
    "model",
    "prompt",
    "prompt_embeds",
    "prompt_logprobs",
    "repetition_detection",
    "response_format",
    "stop_token_ids",
    "stream",
    "stream_options",
    "structured_outputs",
    "suffix",
    "thinking_token_budget",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_beam_search",
    "watermarking",
}
"""Fields that a user's `extra_body` may not set."""

_LETTERS = "a \u00e9 a"  # whose tokens show the kind of the vocabulary
_FORCE = 100.0  # added to a logit, this decides; the most that is allowed
_MOST = 20  # probabilities at one place: the most that a server gives by default
_ALL = 2**24  # more probabilities at one place than any vocabulary has: how many there may be is said in the refusal
_LIMIT = re.compile(r"max allowed: (\d+)|more than (\d+) logprobs")
_MANY = re.compile(r"maximum allowed count of (\d+)")
_PARTS = 4  # tokens of one character, at most
_LONG = 16  # characters of a token's text, above which it may be more than the token's
_AGAIN = 2  # resume from the same ids or text this many times; after that, restart from the text received so far


class _Version(BaseModel):
    """The answer of `/version`."""

    version: str


class _Decoded(BaseModel):
    """The answer of `/detokenize`."""

    prompt: str


@dataclass(frozen=True, slots=True)
class VllmFacts(TokenizedFacts):
    """Facts of a vLLM server.

    Attributes:
        exact: a whole string of a token is its bytes: no decoder takes a space from it.
        bare: strings of tokens have lost the space at their front; None where that is not known.
        ends: strings and ids of ends of sequence that were seen.
        spelt: the bytes of tokens found so far; None for parts of characters.
        most: probabilities at one place that the server gives at most.
    """

    exact: bool
    bare: bool | None
    ends: set[str | int] = field(default_factory=set[str | int])
    spelt: dict[int, bytes | None] = field(default_factory=dict[int, bytes | None])
    most: int = _MOST

    @property
    def end_ids(self) -> list[int]:
        """The ids of the ends that were seen."""
        return sorted(end for end in self.ends if isinstance(end, int))


def _checked(answer: Completion, endpoint: str) -> Completion:
    """An answer, or event, that ended as it should.

    Raises:
        UnsupportedError: there are no probabilities; or the server has a stop of its own.
        ResponseError: it was broken off.
    """
    if answer.logprobs is None and (answer.text or answer.token_ids):
        raise no_probs("logprobs", endpoint)
    if isinstance(answer.stop_reason, str):
        raise own_stop(endpoint)
    if answer.finish_reason not in (None, "stop", "length"):
        words = f"the server broke the answer off ({answer.finish_reason})"
        raise ResponseError(words, endpoint=endpoint, retryable=True)
    return answer


# What is sent.


class VllmClient(TokenizingClient[VllmFacts]):
    """Requests to one server.

    Args:
        transport: the server.
        extra: merged into every generation request.
        special_tokens: special tokens are put before a text, where the model has some.
        tokenizer: the model's own, where it was given.

    Attributes:
        counts: the number of tokens of texts, special ones included.
    """

    def __init__(
        self, transport: Transport, extra: Mapping[str, object], special_tokens: bool, tokenizer: Tokenizer | None
    ) -> None:
        super().__init__(transport, extra, special_tokens, tokenizer)
        self.counts = Counts()
        self._most = 2**31  # prompts that the server takes in one request

    def __getstate__(self) -> dict[str, Any]:
        """Everything but texts and facts."""
        return {**super().__getstate__(), "counts": Counts()}

    def body(self, prompt: object, wanted: int, **fields: object) -> dict[str, object]:
        """A greedy request."""
        own = {"model": self.model, "add_special_tokens": self._special_tokens, "logprobs": TIES}
        own["skip_special_tokens"] = not self.is_chat
        return {**self._extra, **_GREEDY, **own, "prompt": prompt, "max_tokens": wanted, **fields}

    def stream(self, prompt: _Prompt, wanted: int, options: DraftOptions, drawn: int = 0) -> dict[str, object]:
        """A request for a draft of at most `wanted` raw tokens, billed as it goes, behind the first `drawn` ones."""
        told = {"include_usage": True, "continuous_usage_stats": True}
        top = min(1 + options.alternatives, self.facts.most)
        sampling: dict[str, object] = {"temperature": 1} if options.sampled else {}
        if options.sampled and (seed := options.seed_after(drawn)) is not None:
            sampling["seed"] = seed
        return self.body([prompt], wanted, logprobs=top, stream=True, stream_options=told, **sampling)

    def listed(self, alternatives: int) -> int:
        """The number of most probable tokens to ask for, so that ties and alternatives are among them."""
        return max(TIES, min(1 + alternatives, self.facts.most))

    async def batch(
        self, prompts: Sequence[_Prompt], wanted: int, usage: Usage, *, singly: bool = False, **more: object
    ) -> list[Completion]:
        """The answers to several prompts, in order: in one request, or with `singly` one for each, a few at once."""
        if self.head.text:
            prompts = await concurrently([partial(self.sent, prompt) for prompt in prompts])
        found: dict[int, Completion] = {}
        for kind in (str, list):  # a list holds texts, or ids
            at = [n for n, prompt in enumerate(prompts) if isinstance(prompt, kind)]
            asked = [prompts[n] for n in at]
            if singly:

                async def one(prompt: _Prompt) -> Completion:
                    return (await self._list([prompt], wanted, usage, more))[0]

                answers = await concurrently([partial(one, prompt) for prompt in asked])
            else:
                answers = await self._list(asked, wanted, usage, more)
            found |= zip(at, answers, strict=True)
        return [found[n] for n in range(len(prompts))]

    async def _list(
        self, prompts: Sequence[_Prompt], wanted: int, usage: Usage, more: Mapping[str, object]
    ) -> list[Completion]:
        """The answers to prompts of one kind; as many at once as the server takes."""
        answers: list[Completion] = []
        while len(answers) < len(prompts):
            asked = prompts[len(answers) : len(answers) + self._most]
            body = self.body(asked, wanted, **more)
            try:
                data = await self.transport.post("/v1/completions", body, usage=usage)
            except InvalidRequestError as error:
                refused = _MANY.search(str(error))
                if refused is None or not 0 < int(refused[1]) < len(asked):
                    raise
                self._most = int(refused[1])
                continue
            answer = parse(Answer, data, self.transport.endpoint)
            bill(usage, answer.usage)
            if sorted(one.index for one in answer.choices) != [*range(len(asked))]:
                raise miscounted(len(asked), len(answer.choices), self.transport.endpoint)
            answers += sorted(answer.choices, key=lambda one: one.index)
        for prompt, one in zip(prompts, answers, strict=True):
            if isinstance(prompt, str) and one.prompt_token_ids is not None:
                self.counts.seen(prompt, len(one.prompt_token_ids))
        return [_checked(one, self.transport.endpoint) for one in answers]

    async def encode(self, text: str, *, plain: bool = False, strings: bool = True) -> Encoding:
        """The ids of a text, and their `strings`; `plain` is without the special tokens that are put before it."""
        head, rest = self.split(text)
        found = await self._encode(rest, added=self._special_tokens and not plain, strings=strings)
        if not head.text:
            return found
        shown = None if head.strings is None or found.token_strs is None else [*head.strings, *found.token_strs]
        return Encoding(tokens=[*head.ids, *found.tokens], token_strs=shown)

    async def encode_alone(self, texts: Sequence[str], *, strings: bool = False) -> list[Encoding]:
        """Each text by a request of its own."""
        return await concurrently([partial(self._encode, text, added=False, strings=strings) for text in texts])

    async def _encode(self, text: str, *, added: bool, strings: bool) -> Encoding:
        body: dict[str, object] = {"prompt": text, "add_special_tokens": added}
        return await self._tokenize(body | {"return_token_strs": True} if strings else body)

    async def _tokenize(self, body: Mapping[str, object]) -> Encoding:
        found = await self.transport.post("/tokenize", {"model": self.model, **body})
        return parse(Encoding, found, self.transport.endpoint)

    async def sent(self, prompt: _Prompt) -> _Prompt:
        """A prompt as it is sent: with a head as ids."""
        if not self.head.text or isinstance(prompt, list):
            return prompt
        [ids] = await self.ids([prompt])
        return [*ids]

    async def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown."""
        data = await self.transport.post("/detokenize", {"model": self.model, "tokens": list(ids)})
        return parse(_Decoded, data, self.transport.endpoint).prompt

    async def templated(self, messages: Sequence[Mapping[str, str]]) -> Encoding:
        """A conversation rendered by the model's chat template, up to the answer."""
        return await self._tokenize(
            {"messages": list(messages), "add_generation_prompt": True, "return_token_strs": True}
        )

    def without_template(self, error: StatusError) -> UnsupportedError | None:
        """The error of a model without a template."""
        if "chat template is no longer allowed" not in str(error.args[0]):
            return None
        return UnsupportedError("the model has no chat template", endpoint=self.transport.endpoint, hint=NO_TEMPLATE)

    async def room(self, prompt: _Prompt, wanted: int) -> int:
        """Tokens that fit behind a prompt; at least `wanted` if they do, none or less where it is too long itself."""
        context = self.facts.info.context
        if context is None:
            return wanted
        if isinstance(prompt, list):
            return context - len(prompt)
        if self.counts.fits(prompt, context - wanted):
            return wanted
        count = self.counts.exact(prompt)
        if count is None:
            count = len((await self.encode(prompt, strings=False)).tokens)
            self.counts.add(prompt, count)
        return context - count

    async def says(self, token_id: int, usage: Usage) -> bytes | None:
        """The bytes of a token; None where they are no whole characters. An end of sequence is noted as one."""
        if token_id not in self.facts.spelt:
            before = await self.decode([self.facts.anchor])
            text = (await self.decode([self.facts.anchor, token_id])).removeprefix(before)
            if looks_special(text.strip()) and await self._ends(token_id, usage):
                self.facts.ends.update((text.strip(), token_id))
            self.facts.spelt[token_id] = None if not text or "\ufffd" in text else text.encode()
        return self.facts.spelt[token_id]

    async def _named_ends(self) -> set[int]:
        """By one request, where the server shows strings."""
        found = await self._encode("".join(ENDS), added=False, strings=True)
        if found.token_strs is None:
            return await super()._named_ends()
        return {n for n, string in zip(found.tokens, found.token_strs, strict=False) if string in ENDS}

    async def _try_ends(self, ids: Sequence[int], usage: Usage) -> None:
        await concurrently([partial(self.says, n, usage) for n in ids])

    async def _ends(self, token_id: int, usage: Usage) -> bool:
        """An answer is over with this token: it is forced, to see."""
        bias = {str(token_id): _FORCE}
        [answer] = await self.batch([[self.facts.anchor]], 1, usage, logit_bias=bias)
        return answer.finish_reason == "stop"

    def too_long(self, room: int) -> ContextLengthError:
        """The error of a prompt behind which nothing fits."""
        context = self.facts.info.context or 0
        words = f"the text has {context - room} tokens, the model's context is {context}, and nothing more fits"
        return ContextLengthError(words, endpoint=self.transport.endpoint)


# How answers are read.


@dataclass(frozen=True, slots=True)
class _ScoredText:
    """A text that was scored by its own model.

    Attributes:
        beginning: the number of special tokens before it.
        pieces: its own tokens.
        positions: the model's choice at each of them, and after them; None where in doubt.
    """

    beginning: int
    pieces: list[Piece]
    positions: list[Position | None]


def _equals(position: Position) -> list[Choice]:
    """The alternatives that are at least as probable as the server's own token."""
    own = position.pick.token.prob
    return [] if own is None else [choice for choice in position.top if (choice.token.prob or 0.0) >= own]


def _lower(position: Position, others: Iterable[Choice]) -> list[Choice]:
    """Those of several tokens that are less probable than the server's own."""
    own = position.pick.token.prob or 0.0
    return [choice for choice in others if (choice.token.prob or 0.0) < own]


def _doubtful(position: Position, listed: int = TIES) -> bool:
    """Two tokens are equally probable, or one may hide behind another of the same string.

    Improbable tokens hide each other often. So in a longer list it counts only where what is not shown of all
    probabilities is enough for one that is as probable as the server's own.
    """
    strings = {choice.token.data for choice in position.top}
    hides = 0 < len(position.top) < listed - 1 and b"" not in strings
    if hides and listed > TIES:
        own = position.pick.token.prob or 0.0
        hides = 1 + ROUNDING - own - sum(choice.token.prob or 0.0 for choice in position.top) >= own
    return bool(_equals(position)) or hides


def _known(facts: VllmFacts, position: Position) -> list[Choice]:
    """The listed tokens whose strings are their bytes, or that are known to be an end."""
    if facts.bare is not False:  # a string may have lost its space
        return []
    strings = [choice.token.data.decode(errors="replace") for choice in position.top]
    return [choice for choice, string in zip(position.top, strings, strict=True) if not looks_special(string.strip())]


def _beside(facts: VllmFacts, entry: Mapping[int, Ranked], but: int) -> list[Choice]:
    """The same of an entry that is keyed by ids, without one of them."""
    found: list[Choice] = []
    for token_id, one in entry.items():
        string = one.decoded_token or ""
        if token_id == but:
            continue
        if token_id in facts.ends:
            found.append(Choice(token_id, Token(b"", prob(one.logprob), end=True, name=string or None)))
        elif facts.bare is False and string and "\ufffd" not in string and not looks_special(string.strip()):
            found.append(Choice(token_id, Token(string.encode(), prob(one.logprob))))
    return found


def _closed(positions: list[Position], answer: Completion) -> list[Position]:
    """The same positions, with special tokens closed: they have no text, and leave no character open."""
    if not any(position.pick.open for position in positions):
        return positions
    strings = [step.pick.text for step in steps(answer)]
    if len(strings) != len(positions):
        return positions
    return [
        replace(position, pick=replace(position.pick, open=position.pick.open and not looks_special(string)))
        for position, string in zip(positions, strings, strict=True)
    ]


def _scored_positions(
    facts: VllmFacts,
    pieces: Sequence[Piece],
    ranked: Sequence[dict[int, Ranked] | None],
    answer: Completion | None,
    listed: int,
) -> list[Position | None]:
    """The model's choice at each token of a text, and after it; None where its bytes are in doubt."""
    found: list[Position | None] = []
    held = b""  # of a character that is not whole yet
    for piece, entry in zip(pieces, ranked, strict=True):
        inside, held = bool(held), held + piece.data
        finished = bool(held) and whole(held) == len(held)
        position = _scored_position(facts, piece.id, held if finished else b"", entry or {}, inside=inside)
        if position is not None and entry is not None and len(entry) > listed:  # the text's own is listed in addition
            position = replace(position, top=[choice for choice in position.top if choice.id != piece.id])
        found.append(position)
        held = b"" if finished else held
    aligner = TokenAligner(facts.info.endpoint, facts.ends, bare=facts.bare)
    last = next(iter(list(aligner.feed(answer)) if answer else []), None)
    doubt = last is None or held or _doubtful(last, listed)
    found.append(None if last is None or doubt else replace(last, top=_known(facts, last)))
    return found


def _scored_position(
    facts: VllmFacts, own: int, data: bytes, entry: dict[int, Ranked], *, inside: bool
) -> Position | None:
    """One position: the text's own token, or another one whose string is beyond doubt."""
    best = max((one.logprob for one in entry.values() if one.logprob is not None), default=None)
    first = [token_id for token_id, one in entry.items() if one.logprob == best]
    if best is None or len(first) != 1:
        return None
    [token_id] = first
    string, others = entry[token_id].decoded_token or "", _beside(facts, entry, token_id)
    if token_id in facts.ends:
        return Position(Choice(token_id, Token(b"", prob(best), end=True, name=string or None)), others)
    if looks_special(string.strip()):
        return None
    if token_id == own:
        return Position(Choice(own, Token(data, prob(best)), not data), others)
    if inside or not facts.exact or not string or "\ufffd" in string:
        return None
    return Position(Choice(token_id, Token(string.encode(), prob(best))), others)


# Drafts and proposals.


class _VllmDraft:
    """One draft.

    Args:
        client: the server's requests.
        prefix: the text before the draft: ids, or prompt and text as one.
        max_tokens: whole-character tokens to give at most.
        alone: that is the prompt alone, and it is an error if it is too long.
        options: how its tokens are chosen, and how many others each comes with, as far as the server lists them.
        usage: is billed.
    """

    def __init__(
        self,
        client: VllmClient,
        prefix: _Prompt,
        max_tokens: int,
        *,
        alone: bool,
        options: DraftOptions,
        usage: Usage,
    ) -> None:
        self._client = client
        self._facts = client.facts
        self._endpoint = client.transport.endpoint
        self._text = "" if isinstance(prefix, list) else prefix
        self._start = prefix if isinstance(prefix, list) else None
        self._alone = alone
        self._options = options
        self._usage = usage
        self._draft = Draft(max_tokens)
        self._given = b""  # of the draft, behind the text
        self._safe = 0  # ids of the draft that end with a whole character
        self._seen = 0  # tokens of the answer that is being read
        self._full = False  # whether nothing more fits

    async def after(self) -> Sequence[DraftEnd]:
        """The end, if it has come; see `drafting.DraftRequests`."""
        if self._full:
            return [DraftEnd("context")]
        known = None if self._start is None or self._draft.ended else (*self._start, *self._draft.ids)
        return [DraftEnd("end" if self._draft.ended else "limit", known)] if self._draft.over else []

    async def answer(self, attempt: int) -> AsyncGenerator[Token, None]:
        """The new tokens of one answer; the first ones of it may be known. See `drafting.DraftRequests`.

        A server that shows ids continues from them. Another one writes again what it wrote; where it breaks off twice
        before there is anything new, the draft restarts from its text: the server may have a limit of its own. Tokens
        that are drawn would be others the second time: those of a character that was cut off are drawn again.
        """
        if self._draft.over:
            return
        if attempt > _AGAIN:
            self._from_text()
        drawn = len(self._draft.ids)
        if self._options.sampled:
            self._draft.drop(drawn - self._safe)
        sent = self._text if self._start is None else [*self._start, *self._draft.ids[: self._safe]]
        skipped = len(self._draft.ids) - self._safe
        # Twice what is skipped: a model that says nothing for long is not asked again at each of its tokens. What is
        # drawn is asked for at once, so that no character is cut, and left when it is enough.
        wanted = _PARTS * self._draft.left if self._options.sampled else self._draft.left + 2 * skipped
        room = await self._client.room(sent, wanted)
        if room <= skipped:
            if self._alone and not self._draft.ids and not self._given:
                raise self._client.too_long(room)
            self._full = True
            return
        body = self._client.stream(sent, min(wanted, room), self._options, drawn)
        async with aclosing(self._read(sent, body, skipped, attempt)) as tokens:
            async for token in tokens:
                yield token
        if self._draft.over:
            return
        self._full = room <= self._seen < wanted
        short = self._seen < wanted  # it would be cut there again
        if not self._full and not (short and self._from_text()) and self._seen <= skipped:
            raise silent(self._endpoint)

    def _from_text(self) -> bool:
        """Restart from the text, where the server shows no ids; return whether it has grown."""
        if self._start is not None or not self._given:
            return False
        self._text += sendable(self._given)
        self._draft, self._given = Draft(self._draft.left), b""
        return True

    async def _read(
        self, sent: _Prompt, body: Mapping[str, object], skipped: int, attempt: int
    ) -> AsyncGenerator[Token, None]:
        """Read one stream into the draft."""
        aligner = TokenAligner(self._endpoint, self._facts.ends, bare=self._facts.bare)
        done, billed, self._seen = False, None, 0
        try:
            stream = self._client.transport.stream("/v1/completions", body, usage=self._usage, attempt=attempt)
            async with stream as events:
                async for data in events:
                    event = parse(Answer, data, self._endpoint)
                    if _twice(event, billed):
                        continue
                    billed = event.usage or billed
                    for completion in event.choices:
                        done = _checked(completion, self._endpoint).finish_reason is not None
                        if isinstance(sent, str) and completion.prompt_token_ids is not None:
                            self._client.counts.seen(sent, len(completion.prompt_token_ids))
                        self._start = self._start or completion.prompt_token_ids
                        for token in self._taken(self._positions(aligner, completion), skipped):
                            yield token
                        if self._draft.over:
                            return
        finally:
            bill(self._usage, billed)
        if not done:
            raise broken_off(self._endpoint)

    def _positions(self, aligner: TokenAligner, completion: Completion) -> list[Position]:
        """The checked positions of an event."""
        positions = list(aligner.feed(completion))
        for position in positions:
            own = position.pick.token
            if not own.end:
                check_own(own.prob, self._endpoint)
            if position.top and not self._options.sampled:
                check_greedy(own.prob, (choice.token.prob for choice in position.top), self._endpoint)
        return positions

    def _taken(self, positions: Sequence[Position], skipped: int) -> list[Token]:
        """The whole tokens that positions of an answer complete; the first `skipped` of it are known."""
        found: list[Token] = []
        for position in positions:
            self._seen += 1
            if self._seen <= skipped:
                continue
            found += self._draft.feed(position.pick.id, self._told(position))
            if self._start and not position.pick.open:
                self._safe = len(self._draft.ids)
        self._given += b"".join(token.data for token in found)
        return found

    def _told(self, position: Position) -> Token:
        """The server's own token, with its alternatives where these are wanted and known from their strings."""
        if not self._options.alternatives:
            return position.pick.token
        return with_alternatives(replace(position, top=_known(self._facts, position)), self._options.alternatives)


async def _raw_stream(
    client: VllmClient, options: DraftOptions, usage: Usage, ids: Sequence[int], left: int, attempt: int
) -> AsyncGenerator[Next, None]:
    """One request for a draft by ids; see `drafting.IdsStream`.

    The last token of all, which has no text, is the end if the answer ended by itself.
    """
    room = await client.room([*ids], left)
    if room < 1:
        raise client.too_long(room)
    body = client.stream([*ids], min(left, room), options) | {"return_tokens_as_token_ids": True}
    facts, endpoint, done, billed, seen = client.facts, client.transport.endpoint, False, None, 0
    held: Choice | None = None
    try:
        stream = client.transport.stream("/v1/completions", body, usage=usage, attempt=attempt)
        async with stream as events:
            async for data in events:
                event = parse(Answer, data, endpoint)
                if _twice(event, billed):
                    continue
                billed = event.usage or billed
                for completion in event.choices:
                    finish = _checked(completion, endpoint).finish_reason
                    found = _raw(facts, completion, options, endpoint)
                    await _told(client, found, completion.text, usage)
                    seen += len(found)
                    for choice in found:
                        if held is not None:
                            yield held
                        held = choice
                    if held is not None and finish == "stop":
                        facts.ends.add(held.id)
                        held = Choice(held.id, replace(held.token, data=b"", end=True))
                    if held is not None and (held.token.data or finish is not None):
                        yield held
                        held = None
                    done = done or finish is not None
    finally:
        bill(usage, billed)
    if not done:
        raise broken_off(endpoint)
    if room < left and seen >= room:
        yield "full"


def _raw(facts: VllmFacts, completion: Completion, options: DraftOptions, endpoint: str) -> list[Choice]:
    """The tokens of an event by ids, without their bytes."""
    found: list[Choice] = []
    for step in steps(completion):
        position = _by_id(facts, step, b"", endpoint)
        if not options.sampled:
            check_greedy(position.pick.token.prob, (one.token.prob for one in position.top), endpoint)
        found.append(Choice(position.pick.id, with_listed(position, options.alternatives)))
    return found


async def _spoken(client: VllmClient, token_id: int, text: str, usage: Usage) -> bytes:
    """The bytes of one token, from its text; of a longer text the server has repeated what stands before it."""
    if len(text) > _LONG:
        return await client.says(token_id, usage) or b""
    return text.replace("\ufffd", "").encode()


async def _told(client: VllmClient, found: Sequence[Choice], text: str, usage: Usage) -> None:
    """Give the tokens of an event their bytes, which together are its text.

    The part that completes a character has the bytes of all of it: the server shows them with that one.
    """
    if not found:
        return
    left = await _spoken(client, found[0].id, text, usage) if len(found) == 1 else text.replace("\ufffd", "").encode()
    known = [None] * len(found) if len(found) < 2 else [await client.says(one.id, usage) for one in found]
    for at, one in enumerate(found):
        data = known[at]
        if data is None or not left.startswith(data):
            behind = next((later for later in known[at + 1 :] if later), None)
            unknown_next = at + 1 < len(found) and known[at + 1] is None
            data = b"" if unknown_next else left if behind is None else left[: max(left.find(behind), 0)]
        left = left[len(data) :]
        one.token = replace(one.token, data=data)


def _by_id(facts: VllmFacts, step: Step, data: bytes, endpoint: str) -> Position:
    """A place whose tokens the server shows by their ids."""

    def choice(one: Candidate, data: bytes = b"") -> Choice:
        if one.id is None:
            raise ResponseError("a token has no id, although asked (return_tokens_as_token_ids)", endpoint=endpoint)
        return Choice(one.id, Token(data, one.prob, end=one.id in facts.ends))

    own = choice(step.pick, data)
    check_own(own.token.prob, endpoint)
    return Position(own, [choice(one) for one in step.top])


async def _first(client: VllmClient, answer: Completion, alternatives: int, usage: Usage) -> Token:
    """The first token of an answer by ids, and the next most probable ones."""
    endpoint, facts = client.transport.endpoint, client.facts
    found = steps(answer)
    if not found:
        raise silent(endpoint)
    position = _by_id(facts, found[0], b"", endpoint)
    data = await _spoken(client, position.pick.id, answer.text, usage)
    position.pick.token = replace(position.pick.token, data=data)
    if answer.finish_reason == "stop":
        facts.ends.add(position.pick.id)
        position.pick.token = replace(position.pick.token, data=b"", end=True)
    return with_listed(position, alternatives)


def _twice(event: Answer, billed: Billed | None) -> bool:
    """The event was sent before: it has tokens, and none were written since the last one."""
    written = event.usage and event.usage.completion_tokens
    return bool(billed and written and written == billed.completion_tokens and any(map(steps, event.choices)))


@dataclass(slots=True)
class _Place:
    """The state of one continuation.

    Attributes:
        head: the ids of the text before it, once known.
        safe: the number of its ids up to its last whole character. The server is resumed from there: behind an
            unfinished character it repeats text of the prompt.
        given: the number of its ids when it last got positions, and these.
    """

    head: list[int] | None = None
    safe: int = 0
    given: tuple[int, Sequence[Position]] = field(default=(0, ()))

    def settle(self, one: Continuation) -> None:
        """Note which of the last positions the continuation took."""
        had, positions = self.given
        for at, (taken, position) in enumerate(zip(one.ids[had:], positions, strict=False), had + 1):
            choices = (position.pick, *position.top)
            if not next(choice for choice in choices if choice.id == taken).open:
                self.safe = at


class _VllmRounds(Rounds):
    """The rounds of one `propose`; see `Rounds`.

    Args:
        client: the server's requests.
        prompt: the prompt.
        text: the response so far.
        usage: is billed.
        alternatives: the number of others that each token comes with, as far as the server lists them.
        singly: each prompt has its own request.
        scored: the scored text, where there is one.
    """

    def __init__(
        self,
        client: VllmClient,
        prompt: str,
        text: bytes,
        usage: Usage,
        *,
        alternatives: int = 0,
        singly: bool = False,
        scored: _ScoredText | None = None,
    ) -> None:
        super().__init__(prompt, text, alternatives)
        self._client = client
        self._facts = client.facts
        self._usage = usage
        self._singly = singly
        self._scored_text = scored
        self._places: dict[int, _Place] = {}

    def _share(self, one: Continuation, own: Sequence[Hashable], positions: Sequence[Position]) -> None:
        """Note that a continuation behind these ids gets positions of the scored text."""
        place = self._places.setdefault(id(one), _Place())
        place.settle(one)
        place.given = (len(one.ids), positions)
        if self._facts.info.capabilities.token_ids:  # else the ids of what it writes are made up
            place.head = [*cast("Sequence[int]", own)]

    async def _begin(self, open_: Sequence[Continuation]) -> None:
        for one in open_:
            self._places.setdefault(id(one), _Place()).settle(one)

    async def _scored(self, open_: Sequence[Continuation]) -> dict[int, Iterable[Position]]:
        """Those that the scored text answers: its encoding up to there is the model's own."""
        scored = self._scored_text
        if scored is None:
            return {}
        start = len(self._prompt.encode())
        ends, at = {0: 0}, 0
        for count, piece in enumerate(scored.pieces, 1):
            at += len(piece.data)
            ends[at] = count
        ids = [piece.id for piece in scored.pieces]
        counts = {one.question.start: ends.get(start + one.question.start) for one in open_}
        places = [(place, count) for place, count in counts.items() if count is not None]

        async def own(place: int, count: int) -> bool:
            return count == len(ids) or await self._client.ids([self._before(place)]) == [ids[:count]]

        exact = await concurrently([partial(own, *place) for place in places])
        beginning = self._facts.beginning
        usable = {place: len(beginning) + count for (place, count), right in zip(places, exact, strict=True) if right}
        return self._along(open_, [*beginning, *ids], usable, scored.positions, self._share)

    async def _room(self, one: Continuation, wanted: int) -> int:
        return await self._client.room(self._prefix(one), wanted)

    async def _too_long(self, one: Continuation) -> ContextLengthError:
        return self._client.too_long(await self._room(one, 1))

    async def _written(self, open_: Sequence[Continuation], count: int) -> Sequence[Sequence[Position]]:
        prompts = [self._prefix(one) for one in open_]
        top = self._client.listed(self._alternatives)
        answers = await self._client.batch(prompts, count, self._usage, singly=self._singly, logprobs=top)
        return [await self._read(one, answer) for one, answer in zip(open_, answers, strict=True)]

    def _prefix(self, one: Continuation) -> _Prompt:
        """The prompt from which the server is to continue."""
        place = self._places[id(one)]
        if place.head is not None:
            return [*place.head, *one.ids[: place.safe]]
        return self._before(one.question.start) + sendable(one.turned[1])

    def _skipped(self, one: Continuation) -> int:
        """Tokens of the continuation that the server writes again."""
        place = self._places[id(one)]
        return len(one.ids) - (one.turned[0] if place.head is None else place.safe)

    async def _read(self, one: Continuation, answer: Completion) -> Sequence[Position]:
        """The new positions of an answer; where two tokens are equally probable, each with its own id and bytes."""
        place, skipped = self._places[id(one)], self._skipped(one)
        prefix = self._prefix(one)
        if answer.prompt_token_ids is not None and place.head is None and not one.ids:
            place.head = answer.prompt_token_ids
        aligner = TokenAligner(self._client.transport.endpoint, self._facts.ends, bare=self._facts.bare)
        positions = _closed(list(aligner.feed(answer)), answer)
        for position in positions:
            if not position.pick.token.end:
                check_own(position.pick.token.prob, self._client.transport.endpoint)
        known = [_known(self._facts, position) for position in positions] if self._alternatives else []
        top = self._client.listed(self._alternatives)
        doubts = [
            at
            for at in range(skipped, len(positions))
            if _doubtful(positions[at], top) and not (at and positions[at - 1].pick.open)
        ]
        if doubts:
            start, ids = await self._numbered(prefix, answer)
            doubts = doubts if len(ids) >= len(positions) else []
            asked: list[_Prompt] = [[*start, *ids[:at]] for at in doubts]
            doubtful = [replace(positions[at], pick=replace(positions[at].pick, id=ids[at])) for at in doubts]
            for at, position in zip(doubts, await self._resolved(doubtful, asked), strict=True):
                positions[at] = position
        if self._alternatives:
            positions = [
                replace(position, top=[*_equals(position), *_lower(position, others)])
                for position, others in zip(positions, known, strict=True)
            ]
        place.given = (len(one.ids), positions[skipped:])
        return positions[skipped:]

    async def _numbered(self, prefix: _Prompt, answer: Completion) -> tuple[Sequence[int], Sequence[int]]:
        """The ids of a prompt and of its answer. Where the server shows none, the answer is asked for once more."""
        start = prefix if isinstance(prefix, list) else answer.prompt_token_ids
        if start is not None and answer.token_ids is not None:
            return start, answer.token_ids
        if isinstance(prefix, str):
            start = (await self._client.encode(prefix, strings=False)).tokens
        count = len(steps(answer))
        [again] = await self._client.batch([prefix], count, self._usage, return_tokens_as_token_ids=True)
        return start or (), [step.pick.id for step in steps(again) if step.pick.id is not None]

    async def _resolved(self, positions: Sequence[Position], prefixes: Sequence[_Prompt]) -> list[Position]:
        """The same positions, asked again by ids."""
        if not positions:
            return []
        many = any(len(_equals(position)) == len(position.top) for position in positions)  # there may be more
        most = min(_MOST, self._facts.most) if many else TIES  # all that were listed may be tied
        more: dict[str, Any] = {"return_tokens_as_token_ids": True, "logprobs": most}
        answers = await self._client.batch(prefixes, 1, self._usage, **more)
        found: list[Position] = []
        for position, answer in zip(positions, answers, strict=True):
            [step] = steps(answer)
            best = max(other.prob or 0.0 for other in step.top)
            tied = sorted(other.id for other in step.top if other.id is not None and other.prob == best)
            if position.pick.id not in tied:  # the server's arithmetic is not quite the same twice
                found.append(replace(position, top=()))
                continue
            pick = replace(position.pick, token=replace(position.pick.token, prob=best))
            others = [await self._choice(token_id, best) for token_id in tied if token_id != pick.id]
            found.append(Position(pick, others))
        return found

    async def _choice(self, token_id: int, best: float) -> Choice:
        data = await self._client.says(token_id, self._usage)
        if token_id in self._facts.ends:
            return Choice(token_id, Token(b"", best, end=True, name=(data or b"").decode() or None))
        return Choice(token_id, Token(data or b"", best), not data)


# The provider.


class Vllm(TokenizingEngine[VllmFacts, VllmClient]):
    """A model behind vLLM's server. See `contract.Provider`.

    Args:
        url: the server's URL, without `/v1`.
        tokenizer: the model's own, where the server does not show the bytes of tokens; what `load_tokenizer` takes.
        strategy: how proposals are asked (`strategies.Strategy`); by default a list, or `"echo"` at every boundary of
            a text. All give the same answers. `"echo"` scores the text only where several places are asked: for one,
            the prompt costs less, and is in the server's cache.
        add_special_tokens: a prompt gets the model's beginning of sequence. Turn it off for prompts that were made by a
            chat template, which have it already.
        options: as in `engine.Adapter`: `model` (a name of the model, or of an adapter (LoRA) on top of it), `api_key`,
            `headers`, `extra_body` (e.g. `{"priority": 1}`), `timeout`, `http_client`, `limits`.

    Raises:
        ValueError: `extra_body` sets what the fusion itself decides; or there is no such strategy.
    """

    _client_type = VllmClient
    _facts_type = VllmFacts
    _owned = _OWNED
    _ready_route = "/health"
    _idle = MANY_IDLE

    async def _draft(
        self,
        facts: VllmFacts,  # noqa: ARG002 - the client has them
        context: Context,
        continuation: Any,
        max_tokens: int,
        options: DraftOptions,
        usage: Usage,
    ) -> DraftRequests:
        if options.raw:
            stream = partial(_raw_stream, self._client, options, usage)
            return IdsDraft(stream, await self._client.path(context), max_tokens, alone=not context.ids, raw=True)
        prompt, text = context.prompt, context.text
        prefix = await self._client.sent(prompt + sendable(text) if continuation is None else [*continuation])
        self._client.check_something(prefix)
        return _VllmDraft(self._client, prefix, max_tokens, alone=not text, options=options, usage=usage)

    async def next_tokens(
        self, contexts: Sequence[Context], *, alternatives: int = 1, usage: Usage
    ) -> list[Token | None]:
        """A list of ids, or one request for each; see `contract.IdContexts`. Only the first tokens have bytes."""
        await self.facts()
        client = self._client
        paths = [await client.path(context) for context in contexts]
        rooms = [await client.room(path, 1) for path in paths]
        fits = [path for path, room in zip(paths, rooms, strict=True) if room > 0]
        way: Strategy = "singles" if self._strategy == "singles" or len(contexts) == 1 else "list"
        more: dict[str, Any] = {"logprobs": client.listed(alternatives), "return_tokens_as_token_ids": True}
        answers = iter(await client.batch(fits, 1, usage, singly=way == "singles", **more) if fits else ())
        usage.answered_by(way, len(fits))
        return [await _first(client, next(answers), alternatives, usage) if room > 0 else None for room in rooms]

    async def propose(
        self,
        context: Context,
        questions: Sequence[Question] | None,
        *,
        alternatives: int = 0,
        usage: Usage,
    ) -> list[Proposal | None]:
        """All questions as the strategy says, and once more those that need it; see `contract.Provider`."""
        prompt, text = context.prompt, context.text
        await self.facts()
        if alternatives:
            await self._client.seek_ends(usage)
        whole = prompt + sendable(text)
        scored = await self._scored(whole, alternatives, usage) if questions is None else None
        if questions is None:
            pieces = scored.pieces if scored else await self.tokenize(whole)
            questions = boundaries((piece.data for piece in pieces), len(prompt.encode()))
        for question in questions:
            self._client.check_something(prompt + sendable(text[: question.start]))
        way: Strategy = self._strategy or ("list" if len(questions) > 1 else "singles")
        if scored is not None:  # it is scored already
            way = "echo"
        elif way == "echo" and len({question.start for question in questions}) > 1:
            with suppress(ContextLengthError):  # what is asked may still fit
                scored = await self._scored(whole, alternatives, usage)
        more: dict[str, Any] = {"alternatives": alternatives, "singly": way == "singles", "scored": scored}
        return await _VllmRounds(self._client, prompt, text, usage, **more).propose(questions, way, usage)

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """One request, with the end's id behind the text; see `contract.Provider`.

        A model with several ends may take one more, where none of them is among the most probable tokens. The first
        token of a model without a beginning of sequence has no probability where the prompt is empty.
        """
        prompt, text = context.prompt, context.text
        facts = await self.facts()
        if alternatives or end:
            await self._client.seek_ends(usage)
        whole = prompt + sendable(text)
        if not whole and not end:
            return []
        pieces = await self._spelt(whole, plain=False)
        if pieces is None or not (pieces or end):
            raise unknown_bytes(self._transport.endpoint)
        own = [piece.id for piece in pieces]
        ends = facts.end_ids if end and [*facts.beginning, *own] else []  # the first token of all has no probability
        ranked, _ = await self._ranked([*own, *ends[:1]], alternatives, usage)
        raw: list[Token] = []
        for piece, entry in zip(pieces, ranked, strict=False):
            mine = (entry or {}).get(piece.id)
            choice = Choice(piece.id, Token(piece.data, None if mine is None else prob(mine.logprob)))
            raw.append(with_alternatives(Position(choice, _beside(facts, entry or {}, piece.id)), alternatives))
        scored = within(raw, len(prompt.encode()))
        if not end:
            return scored
        entry = ranked[-1] if ends else None
        return [*scored, await self._end(own, entry or {}, alternatives, usage)]

    async def score_ids(
        self, context: Context, first: int, *, alternatives: int = 0, end: bool = False, usage: Usage
    ) -> list[Token]:
        """One request, with the end's id behind the others; see `contract.IdScores`."""
        await self.facts()
        if alternatives or end:
            await self._client.seek_ends(usage)
        facts, ids = self._client.facts, [*(context.ids or ())]
        own = (await self._client.path(context))[len(facts.beginning) :]
        ends = facts.end_ids[:1] if end else []
        ranked, _ = await self._ranked([*own, *ends], alternatives, usage)
        start, found = len(own) - len(ids) + first, list[Token]()
        for token_id, entry in zip(own[start:], ranked[start:], strict=False):
            mine = (entry or {}).get(token_id)
            choice = Choice(token_id, Token(b"", None if mine is None else prob(mine.logprob)))
            found.append(with_listed(Position(choice, _beside(facts, entry or {}, token_id)), alternatives))
        if not end:
            return found
        return [*found, await self._end(own, (ranked[-1] if ends else None) or {}, alternatives, usage, raw=True)]

    async def _end(
        self, own: Sequence[int], entry: Mapping[int, Ranked], alternatives: int, usage: Usage, *, raw: bool = False
    ) -> Token:
        """The most probable end after a text.

        Args:
            own: the ids of the text.
            entry: the tokens listed after it; empty where they are not known.
            alternatives: the number of others to list.
            usage: is billed.
            raw: list them with their ids, parts of characters, too.
        """
        facts, top = self._client.facts, self._client.listed(alternatives)
        found = {n: entry[n] for n in facts.end_ids if n in entry}
        values = sorted((one.logprob for one in entry.values() if one.logprob is not None), reverse=True)
        best = max((one.logprob for one in found.values() if one.logprob is not None), default=None)
        hidden = [n for n in facts.end_ids if n not in entry]
        if hidden and best is not None and best < values[:top][-1]:  # one that is not listed may be more probable
            sent = [[*facts.beginning, *own, n] for n in hidden]
            answers = await self._client.batch(sent, 1, usage, prompt_logprobs=1)
            lists = [(one.prompt_logprobs or [None])[-1] or {} for one in answers]
            found |= {n: one[n] for n, one in zip(hidden, lists, strict=True) if n in one}
        most = max(found, key=lambda n: prob(found[n].logprob) or 0.0, default=None)
        if most is None:
            return Token(b"", None, end=True)
        token = Token(b"", prob(found[most].logprob), end=True, name=found[most].decoded_token or None)
        listed = with_listed if raw else with_alternatives
        return listed(Position(Choice(most, token), _beside(facts, entry, most)), alternatives)

    async def _ranked(
        self, own: Sequence[int], alternatives: int, usage: Usage
    ) -> tuple[list[dict[int, Ranked] | None], Completion | None]:
        """Score a text with these ids: the tokens listed at each of them, and the answer behind it.

        Raises:
            ContextLengthError: the text is too long.
            UnsupportedError: the server does not list it.
        """
        facts = self._client.facts
        ids, top = [*facts.beginning, *own], self._client.listed(alternatives)
        if not own:
            return [], None
        room = await self._client.room(ids, 1)
        if room < 1:
            raise self._client.too_long(room)
        [found] = await self._client.batch([ids], 1, usage, prompt_logprobs=top, logprobs=top)
        ranked = found.prompt_logprobs
        if ranked is None or len(ranked) != len(ids):
            words = "the server does not give the probabilities of a text, although asked (prompt_logprobs)"
            raise UnsupportedError(words, endpoint=self._transport.endpoint, hint="Use strategy='list'.")
        return ranked[len(facts.beginning) :], found

    async def tokenize(self, text: str) -> list[Piece]:
        """The server's own encoding, special tokens parsed as in a prompt, none added."""
        await self.facts()
        pieces = await self._spelt(text, plain=True)
        if pieces is None:
            raise unknown_bytes(self._transport.endpoint)
        return pieces

    async def _spelt(self, text: str, *, plain: bool) -> list[Piece] | None:
        """The encoding of a text without the special tokens before it; None where its bytes cannot be known.

        It is also None where something else is put around the text, unless it is wanted `plain`.
        """
        facts = self._client.facts
        encoded = await self._client.encode(text, plain=plain)
        ids, strings = encoded.tokens, encoded.token_strs
        self._client.counts.add(text, len(ids) + (len(facts.beginning) if plain else 0))
        before = 0 if plain else len(facts.beginning)
        if ids[:before] != facts.beginning[:before]:
            return None
        pieces = None
        if strings is not None and len(strings) == len(ids):
            pieces = spell(text.encode(), list(zip(ids, strings, strict=True))[before:])
        if pieces is None and self._client.tokenizer is not None:
            pieces = self._client.tokenizer.encode(text)
            if [piece.id for piece in pieces] != ids[before:]:
                words = "the tokenizer that was given encodes text differently from the server: it is another one"
                raise UnsupportedError(words, endpoint=self._transport.endpoint)
        return pieces

    async def _scored(self, text: str, alternatives: int, usage: Usage) -> _ScoredText | None:
        """The text as its own model sees it; None where its bytes cannot be known."""
        facts = self._client.facts
        pieces = await self._spelt(text, plain=False)
        if not pieces:
            return None
        ranked, answer = await self._ranked([piece.id for piece in pieces], alternatives, usage)
        positions = _scored_positions(facts, pieces, ranked, answer, self._client.listed(alternatives))
        return _ScoredText(len(facts.beginning), pieces, positions)

    async def probe_client(self) -> VllmProbeClient:
        """The server without checks, for a probe."""
        await self.facts()
        return VllmProbeClient(self._client, self.tokenize)

    async def _discover(self) -> VllmFacts:
        try:
            return await self._look()
        except InvalidRequestError as error:
            if "extra_forbidden" not in str(error) and "Extra inputs are not permitted" not in str(error):
                raise
            words = "this version of vLLM refuses fields that are needed"
            raise UnsupportedError(words, endpoint=self._transport.endpoint, hint="Update the server.") from error

    async def _look(self) -> VllmFacts:
        ask = partial(ask_only, self._transport, looks="vLLM", url="`vllm serve`")
        version = (await ask(_Version, "/version")).version
        chosen = choose((await ask(Models, "/v1/models")).data, self._model, self._transport.endpoint)
        client, endpoint = self._client, self._transport.endpoint
        client.model = chosen.id
        beginning = await client.encode("", strings=False)
        letters = await client.encode(_LETTERS, plain=True)
        if not letters.tokens:
            raise ResponseError("/tokenize gave no token for a letter", endpoint=endpoint)
        kind = kind_of(_LETTERS.encode(), letters.token_strs or ())
        [first] = await client.batch([letters.tokens[-1:]], 1, Usage())
        bare = await _bare(client, letters.tokens[-1]) if kind == "spaces" else False if kind == "bytes" else None
        most = await _limit(client, letters.tokens[-1:])
        ids_known = first.token_ids is not None and first.prompt_token_ids is not None
        bytes_known = letters.token_strs is not None or client.tokenizer is not None
        listed = most - 1 if bare is False else 0  # the server's own is one of them
        able = Capabilities(
            token_ids=ids_known,
            end_prob=True,
            tokenize=bytes_known,
            score=bytes_known,
            top_k=listed,
            score_top_k=listed if bytes_known else 0,
            sampling=ids_known,
            ids=ids_known,
        )
        info = ServerInfo(
            endpoint=endpoint,
            engine="vllm",
            model=client.model,
            build=version,
            context=chosen.max_model_len or letters.max_model_len,
            capabilities=able,
            answer_cue=await answer_cue(client.template),
        )
        return VllmFacts(info, beginning.tokens, letters.tokens[-1], kind == "bytes", bare, most=most)


async def _bare(client: VllmClient, token_id: int) -> bool | None:
    """Strings of tokens have lost the space at their front: one is forced, to see. None where that is not known.

    With vocabularies of SentencePiece it was lost until the server put it back from the vocabulary's own entries.
    """
    try:
        [answer] = await client.batch([[token_id]], 1, Usage(), logit_bias={str(token_id): _FORCE})
    except StatusError:
        return None
    found = [step.pick.text for step in steps(answer)]
    return {" a": False, "a": True}.get(found[0]) if found else None


async def _limit(client: VllmClient, ids: list[int]) -> int:
    """The number of probabilities at one place that the server gives at most (`--max-logprobs`), as it refuses more."""
    try:
        await client.batch([ids], 1, Usage(), logprobs=_ALL)
    except InvalidRequestError as error:
        told = _LIMIT.search(str(error))
        return int(told[1] or told[2]) if told else _MOST
    return _MOST


# The probe's client.


class VllmProbeClient(CompletionsProbeClient):
    """A vLLM server.

    Args:
        client: makes its requests.
        encode: gives the tokens of a text.
    """

    def __init__(self, client: VllmClient, encode: Callable[[str], Awaitable[list[Piece]]]) -> None:
        def body(prompt: object, limit: int, top: int) -> Mapping[str, object]:
            return client.body(prompt, limit, logprobs=top)

        super().__init__(client.transport, "/v1/completions", body, client.facts.ends, client.model)
        self._facts = client.facts
        self._encode = encode

    async def send(self, request: RawRequest, usage: Usage) -> list[RawReply]:
        """One request."""
        sent = [one if isinstance(one, str) else [*self._facts.beginning, *one] for one in request.prompts]
        return await super().send(replace(request, prompts=sent), usage)

    async def score(self, text: str, usage: Usage) -> RawScores:
        """By `prompt_logprobs`, whose entries are keyed by id."""
        pieces = await self._encode(text)
        sent = [*self._facts.beginning, *(piece.id for piece in pieces)]
        try:
            answer = await self._post({**self._body(sent, 1, TIES), "prompt_logprobs": TIES}, usage)
        except InvalidRequestError as error:
            raise self.unable(f"prompt_logprobs is refused: {error.args[0]}") from error
        ranked = answer.choices[0].prompt_logprobs if answer.choices else None
        if ranked is None or len(ranked) != len(sent):
            raise self.unable("prompt_logprobs is ignored: the answer does not hold it")
        before = len(self._facts.beginning)
        own = [_raw_position(piece, entry or {}) for piece, entry in zip(pieces, ranked[before:], strict=True)]
        after = next(iter(self._reply(answer.choices[0], None).positions), None)
        return RawScores("prompt_logprobs", own, before, after)


def _raw_position(piece: Piece, entry: Mapping[int, Ranked]) -> Position:
    own = entry.get(piece.id)
    others = [
        Choice(token_id, Token((one.decoded_token or "").encode(), prob(one.logprob)))
        for token_id, one in entry.items()
        if token_id != piece.id
    ]
    return Position(Choice(piece.id, Token(piece.data, prob(own.logprob) if own else None)), others)
