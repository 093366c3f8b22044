"""The six adapters over toy models: each with its stand-in, and with what that stand-in can show.

Every import of an engine's class for the tests of all adapters stands here.
"""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, Literal

import httpx
from hypothesis import strategies as st
from pydantic import TypeAdapter

from cosd_providers import Capabilities, Piece, Provider, ServerInfo, Token, UnsupportedError, Usage
from cosd_providers.engines.llama_cpp import LlamaCpp
from cosd_providers.engines.ollama import Ollama
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.engines.openai.dialects import Dialect
from cosd_providers.engines.sglang import Sglang
from cosd_providers.engines.tgi import Tgi
from cosd_providers.engines.vllm import Vllm
from cosd_providers.greedy import Continuation, Position
from cosd_providers.testing import LanguageModel, ScriptedProvider
from cosd_providers.text import merge
from fakes.llama_cpp import FakeLlamaCpp
from fakes.ollama import StandInOllama
from fakes.openai import FakeOpenAI
from fakes.sglang import StandInSglang
from fakes.tgi import StandInTgi
from fakes.vllm import FakeVllm
from support.asked import valid
from toys import toy_models as toys

TEXT = "ab a b1 11 ab, a b a1b ba 1 a b aa 1b"
DRAWN = 40
"""Tokens of a prompt and a draft that is drawn, at most, with those of the draft that continues it."""
TOY = Dialect("toy", known_text=TEXT, sample=TEXT, shows_parts=True, probs=True)
"""A server of OpenAI's protocol whose texts for checks the toy models know."""


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
"""Numbers of tokens in the events of a stream, in turn: as many as were written while the server was busy."""


class Local:
    """A model's tokenizer on this machine."""

    name = "local"
    beginning = 0

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def encode(self, text: str) -> list[Piece]:
        if text == "</s>":
            return [Piece(n, text.encode()) for n in sorted(self.model.end_ids)[:1]]
        if not {*text.encode()} <= {byte for data in self.model.tokens for byte in data}:
            raise UnsupportedError("the tokenizer has no token for a part of the text")
        return [Piece(n, self.model.tokens[n]) for n in self.model.encode(text.encode())]

    def token(self, id: int) -> bytes | None:
        return self.model.tokens[id] or None if id < len(self.model.tokens) else None


class TextOnly(ScriptedProvider):
    """The model's words when it can be given text only: a chain that took another token goes on from text."""

    def _go_on(self, chain: Continuation, prompt: str, text: bytes, usage: Usage) -> list[Position]:
        skipped, data = chain.turned
        again = Continuation(dataclasses.replace(chain.question, start=0))
        again.ids = []
        start = text[: chain.question.start] + data
        ids, positions = self._encode(prompt, start), list[Position]()
        while len(positions) < len(chain.ids) - skipped + chain.wanted:
            positions.append(self._position(ids, chain.alternatives))
            ids.append(positions[-1].pick.id)
            if positions[-1].pick.token.end:
                break
        return positions[len(chain.ids) - skipped :]


@dataclass(frozen=True)
class Tidy(toys.Plain):
    """A toy model in the shape that providers take, which writes nothing but valid UTF-8.

    A server that shows text alone cannot show anything else. With `by_text` its choice depends on the text, however
    that is cut: a tie that is resolved against the server's own pick leaves the same model. Without, there are no
    ties, and its choice depends on its own tokens.
    """

    by_text: bool

    @cached_property
    def known(self) -> dict[tuple[int, ...], list[float]]:
        return {}

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        key = tuple(self.encode(self.toy.vocabulary.decode(ids))) if self.by_text else tuple(ids)
        if key not in self.known:
            self.known[key] = self._tidied(key)
        return self.known[key]

    def _tidied(self, ids: tuple[int, ...]) -> list[float]:
        data = self.toy.vocabulary.decode(ids)
        pending = data[codecs.utf_8_decode(data, "surrogateescape", False)[1] :]
        probs = [prob if self._fits(pending, n) else 0.0 for n, prob in enumerate(self.toy.next(ids))]
        if not any(probs):
            probs[self._completing(pending)] = 1.0
        best = max(probs)
        first, end = probs.index(best), self.toy.vocabulary.end
        return [
            prob * 0.75 if prob == best and n != first and (n == end or not self.by_text) else prob
            for n, prob in enumerate(probs)
        ]

    def _fits(self, pending: bytes, n: int) -> bool:
        """True if a token is valid UTF-8 there; it may not end one character and begin another."""
        data = pending + self.tokens[n]
        try:
            whole = codecs.utf_8_decode(data, "strict", False)[1]
        except UnicodeDecodeError:
            return False
        if n == self.toy.vocabulary.end:
            return not pending
        endless = self.by_text and not self.tokens[n]  # it would be said again and again
        return not endless and (not pending or whole in (0, len(data)))

    def _completing(self, pending: bytes) -> int:
        """A token that finishes a character, or continues it."""
        fitting = [n for n, data in enumerate(self.tokens) if data and self._fits(pending, n)]
        return next((n for n in fitting if not toys.is_incomplete(pending + self.tokens[n])), fitting[0])


def across(model: LanguageModel) -> bool:
    """True if a token ends a character and holds more: offsets in characters do not tell how much lies in a prompt."""
    starts = [data for data in model.tokens if data and 0x80 <= data[0] < 0xC0]
    return any(byte < 0x80 or byte >= 0xC0 for data in starts for byte in data)


def parted(model: LanguageModel) -> bool:
    """True if a token ends a character and starts another that it leaves unfinished.

    Where such characters are not shown apart, they are one token, even across the end of a prompt.
    """
    return any(0x80 <= data[0] < 0xC0 and toys.is_incomplete(data) for data in model.tokens if data)


def valid_so_far(data: bytes) -> bool:
    """True if bytes are the beginning of a text."""
    try:
        return codecs.utf_8_decode(data, "strict", False)[1] >= 0
    except UnicodeDecodeError:
        return False


def drawable(model: LanguageModel, ids: Sequence[int]) -> bool:
    """True if the first tokens that were drawn are the beginning of a text."""
    raw = (Token(model.tokens[n], 1.0, end=n in model.end_ids) for n in ids)
    return valid_so_far(b"".join(token.data for token in islice(merge(raw), DRAWN)))


def readable(tokens: Sequence[Token]) -> bool:
    """True if every token can be shown as text."""
    return all(valid([token]) for token in tokens)


def simple(model: LanguageModel) -> bool:
    """True if no two tokens have the same string, and only the end has none."""
    tokens = [data for n, data in enumerate(model.tokens) if n not in model.end_ids]
    return len({*tokens}) == len(tokens) and all(tokens)


@dataclass
class Case:
    """One adapter over its stand-in with one model.

    Attributes:
        model: the model as the stand-in has it.
        server: the stand-in; its `requests` are those that were sent.
        expected: the same model without a server.
        shows: whether the stand-in can show these tokens as they are.
        make: another adapter over the same stand-in; with `handle`, that answers in its place.
        ties: whether the text's own token is found among any number of equally probable ones.
        closeness: relative tolerance of probabilities.
        by_ids: whether a stream that broke again and again is continued from ids; else it is from the text.
        same_requests: whether a draft that was resumed takes as many requests as one that did not break.
        ids: whether a draft that reached its limit can be continued from its token ids.
        scored: whether the texts of this model can be scored.
        pieces: whether each of several tokens that share a character has its own bytes when a text is encoded.
        complete: whether all alternatives that were asked for are shown.
        end: what `score` says of the end of sequence: its probability, its probability where it is listed, that it is
            unknown, or that it is unsupported.
        drew: whether all that the stand-in has drawn can be shown.
        learns: what is listed beside a token may have to be found out, once.
        asks: in a draft, too.
    """

    model: LanguageModel
    server: Any
    expected: ScriptedProvider
    make: Callable[..., Provider]
    shows: Callable[[Sequence[Token]], bool] = lambda tokens: True
    ties: bool = True
    closeness: float = 1e-9
    by_ids: bool = False
    same_requests: bool = True
    ids: bool = True
    scored: bool = True
    pieces: bool = True
    complete: bool = True
    end: Literal["scored", "listed", "unknown"] = "scored"
    drew: Callable[[], bool] = lambda: True
    learns: bool = False
    asks: bool = False


class Engine:
    """One kind of server: what a toy model needs for it, and the ways of its stand-in.

    Attributes:
        name: the engine's name for `connect`.
        strategies: how proposals can be asked for; None for the engine's own choice.
        scores: whether it scores and encodes texts.
        empty: whether it continues an empty prompt.
        parts: whether it shows that a token is a part of a character, so that other places of the text are right.
        way: some settings of the stand-in.
    """

    name: ClassVar[str]
    strategies: ClassVar[tuple[str | None, ...]]
    scores: ClassVar[bool] = True
    empty: ClassVar[bool] = True
    parts: ClassVar[bool] = False
    way: ClassVar[dict[str, Any]] = {}

    def __repr__(self) -> str:
        return self.name

    def models(self) -> st.SearchStrategy[Any]:
        """Models that the stand-in can show."""
        return toys.models(may_hide_end=False).map(toys.Plain)

    def written(self) -> st.SearchStrategy[Any]:
        """Models that write nothing that the stand-in cannot show, whatever is drawn."""
        return self.models().map(lambda model: Tidy(model.toy, by_text=True))

    def prompts(self) -> st.SearchStrategy[bytes]:
        return toys.prompts() if self.empty else toys.prompts().filter(bool)

    def ways(self) -> st.SearchStrategy[dict[str, Any]]:
        """Settings of the stand-in."""
        return st.just({})

    def case(self, model: Any, way: dict[str, Any]) -> Case:
        """The adapter over the stand-in."""
        raise NotImplementedError


def _maker(create: Callable[..., Provider], server: Any, **fixed: Any) -> Callable[..., Provider]:
    def make(handle: Callable[[httpx.Request], httpx.Response] | None = None, **options: Any) -> Provider:
        client = httpx.AsyncClient(transport=httpx.MockTransport(handle or server.handle))
        return create(http_client=client, **{**fixed, **options})

    return make


class LlamaCppEngine(Engine):
    name = "llama.cpp"
    strategies = ("list", "singles")

    def models(self) -> st.SearchStrategy[Any]:
        return toys.models(may_hide_end=False, longest_merge=6).map(toys.Plain)

    def written(self) -> st.SearchStrategy[Any]:
        return self.models()

    def case(self, model: Any, way: dict[str, Any]) -> Case:
        server = FakeLlamaCpp(model, beginning=True)
        make = _maker(LlamaCpp, server, url="http://gpu:8080")
        return Case(model, server, ScriptedProvider(model), make, by_ids=True)


class VllmEngine(Engine):
    name = "vllm"
    parts = True
    strategies = ("echo", "list", "singles")
    way: ClassVar[dict[str, Any]] = {"per_event": (1,)}

    def models(self) -> st.SearchStrategy[Any]:
        return toys.models(may_hide_end=False).map(toys.Heard)

    def ways(self) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({"per_event": SIZES})

    def case(self, model: Any, way: dict[str, Any]) -> Case:
        server = FakeVllm(model, beginning=True, context=300)  # some models write nothing for ever
        server.per_event = way["per_event"]
        return Case(
            model,
            server,
            ScriptedProvider(model),
            _maker(Vllm, server, url="http://gpu:8000"),
            shows=valid,
            by_ids=True,
            same_requests=False,  # a character may be written once more
            complete=False,
            drew=lambda: all(drawable(model, ids) for ids in server.drawn),
            learns=True,
            asks=True,
        )


class SglangEngine(Engine):
    name = "sglang"
    parts = True
    strategies = ("echo", "list", "singles")
    way: ClassVar[dict[str, Any]] = {"per_event": (1,), "incremental": False, "whole": False, "old": True}

    def models(self) -> st.SearchStrategy[Any]:
        return toys.models(may_hide_end=False).map(toys.Heard)

    def ways(self) -> st.SearchStrategy[dict[str, Any]]:
        yes = st.booleans()
        return st.fixed_dictionaries(
            {"per_event": SIZES, "incremental": yes, "whole": yes, "old": yes}  # old: a local tokenizer
        )

    def case(self, model: Any, way: dict[str, Any]) -> Case:
        specials = {n: f"<unused{n}>" for n, data in enumerate(model.tokens) if not data and n not in model.end_ids}
        options: dict[str, Any] = {"beginning": len(model.tokens), "specials": specials, "clips": False}
        server = StandInSglang(model, context=300, deterministic=True, **options, **way)
        tokenizer = Local(model) if way["old"] else None
        make = _maker(Sglang, server, url="http://gpu:30000", tokenizer=tokenizer)
        more: dict[str, Any] = {"by_ids": True, "same_requests": False, "end": "scored", "learns": True}
        if not way["old"]:
            more |= {"shows": valid, "pieces": False, "complete": False}
            more["drew"] = lambda: all(
                drawable(model, [n for n in ids if n < len(model.tokens)]) for ids in server.drawn
            )
        return Case(model, server, ScriptedProvider(model), make, **more)


class TgiEngine(Engine):
    name = "tgi"
    strategies = ("singles",)
    empty = False

    def models(self) -> st.SearchStrategy[Any]:
        return st.builds(Tidy, toys.models(may_hide_end=False), st.booleans())

    def ways(self) -> st.SearchStrategy[dict[str, Any]]:
        return st.fixed_dictionaries({"end_is_special": st.booleans()})

    def case(self, model: Any, way: dict[str, Any]) -> Case:
        server = StandInTgi(model, beginning=len(model.tokens), prefill=True, loses=False, **way)
        expected = ScriptedProvider(model, token_ids=False, end_prob=True)
        return Case(
            model,
            server,
            expected,
            _maker(Tgi, server, url="http://gpu:8080"),
            closeness=1e-6,
            ids=False,
            scored=not across(model),  # it lies in the prompt and in the text, and offsets are those of characters
            pieces=False,
            complete=False,
            end="listed",
        )


OLLAMA_URL = "http://gpu:11434"
OLLAMA_ABLE = Capabilities(token_ids=False, end_prob=False, tokenize=False, score=False)
OLLAMA_INFO = ServerInfo(OLLAMA_URL, "ollama", "toy:latest", "0.34.4", 512, OLLAMA_ABLE)
OLLAMA_SNAPSHOT = {"served": {}, "known": {"info": TypeAdapter(ServerInfo).dump_python(OLLAMA_INFO)}}


class OllamaEngine(Engine):
    name = "ollama"
    strategies = ("singles",)
    scores = False
    empty = False

    def models(self) -> st.SearchStrategy[Any]:
        return super().models().filter(simple)

    def case(self, model: Any, way: dict[str, Any]) -> Case:
        server = StandInOllama(model, beginning=len(model.tokens), runner="engine")

        def restored(**options: Any) -> Provider:  # a toy does not know the texts of its checks
            provider = Ollama(OLLAMA_URL, **options)
            provider.restore(OLLAMA_SNAPSHOT, OLLAMA_URL)
            return provider

        expected = TextOnly(model, token_ids=False, end_prob=False)
        return Case(
            model,
            server,
            expected,
            _maker(restored, server),
            readable,
            ties=False,
            ids=False,
            complete=False,
        )


def ways(*, opened: Sequence[str] = ("empty", "bytes", "lost")) -> st.SearchStrategy[dict[str, Any]]:
    """Settings of the stand-in for servers of OpenAI's protocol."""
    shown = st.sampled_from(opened)
    drawn = {"shape": st.sampled_from(("legacy", "chat")), "end": st.booleans(), "per_event": SIZES}
    return st.fixed_dictionaries({**drawn, "opened": shown}).map(
        lambda way: {**way, "per_event": (1,), "noise": 1e-12} if way["opened"] == "lost" else way
    )


class OpenAIEngine(Engine):
    name = "openai"
    strategies = ("echo", "list", "singles")
    way: ClassVar[dict[str, Any]] = {"shape": "legacy", "end": True, "per_event": (1,), "opened": "bytes"}

    def models(self) -> st.SearchStrategy[Any]:
        return super().models().filter(simple)

    def ways(self) -> st.SearchStrategy[dict[str, Any]]:
        return ways(opened=("empty", "bytes"))

    def case(self, model: Any, way: dict[str, Any]) -> Case:
        server = FakeOpenAI(model, beginning=True, **way)
        listed: dict[str, Any] = {"ranked": True, "spaced": True, "most": 20, "chat_most": 20}
        dialect = dataclasses.replace(TOY, end_prob=way.get("end", True), sampling={"temperature": 1}, **listed)
        make = _maker(OpenAICompatible, server, url="http://gpu:8000/v1", dialect=dialect, tokenizer=Local(model))
        expected = TextOnly(model, token_ids=False, end_prob=way.get("end", True))
        # Where characters are not shown apart, their parts are one token.
        scored = way.get("opened", "empty") != "empty" or not (parted(model) or across(model))
        return Case(
            model,
            server,
            expected,
            make,
            readable,
            ids=False,
            scored=scored,
            complete=False,
            end="listed",
            drew=lambda: all(map(valid_so_far, server.drawn)),
        )


ENGINES: tuple[Engine, ...] = (
    LlamaCppEngine(),
    VllmEngine(),
    SglangEngine(),
    TgiEngine(),
    OllamaEngine(),
    OpenAIEngine(),
)
