"""The probe: each defect that it is to catch, on a server that has it, and what it makes of servers without any."""

from __future__ import annotations

import inspect
import json
import math
import random
import re
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest

from cosd_api import Fusion, SettingError, Speculative
from cosd_providers import (
    BudgetError,
    ConnectError,
    ContextLengthError,
    ModelChoiceError,
    Piece,
    ProbeReport,
    Proposal,
    Token,
    UnsupportedError,
    Usage,
    connect,
    probe,
)
from cosd_providers.connect import ConnectOptions, Snapshot
from cosd_providers.contract import Context
from cosd_providers.engines.openai.dialects import DIALECTS
from cosd_providers.probe import Definition, definition_of
from cosd_providers.testing import LanguageModel, ScriptedProvider, TableModel
from fakes.llama_cpp import FakeLlamaCpp
from fakes.ollama import StandInOllama
from fakes.openai import FakeOpenAI, Shown
from fakes.sglang import StandInSglang
from fakes.tgi import StandInTgi
from fakes.vllm import FakeVllm
from support.drawn import partly

WORDS = (" one", " two", " three", " four", " five", " six", " seven", " eight", " nine", " ten", ",", " and")
SHAPES = ((9, 4, 2, 1), (7, 5, 3, 1), (6, 5, 4, 1), (10, 3, 2, 1), (8, 5, 2, 1))
PROMPT = "Q: What is the capital of France?\nA:"


@dataclass(frozen=True)
class Talker:
    """A model that writes some words, unsure of each, over a vocabulary that has every byte; " ten" is its last."""

    seed: int = 0

    @cached_property
    def tokens(self) -> Sequence[bytes]:
        return (*(bytes([n]) for n in range(256)), *(word.encode() for word in WORDS), b"")

    @property
    def end_ids(self) -> Collection[int]:
        return {len(self.tokens) - 1}

    def encode(self, text: bytes) -> list[int]:
        ids = []
        while text:
            n = next((256 + n for n, word in enumerate(WORDS) if text.startswith(word.encode())), text[0])
            ids.append(n)
            text = text[len(self.tokens[n]) :]
        return ids

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        key = tuple(ids[-3:])
        if key not in self._known:
            self._known[key] = self._distribution(key)
        return self._known[key]

    @cached_property
    def _known(self) -> dict[tuple[int, ...], Sequence[float]]:
        return {}

    def _distribution(self, ids: tuple[int, ...]) -> Sequence[float]:
        rng = random.Random(repr((self.seed, ids)))
        probs = [0.0] * len(self.tokens)
        shape = rng.choice(SHAPES)
        for n, sixteenths in zip(rng.sample(range(256, len(self.tokens)), 4), shape, strict=True):
            probs[n] = sixteenths / 16
        if ids and self.tokens[ids[-1]] == b" ten":
            end = max(range(len(probs)), key=probs.__getitem__)
            probs[end], probs[-1] = probs[-1], probs[end]
        return probs


@dataclass(frozen=True)
class Over:
    """A model with the vocabulary of another."""

    model: LanguageModel

    @property
    def tokens(self) -> Any:
        return self.model.tokens

    @property
    def end_ids(self) -> Collection[int]:
        return self.model.end_ids

    def encode(self, text: bytes) -> list[int]:
        return self.model.encode(text)


@dataclass(frozen=True)
class Powered(Over):
    """A model as it is at another temperature; at 0 it is sure of everything."""

    temperature: float

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        probs = self.model.next(ids)
        if not self.temperature:
            best = max(range(len(probs)), key=lambda n: (probs[n], -n))
            return [float(n == best) for n in range(len(probs))]
        powers = [prob ** (1 / self.temperature) for prob in probs]
        return [power / sum(powers) for power in powers]


@dataclass(frozen=True)
class Reciting(Over):
    """A model that can only write one text, and then end: its own numbers, and the text's tokens."""

    text: bytes

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        data = b"".join(self.model.tokens[n] for n in ids)
        done = next(n for n in range(len(self.text), -1, -1) if data.endswith(self.text[:n]))
        rest = self.model.encode(self.text[done:])
        probs = [0.0] * len(self.model.tokens)
        probs[rest[0] if rest else min(self.end_ids)] = 1.0
        return probs


def forced(body: Any) -> str | None:
    """The one text that a grammar allows."""
    grammar = body.get("grammar") if isinstance(body, dict) else None
    return json.loads(grammar.partition("::=")[2]) if grammar else None


class Server(FakeOpenAI):
    """The fake with grammars and ids, and with the faults that only the probe looks for."""

    scales: bool = False
    degenerate: bool = False
    writes: bool = True
    reads_ids: bool = True

    def handle(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        prompt = body.get("prompt")
        if isinstance(prompt, list) and isinstance(prompt[0], int):
            given = b"".join(self.model.tokens[n] for n in prompt).decode() if self.reads_ids else str(prompt)
            return self.handle(httpx.Request(request.method, request.url, json={**body, "prompt": given}))
        plain, text = self.model, forced(body)
        if text is not None and self.writes:
            self.model = Reciting(plain, text.encode())
        elif self.scales and body.get("temperature"):
            self.model = Powered(plain, body["temperature"])
        elif self.degenerate:
            self.model = Powered(plain, body.get("temperature") or 0)
        try:
            return super().handle(request)
        finally:
            self.model = plain


class Beginning(Server):
    """A scored text gets a token before it, a prompt does not."""

    def _echoed(self, ids: Sequence[int], count: int) -> list[Shown]:
        return super()._echoed([258, *ids], count)[1:]


async def examined(fake: Any, engine: str | None = "openai", **options: Any) -> ProbeReport:
    async with fake.client() as client:
        return await probe("http://gpu1:8080", engine=engine, http_client=client, **options)


def values(report: ProbeReport) -> dict[str, Any]:
    return {line.name: line.value for line in report.lines}


GOOD = {
    "logprobs": True,
    "probabilities": "raw",
    "scoring": "echo",
    "lists": True,
    "ids": True,
    "end": True,
    "bytes": True,
    "whole": True,
    "draft": "text",
    "score": True,
    "propose": True,
}


async def test_a_server_without_faults() -> None:
    report = await examined(Server(Talker()))
    found = values(report)
    assert {name: found[name] for name in GOOD} == GOOD
    assert found["depth"] > 90
    assert found["context"] is None
    assert found["tokenizer"] is False
    assert found["cache"] is None and "does not report it; it took" in report["cache"].seen
    assert report.can_draft and report.can_assist
    assert report.draft_lacks == report.assistant_lacks == ()
    assert all(line.asked and line.seen for line in report.lines)


@pytest.mark.parametrize("shape", ["legacy", "chat"])
@pytest.mark.parametrize("opened", ["empty", "lost", "bytes", "hidden"])
async def test_no_way_of_showing_tokens_is_a_fault(shape: Any, opened: Any) -> None:
    found = values(await examined(Server(Talker(), shape=shape, opened=opened)))
    names = ("logprobs", "probabilities", "scoring", "lists", "bytes", "end", "draft", "propose")
    assert {name: found[name] for name in names} == {name: GOOD[name] for name in names}


@pytest.mark.parametrize("seed", partly(range(8)))
async def test_faults_of_scoring_are_seen_whatever_the_model(seed: int) -> None:
    found = {}
    for echo in ("yes", "ignored", "shifted", "scaled", "refused"):
        found[echo] = (await examined(Server(Talker(seed), echo=echo)))["scoring"]
    found["beginning"] = (await examined(Beginning(Talker(seed))))["scoring"]
    assert {name: line.value for name, line in found.items()} == {
        "yes": "echo",
        "ignored": False,
        "shifted": "echo, moved by +1",
        "scaled": False,
        "refused": False,
        "beginning": False,
    }
    assert "ignored: the answer does not begin with the text's own tokens" in found["ignored"].seen
    assert "equal to what is generated at 3 of 3 places, moved by +1" in found["shifted"].seen
    assert "not believed: equal to what is generated at no more than" in found["scaled"].seen
    assert "refused: 400: echo is not supported together with logprobs" in found["refused"].seen
    assert "not believed" in found["beginning"].seen


async def test_where_all_places_are_alike_no_scoring_is_proved() -> None:
    """One shifted by a place would look the same."""

    class Alike(Talker):
        def _distribution(self, ids: tuple[int, ...]) -> Sequence[float]:
            return super()._distribution(())

    line = (await examined(Server(Alike())))["scoring"]
    assert line.value is False
    assert "not believed: too few places could be compared" in line.seen


async def test_a_strategy_that_is_answered_wrongly_is_not_used() -> None:
    class Crossed(Server):
        """Answers the prompts of a list in the wrong order."""

        def handle(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle(request)
            if not request.content or not isinstance(json.loads(request.content).get("prompt"), list):
                return answer
            body = json.loads(answer.content)
            for choice in body["choices"]:
                choice["index"] = len(body["choices"]) - 1 - choice["index"]
            return httpx.Response(answer.status_code, json=body)

    fake = Crossed(Talker(1))
    report = await examined(Crossed(Talker(1)))  # what is not known of a server, its adapter looks into
    assert (report["lists"].value, report["propose"].value) == (False, True)
    report = await examined(Crossed(Talker(1)), dialect="vllm")
    assert report["lists"].value is False
    assert report["propose"].value is False
    found = {way.name: (way.proved, way.wrong) for way in report.ways}
    right, wrong = (True, False), (False, True)
    # Without a tokenizer an echo leaves these places to lists.
    assert found == {"list": wrong, "echo": wrong, "singles": right}
    assert report.can_assist
    assert report.options["strategy"] == report.strategies[0] != "list"
    assert "it answers differently" in report.advice[0]
    async with fake.client() as client:
        again = await probe(connect("http://gpu1:8080", report=report, http_client=client))
    assert again["propose"].value is True


async def test_a_beginning_that_every_prompt_gets_is_no_fault() -> None:
    report = await examined(Server(Talker(), beginning=True))
    assert report["scoring"].value == "echo"
    assert report.can_assist


@pytest.mark.parametrize(
    ("faults", "line", "value", "words"),
    [
        ({"lists": "500"}, "lists", False, "assertion failed"),
        ({"lists": "first"}, "lists", False, "answered in part: 1 of 2"),
        ({"reads_ids": False}, "ids", False, "12 tokens were read"),
        ({"end": False}, "end", False, "its probability is not shown"),
        ({"changes": {"logprobs": None}}, "logprobs", False, "an answer without probabilities"),
        ({"cut": 40}, "whole", False, "40 tokens, and 40"),
        ({"cut": 250}, "whole", False, "and 250"),
    ],
)
@pytest.mark.usefixtures("no_waiting")
async def test_faults_of_the_wire(faults: Any, line: str, value: Any, words: str) -> None:
    server = Server(Talker())
    for name, fault in faults.items():
        setattr(server, name, fault)
    report = await examined(server, model="toy")
    assert report[line].value is value
    assert words in report[line].seen


async def test_a_cut_prompt_makes_it_unusable() -> None:
    report = await examined(Server(Talker(), cut=40))
    assert not report.can_draft
    assert not report.can_assist
    assert "it does not read all of a prompt, and does not say so" in report.draft_lacks
    assert max(map(len, str(report).splitlines())) <= 80


async def test_without_probabilities_it_can_only_be_asked_whether_it_agrees() -> None:
    report = await examined(Server(Talker(), changes={"logprobs": None}))
    assert not report.can_draft
    assert report.can_assist
    assert report.by_agreement
    assert "as an assistant    by agreement alone" in str(report)
    assert "no probabilities" in report.draft_lacks[0]


@pytest.mark.parametrize(
    ("fault", "value", "usable", "words"),
    [
        ("scales", "scaled", True, "to the power of 1 at temperature 0 and 2 at 0.5"),
        ("degenerate", "degenerate", False, "at temperature 0 the one token has probability 1"),
    ],
)
async def test_probabilities_that_are_not_the_models_own(fault: str, value: str, usable: bool, words: str) -> None:
    server = Server(Talker())
    setattr(server, fault, True)
    report = await examined(server, dialect="vllm")  # which an adapter believes to be unsure
    assert report["probabilities"].value == value
    assert words in report["probabilities"].seen
    assert report.can_draft is usable
    assert report.can_assist is usable
    report = await examined(server)
    assert report.can_draft is usable
    assert report.can_assist is usable
    assert usable or "at temperature 0 the server reports no probabilities but 1 and 0" in report.draft_lacks[0]


class TrimsPrompts(Server):
    def _answer(self, body: Any, prompts: list[str], chat: str) -> Any:
        return super()._answer(body, [prompt.rstrip() for prompt in prompts], chat)


class TrimsAnswers(Server):
    """The first token of an answer loses its space, and its string does, too."""

    def _run(self, ids: Sequence[int], limit: int, count: int, chance: Any = None) -> list[Shown]:
        first, *more = super()._run(ids, limit, count, chance)
        entry = first.entry and {**first.entry, "token": first.entry["token"].lstrip()}
        if entry and entry["top_logprobs"]:
            entry["top_logprobs"] = [{**one, "token": one["token"].lstrip()} for one in entry["top_logprobs"]]
        return [replace(first, text=first.text.lstrip(), entry=entry), *more]


class Balanced(Server):
    """Two models in turn."""

    turn = 0

    def handle(self, request: httpx.Request) -> httpx.Response:
        plain = self.model
        if request.content and json.loads(request.content).get("stream"):
            self.turn += 1
            self.model = (plain, Powered(Talker(77), 0.2))[self.turn % 2]
        try:
            return super().handle(request)
        finally:
            self.model = plain


@pytest.mark.parametrize("seed", partly([3, 6]))
@pytest.mark.parametrize(
    ("kind", "line", "words"),
    [
        (TrimsPrompts, "whole", "and no more with line breaks at the end: the server strips white space"),
        (TrimsAnswers, "draft", "continued from its text it leaves out the white space at the beginning"),
        (TrimsAnswers, "propose", "and not at token"),
        (Balanced, "draft", "the same request twice gives different answers from token"),
    ],
)
async def test_what_would_make_a_fusion_silently_wrong(kind: Any, line: str, words: str, seed: int) -> None:
    report = await examined(kind(Talker(seed)), dialect="vllm")
    assert report[line].value is False
    assert words in report[line].seen
    assert not report.can_draft
    assert not report.can_assist or kind is Balanced


async def test_a_server_that_cannot_be_made_to_write_a_text() -> None:
    server = Server(Talker())
    server.writes = False
    report = await examined(server)
    assert report["bytes"].value is None
    assert report["bytes"].seen == "no field makes the server write a given text"


async def test_a_grammar_that_is_refused_is_named() -> None:
    class Refuses(LlamaCpp):
        def handle(self, request: httpx.Request) -> httpx.Response:
            if b'"grammar"' in request.content and b'"grammar":""' not in request.content:
                return httpx.Response(400, json={"error": {"message": "no grammars here", "code": 400}})
            return super().handle(request)

    report = await examined(Refuses(Talker()), "llama.cpp")
    assert (report["bytes"].value, report["bytes"].seen) == (None, "grammar is refused: 400: no grammars here")


@pytest.mark.parametrize("repeats", [False, True])
async def test_a_reply_that_was_started_is_continued(repeats: bool) -> None:
    report = await examined(Server(Talker(1), chat_repeats=repeats))
    assert report["prefill"].value == "the last message alone"


async def test_a_reply_that_was_started_is_taken_for_a_turn() -> None:
    class Turns(Server):
        def handle(self, request: httpx.Request) -> httpx.Response:
            body = json.loads(request.content) if request.content else {}
            for message in body.get("messages", ()):
                message["content"] += "<end>"
            return super().handle(httpx.Request(request.method, request.url, json=body or None))

    report = await examined(Turns(Talker(1)))
    assert report["prefill"].value is False
    assert report["prefill"].seen.count("it continues differently") == 3


# llama.cpp's and vLLM's own routes.


class LlamaCpp(FakeLlamaCpp):
    """The fake with grammars."""

    def handle(self, request: httpx.Request) -> httpx.Response:
        plain, text = self.model, forced(json.loads(request.content) if request.content else {})
        self.model = plain if text is None else Reciting(plain, text.encode())
        try:
            return super().handle(request)
        finally:
            self.model = plain

    def _joined(self, run: list[dict[str, Any]]) -> dict[str, Any]:
        answer = super()._joined(run)
        data = b"".join(self.model.tokens[n] for n in run[-1]["all"])
        return {**answer, "content": data.decode("utf-8", "replace")}


@pytest.mark.parametrize("beginning", [False, True])
async def test_llama_cpp(beginning: bool) -> None:
    fake = LlamaCpp(Talker(), beginning=beginning)
    report = await examined(fake, None)
    found = values(report)
    expected = {**GOOD, "scoring": "place by place", "draft": "ids"}
    assert {name: found[name] for name in expected} == expected
    assert found["context"] == 4096
    assert found["cache"] is False
    assert report.engine == "llama.cpp"
    assert {*report.strategies} == {"list", "singles"}
    assert found["prefill"] is False and "404" in report["prefill"].seen
    sent = [body for path, body in fake.requests if path.endswith(("/completion", "/completions"))]
    assert report.spent.requests == sum(not body.get("ignore_eos") for body in sent)


@dataclass(frozen=True)
class Shifted(Over):
    """A model whose most probable token has a log probability that is lower by this."""

    by: float

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        probs = list(self.model.next(ids))
        probs[max(range(len(probs)), key=probs.__getitem__)] *= math.exp(-self.by)
        return probs


@dataclass(frozen=True)
class Close(Talker):
    """A model whose two most probable tokens are nearly equal everywhere."""

    def _distribution(self, ids: tuple[int, ...]) -> Sequence[float]:
        probs = list(super()._distribution(ids))
        first, second, *others = sorted(range(len(probs)), key=lambda n: -probs[n])[:4]
        probs[first], probs[second], probs[others[0]], probs[others[1]] = 0.401, 0.4, 0.199, 0.0
        return probs


class Uneven(LlamaCpp):
    """A server that computes a token otherwise when it reads than when it writes."""

    by = 0.0

    def _completion(self, body: dict[str, Any]) -> httpx.Response:
        plain = self.model
        if body.get("logit_bias"):
            self.model = Shifted(plain, self.by)
        try:
            return super()._completion(body)
        finally:
            self.model = plain


async def uneven(by: float, model: LanguageModel) -> ProbeReport:
    server = Uneven(model)
    server.by = by
    return await examined(server, None)


MOVED = "from writing to reading, the two most probable tokens move against each other by"


@pytest.mark.parametrize(
    ("by", "tie", "words"),
    [
        (0.0, 0.0, "log probabilities are the same, written and read: tie=0"),
        (0.00314, 0.0032, f"{MOVED} at most 0.0031 in log probability: tie=0.0032"),
        (1.7e-5, 1.7e-5, f"{MOVED} at most 0.000017 in log probability: tie=0.000017"),
        (0.15, 0.1, f"{MOVED} up to 0.15 in log probability: the server's numbers depend on how a prompt is batched"),
        (0.15, 0.1, "how a prompt is batched, and differences above 0.1 are not called ties: tie=0.1"),
    ],
)
async def test_ties_are_measured_between_writing_and_reading(by: float, tie: float, words: str) -> None:
    report = await uneven(by, Talker())
    assert words in str(report["tie"])
    assert report.tie == pytest.approx(tie, abs=1e-6)
    shown = re.fullmatch(r"equal at (\d+) of \1 places", report["after_ids"].seen)
    assert shown is not None and int(shown[1]) > 5
    assert str(report["after_ids"]) == f"yes: {report['after_ids'].seen}"


class UnevenInLists(Uneven):
    """Computes as it writes if it is asked about one place."""

    def _completion(self, body: dict[str, Any]) -> httpx.Response:
        return (
            super()._completion(body)
            if len(body["prompt"]) > 1 and isinstance(body["prompt"][1], list)
            else FakeLlamaCpp._completion(self, body)
        )


async def test_places_are_read_in_lists_and_alone() -> None:
    server = UnevenInLists(Talker())
    server.by = 0.00314
    report = await examined(server, None)
    words = f"{MOVED} at most 0.0031 in log probability (0.0031 in lists, 0 alone): tie=0.0032"
    assert report["tie"].seen == words
    assert "alone)" not in (await uneven(0.00314, Talker()))["tie"].seen


async def test_a_token_that_is_nearly_as_probable_when_read_is_a_tie() -> None:
    report = await uneven(0.005, Close())
    assert re.fullmatch(r"equal at 0 of (\d+) places, and a tie at \1", report["after_ids"].seen)
    assert report["after_ids"].value is True
    assert report.tie == pytest.approx(0.005, abs=1e-4)


async def test_a_server_that_contradicts_its_own_ids() -> None:
    report = await uneven(1.0, Talker())
    assert report["after_ids"].value is False
    assert re.fullmatch(r"equal at \d of \d places; .+ was written, and .+ is read", report["after_ids"].seen)
    assert 'unit="word": asked after its own ids it answers differently' in report.advice
    assert (await uneven(0.0, Talker())).advice == ()


@pytest.mark.parametrize(
    ("cache", "again", "words"),
    [
        ("anywhere", 0, "no tokens in its cache are read again after a change"),
        ("checkpoint", 6, "6 of 6 tokens in its cache are read again after a change"),
        ("", None, "unknown: measured only on llama.cpp, if it has a cache"),
    ],
)
async def test_a_restart_may_read_again_what_is_in_the_cache(cache: Any, again: int | None, words: str) -> None:
    server = Uneven(Talker())
    server.cache, server.by = cache, 1.0
    report = await examined(server, None)
    assert (report["restart"].value, str(report["restart"])) == (again, words)
    advised = "start it with --swa-full if its model has a sliding window: restarts are slow, its numbers unsteady"
    # Its answers differ because it reads its cache again: no other setting would help.
    unit = 'unit="word": asked after its own ids it answers differently'
    assert report.advice == ((advised,) if again else (unit,))
    async with server.client() as client:
        known = connect("http://gpu1:8080", report=report, http_client=client)
        assert (await known.describe()).capabilities.reread == again


async def test_a_server_without_ids_has_no_ties() -> None:
    report = await examined(Server(Talker()))
    assert (report["after_ids"].value, report["tie"].value, report.tie) == (False, None, None)
    assert str(report["after_ids"]) == "no: it takes no ids, or does not show those of its tokens"
    assert report.vocabulary is None
    assert str(report["spaces"]) == "unknown: it takes no ids, or does not show those of its tokens"


class Lower(ScriptedProvider):
    """A server whose tokenizer normalises."""

    async def encode(self, text: str) -> list[Piece]:
        return await super().encode(text.lower())


@pytest.mark.parametrize(
    ("word", "server", "words"),
    [
        (b" the", ScriptedProvider, "yes: a token begins at each"),
        (b" in the", ScriptedProvider, "no: ' in the' is one token"),
        (b" in the", Lower, "unknown: the tokens do not spell the text"),
    ],
)
async def test_tokens_of_several_words_are_shown(word: bytes, server: Any, words: str) -> None:
    tokens = [b"", *(bytes([n]) for n in range(256)), word]
    report = await probe(server(TableModel(tokens, lambda _: [1.0] + [0.0] * 257, end_ids=(0,)), ids=True))
    assert str(report["spaces"]) == words


async def test_a_server_that_its_adapter_refuses() -> None:
    fake = LlamaCpp(Talker())
    fake.slots = [{"id": 0, "speculative": True}]
    report = await examined(fake, None)
    assert not report.can_draft
    assert not report.can_assist
    assert report.facts is None
    assert "decodes speculatively" in str(report)
    assert "Start it without a draft model (--model-draft, --spec-type)." in report.advice
    with pytest.raises(ValueError, match="the report cannot be used to connect"):
        connect("http://gpu1:8080", report=report)


async def test_vllm() -> None:
    report = await examined(FakeVllm(Talker()), "vllm")
    found = values(report)
    assert found["scoring"] == "prompt_logprobs"
    assert found["draft"] == "ids"
    assert {*report.strategies} >= {"echo", "list", "singles"}
    assert any("--enable-prompt-tokens-details" in words for words in report.advice)


# Any provider, by the contract alone.


@dataclass
class Lying(ScriptedProvider):
    """A provider that is wrong in one way."""

    fault: str = ""

    async def propose(self, context: Context, questions: Any, *, usage: Usage, **options: Any) -> list[Proposal | None]:
        found = await super().propose(context, questions, usage=usage, **options)
        if self.fault != "propose":
            return found
        return [
            one and replace(one, tokens=tuple(replace(token, prob=(token.prob or 0) / 2) for token in one.tokens))
            for one in found
        ]

    async def score(self, context: Context, *, usage: Usage, **options: Any) -> list[Token]:
        found = await super().score(context, usage=usage, **options)
        if self.fault != "score":
            return found
        return [Token(one.data, other.prob) for one, other in zip(found, [*found[1:], found[0]], strict=True)]

    async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
        if self.fault == "resumed" and options.get("continuation"):
            options["continuation"] = [*options["continuation"][:-1], 0]
        async for item in super().generate(*args, **options):
            yield item

    async def tokenize(self, text: str) -> list[Piece]:
        return [Piece(n, bytes([byte])) for n, byte in enumerate(text.encode()[self.fault == "tokenizer" :])]


async def test_a_provider_of_ones_own() -> None:
    provider = ScriptedProvider(Talker())
    report = await probe(provider)
    found = values(report)
    assert (found["draft"], found["score"], found["propose"], found["tokenizer"]) == ("ids", True, True, "endpoint")
    assert found["scoring"] == "place by place"
    assert found["lists"] is None
    assert "can only be checked through its contract" in report["lists"].seen
    assert report["template"].seen == "the model has none of its own, or none can be seen"
    assert report.can_draft
    assert report.can_assist
    assert report.engine is None
    assert provider.open_requests == 0


@pytest.mark.parametrize(
    ("fault", "line", "words"),
    [
        ("propose", "propose", "equal at 0 of"),
        ("score", "score", "equal at"),
        ("resumed", "draft", "differs from token"),
        ("tokenizer", "tokenizer", "whose bytes are not the text"),
    ],
)
async def test_a_provider_that_is_wrong(fault: str, line: str, words: str) -> None:
    report = await probe(Lying(Talker(), fault=fault))
    assert report[line].value is False
    assert words in report[line].seen
    assert report.can_assist is (fault != "propose")
    assert report.can_draft is (fault != "resumed")
    right = await probe(Lying(Talker()))
    assert right[line].value not in (False, None)


@pytest.mark.parametrize("wrong", [False, True])
async def test_a_provider_that_does_not_draft_is_asked_as_an_assistant(wrong: bool) -> None:
    """Without a draft, its proposals for several places are compared with those for each place alone."""

    class Silent(ScriptedProvider):
        async def generate(self, *args: Any, **options: Any) -> AsyncGenerator[Any, None]:
            raise UnsupportedError("it does not draft", endpoint=self.name)
            yield

        async def propose(
            self, context: Context, questions: Any, *, usage: Usage, **options: Any
        ) -> list[Proposal | None]:
            found = await super().propose(context, questions, usage=usage, **options)
            return found[::-1] if wrong else found

    report = await probe(Silent(Talker()))
    assert not report.can_draft and report.draft_lacks == ("it does not draft",)
    assert (report["propose"].value, report.can_assist) == (not wrong, not wrong)
    assert "the same together as one by one at" in report["propose"].seen


async def test_what_others_answer_instead_is_no_strategy() -> None:
    """Without a tokenizer nobody knows which places an echo answers."""

    class Local:
        name, beginning = "local", 0

        def encode(self, text: str) -> list[Piece]:
            return [Piece(n, Talker().tokens[n]) for n in Talker().encode(text.encode())]

        def token(self, id: int) -> bytes | None:
            return Talker().tokens[id]

    blind = {way.name: way for way in (await examined(Server(Talker(3)))).ways}
    assert {way.name: way.proved for way in blind.values()} == {
        "echo": False,
        "list": True,
        "singles": True,
    }
    assert blind["echo"].seen == "all places were answered by list instead"
    no_lists = {way.name: way for way in (await examined(Server(Talker(3)), dialect="llama-cpp-python")).ways}
    assert [way.name for way in no_lists.values() if way.proved] == ["singles"]
    assert no_lists["list"].seen == "all places were answered by singles instead"
    seeing = {way.name: way for way in (await examined(Server(Talker(3)), tokenizer=Local())).ways}
    assert seeing["echo"].proved


# Reports.


async def test_a_report_goes_through_a_file(tmp_path: Path) -> None:
    report = await examined(Server(Talker()))
    report.save(tmp_path / "report.json")
    assert ProbeReport.load(tmp_path / "report.json") == report
    assert Snapshot.load(str(tmp_path / "report.json")).facts == report.facts


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "is not a probe report: it is not JSON"),
        ("[1]", "is not a probe report: "),
        ('{"schema_version": 3}', "is not a probe report: endpoint: Field required"),
        (
            '{"schema_version": 2}',
            "has a probe report of version 2, not 3: probe the server again, e.g. cosd probe URL --sa",
        ),
    ],
)
def test_files_that_are_not_reports(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    for load in (ProbeReport.load, lambda path: connect("http://gpu1", report=path)):
        with pytest.raises(ValueError, match=words):
            load(path)
    with pytest.raises(OSError, match="No such file"):
        connect("http://gpu1", report=tmp_path / "none.json")


FAKES: Mapping[str, Callable[[], Any]] = {
    "openai": lambda: Server(Talker()),
    "llama.cpp": lambda: LlamaCpp(Talker()),
    "vllm": lambda: FakeVllm(Talker()),
    "sglang": lambda: StandInSglang(Talker()),
    "ollama": lambda: StandInOllama(Talker()),
    "tgi": lambda: StandInTgi(Talker(), prefill=True),
}


@pytest.mark.parametrize("engine", FAKES)
async def test_each_report_has_all_lines(engine: str) -> None:
    report = await examined(FAKES[engine](), engine)
    expected = [line.name for line in (await examined(Server(Talker()))).lines]
    assert [line.name for line in report.lines] == expected
    assert all(line.asked and line.seen for line in report.lines)
    assert report.can_draft and report.can_assist
    assert report.strategies
    assert max(map(len, str(report).splitlines())) <= 80


@pytest.mark.parametrize("engine", FAKES)
async def test_with_a_report_nothing_is_found_out_again(engine: str) -> None:
    fake: Any = FAKES[engine]()
    report = await examined(fake, engine)
    report = ProbeReport.model_validate_json(report.model_dump_json())
    async with fake.client() as client:
        known = connect("http://gpu1:8080", report=report, http_client=client)
        fresh = connect("http://gpu1:8080", engine=engine, http_client=client)
        fake.requests.clear()
        async with known:
            described = await known.describe()
            asked = [path for path, _ in fake.requests]
            own = await drafted(known)
        fake.requests.clear()
        async with fresh:
            assert described == await fresh.describe()
            assert own == await drafted(fresh)
    assert asked == ["/info" if engine == "tgi" else "/v1/models"]


async def drafted(provider: Any) -> list[Any]:
    tokens = [item async for item in provider.generate(Context(PROMPT, b""), max_tokens=8, usage=Usage())]
    return [(token.data, token.prob) for token in tokens if isinstance(token, Token)]


@pytest.mark.parametrize("engine", ["openai", "llama.cpp", "vllm"])
async def test_with_a_report_of_another_model(engine: str) -> None:
    fake: Any = FAKES[engine]()
    report = await examined(fake, engine)
    serve(fake, "other")
    async with fake.client() as client:
        provider = connect("http://gpu1:8080", report=report, http_client=client)
        with pytest.raises(
            ModelChoiceError, match=r"the report is of the model .toy.; the server has it no longer\. Probe"
        ):
            await provider.describe()
        serve(fake, "toy")
        assert (await provider.describe()).model == "toy"


def serve(fake: Any, name: str) -> None:
    if isinstance(fake, FakeOpenAI):
        fake.listed = [{"id": name}]
    else:
        fake.models = [{"id": name, "root": "/toy", "parent": None}] if isinstance(fake, FakeVllm) else [name]


async def test_a_model_of_the_same_name_that_is_another_one() -> None:
    fake = Server(Talker(), listed=[{"id": "toy", "max_model_len": 100}])
    report = await examined(fake)
    fake.listed = [{"id": "toy", "max_model_len": 200}]
    async with fake.client() as client:
        with pytest.raises(ModelChoiceError, match="another one of that name"):
            await connect("http://gpu1:8080", report=report, http_client=client).describe()


async def test_reports_and_what_else_is_given() -> None:
    report = await examined(Server(Talker()), dialect="sglang", model="toy")
    assert repr(connect("http://gpu1:8080/v1", report=report)) == (
        "OpenAICompatible('http://gpu1:8080', model='toy', dialect='sglang')"
    )
    for options, words in (
        ({"engine": "vllm"}, "the report is of the engine 'openai', not 'vllm': probe again"),
        ({"model": "other"}, "the report is of the model 'toy', not 'other': probe again"),
        ({"dialect": "vllm"}, "the report is of the dialect 'sglang', not 'vllm': probe again"),
        ({"api": "chat"}, "the report is of the api 'completions', not 'chat': probe again"),
    ):
        with pytest.raises(ValueError, match=words):
            connect("http://gpu1:8080", report=report, **options)  # type: ignore[arg-type]
    fake = Server(Talker())
    async with fake.client() as client:
        connected = connect("http://gpu1:8080", report=report, http_client=client, dialect="sglang", context=50)
        assert (await connected.describe()).context == 50
    with pytest.raises(ValueError, match="the report is of http://gpu1:8080, not of http://gpu2:8080: probe this one"):
        connect("http://gpu2:8080", report=report)
    broken = report.model_copy(update={"facts": {"known": {}, "served": {}}})
    with pytest.raises(UnsupportedError, match=r"lacks the facts about this kind of server\. Probe again"):
        await connect("http://gpu1:8080", report=broken).describe()


async def test_no_report_holds_a_secret() -> None:
    fake = Server(Talker())
    async with fake.client() as client:
        headers = {"X-Tenant": "sk-header"}
        options = ConnectOptions(
            engine="openai", http_client=client, headers=headers, extra_body={"user": "sk-body"}, api_key="sk-key"
        )
        report = await probe("http://gpu1", prompt="sk-prompt", **options)
    text = report.model_dump_json() + str(report) + repr(report)
    assert "sk-" not in text
    assert "sk-body" in json.dumps(fake.bodies)


async def test_two_reports_tell_what_a_fusion_judges_by() -> None:
    one, other = await examined(LlamaCpp(Talker()), None), await examined(LlamaCpp(Talker(1)), None)
    third = await examined(Server(Talker()))
    assert definition_of([one, other]).unit == "token"
    assert definition_of([one, third]).unit == "word"
    assert definition_of([third, third]).unit == "word"
    assert definition_of([one, other]) == Definition(
        "ids", "token", "both servers take and show ids and have the same ids", 0.0
    )
    fakes = LlamaCpp(Talker()), LlamaCpp(Talker(1))
    async with fakes[0].client() as first, fakes[1].client() as second:
        pair = [
            connect("http://gpu1:8080", report=own, http_client=client)
            for own, client in ((one, first), (other, second))
        ]
        async with Fusion(draft=pair[0], assistant=pair[1]) as fusion:
            assert (await fusion.generate(PROMPT, max_tokens=8)).settings.unit == "token"


OTHERS = "both servers take and show ids and have different ones"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "both servers take and show ids and have the same ids"),
        ({"vocabulary": None}, "http://gpu2 cannot be asked after ids"),
        ({"vocabulary": "w"}, OTHERS),
        ({"vocabulary": "w", "encoding": "f"}, OTHERS),
    ],
)
def test_the_definition_of_a_pair_and_why(changes: Mapping[str, Any], words: str) -> None:
    one = ProbeReport(endpoint="http://gpu1", engine="vllm", model="m", encoding="e", vocabulary="v", tie=0.003)
    found = definition_of([one, one.model_copy(update={"endpoint": "http://gpu2", "tie": 0.01, **changes})])
    assert found.reason == words
    by_ids = changes.get("vocabulary", "v") is not None
    assert (found.contexts, found.tie) == (("ids", 0.01) if by_ids else ("text", None))
    assert definition_of([one] * 3).reason == "all servers take and show ids and have the same ids"


@pytest.mark.usefixtures("no_waiting")
async def test_it_is_said_where_nobody_answers() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with httpx.AsyncClient(transport=httpx.MockTransport(handle)) as client:
        with pytest.raises(ConnectError):
            await probe("http://gpu1", engine="openai", http_client=client)


@dataclass(frozen=True)
class Terse(Talker):
    """Ends at once after some prompts; `always` after all."""

    always: bool = False

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        text = b"".join(self.tokens[n] for n in ids)
        if not (self.always or b"terse" in text):
            return super().next(ids)
        return [0.1, 0.2] + [0.0] * (len(self.tokens) - 3) + [0.7]


@pytest.mark.parametrize("engine", ["openai", "llama.cpp", "vllm", None])
async def test_a_prompt_that_is_not_answered(engine: str | None) -> None:
    fakes: Any = {"openai": Server, "llama.cpp": LlamaCpp, "vllm": FakeVllm}
    if engine is None:
        report = await probe(ScriptedProvider(Terse()), prompt="Be terse.")
    else:
        report = await examined(fakes[engine](Terse()), engine, prompt="Be terse.")
    assert report.can_draft and report.can_assist
    assert report["draft"].value in ("text", "ids")
    assert report["propose"].value is True
    assert report["draft"].seen.endswith("; after a text of the probe's own, as the answer was too short")


@pytest.mark.parametrize("prompt", ["", " \n"])
async def test_an_empty_prompt_is_none(prompt: str) -> None:
    fake = Server(Talker(1))
    await examined(fake, prompt=prompt)
    assert all(body["prompt"] and body["prompt"] != prompt for body in fake.bodies if "prompt" in body)
    assert any(body.get("prompt") == PROMPT for body in fake.bodies)


@pytest.mark.parametrize("engine", ["openai", "llama.cpp"])
async def test_where_every_answer_is_too_short_that_is_no_verdict(engine: str) -> None:
    fake: Any = Server(Terse(always=True)) if engine == "openai" else LlamaCpp(Terse(always=True))
    report = await examined(fake, engine)
    assert [report[name].value for name in ("draft", "score", "propose")] == [None] * 3
    assert {report[name].seen for name in ("draft", "score", "propose")} == {"the answer was too short"}
    assert "a draft, resumed   unknown: the answer was too short\n" in str(report)
    assert report.can_draft and report.can_assist


async def test_without_probabilities_short_answers_are_no_verdict_either() -> None:
    fake = Server(Terse(always=True), changes={"logprobs": None})
    report = await examined(fake, dialect="vllm")
    assert not report.can_draft
    assert "without probabilities" in report.draft_lacks[0]


async def test_an_end_that_the_adapter_does_not_rely_on_is_named() -> None:
    """The server shows its end, but the table of dialects says that such servers hide it: a fusion warns."""
    report = await examined(Server(Terse()), prompt="Be terse.")
    assert report["end"].value is True
    shown = " ".join(str(report).split())
    assert (
        "shown, with its probability: it has a probability; with servers of this kind a fusion does not rely" in shown
    )
    report = await examined(Server(Terse()), prompt="Be terse.", dialect="vllm")
    assert "end of sequence    shown, with its probability\n" in str(report)


async def test_the_end_of_a_draft_counts_and_not_that_of_a_forced_text() -> None:
    class Streams(Server):
        """In streams the end has no entry."""

        def handle(self, request: httpx.Request) -> httpx.Response:
            self.end = not json.loads(request.content or "{}").get("stream")
            return super().handle(request)

    report = await examined(Streams(Terse()), prompt="Be terse.")
    assert (report["end"].value, report["end"].seen) == (False, "its probability is not shown")


async def test_a_part_of_a_character_is_not_taken_for_the_end() -> None:
    """llama-cpp-python has an entry without a string for each such part, and none for the end."""

    class Bytewise(Server):
        def handle(self, request: httpx.Request) -> httpx.Response:
            answer = super().handle(request)
            if b'"grammar"' not in request.content:
                return answer
            body = json.loads(answer.content)
            for choice in body["choices"]:
                shown = choice["logprobs"]
                shown["tokens"] = [text if text.isascii() else "" for text in shown["tokens"]]
            return httpx.Response(200, json=body)

    line = (await examined(Bytewise(Talker(6), end=False)))["end"]
    assert line.asked == "the end of an answer that was forced"  # that model's draft does not end
    assert (line.value, line.seen) == (False, "its probability is not shown")


async def test_a_dump_in_an_error_is_left_out() -> None:
    class Dumping(Server):
        def handle(self, request: httpx.Request) -> httpx.Response:
            prompt = json.loads(request.content or "{}").get("prompt")
            if isinstance(prompt, list) and isinstance(prompt[0], int):
                words = "2 validation errors:\n  {'type': 'string_type', 'input': [10]}\n"
                return httpx.Response(400, json={"error": {"message": words}})
            return super().handle(request)

    assert (await examined(Dumping(Talker())))["ids"].seen == "400: 2 validation errors"


async def test_the_kind_of_server_is_in_the_first_line() -> None:
    report = await examined(Server(Talker()), "llama-cpp-python")
    assert str(report).startswith("http://gpu1:8080: llama-cpp-python, model toy\n")


async def test_a_name_that_no_line_has() -> None:
    report = await examined(Server(Talker()))
    with pytest.raises(KeyError, match=r"no line 'scorng'; it has server, .*scoring, .*propose"):
        report["scorng"]


async def test_names_of_this_machine_are_one() -> None:
    async with Server(Talker()).client() as client:
        report = await probe("http://127.0.0.1:8080", engine="openai", http_client=client)
        assert (await connect("http://localhost:8080", report=report, http_client=client).describe()).model == "toy"
    for other in ("http://localhost:8081", "http://localhost:8080/llm", "http://127.0.0.2:8080"):
        with pytest.raises(ValueError, match=r"the report is of http://127\.0\.0\.1:8080, not of"):
            connect(other, report=report)


async def test_a_report_is_not_a_provider() -> None:
    report = await examined(Server(Talker()))
    given: Any = report
    with pytest.raises(SettingError, match=r"not ProbeReport: connect\(url, report=report\) makes a provider of it"):
        Fusion(draft="http://gpu1", assistant=given)


@pytest.mark.parametrize(
    ("server", "prompt", "words"),
    [
        (None, "", "server must be a URL or a provider, not NoneType"),
        (["http://gpu1", "http://gpu2"], "", r"one server is probed at a time: await probe\(url\) for each"),
        (
            ProbeReport(endpoint="http://gpu1", engine=None, model="m"),
            "",
            "is a probe report; .* give its URL, 'http://gpu1'",
        ),
        ("http://gpu1", 5, "prompt must be a text, not int"),
    ],
)
async def test_what_cannot_be_probed(server: Any, prompt: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        await probe(server, prompt=prompt)


async def test_options_are_for_a_url() -> None:
    with pytest.raises(TypeError, match="'model' is for a URL; a provider has it already"):
        await probe(ScriptedProvider(Talker()), model="toy")


@pytest.mark.parametrize("server", ["http://gpu1", ScriptedProvider(Talker())])
async def test_an_unknown_option_is_refused(server: Any) -> None:
    with pytest.raises(TypeError, match=r"unknown argument 'modle'; did you mean 'model'\?"):
        await probe(server, modle="m")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unknown argument 'promt'; did you mean 'prompt'\?"):
        await probe(server, promt="Q:")  # type: ignore[call-arg]


def test_the_options_are_those_of_connect() -> None:
    own = {name: one.annotation for name, one in inspect.signature(connect).parameters.items()}
    theirs = {name: found.__forward_arg__ for name, found in ConnectOptions.__annotations__.items()}
    assert theirs == {name: found for name, found in own.items() if name not in ("url", "unknown")}


@pytest.mark.parametrize(
    ("draft", "assistant"),
    [
        ("llama.cpp", "tgi"),
        *(pytest.param(*pair, marks=pytest.mark.extended) for pair in (("llama.cpp", "sglang"), ("tgi", "sglang"))),
    ],
)
async def test_one_tokenizer_on_two_kinds_of_server_is_found_alike(draft: str, assistant: str) -> None:
    """Each kind shows the bytes of tokens that share a character in its own way; the ids are the same."""
    reports = [await examined(FAKES[engine](), engine) for engine in (draft, assistant)]
    assert len({one.encoding for one in reports} | {None}) == 2
    fakes: Any = [FAKES[engine]() for engine in (draft, assistant)]
    async with fakes[0].client() as first, fakes[1].client() as second:
        models = [
            connect("http://gpu1:8080", engine=engine, http_client=client)
            for engine, client in ((draft, first), (assistant, second))
        ]
        method = Speculative(temperature=1, test="cosd")  # it compares tokens, and shows no more than a verifier wants
        async with Fusion(draft=models[0], assistant=models[1], method=method) as fusion:
            assert (await fusion.generate(PROMPT, max_tokens=8)).settings.unit == "token"


@pytest.mark.parametrize("closed", [404, 401, 403, 405, 200])
@pytest.mark.parametrize(
    ("owner", "dialect"),
    [("llamacpp", "llama.cpp"), ("vllm", "vllm"), ("sglang", "sglang"), ("library", "openai"), ("system", "openai")],
)
async def test_behind_a_proxy_that_passes_only_v1_a_server_is_used_over_v1(
    owner: str, dialect: str, closed: int
) -> None:
    class OnlyV1(Server):
        def handle(self, request: httpx.Request) -> httpx.Response:
            if request.url.path in ("/v1/models", "/v1/completions", "/v1/chat/completions"):
                return super().handle(request)
            return httpx.Response(closed, html="<h1>no such page</h1>")

    fake = OnlyV1(Talker(), listed=[{"id": "toy", "owned_by": owner}])
    report = await examined(fake, engine=None)
    assert (report.engine, report.options["dialect"]) == ("openai", dialect)
    assert report.can_draft and report.can_assist
    async with fake.client() as client, connect("http://gpu1:8080", http_client=client) as provider:
        assert (await provider.describe()).engine == dialect
        assert [one async for one in provider.generate(Context("Q", b""), max_tokens=2, usage=Usage())]
    assert fake.bodies[-1].items() >= DIALECTS[dialect].greedy.items()  # with what this kind of server needs


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("refused", ["stream_options", "include_usage", "top_p"])
async def test_a_server_that_refuses_a_dispensable_field_is_used_without_it(refused: str, late: bool) -> None:
    report = await examined(Server(Talker(), refuses=[refused], late=late))
    assert report["logprobs"].value is True
    assert report.can_draft and report.can_assist


async def test_a_stream_that_is_refused_shows_nothing_about_its_probabilities() -> None:
    report = await examined(Server(Talker(), refuses=["stream"]))
    assert report["logprobs"].value is None
    words = "whole answers have probabilities; no stream came: 400: Unrecognized request argument supplied: stream"
    assert report["logprobs"].seen == words
    assert not report.can_draft and report.can_assist


class WholeAnswers(Server):
    """Shows probabilities in whole answers, and none in streams: LiteLLM's `/v1/completions`."""

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.probs = "ignored" if json.loads(request.content or "{}").get("stream") else "yes"
        return super().handle(request)


@pytest.mark.parametrize("shape", ["legacy", "chat"])
@pytest.mark.parametrize("dialect", ["openai", "vllm"])
async def test_probabilities_in_whole_answers_only_make_an_assistant(shape: Any, dialect: str) -> None:
    report = await examined(WholeAnswers(Talker(), shape=shape), dialect=dialect)
    assert (report["logprobs"].value, report["propose"].value) == (False, True)
    assert report["logprobs"].seen == "whole answers have probabilities, streams do not"
    assert not report.can_draft and "no probabilities" in report.draft_lacks[0]
    assert report.can_assist and report.assistant_lacks == ()
    assert "singles" in report.strategies
    assert not any(word in str(report) for word in ("no question to send", "streamed logprobs  yes"))
    assert report["score"].seen == "there is no draft to compare with"


async def test_a_limit_of_the_users_own_ends_the_probe() -> None:
    class Limited(ScriptedProvider):
        async def propose(self, *given: Any, **options: Any) -> list[Proposal | None]:
            raise BudgetError("no more requests are allowed")

    with pytest.raises(BudgetError):
        await probe(Limited(Talker()))


async def test_a_draft_without_probabilities_is_replaced_by_whole_answers() -> None:
    fake = Server(Talker())
    async with fake.client() as client:
        provider: Any = connect("http://gpu1:8080", engine="openai", http_client=client)

        async def unsure(*given: Any, **options: Any) -> AsyncGenerator[Any, None]:
            async for item in type(provider).generate(provider, *given, **options):
                yield replace(item, prob=None) if isinstance(item, Token) else item

        provider.generate = unsure
        report = await probe(provider)
    assert (report["draft"].value, report["draft"].seen) == (False, "its tokens have no probabilities")
    assert (report["logprobs"].value, report["propose"].value) == (False, True)


async def test_a_strategy_that_does_not_fit_the_context_is_not_used() -> None:
    class Narrow(ScriptedProvider):
        """Reads a whole text in one request only where it is short."""

        strategies = ("echo", "singles")
        strategy = "singles"

        def with_strategy(self, strategy: str) -> Narrow:
            view = copy(self)
            view.strategy = strategy
            return view

        async def propose(self, *given: Any, **options: Any) -> list[Proposal | None]:
            if self.strategy == "echo":
                raise ContextLengthError("the text is too long", endpoint=self.name)
            return await super().propose(*given, **options)

    report = await probe(Narrow(Talker()))
    ways = {way.name: way for way in report.ways}
    assert (ways["echo"].proved, ways["echo"].wrong, ways["echo"].seen) == (False, False, "the text is too long")
    assert report.can_assist and report.strategies == ("singles",)


class Old(FakeVllm):
    """At temperature 0 its probabilities are 1 and 0."""

    def handle(self, request: httpx.Request) -> httpx.Response:
        plain, body = self.model, json.loads(request.content or "{}")
        self.model = Powered(plain, body.get("temperature") or 0)
        try:
            return super().handle(request)
        finally:
            self.model = plain


async def test_flags_are_advised_that_would_help() -> None:
    report = await examined(Old(Talker()), "vllm")
    assert report["probabilities"].value == "degenerate"
    words = "--logprobs-mode raw_logprobs (version 0.10 or newer): it then shows the model's own probabilities"
    assert words in report.advice


async def test_a_server_that_does_not_say_how_it_was_started_is_probed() -> None:
    class Silent(LlamaCpp):
        def handle(self, request: httpx.Request) -> httpx.Response:
            asked = [path for path, _ in self.requests].count("/v1/models")
            if request.url.path == "/v1/models" and asked:
                self.requests.append((request.url.path, None))
                return httpx.Response(404, text="gone")
            return super().handle(request)

    report = await examined(Silent(Talker()), "llama.cpp")
    assert report.can_draft and report.can_assist
