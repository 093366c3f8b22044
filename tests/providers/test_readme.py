"""The recipe of providers/README.md: its engine works as printed, and the modules and paths that it names exist."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion
from cosd_providers import (
    Capabilities,
    ContextLengthError,
    DraftEnd,
    ModelChoiceError,
    Provider,
    Question,
    ResponseError,
    ServerInfo,
    Token,
    UnsupportedError,
    Usage,
    probe,
)
from cosd_providers.contract import Context
from cosd_providers.engine import Engine
from cosd_providers.testing import LanguageModel, ScriptedProvider, TableModel, TextModel
from fakes.breaking import waiting
from support.asked import Inquiry, along, close, draft, inquiries
from toys import toy_models as toys

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "providers/cosd_providers"
README = ROOT / "providers/README.md"
PAGES = ("CONTRIBUTING.md", "examples/README.md", "providers/README.md")

(BLOCK,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
NAMES: dict[str, Any] = {"__name__": "readme"}
exec(compile(BLOCK, str(README), "exec", dont_inherit=True), NAMES)
Toy: Any = NAMES["Toy"]

DRAFT = TextModel({"Q:": [" The", " cap", ("ital", 0.9), " is", (" Rome", 0.3), "."], "Q: The capital is Lima": ["."]})
ASSISTANT = TextModel({"Q: The capital is": [(" Li", 0.9), ("ma", 0.8), "!"], "Q: The capital is Lima": ["."]})

Handler = Callable[[httpx.Request], httpx.Response]


class ToyServer:
    """`POST /next` as the text describes it, in front of a model.

    Attributes:
        requests: the generation requests that were answered.
    """

    def __init__(self, model: LanguageModel, context: int = 4096) -> None:
        self.model = model
        self.context = context
        self.requests: list[httpx.Request] = []

    def engine(self, handle: Handler | None = None, **options: Any) -> Any:
        client = httpx.AsyncClient(transport=httpx.MockTransport(handle or self.handle))
        return Toy("http://toy:1", http_client=client, **options)

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "toy-1b", "max_model_len": self.context}]})
        assert request.url.path == "/next"
        self.requests.append(request)
        body = json.loads(request.content)
        assert body["model"] == "toy-1b"
        ids: list[int] = []
        for part in body["prompt"]:
            ids += [part] if isinstance(part, int) else self.model.encode(part.encode())
        read, steps = len(ids), list[list[dict[str, Any]]]()
        if read >= self.context:
            return httpx.Response(400, json={"error": f"{read} tokens exceed the context length of {self.context}"})
        while len(steps) < body["count"] and len(ids) < self.context:
            probs = self.model.next(tuple(ids))
            best = sorted(range(len(probs)), key=lambda n: (-probs[n], n))
            top = max(body["top"], list(probs).count(max(probs)))  # all that are equally probable
            steps.append([self.token(n, probs[n]) for n in best[:top]])
            ids.append(best[0])
            if best[0] in self.model.end_ids:
                break
        return httpx.Response(200, json={"read": read, "steps": steps})

    def token(self, n: int, prob: float) -> dict[str, Any]:
        return {"id": n, "data": list(self.model.tokens[n]), "prob": prob, "end": n in self.model.end_ids}


@pytest.mark.parametrize("options", [{}, {"draft_length": 2}, {"ask": "all"}])
async def test_it_fuses_like_the_same_models_without_a_server(options: dict[str, Any]) -> None:
    one, other = ToyServer(DRAFT).engine(), ToyServer(ASSISTANT).engine()
    assert isinstance(one, Provider)
    assert isinstance(one, Engine)
    async with Fusion(draft=one, assistant=other, **options) as fusion:
        result = await fusion.generate("Q:")
    async with Fusion(draft=ScriptedProvider(DRAFT), assistant=ScriptedProvider(ASSISTANT), unit="word") as fusion:
        expected = await fusion.generate("Q:")
    assert result.text == expected.text == " The capital is Lima."
    shown = [(token.text, token.source, token.draft_prob) for token in result.tokens]
    assert shown == [(token.text, token.source, token.draft_prob) for token in expected.tokens]
    assert result.replacements == 1
    assert result.usage["draft"].prompt_tokens > 0


MODELS = toys.models(may_hide_end=False).map(toys.Plain)


@given(MODELS, toys.prompts(), st.integers(1, 12))
def test_drafts_are_the_models_own(model: Any, prompt: bytes, limit: int) -> None:
    async def compare() -> None:
        engine, expected = ToyServer(model).engine(), ScriptedProvider(model)
        ours, theirs = (
            await draft(engine, prompt.decode(), limit=limit),
            await draft(expected, prompt.decode(), limit=limit),
        )
        if ours[-1].reason == "context":  # some models write nothing for ever
            return
        close(ours[:-1], theirs[:-1])
        assert ours[-1].reason == theirs[-1].reason
        if ours[-1].continuation is not None:
            text = b"".join(token.data for token in ours[:-1])
            more = await draft(engine, prompt.decode(), text, limit, continuation=ours[-1].continuation)
            whole = await draft(expected, prompt.decode(), limit=2 * limit)
            behind = whole[len(ours) - 1 : -1]
            close(more[:-1], behind[: len(more) - 1] if more[-1].reason == "context" else behind)

    anyio.run(compare)


@st.composite
def inquired(draw: st.DrawFn) -> tuple[Any, Inquiry]:
    model = draw(MODELS)
    return model, draw(inquiries() | along(model))


@given(inquired())
def test_proposals_are_the_models_own(drawn: tuple[Any, Inquiry]) -> None:
    model, (prompt, text, questions) = drawn

    async def compare() -> None:
        usage = Usage()
        ours = await ToyServer(model).engine().propose(Context(prompt.decode(), text), questions, usage=usage)
        theirs = await ScriptedProvider(model).propose(Context(prompt.decode(), text), questions, usage=Usage())
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.start == other.start
                close(one.tokens, other.tokens)
        assert usage.strategies.get("singles", 0) == sum(one is not None for one in ours)

    anyio.run(compare)


async def test_its_alternatives() -> None:
    model = TableModel([b"", b"Q", b" a", b" b"], lambda ids: [0.1, 0.0, 0.6, 0.3], end_ids=(0,))
    first, _ = await draft(ToyServer(model).engine(), limit=1, alternatives=2)
    assert first == Token(b" a", 0.6, alternatives=(Token(b" b", 0.3), Token(b"", 0.1, end=True)))
    asked = [Question(0, (b" a",))]
    [found] = await ToyServer(model).engine().propose(Context("Q", b""), asked, alternatives=1, usage=Usage())
    assert found.tokens == (Token(b" a", 0.6, alternatives=(Token(b" b", 0.3),)),)


async def test_a_full_context() -> None:
    engine = ToyServer(DRAFT, context=4).engine()
    *tokens, end = await draft(engine, "Q:", limit=9)
    assert (b"".join(token.data for token in tokens), end) == (b" The cap", DraftEnd("context"))
    assert await draft(engine, "Q:", b" The capital", limit=9) == [DraftEnd("context")]
    with pytest.raises(ContextLengthError):
        await draft(engine, "Q: The capital", limit=9)
    [found] = await engine.propose(
        Context("Q:", b""), [Question(0, (b" The", b" cap", b"ital"), word=True)], usage=Usage()
    )
    assert [token.data for token in found.tokens] == [b" The", b" cap"]
    with pytest.raises(ContextLengthError):
        await engine.propose(Context("Q:", b" The capital"), [Question(12, (b" is",))], usage=Usage())


async def test_it_describes_itself_and_restores_its_facts() -> None:
    engine = ToyServer(DRAFT, context=99).engine()
    able = Capabilities(token_ids=True, end_prob=True, tokenize=False, score=False, top_k=20)
    assert await engine.describe() == ServerInfo("http://toy:1", "toy", "toy-1b", None, 99, able)
    facts = json.loads(json.dumps(await engine.snapshot()))
    again = ToyServer(DRAFT, context=99).engine()
    again.restore(facts, "http://toy:1")
    assert await again.describe() == await engine.describe()
    with pytest.raises(ModelChoiceError, match="no model 'other'; the server has 'toy-1b'"):
        await ToyServer(DRAFT).engine(model="other").describe()


async def test_it_can_be_probed() -> None:
    report = await probe(ToyServer(DRAFT).engine(), prompt="Q:")
    assert (report["server"].value, report.model) == ("toy", "toy-1b")
    assert report.can_draft
    assert report.can_assist


async def test_it_shares_keys_and_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting(monkeypatch)
    server, answers, keys = ToyServer(DRAFT), [503, 429], list[str]()

    def handle(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Authorization"])
        if request.url.path == "/next" and answers:
            return httpx.Response(answers.pop(), json={"error": "busy"})
        return server.handle(request)

    engine, usage = server.engine(handle, api_key="sk-secret"), Usage()
    assert [item.data for item in (await draft(engine, "Q:", limit=2, usage=usage))[:-1]] == [b" The", b" cap"]
    assert (usage.requests, usage.retries) == (1, 2)
    assert {*keys} == {"Bearer sk-secret"}
    assert b"sk-secret" not in pickle.dumps(Engine.__getstate__(engine)["_transport"])


def test_it_refuses_to_have_its_fields_set() -> None:
    with pytest.raises(ValueError, match="extra_body cannot set count"):
        Toy("http://toy:1", extra_body={"count": 1})


async def test_what_it_cannot_do_and_what_it_does_not_understand() -> None:
    server = ToyServer(DRAFT)
    engine = server.engine()
    with pytest.raises(UnsupportedError, match="http://toy:1: the server does not encode text"):
        await engine.tokenize("a")
    with pytest.raises(UnsupportedError, match="http://toy:1: the server does not give the probabilities"):
        await engine.score(Context("a", b"b"), usage=Usage())
    with pytest.raises(UnsupportedError, match="does not show the tokens of a text"):
        await engine.propose(Context("a", b"b"), None, usage=Usage())
    wrong: list[Any] = [[], [[]], [[{"id": 1}]]]
    for steps in wrong:
        with pytest.raises(ResponseError, match="http://toy:1: the answer is not as expected: steps"):
            await draft(server.engine(answering({"read": 1, "steps": steps}, server)))
    step = [{"id": 1, "data": [97], "prob": 0.1}, {"id": 2, "data": [98], "prob": 0.9}]
    with pytest.raises(UnsupportedError, match="does not take the most probable token"):
        await draft(server.engine(answering({"read": 1, "steps": [step]}, server)))


def answering(answer: object, server: ToyServer) -> Handler:
    """The same server, but for the answers of `/next`."""
    return lambda request: httpx.Response(200, json=answer) if request.url.path == "/next" else server.handle(request)


# The text around it.


def test_the_engine_is_short() -> None:
    assert BLOCK.count("\n") <= 81


def listed(modules: Sequence[Path]) -> set[str]:
    """Names of modules as the reading list writes them; those of engines' own packages are left out."""
    return {f"{path.name}/" if path.is_dir() else path.name for path in modules}


def test_the_reading_list_has_all_modules() -> None:
    reading, _, _ = README.read_text(encoding="utf-8").partition("\n## ")
    named = set(re.findall(r"`([\w/]+(?:\.py|/))`", reading))
    folders = [PACKAGE, *(PACKAGE / name for name in ("chat", "engines", "http", "probe"))]
    inside = [path for folder in folders for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"]
    inside = [path for path in inside if "__" not in path.name]
    assert listed(inside) - named == set()
    assert named - listed(inside) == {"dialects.py"}  # of `engines/openai/`


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for name in re.findall(r"`((?:tests|docs|providers|cosd_api|benchmarks)/[\w./]*)`", text):
        assert (ROOT / name).exists(), name


def test_where_things_are() -> None:
    """Each path of the first column of CONTRIBUTING's table exists; one without a folder lies in that before it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, table = text.partition("| path | content |\n| --- | --- |\n")
    rows = table.partition("\n\n")[0].splitlines()
    assert len(rows) > 10
    for row in rows:
        names = re.findall(r"`([\w./]+)`", row.split(" | ")[0])
        folder = Path(names[0]).parent
        for name in names:
            assert (ROOT / name).exists() or (ROOT / folder / name).exists(), name
