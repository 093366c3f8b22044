"""Every method over another engine: the texts are those over llama.cpp's own server, but for the closest of calls.

`LINES` is the table: a method, or a verifier, that has no line of its own there has one of its sample. A test module
for one engine derives from `EveryMethod`, gives it the fixture `found`, and names in `refused` what the engine cannot
serve, with the words of the refusal. What each method writes over llama.cpp is held against a naive transcription
elsewhere, in its own live tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product, takewhile, zip_longest
from typing import Any, ClassVar

import httpx
import pytest

from cosd_api import (
    AgreementVerifier,
    Average,
    CoLLMVerifier,
    CoolFusion,
    CoSD,
    Defer,
    DeferralVerifier,
    DiffVerifier,
    Fusion,
    FusionResult,
    MatchVerifier,
    RandomVerifier,
    Speculative,
    Steps,
    SurpriseVerifier,
)
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from cosd_api.extend import Method
from cosd_api.methods.base import EXAMPLES, METHODS
from cosd_api.types import FusedToken, Segment, TokenDecision
from cosd_api.verification import KINDS, TRAINED, Place, needs_of, verifier_at
from cosd_api.verification.deferral import DEFERRAL_FEATURES
from cosd_providers import Capabilities, ForwardingProvider, Provider, UnsupportedError, connect
from cosd_providers.contract import ServerInfo
from cosd_providers.messages import Message
from naive import over_http as naive
from support import same_answers
from support.drawn import partly
from support.method_files import Switch
from toys.samples import STATED, sample_method, sample_verifier

PROMPTS = [one.prompt for kind, count in (("mixed", 4), ("capital", 1), ("sum", 1)) for one in sample(kind, count, 47)]
MAX_TOKENS = 30
MAY_DIFFER = 2
"""Answers of up to 6 that closest calls may change."""

NEAR = 5e-3
"""Difference of two probabilities that two engines may see the other way round."""
NEAR_MEANS = 3e-2
"""The same of perplexities, relative: those of improbable texts differ most."""


@dataclass(frozen=True)
class Line:
    """One way to fuse.

    Attributes:
        name: its name.
        method: the method.
        models: the models, the draft first.
        settings: further settings of `Fusion`.
        answer: settings of an answer, such as a seed.
        drawn: whether tokens are drawn: engines draw other ones, so an engine is compared with itself.
        threshold: a probability of the draft's most probable token at which the method decides otherwise.
    """

    name: str
    method: str | Method
    models: tuple[str, ...] = ("sums", "facts")
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    answer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    drawn: bool = False
    threshold: float | None = None

    def __str__(self) -> str:
        return self.name

    def fusion(self, connected: Callable[[str], str | Provider], draft: str | None = None) -> Fusion:
        """The fusion over the models that `connected` gives by name; the `draft` is at this URL instead."""
        models: list[str | Provider] = [connected(name) for name in self.models]
        models[0] = draft or models[0]
        method = sample_method(self.method) if isinstance(self.method, str) else self.method
        roles: Any = {"models": models} if method.symmetric else {"draft": models[0], "assistant": models[1:]}
        return Fusion(**roles, method=method, **self.settings)


_TOKEN = {"unit": "token"}
_WEIGHTS = {"bias": 5.0, "top": -10.0} | dict.fromkeys(DEFERRAL_FEATURES[1:], 0.0)
_GATE = DeferralVerifier.model_validate({"listed": 5, "weights": _WEIGHTS, "eta": 0.5})
_STATES = CoLLMVerifier(width=4, bias=0.0, weights=(1.0,) * 4, eta=0.5)
_CHOSEN = (
    Line("cosd", "cosd"),
    Line("cosd, equation 3", CoSD(unit="literal"), ("facts", "sums")),
    Line("agreement", CoSD(verifier=AgreementVerifier())),
    Line("agreement below 0.7", CoSD(verifier=AgreementVerifier(alpha=0.7)), ("facts", "sums")),
    Line("diff", CoSD(verifier=DiffVerifier(tau=0.1))),
    Line("surprise", CoSD(verifier=SurpriseVerifier(), unit="literal")),
    Line("random", CoSD(verifier=RandomVerifier(rate=0.2, seed=7))),
    Line("match", CoSD(verifier=MatchVerifier(), unit="literal")),
    Line("match by words", CoSD(verifier=MatchVerifier())),
    Line("two assistants", "cosd", ("sums", "facts", "sums")),
    # These two tokenizers cut an answer in plain letters alike nearly everywhere.
    Line("speculative drawn", Speculative(temperature=1), settings=_TOKEN, answer={"seed": 1}, drawn=True),
    Line("average", "average", ("facts", "sums"), settings=_TOKEN),
    Line("safe", "safe"),
    Line("safe of three", "safe", ("facts", "sums", "facts")),
    Line("chared", "chared"),
    Line("chared of three", "chared", ("facts", "sums", "facts")),
    Line("switch", Switch(samples=3, answer=r"\d+"), answer={"seed": 1}, drawn=True),
    Line("average drawn", Average(temperature=1), ("facts", "sums"), settings=_TOKEN, answer={"seed": 1}, drawn=True),
    Line("cosd drawn", CoSD(unit="token", temperature=1), answer={"seed": 1}, drawn=True),
    Line("cool", "cool"),
    Line("cool of three", "cool", ("facts", "sums", "sums")),
    Line("adafuse", "adafuse"),
    Line("rerank", "rerank"),
    Line("cool and rerank", CoolFusion(rerank=True)),
    Line("route", "route"),
    Line("cascade", "cascade"),
    Line("defer", Defer(gate=_GATE), settings=_TOKEN, threshold=0.5),
    Line("defer by states", Defer(gate=_STATES), settings=_TOKEN),
    Line("nudging", "nudging", threshold=0.4),
    Line("steps", Steps(keep=0, step_tokens=4, question="Q: What is 4 plus 3?", cue="A: The sum is")),
)
"""Lines with models, settings and thresholds of their own."""


def with_the_rest(chosen: Sequence[Line]) -> tuple[Line, ...]:
    """These lines, and one of its sample for each method, and each known verifier, that none of them has.

    Raises:
        SettingError: there is no sample; the message says where it is missing.
    """
    found = [*chosen]
    methods = [sample_method(line.method) if isinstance(line.method, str) else line.method for line in chosen]
    named = {one.method if isinstance(one.method, str) else one.method.name for one in chosen}
    rest = {name: sample_method(name) for name in (*METHODS, *EXAMPLES) if name not in named}
    judges = [one.judge for one in (*methods, *rest.values())]
    kinds = [kind for kind in KINDS if kind not in TRAINED and not any(isinstance(one, KINDS[kind]) for one in judges)]
    for kind in kinds:
        verifier = sample_verifier(kind)
        rest[kind] = CoSD(verifier=verifier, unit="literal" if needs_of(verifier).looks_at else None)
    for name, method in rest.items():
        drawn = bool(method.temperature)
        settings = _TOKEN if method.one_tokenizer else {}
        found.append(Line(name, method, settings=settings, answer={"seed": 1} if drawn else {}, drawn=drawn))
    return tuple(found)


LINES = with_the_rest(_CHOSEN)
"""Every method, and every verifier of `cosd` that is not a file of its own."""


_STATELESS = "the draft does not report hidden states"


def able(can: Capabilities) -> dict[str, bool]:
    """The abilities that methods need by name, without how many: contexts by ids are a fusion's own choice."""
    return {name: bool(value) for name, value in asdict(can).items() if name not in ("ids", "places")}


class EveryMethod:
    """Derive from this; see the module.

    Attributes:
        engine: the name of the engine, for the summary.
        stated: what the documents' table of methods and engines calls it: the column, and the condition.
        refused: the lines that it cannot serve: for each the words of the refusal, as a regular expression. None serves
            `defer by states`: llama.cpp's own server does, with embeddings (tests/live/test_co_llm.py).
        apart: lines whose text is another one here, with good reason: they are compared with themselves.
        assists: whether only the assistants are on this engine, and the draft on llama.cpp's own server.
        chat: whether prompts are messages.
        space: whether white space that a model writes before an answer of its own may stand.
        count: of the prompts.
    """

    engine: ClassVar[str]
    stated: ClassVar[tuple[str, str]]
    refused: ClassVar[Mapping[str, str]] = {}
    apart: ClassVar[Sequence[str]] = ()
    assists: ClassVar[bool] = False
    chat: ClassVar[bool] = False
    space: ClassVar[bool] = False
    count: ClassVar[int] = len(PROMPTS)

    @pytest.fixture
    def found(self) -> Callable[[str], Provider]:
        """From a model's name to the engine with that model: what a module for one engine gives."""
        raise NotImplementedError

    async def test_its_capabilities_are_those_of_the_documents(self, found: Callable[[str], Provider]) -> None:
        column, condition = self.stated
        async with found("sums") as provider:
            assert able((await provider.describe()).capabilities) == able(STATED[column][condition])

    @pytest.mark.parametrize("line", partly(LINES, 2), ids=str)
    async def test_the_texts_are_those_over_llama_cpp(
        self, line: Line, pair: Pair, found: Callable[[str], Provider]
    ) -> None:
        draft = pair[line.models[0]] if self.assists else None
        refused = {"defer by states": _STATELESS, **self.refused}
        if line.name in refused:
            async with line.fusion(found, draft) as fusion:
                with pytest.raises(UnsupportedError, match=refused[line.name]) as refusal:
                    await fusion.generate(PROMPTS[0], max_tokens=MAX_TOKENS, **line.answer)
            assert refusal.value.hint
            return
        ours = await self.answers(line, found, draft)
        alone = line.drawn or line.name in self.apart
        theirs = await (
            self.answers(line, found, draft) if alone else self.expected(line, pair, draft, ours[0].settings.contexts)
        )
        both = enumerate(zip(ours, theirs, strict=True))
        differing = [at for at, (one, other) in both if not same(one, other, space=self.space)]
        same_answers.LINES.append(f"{line} over {self.engine}: {len(ours) - len(differing)} of {len(ours)} texts equal")
        with httpx.Client(timeout=60) as client:
            for at in [] if line.drawn else differing:
                asked = {name: naive.HttpModel(url, client) for name, url in pair.items()}
                words = excuse(line, PROMPTS[at], ours[at], theirs[at], asked, chat=self.chat)
                assert words, (PROMPTS[at], ours[at].text, theirs[at].text)
                same_answers.LINES.append(f"    {PROMPTS[at]!r}: {words}")
        assert len(differing) <= (1 if line.drawn else MAY_DIFFER)

    async def answers(
        self, line: Line, connected: Callable[[str], str | Provider], draft: str | None = None
    ) -> list[FusionResult]:
        """The answers to all prompts."""
        prompts = PROMPTS[: self.count]
        given = [[Message("user", one)] for one in prompts] if self.chat else prompts
        async with line.fusion(connected, draft) as fusion:
            asked = fusion.map(given, concurrency=4, max_tokens=MAX_TOKENS, **line.answer)
            return [result async for result in asked]

    async def expected(self, line: Line, pair: Pair, draft: str | None, contexts: str) -> list[FusionResult]:
        """Those over llama.cpp, asked after ids or after text as the engine is; once for all engines of a run."""
        key = (line.name, self.chat, self.count, pair.sums, contexts, draft)
        if key not in EXPECTED and contexts == "ids":
            EXPECTED[key] = await self.answers(line, lambda name: pair[name])
        elif key not in EXPECTED:
            EXPECTED[key] = await self.answers(line, lambda name: ByText(connect(pair[name])), draft)
        return EXPECTED[key]


class ByText(ForwardingProvider):
    """A model that takes no ids."""

    async def describe(self) -> ServerInfo:
        info = await super().describe()
        return replace(info, capabilities=replace(info.capabilities, ids=False))


EXPECTED: dict[tuple[object, ...], list[FusionResult]] = {}


def same(one: FusionResult, other: FusionResult, *, space: bool) -> bool:
    """Test whether two answers are the same text, by the same models; white space may stand before one."""
    mine, theirs = (each.text.lstrip() if space else each.text for each in (one, other))
    return (mine, one.finish_reason) == (theirs, other.finish_reason)


# Excuses: the first decision that differs was a close one, of a model about its next token, or of the method.


def excuse(
    line: Line,
    prompt: str,
    one: FusionResult,
    other: FusionResult,
    asked: Mapping[str, naive.HttpModel],
    *,
    chat: bool = False,
) -> str | None:
    """The margin of the first decision in which two answers differ, in words; None if it was not close."""
    by_name = dict(zip(names(one), line.models, strict=True))

    def whole(model: naive.HttpModel) -> bytes:
        return (rendered(model, prompt) if chat else prompt).encode()

    def undecided(source: str, text: bytes, mine: bytes, theirs: bytes) -> str | None:
        """The margin of two texts of one model where they part."""
        model = asked[by_name[source]]
        margin = greedy_margin(model, whole(model) + text, mine, theirs)
        return f"{source} is undecided by {margin:.2g}" if margin < NEAR else None

    at = next(at for at, (a, b) in enumerate(zip_longest(one.tokens, other.tokens)) if _parts(a, b))
    before = b"".join(token.data for token in one.tokens[:at])
    if line.threshold is not None:
        model = asked[line.models[0]]
        top = max(model.next(model.vocabulary.encode(whole(model) + before)))
        if abs(top - line.threshold) < NEAR:
            return f"the draft's {top:.4g}"
    text = b""
    for mine, theirs in zip_longest(one.segments, other.segments):
        if mine is None or theirs is None or written(mine) != written(theirs) or mine.winner != theirs.winner:
            return _contest(mine, theirs, text, undecided) if mine and theirs else None
        text += mine.candidates[mine.winner].text.encode()
    if at == min(len(one.tokens), len(other.tokens)):
        return None
    return _verdict(one.settings.verifier, before, one.tokens[at], other.tokens[at], undecided)


def _parts(mine: FusedToken | None, theirs: FusedToken | None) -> bool:
    """Test whether two answers part at these tokens."""
    if mine is None or theirs is None:
        return True
    return (mine.data, mine.end, mine.source) != (theirs.data, theirs.end, theirs.source)


Undecided = Callable[[str, bytes, bytes, bytes], str | None]


def names(result: FusionResult) -> list[str]:
    """The models of an answer, the draft's first."""
    return ["draft", *(assistant.name for assistant in result.assistants)]


def written(segment: Segment) -> list[tuple[object, ...]]:
    """The proposals, and their models."""
    return [(one.sources, one.text, one.end) for one in segment.candidates]


def _contest(mine: Segment, theirs: Segment, text: bytes, undecided: Undecided) -> str | None:
    """Another text was proposed, by a model that was undecided; or two texts compared nearly alike."""
    if mine.winner != theirs.winner or written(mine) == written(theirs):
        for segment in (mine, theirs):
            close = sorted(one.mean for one in segment.candidates if one.mean is not None)
            if len(close) > 1 and close[1] - close[0] <= NEAR_MEANS * max(1.0, close[0]):
                return f"means of {close[0]:.4g} and {close[1]:.4g}"
    by_source = [
        {source: one.text.encode() for one in segment.candidates for source in one.sources}
        for segment in (mine, theirs)
    ]
    for source in by_source[0].keys() & by_source[1].keys():
        if by_source[0][source] != by_source[1][source]:
            words = undecided(source, text, by_source[0][source], by_source[1][source])
            if words:
                return words
    return None


def _verdict(verifier: Any, before: bytes, mine: FusedToken, theirs: FusedToken, undecided: Undecided) -> str | None:
    """A model was undecided, or the verifier is, of numbers as near as these."""
    if any(token.end and token.draft_prob is None for token in (mine, theirs)):
        return "a hidden end, which nobody contests"
    drafts = [_drafted(token) for token in (mine, theirs)]
    if drafts[0] != drafts[1]:
        return undecided("draft", before, *drafts)
    said = [{one.assistant: one for one in token.decisions} for token in (mine, theirs)]
    for name in said[0].keys() | said[1].keys():
        one, other = said[0].get(name), said[1].get(name)
        if one and other and one.text != other.text:
            return undecided(name, before, one.text.encode(), other.text.encode())
        heard = one or other  # of the other nobody asked, as nothing could have replaced it
        if heard and (one is None or other is None or one.fired != other.fired):
            return _near_verdict(verifier, heard)
    return None


def _near_verdict(verifier: Any, heard: TokenDecision) -> str | None:
    p, q = heard.draft_prob, heard.prob
    if verifier is None or p is None or q is None:
        return None
    here = verifier_at(verifier, Place(coin=heard.coin, draft_q=heard.draft_text_prob))
    near = {here.replaces(x, y) for x, y in product((p - NEAR, p + NEAR), (q - NEAR, q + NEAR))}
    return f"a verdict on {p:.4g} and {q:.4g}" if len(near) > 1 else None


def _drafted(token: FusedToken) -> bytes:
    """The draft's words there."""
    if token.replaced_tokens:
        return b"".join(one.text.encode() for one in token.replaced_tokens)
    return token.data


def rendered(model: naive.HttpModel, prompt: str) -> str:
    """A message, as the server's chat template renders it."""
    body = {"messages": [{"role": "user", "content": prompt}]}
    return str(model.client.post(f"{model.url}/apply-template", json=body).json()["prompt"])


def greedy_margin(model: naive.HttpModel, text: bytes, mine: bytes, theirs: bytes) -> float:
    """The difference of a model's two largest probabilities at the place where two of its texts part."""
    model.depth = model.size
    model.next(model.vocabulary.encode(b"Q"))  # after which the bytes of all tokens are known
    data = text + mine
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(data, text + theirs, strict=False)))
    size = len(data)
    ids = list(model.vocabulary.encode(data))
    while size > common:
        size -= len(model.vocabulary.tokens[ids.pop()])
    first, second, *_ = sorted(model.next(ids), reverse=True)
    return first - second
