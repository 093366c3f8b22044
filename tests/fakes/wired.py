"""Servers of every kind over scripts, with their adapters, and a record of what is sent to them.

Used by `tests/wire`: a server that is added gets a line in `SUBJECTS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import httpx

from cosd_providers import Message, connect
from cosd_providers.engines.openai import DIALECTS
from cosd_providers.testing import ScriptToken
from fakes.adapters import Local
from fakes.chats import ChatModel, chatml, parsed
from fakes.llama_cpp import FakeLlamaCpp
from fakes.ollama import StandInOllama
from fakes.openai import FakeOpenAI
from fakes.sglang import StandInSglang
from fakes.tgi import StandInTgi
from fakes.vllm import FakeVllm

KEY = "sk-secret"
Scripts = Mapping[str, Sequence[ScriptToken]]

KNOWN = DIALECTS["openai"].known_text
CHECKED: Scripts = {
    "a": [(" b", 0.5)],
    KNOWN[:3]: [(word, 0.5 + at / 50) for at, word in enumerate(re.findall(r" \S+", KNOWN))],
}
"""What every model says after the texts that servers are checked with."""

HELLO = (Message("system", "Be brief."), Message("user", "Hello"))
GREETED = (chatml([{"role": one.role, "content": one.content} for one in HELLO]), "Be brief.Hello")
"""The same as a chat template writes it, and as the stand-in for OpenAI's protocol reads it."""
ANSWER: Scripts = {
    "Q:": [" one", (" two", 0.4), " three", (" four", 0.7), (" five", 0.6), " six", (" seven", 0.5), " eight"],
    "Q: one 2": [" three", (" four", 0.7), (" five", 0.6), " six", (" seven", 0.5), " eight"],
    "Café:": [" un", b" caf\xc3", b"\xa9", (" deux", 0.6)],
    **{one: ["Hi", (" there", 0.4), (" you", 0.6)] for one in GREETED},
    **{f"{one}Hi all": [" of", (" you", 0.6)] for one in GREETED},
}
OTHER: Scripts = {
    "Q:": [" one", (" 2", 0.9)],
    "Q: one 2": [" th", "ree", (" four", 0.9), (" 5", 0.4), " six"],
    "Q: one 2 three four five": [" six", (" seven", 0.9), " eight"],
    **{one: ["Hi", (" all", 0.9), " of", " us"] for one in GREETED},
    **{f"{one}Hi all of you": [("!", 0.3)] for one in GREETED},
}
"""A model that drafts, and one that knows better in one place of each answer."""


# Stand-ins.


class LlamaCpp(FakeLlamaCpp):
    """llama.cpp's server with a chat template and embeddings."""

    def __init__(self, model: Any) -> None:
        super().__init__(model, beginning=True)
        self.states = lambda ids: (float(len(ids)), 0.5)

    def handle(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/apply-template":
            return httpx.Response(200, json={"prompt": chatml(json.loads(request.content)["messages"])})
        return super().handle(request)

    def _encode(self, text: str) -> list[int]:
        names = {name: n for n, name in self.model.specials.items()}  # type: ignore[attr-defined]
        return super()._encode(text) if text.startswith("</s>") else parsed(self.model, text, names)


def vllm(model: ChatModel) -> FakeVllm:
    server = FakeVllm(model, beginning=True)
    server.template, server.specials = chatml, model.specials
    return server


def sglang(model: ChatModel) -> StandInSglang:
    more: dict[str, Any] = {"specials": model.specials, "template": chatml, "deterministic": True}
    return StandInSglang(model, beginning=len(model.tokens), **more)


def tgi(model: ChatModel) -> StandInTgi:
    return StandInTgi(model, beginning=len(model.tokens), specials=model.specials, template=chatml, prefill=True)


def ollama(model: ChatModel) -> StandInOllama:
    return StandInOllama(model, beginning=len(model.tokens))


WAYS: Mapping[str, Mapping[str, Any]] = {
    "llama.cpp": {"shape": "chat", "opened": "bytes", "echo": "ignored", "chat_repeats": True},
    "llama-cpp-python": {"opened": "gone", "lists": "500"},
    "lm-studio": {"probs": "ignored"},
    "deepinfra": {"probs": "ignored"},
    "mistral": {"probs": "refused"},
    "groq": {"probs": "refused"},
}
"""Servers of OpenAI's protocol as far as they are not as the stand-in is."""


def speaking(dialect: str, model: ChatModel) -> FakeOpenAI:
    end = DIALECTS[dialect].end_prob
    return FakeOpenAI(model, beginning=True, end=end, **WAYS.get(dialect, {}))


# The record.


class Wire:
    """All that was sent, by the call that sent it."""

    def __init__(self) -> None:
        self.sent: dict[str, list[dict[str, Any]]] = {}
        self._call = ""

    def client(self, server: Any) -> httpx.AsyncClient:
        """A client whose every request is noted, and answered by a stand-in."""

        def handle(request: httpx.Request) -> httpx.Response:
            noted: dict[str, Any] = {"method": request.method, "path": request.url.raw_path.decode()}
            if request.content:
                noted["body"] = json.loads(request.content)
            if request.url.host in ("draft", "assistant"):
                noted["to"] = request.url.host
            self.sent[self._call].append(noted)
            answer: httpx.Response = server.handle(request)
            return answer

        return httpx.AsyncClient(transport=httpx.MockTransport(handle))

    def of(self, call: str) -> None:
        """Note what follows as sent by this call."""
        self._call = call
        self.sent[call] = []

    def __str__(self) -> str:
        bodies: dict[str, list[dict[str, Any]]] = {}
        for one in chain.from_iterable(self.sent.values()):
            bodies.setdefault(one["path"], []).append(one.get("body", {}))
        always = {path: _in_all(several) for path, several in bodies.items() if len(several) > 1}
        sent = {call: [_without(one, always) for one in several] for call, several in self.sent.items()}
        for several in sent.values():
            several.sort(key=partial(json.dumps, sort_keys=True))
        document = {"always": {path: fields for path, fields in always.items() if fields}, "sent": sent}
        text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
        return re.sub(r"\[\n[^][{}]*\n *\]", lambda found: _in_a_line(json.loads(found[0])), text) + "\n"


def _in_a_line(several: Sequence[object]) -> str:
    return json.dumps(several, ensure_ascii=False)


def _in_all(bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields that all bodies have, with the same values."""
    return {name: value for name, value in bodies[0].items() if all(_same(body, name, value) for body in bodies)}


def _same(body: Mapping[str, Any], name: str, value: object) -> bool:
    return name in body and json.dumps(body[name]) == json.dumps(value)  # 0, 0.0 and false are three values


def _without(request: Mapping[str, Any], always: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A request without the fields that are in all of its kind."""
    body, known = request.get("body", {}), always.get(request["path"], {})
    rest = {name: value for name, value in body.items() if name not in known}
    return {**request, "body": rest} if "body" in request else {**request}


# Servers with their adapters.


@dataclass(frozen=True)
class Subject:
    """One kind of server, and its adapter.

    Attributes:
        name: begins the names of its files.
        stand: makes the stand-in.
        options: of `connect`.
        strategies: how proposals can be asked for; None for the engine's own rule.
        more: what else it is asked (`MORE` of the tests).
        local: it has a tokenizer on this machine.
        host: where it is.
    """

    name: str
    stand: Callable[[ChatModel], Any]
    options: Mapping[str, Any]
    strategies: Sequence[str | None] = (None,)
    more: Sequence[str] = ()
    local: bool = False
    host: str = "http://server:8000"

    def provider(self, wire: Wire, scripts: Scripts = ANSWER, *, shared: bool = True, **options: Any) -> Any:
        """The adapter over a model with these scripts, whose tokenizer is shared by all such models, or its own."""
        words = [word for script in (*ANSWER.values(), *OTHER.values()) for word in script] if shared else ["\0"]
        model = ChatModel({**CHECKED, **scripts, "\0 nobody says this, either": words})
        local = {"tokenizer": Local(model)} if self.local else {}
        options = {"url": self.host, "http_client": wire.client(self.stand(model)), **self.options, **local, **options}
        return connect(**options)


FUSIONS = ("fusion_one_tokenizer", "fusion_two_tokenizers")
ALL = ("score", "tokenize", "chat", *FUSIONS)
EVERY = (None, "echo", "list", "singles")


FUSED = ("openai", "llama-cpp-python", "deepseek")
"""Dialects that are fused, too, and asked in every way: the others differ in what stands in a request."""


def compatible(name: str) -> Iterator[Subject]:
    """A dialect of OpenAI's protocol, by each of its routes."""
    dialect, stand = DIALECTS[name], partial(speaking, name)
    plain = Subject(f"openai-{name}", stand, {"engine": "openai", "dialect": name, "model": "toy"})
    if dialect.hosts:
        host = dialect.hosts[0] if dialect.hosts[0][0] != "." else f"mine{dialect.hosts[0]}"
        plain = replace(plain, host=f"https://{host}", options={**plain.options, "api_key": KEY})
    fusions = FUSIONS if name in FUSED else ()
    if dialect.api == "completions":
        proved = dialect.echo is None and "probs" not in WAYS.get(name, {})
        asked = [way for way in EVERY if way is None or (way == "echo" and proved) or (way != "echo" and fusions)]
        yield replace(plain, strategies=asked, more=[*(["score"] * proved), *fusions])
    if dialect.continues is not None:
        fusions = fusions if dialect.api == "chat" else ()
        yield replace(
            plain, name=f"{plain.name}-chat", options={**plain.options, "api": "chat"}, more=["chat", *fusions]
        )


VLLM, SGLANG = {"engine": "vllm"}, {"engine": "sglang"}
SUBJECTS = (
    Subject("llama_cpp", LlamaCpp, {"engine": "llama.cpp"}, (None, "list", "singles"), (*ALL, "hidden_states", "ids")),
    Subject("vllm", vllm, VLLM, EVERY, (*ALL, "ids")),
    Subject("sglang", sglang, SGLANG, EVERY, (*ALL, "ids")),
    Subject("sglang-tokenizer", sglang, SGLANG, EVERY, ("score", "tokenize", *FUSIONS), local=True),
    Subject("tgi", tgi, {"engine": "tgi"}, more=ALL),
    Subject("ollama", ollama, {"engine": "ollama"}, more=FUSIONS),
    *(subject for name in DIALECTS for subject in compatible(name)),
    Subject("openai-messages", partial(speaking, "openai"), {"engine": "openai", "api": "messages"}, ()),
    replace(next(compatible("vllm")), name="openai-vllm-tokenizer", local=True),
    replace(next(compatible("llama-cpp-python")), name="openai-llama-cpp-python-tokenizer", local=True),
)
