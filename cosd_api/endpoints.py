"""The servers of a fusion, which are opened and closed together and discovered only once."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Self, TypeAlias
from urllib.parse import urlsplit

import anyio

from cosd_api.alignment import Unit
from cosd_api.checks import missing_members
from cosd_api.circuit_breaker import CircuitBreaker
from cosd_api.decoding.calls import placed
from cosd_api.decoding.pace import Rate
from cosd_api.decoding.route import ROUTES, Routes
from cosd_api.decoding.speeds import Speeds
from cosd_api.errors import FusionClosedError, SettingError
from cosd_api.methods.base import DEFAULT_METHOD, Method, method_named
from cosd_api.records import DRAFT, Endpoint
from cosd_api.tools.prompting import as_model_reads
from cosd_providers import connect
from cosd_providers.concurrency import concurrently
from cosd_providers.connect import Snapshot
from cosd_providers.contract import Alive, DescribesAgain, Provider, ServerInfo, token_count
from cosd_providers.errors import ContextLengthError, ModelChoiceError, ProviderError, UnsupportedError
from cosd_providers.http.retries import RetriedFailures
from cosd_providers.messages import (
    ChatProvider,
    Message,
    OnSpecialTokens,
    OwnMessages,
    RenderedPrompt,
    after_own,
)
from cosd_providers.same_ids import Vocabulary, vocabulary
from cosd_providers.tokenizers import fingerprint

OwnByName: TypeAlias = Mapping[str, Sequence[Message]]
"""Extra messages for single models, by endpoint name."""

_NOBODYS: OwnByName = MappingProxyType({})
_BY_WORDS = f'Leave unit out, or give unit="word": such models are compared {ROUTES["own"]}. '
_LITERALLY = f'unit="literal" compares any models {ROUTES["literal"]}.'
_ONE_TOKENIZER = 'If you know that they have, give unit="token"; method="cosd" fuses models with any tokenizers.'
_CONTINUES = "Else use a server that continues a text or a partial reply, such as vLLM or llama.cpp's."
_SPECIAL = 8  # maximum number of special tokens that a server is assumed to add to a prompt
_COUNTED = 16  # characters of a long prompt that are counted first, for each token that the model has room for
_COUNTED_AT_LEAST = 1024
_CUT = 24  # extra tokens allowed if a text is cut inside a token


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the servers that apply to one answer.

    Attributes:
        draft: the draft endpoint.
        assistants: the assistants, in the order in which the user gave them.
        unit: the unit in which tokens are judged.
        ids: whether all models share the same token ids and their servers accept ids.
        warnings: warnings that apply to every answer.
        cues: for each chat model, its name and the text that its template writes before an answer.
        shares: for each assistant, whether it shares the draft's token ids; empty if the ids were not compared.
        cuts: for each model, the draft first, whether a token begins at every single space between two visible
            characters, the first of which is no symbol (`vocabulary.crosses_space`); False if unknown. The ids
            before such a space then do not depend on the text after it.
        without: the assistants that the answer leaves out, by index, with the reason; -1 is the draft.
    """

    draft: Endpoint
    assistants: tuple[Endpoint, ...]
    unit: Unit
    ids: bool
    warnings: tuple[str, ...]
    cues: tuple[tuple[str, str], ...] = ()
    shares: tuple[bool, ...] = ()
    cuts: tuple[bool, ...] = ()
    without: Mapping[int, ProviderError] = field(default_factory=dict[int, ProviderError])

    def routes(self, method: Method, infos: Mapping[int, ServerInfo]) -> Routes:
        """The way in which the models of an answer are decoded.

        Args:
            method: the method of the answer.
            infos: the descriptions of the draft (with the key -1) and of each assistant that is not left out.
        """
        shares = self.shares or (False,) * len(self.assistants)
        takes_ids = [
            infos[at].capabilities.ids if at in infos else shares[at] for at in range(-1, len(self.assistants))
        ]
        judges, own_paths = method.asks_by_ids, method.own_paths
        return Routes.of(takes_ids, shares, unit=self.unit, judges=judges, own_paths=own_paths)

    def warnings_for(self, prompt: str | Sequence[Message]) -> tuple[str, ...]:
        """The warnings that can be given before the answer to `prompt` starts."""
        if not isinstance(prompt, str):
            return self.warnings
        raw = tuple(
            f"{name} is a chat model, and the prompt is raw text without {cue!r}, which its chat template writes "
            "before an answer; a list of messages is rendered for each model"
            for name, cue in self.cues
            if cue not in prompt
        )
        return (*self.warnings, *raw)


class Endpoints:
    """The servers of one fusion: a draft and its assistants.

    Args:
        draft: a URL or a provider.
        assistant: one or more URLs or providers.
        unit: the unit in which tokens are judged; if None, it is chosen by comparing the tokenizers.
        method: the method of the fusion.
        spares: whether an answer continues without an assistant that is down (`on_assistant_error="draft"`).
        fails_over: whether an answer continues without the draft if that is down (`on_draft_error="assistant"`).
        tokens: whether to judge single tokens if possible. If so, models whose servers accept no ids are compared by
            their encodings of a test text.

    Attributes:
        breaker: the circuit breaker, which remembers the assistants that have failed recently.
        failures: the failures of the discovery of the servers, for which several answers may be waiting.
        rate: how often the drafts are replaced.
        speeds: the models' speeds, measured in the answers so far.
        room: maximum number of tokens in a prompt, which is the lowest limit among the models that an answer needs.
            None if no limit is known or the servers are not discovered yet.

    Raises:
        SettingError: a server is neither a URL nor a provider.
    """

    def __init__(
        self,
        draft: str | Provider,
        assistant: str | Provider | Sequence[str | Provider],
        *,
        unit: Unit | None = None,
        method: Method | None = None,
        spares: bool = False,
        fails_over: bool = False,
        tokens: bool = False,
    ) -> None:
        self.method = method or method_named(DEFAULT_METHOD)
        self.spares, self.fails_over = spares, fails_over
        self._compared = tokens or self.method.one_tokenizer or not self.method.asks_by_ids
        self.breaker = CircuitBreaker()
        self.failures = RetriedFailures()
        self.rate = Rate()
        self.speeds = Speeds()
        self.unit: Unit | None = unit
        self.room: int | None = None
        self.draft = _provider("draft", draft)
        several = [assistant] if isinstance(assistant, str | Provider) else assistant
        if not isinstance(several, Sequence):
            raise SettingError(_not_a_provider("assistant", assistant))
        if not several:
            raise SettingError("assistant is empty: a fusion needs at least one; the draft alone needs no fusion")
        self.assistants = [_provider("assistant", one) for one in several]
        count = len(self.assistants)
        self.names = ["assistant"] if count == 1 else [f"assistant {i}" for i in range(1, count + 1)]
        self._stack: AsyncExitStack | None = None
        self._facts: Facts | None = None
        self._draft_info: ServerInfo | None = None
        self._infos: dict[int, ServerInfo] = {}  # descriptions of the assistants, by index
        self._fetches_vocabularies = unit != "literal" and (self.method.compares_tokenizers or self.method.own_paths)
        self._vocabularies: dict[int, Vocabulary | None] = {}  # by index; None if a server accepts no ids
        self._discovering = anyio.Lock()

    async def __aenter__(self) -> Self:
        if self._stack is not None:
            raise FusionClosedError("this fusion is open already; open another one, or share this one")
        async with AsyncExitStack() as stack:
            for provider in [self.draft, *self.assistants]:
                await stack.enter_async_context(provider)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()

    async def discover(self) -> Facts:
        """Discover the servers for an answer that starts now. Each server is asked to describe itself only once.

        Raises:
            FusionClosedError: the servers are not open.
            UnsupportedError: a server cannot serve the method.
            ProviderError: a server failed, and answers cannot continue without it.
        """
        if self._stack is None:
            raise FusionClosedError("open the fusion first: async with Fusion(...) as fusion:")
        async with self._discovering:
            self.failures = RetriedFailures()
            with self.failures.recorded():
                without = self.breaker.left_out()
                if len(without) > len(self.assistants):  # no model would be left, so all are tried
                    without = {}
                if self._facts is None or any(at not in {*without, *self._infos} for at in range(len(self.assistants))):
                    draft = self._draft_info = await self._described(-1)
                    unknown = [at for at in range(len(self.assistants)) if at not in {*without, *self._infos}]
                    await concurrently([partial(self._describe, at, without) for at in unknown])
                    self._facts = await self._put_together(draft, without)
                return replace(self._facts, without=without)

    async def draft_is_back(self) -> bool:
        """Ask the draft's server again what it is. Return True if it answers and has not changed.

        If it has changed, the next answer discovers all servers anew.
        """
        known = self._draft_info
        with suppress(ProviderError):
            if isinstance(self.draft, Alive):
                await self.draft.check_alive()
            again = self.draft.describe_again if isinstance(self.draft, DescribesAgain) else self.draft.describe
            if await again() == known:
                self.breaker.answered(-1)
                return True
            self._facts = None
        return False

    def can_spare(self, name: str) -> bool:
        """Test whether an answer continues without the model of this name."""
        return self.fails_over if name == DRAFT else self.spares

    async def _describe(self, at: int, without: dict[int, ProviderError]) -> None:
        """Ask one assistant's server to describe itself. If it is down and can be spared, add it to `without`."""
        try:
            self._infos[at] = await self._described(at)
        except (ModelChoiceError, UnsupportedError):  # the user's mistake, which a retry does not fix
            raise
        except ProviderError as error:
            if not self.spares:
                raise
            without[at] = error
            self.breaker.failed(at, error)
        else:
            self.breaker.answered(at)

    async def _described(self, at: int) -> ServerInfo:
        """Ask a server to describe itself, and fetch its vocabulary's fingerprint. If it fails, the error names it."""
        provider = [*self.assistants, self.draft][at]
        try:
            info = await provider.describe()
            if self._fetches_vocabularies:
                self._vocabularies[at] = await vocabulary(provider, info)
        except ProviderError as error:
            placed(error, provider)
            raise
        return info

    async def _put_together(self, draft: ServerInfo, without: Mapping[int, ProviderError]) -> Facts:
        known = sorted(self._infos)
        infos = [draft, *(self._infos[at] for at in known)]
        rooms = (_room(info) for info in (infos[:1] if self.spares else infos))
        self.room = min((room for room in rooms if room is not None), default=None)
        named = list(zip(["draft", *(self.names[at] for at in known)], infos, strict=True))
        assistants = (
            Endpoint.of(name, self._infos[at]) if at in self._infos else _unknown(name, provider, without[at])
            for at, (name, provider) in enumerate(zip(self.names, self.assistants, strict=True))
        )
        for name, info in named:
            if not (info.capabilities.continues or self.method.accepts_messages_only):
                words = f"the {name} takes messages only, and does not continue a partial answer"
                hint = 'method="steps" asks by messages, as switch.py of examples/methods does. ' + _CONTINUES
                raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
        warnings = self.method.examine(named, self.unit)
        unit, everybody, shares = self.unit, len(known) == len(self.names), tuple[bool, ...]()
        cuts = (False,) * (1 + len(self.names))
        if self._fetches_vocabularies:
            vocabularies = [self._vocabularies[at] for at in (-1, *known)]
            cuts = tuple([_never_crosses(self._vocabularies.get(at)) for at in range(-1, len(self.names))])
            if everybody and unit != "word":
                shares = tuple([one is not None and one == vocabularies[0] for one in vocabularies[1:]])
            if everybody and unit == "token":
                self._refuse_other_tokens(named, vocabularies)
        ids = bool(shares) and all(shares)
        if unit is None and self.method.compares_tokenizers:  # words are the safe choice if a model is down
            unit = "token" if ids else "word"
            if not ids and everybody and self._compared:  # compare the models' encodings of the test text instead
                unit = await _common_unit([self.draft, *self.assistants], infos)
            if self.method.one_tokenizer and everybody and unit == "word":
                words = f"the method {self.method.name!r} compares tokens"
                words += ", and the models are not known to have one tokenizer"
                raise UnsupportedError(words, endpoint=draft.endpoint, hint=_ONE_TOKENIZER)
        if unit is not None and (everybody or self.unit is not None):
            self.method.examine_unit(unit, draft.endpoint)
        cues = tuple((name, cue) for name, info in named if (cue := (info.answer_cue or "").strip()))
        endpoint = Endpoint.of("draft", draft)
        return Facts(endpoint, tuple(assistants), unit or "word", ids, warnings, cues, shares, cuts)

    def _refuse_other_tokens(
        self, named: Sequence[tuple[str, ServerInfo]], vocabularies: Sequence[Vocabulary | None]
    ) -> None:
        """Refuse `unit="token"` for models whose ids differ from the draft's, if the method judges a draft by ids."""
        first, *others = vocabularies
        if self._compared:
            return
        for (name, info), other in zip(named[1:], others, strict=True):
            if first is not None and other is not None and other != first:
                words = f'unit="token" compares the ids of the models, and the {name} has other ids than the draft'
                hint = _LITERALLY
                with suppress(UnsupportedError):  # some verifiers can judge only single tokens
                    self.method.examine_unit("word", info.endpoint)
                    hint = _BY_WORDS + _LITERALLY
                raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)

    async def turns(
        self,
        prompt: str | Sequence[Message],
        on_special_tokens: OnSpecialTokens,
        facts: Facts,
        own: OwnByName = _NOBODYS,
    ) -> tuple[list[RenderedPrompt], Facts]:
        """Render `prompt` for the draft and each assistant, and leave out any assistant that is found to be down.

        Args:
            prompt: text, or a conversation.
            on_special_tokens: see `Fusion`.
            facts: the facts about the endpoints.
            own: extra messages for single models in this answer, by name.

        Returns:
            The prompts of the draft and the assistants, and the updated facts.

        Raises:
            SettingError: the prompt is text, but a model has extra messages of its own; or `own` names an unknown
                model.
            UnsupportedError: a model accepts no messages, or does not accept these messages.
            ProviderError: a model's server failed.
        """
        everybody = [self.draft, *self.assistants]
        self.check_own(own)
        if isinstance(prompt, str):
            self._refuse_own(own)
            return [RenderedPrompt(provider, prompt) for provider in everybody], facts
        turns, without = [RenderedPrompt(provider, "") for provider in everybody], dict(facts.without)

        async def ask(at: int) -> None:
            try:
                turns[at] = await self.render(at, prompt, on_special_tokens=on_special_tokens, own=own)
            except ProviderError as error:
                if not (self.can_spare([DRAFT, *self.names][at]) and error.retryable):
                    raise
                without[at - 1] = error
                self.breaker.failed(at - 1, error)

        await concurrently([partial(ask, at) for at in range(len(everybody)) if at - 1 not in facts.without])
        return turns, replace(facts, without=without)

    def apart(self, method: Method, turns: Sequence[RenderedPrompt], facts: Facts) -> Facts:
        """Update the facts according to the text that the models' templates write before this answer.

        Models that use the same token ids share a path only if their templates write the same text before the answer.
        If the templates differ and the user did not set the unit, the models are compared word by word, like models
        with different ids.

        Args:
            method: the method of the answer.
            turns: the prompts of the draft and the assistants.
            facts: the facts about the endpoints.
        """
        leads = [turn.lead for turn in turns]
        if len({lead for at, lead in enumerate(leads, -1) if at not in facts.without}) == 1:
            return facts
        unit = facts.unit
        if facts.ids and self.unit is None and not method.one_tokenizer:
            with suppress(UnsupportedError):  # some verifiers can judge only single tokens
                method.examine_unit("word", facts.draft.endpoint)
                unit = "word"
        shares = tuple([share and lead == leads[0] for share, lead in zip(facts.shares, leads[1:], strict=False)])
        return replace(facts, ids=False, unit=unit, shares=shares)

    async def render(
        self, at: int, messages: Sequence[Message], *, on_special_tokens: OnSpecialTokens, own: OwnByName = _NOBODYS
    ) -> RenderedPrompt:
        """Render a conversation for the model with index `at` (0 is the draft), preceded by the model's own messages.

        Raises:
            UnsupportedError: the model accepts no messages, or does not accept these messages.
        """
        whole = after_own(own.get([DRAFT, *self.names][at], ()), messages)
        provider = [self.draft, *self.assistants][at]
        return await _turn(provider, await as_model_reads(provider, whole), on_special_tokens)

    def named(self, endpoint: str) -> str:
        """The name of the first model that runs on the server `endpoint`; `"unknown"` if no model runs there."""
        several = zip([DRAFT, *self.names], [self.draft, *self.assistants], strict=True)
        told = {endpoint, urlsplit(endpoint).netloc} - {""}
        return next((name for name, one in several if {one.name, one.name.rpartition("@")[2]} & told), "unknown")

    def longest_wait(self, error: ProviderError) -> float:
        """Seconds that an answer waits if a server asks for it: none for an assistant that the answer can spare."""
        return 0.0 if self.spares and self.named(error.endpoint) in self.names else math.inf

    def check_own(self, own: Mapping[str, object]) -> None:
        """Refuse messages for an unknown model.

        Raises:
            SettingError: `own` contains a name that no model has; the message lists the models' names.
        """
        names = [DRAFT, *self.names]
        for name in own:
            if name not in names:
                raise SettingError(f"own has messages for {name!r}, and the models are {', '.join(names)}")

    def _refuse_own(self, own: OwnByName) -> None:
        """Refuse a text prompt if a model has messages of its own, because only a chat template can combine the two."""
        for name, provider in zip([DRAFT, *self.names], [self.draft, *self.assistants], strict=True):
            if own.get(name) or (isinstance(provider, OwnMessages) and provider.own_messages):
                words = f"{name} has messages of its own, and the prompt is text, which no template renders"
                raise SettingError(f'{words}: give a list of messages, [{{"role": "user", "content": ...}}]')

    def plain(self, prompt: str | Sequence[Message]) -> list[RenderedPrompt]:
        """The prompt as plain text for the draft and each assistant, without any chat template."""
        text = prompt if isinstance(prompt, str) else "\n\n".join(message.content for message in prompt)
        return [RenderedPrompt(provider, text) for provider in [self.draft, *self.assistants]]

    async def check_messages(self, prompt: str | Sequence[Message], facts: Facts, own: OwnByName = _NOBODYS) -> Facts:
        """Refuse a conversation that is far too long for a model, before any template renders it.

        This method refuses conversations of more messages than a model takes tokens. Of other conversations, it checks
        only those that are many times longer than a model's limit, and counts only the tokens at their start.
        `check_length` checks the rest after they are rendered. System and user messages are counted, because every
        rendered prompt contains them (a template that leaves one out is an error). The assistant's messages are not
        counted, because templates may leave out its reasoning.

        Args:
            prompt: see `turns`; a text prompt is not checked here.
            facts: the facts about the endpoints.
            own: extra messages for single models in this answer, by name.

        Returns:
            The updated facts; see `check_length`.

        Raises:
            ContextLengthError: the conversation is too long for a model.
        """
        if isinstance(prompt, str):
            return facts

        async def check(at: int, name: str) -> None:
            await _check_start(name, [self.draft, *self.assistants][at], [*own.get(name, ()), *prompt])

        return await self._checked(check, facts)

    async def check_length(self, turns: Sequence[RenderedPrompt], facts: Facts) -> Facts:
        """Check that every model whose context limit is known has room for its prompt and one more token.

        Assistants that the answer leaves out are not checked. If the answer may continue without an assistant that has
        no room, the assistant is left out as well.

        Returns:
            The updated facts.

        Raises:
            ContextLengthError: the prompt is too long for a model. At this point nothing has been drafted yet.
        """
        counts = _Counts()

        async def check(at: int, name: str) -> None:
            same = not at or (at <= len(facts.shares) and facts.shares[at - 1])
            await _check_length(name, turns[at], counts if same else _Counts())

        return await self._checked(check, facts)

    async def _checked(self, check: Callable[[int, str], Awaitable[None]], facts: Facts) -> Facts:
        """Run a check for each model of the answer. If possible, leave out assistants that have no room or are down."""
        without = dict(facts.without)

        async def tried(at: int, name: str) -> None:
            try:
                await check(at, name)
            except ProviderError as error:
                long = isinstance(error, ContextLengthError)
                if not (self.can_spare(name) and (long or error.retryable)):
                    raise
                without[at - 1] = error
                if not long:
                    self.breaker.failed(at - 1, error)

        named = enumerate([DRAFT, *self.names])
        await concurrently([partial(tried, at, name) for at, name in named if at - 1 not in facts.without])
        return replace(facts, without=without)


async def _turn(provider: Provider, messages: Sequence[Message], on_special_tokens: OnSpecialTokens) -> RenderedPrompt:
    if not isinstance(provider, ChatProvider):
        words = f"{type(provider).__name__} takes no messages"
        hint = "Give text as the prompt, or the provider a method render_prompt (cosd_providers.messages.ChatProvider)."
        raise UnsupportedError(words, endpoint=provider.name, hint=hint)
    return await provider.render_prompt(messages, on_special_tokens=on_special_tokens)


class _Counts:
    """The token counts of texts for models that share the same token ids; each text is counted only once."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._counting = anyio.Lock()

    async def of(self, provider: Provider, text: str) -> int:
        """The number of tokens in a text. If a provider fails to count it, the next call tries its own provider."""
        async with self._counting:
            if text not in self._known:
                self._known[text] = await token_count(provider, text)
            return self._known[text]


async def _check_length(name: str, turn: RenderedPrompt, counts: _Counts) -> None:
    provider, prompt = turn.provider, turn.prompt
    info = await provider.describe()
    room = _room(info)
    # A token has at least one byte, so most prompts are known to be short enough without counting tokens.
    if room is None or len(prompt.encode()) + _SPECIAL <= room or not info.capabilities.tokenize:
        return
    with suppress(UnsupportedError):  # raised if tokens cannot be counted, such as when the tokenizer normalises text
        if await _starts_with_more(provider, prompt, room, _CUT, counts):
            raise _too_long(name, info, f"more than {room}", room)
        count = await counts.of(provider, prompt)
        if count > room:
            raise _too_long(name, info, str(count), room)


async def _check_start(name: str, provider: Provider, messages: Sequence[Message]) -> None:
    """Refuse a conversation that is far too long, after counting the start of the text that every template renders."""
    info = await provider.describe()
    room = _room(info)
    if room is None:
        return
    if len(messages) > room:  # a template writes at least one token for each message, such as its role
        raise _too_long(name, info, f"more than {room}", room)
    contents = [one.content.strip() for one in messages if one.role != "assistant"]
    if sum(map(len, contents)) <= _start_of(room) or not info.capabilities.tokenize:
        return
    with suppress(UnsupportedError):
        # A template does not separate messages by these new lines, so a token may be cut at each message.
        if await _starts_with_more(provider, "\n\n".join(contents), room, _CUT * len(contents), _Counts()):
            raise _too_long(name, info, f"more than {room}", room)


def _never_crosses(vocabulary: Vocabulary | None) -> bool:
    """Test whether a vocabulary is known to have no token that crosses a space between words."""
    return vocabulary is not None and vocabulary.crossing == b""


async def _starts_with_more(provider: Provider, text: str, room: int, cuts: int, counts: _Counts) -> bool:
    """Test whether the beginning of a long text has more than `room + cuts` tokens.

    The cost depends on the room, not on the length of the text.
    """
    size = _start_of(room + cuts - _CUT)
    while size < len(text):
        if await counts.of(provider, text[:size]) > room + cuts:
            return True
        size *= 4
    return False


def _start_of(room: int) -> int:
    """The number of characters to count first: nearly every text of this length has more than `room` tokens."""
    return _COUNTED * room + _COUNTED_AT_LEAST


def _room(info: ServerInfo) -> int | None:
    """Maximum number of tokens in a prompt; None if it is not known."""
    limits = [limit for limit in (info.longest_prompt, (info.context or 0) - 1) if limit is not None and limit >= 0]
    return min(limits, default=None)


def _too_long(name: str, info: ServerInfo, found: str, room: int) -> ContextLengthError:
    words = f"the prompt has {found} tokens, and the {name} takes at most {room}"
    return ContextLengthError(words, endpoint=info.endpoint, hint="Shorten the prompt.")


async def _common_unit(providers: Sequence[Provider], infos: Sequence[ServerInfo]) -> Unit:
    """`"token"` if all models encode the test text alike and report probabilities; otherwise, or in doubt, `"word"`."""
    if not all(info.capabilities.tokenize and info.capabilities.probs for info in infos):
        return "word"
    first, *others = [await fingerprint(provider, info) for provider, info in zip(providers, infos, strict=True)]
    return "token" if first is not None and all(other == first for other in others) else "word"


def _unknown(name: str, provider: Provider, error: ProviderError) -> Endpoint:
    """The `Endpoint` record of an assistant that could not be reached."""
    return Endpoint(name=name, endpoint=error.endpoint or provider.name, engine="unknown", model="unknown")


def _provider(role: str, given: object) -> Provider:
    if isinstance(given, str):
        return connect(given)
    if isinstance(given, type) or not isinstance(given, Provider) or missing_members(given):
        raise SettingError(_not_a_provider(role, given))
    return given


def _not_a_provider(role: str, given: object) -> str:
    missing = missing_members(given)
    if not isinstance(given, type) and missing != missing_members(None):  # the object has some of a provider's methods
        words = f"{role} is not a whole provider: {type(given).__name__} lacks {', '.join(missing)}"
        return f"{words}. A class that wraps a provider derives from cosd_providers.ForwardingProvider"
    more = ": connect(url, report=report) makes a provider of it" if isinstance(given, Snapshot) else ""
    return f"{role} must be a URL or a provider (see cosd_api.connect), not {type(given).__name__}{more}"
