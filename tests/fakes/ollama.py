"""A stand-in for Ollama in front of any model: what it does, seen from outside, is what real ones do by their source.

It is as strict with a request as the server's own parser: a field of another type is refused, a name that it does not
know is ignored. What is not neutral (a sampler, a penalty, a stop string of the model's own file) changes the answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Literal

from cosd_providers.testing import LanguageModel
from cosd_providers.text import whole
from fakes.stand_in import Answer, StandIn

FIELDS: Mapping[str, type] = {
    **dict.fromkeys(("model", "prompt", "suffix", "system", "template"), str),
    **dict.fromkeys(("stream", "raw", "think", "truncate", "shift", "logprobs"), bool),
    "top_logprobs": int,
    "options": dict,
}

NEUTRAL: Mapping[str, object] = {"temperature": 0, "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Without these, something else than the most probable token is taken."""


@dataclass(frozen=True)
class Shown:
    """A token that was written.

    Attributes:
        text: what it adds, once whole.
        entries: itself and those that were waiting for it, as they are shown.
    """

    text: str
    entries: list[dict[str, Any]]


@dataclass
class StandInOllama(StandIn):
    """Answers as Ollama does; `client()` is an httpx client that talks to it, `serve()` puts it on loopback.

    Attributes:
        model: what is asked for tokens.
        names: the models that it has, all the same one.
        context: tokens that fit; `num_ctx` changes it.
        beginning: the id that stands before every text; None for none.
        version: what it says of itself.
        runner: `"llama-server"` hides the tokens that leave a character open, and all bytes; `"engine"` shows them.
        old: it knows nothing of logprobs.
        cuts: it cuts what is too long, whatever it is told.
        cached: what `prompt_eval_count` says of a prompt that was read before: all of it, and beside it what was
            cached; all of it; or only what was read again.
        error: what the next streams end in, each after so many events; None breaks off.
        busy: how many requests are refused because the queue is full.
        pace: seconds between the events of a stream; it ends at once where the client leaves.
        requests: path and body of each request, in order.
        gone: how many events were sent in each stream that the client left.
        finished: how many streams were sent to their end.
    """

    model: LanguageModel
    names: Sequence[str] = ("toy:latest",)
    context: int = 512
    beginning: int | None = None
    version: str = "0.34.4"
    runner: Literal["llama-server", "engine"] = "llama-server"
    old: bool = False
    cuts: bool = False
    cached: Literal["told", "whole", "hidden"] = "told"
    error: list[tuple[str | None, int]] = field(default_factory=list)
    busy: int = 0
    pace: float = 0.0
    requests: list[tuple[str, Any]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    finished: int = 0
    _read: list[int] = field(default_factory=list)

    @property
    def bodies(self) -> list[Any]:
        """What generation was asked."""
        return [body for path, body in self.requests if path == "/api/generate"]

    kind = "application/x-ndjson"

    def written(self, event: Mapping[str, Any]) -> str:
        return json.dumps(event) + "\n"

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """One request, answered."""
        self.requests.append((path, body))
        match method, path:
            case "GET", "/api/version":
                return Answer(200, {"version": self.version})
            case "GET", "/v1/models":
                return Answer(200, {"object": "list", "data": [self._owned(name) for name in self.names]})
            case "GET", "/api/tags":
                return Answer(200, {"models": [{"name": name, "model": name} for name in self.names]})
            case "GET", "/api/ps":
                size = {"context_length": self.context}
                return Answer(200, {"models": [{"name": name, "model": name, **size} for name in self.names]})
            case "POST", "/api/generate":
                return self._generate(body)
        return Answer(404, {"error": "not found"})

    def _owned(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": 1762000000, "owned_by": "library"}

    def _generate(self, body: dict[str, Any]) -> Answer:
        for name, kind in FIELDS.items():
            if name in body and type(body[name]) is not kind:
                return _error(400, f"json: cannot unmarshal into Go struct field GenerateRequest.{name}")
        if not 0 <= body.get("top_logprobs", 0) <= 20:
            return _error(400, "top_logprobs must be between 0 and 20")
        name = body["model"]
        if name not in self.names and f"{name}:latest" not in self.names:
            return _error(404, f"model '{name}' not found")
        if self.busy:
            self.busy -= 1
            return _error(503, "server busy, please try again.  maximum pending requests exceeded")
        options = body.get("options", {})
        self.context = options.get("num_ctx", self.context)
        if not body["prompt"]:
            return Answer(200, {"model": name, "response": "", "done": True, "done_reason": "load"})
        text = body["prompt"] if body.get("raw") else f"<|user|>{body['prompt']}<|assistant|>"
        ids = [*([] if self.beginning is None else [self.beginning]), *self.model.encode(text.encode())]
        if len(ids) >= self.context:
            refused = not body.get("truncate", True) or not body.get("shift", True)
            if refused and not self.cuts:
                return _error(400, "the prompt is longer than the context length currently available to the model")
            ids = [*ids[:1], *ids[1 - self.context // 2 :]]
        events = self._events(name, ids, body)
        if body.get("stream", True):
            return Answer(200, events=events)
        return self._joined(list(events))

    def _joined(self, events: list[dict[str, Any]]) -> Answer:
        if "error" in events[-1]:
            return _error(500, events[-1]["error"])
        answer = {**events[-1], "response": "".join(event["response"] for event in events)}
        if entries := [entry for event in events for entry in event.get("logprobs", ())]:
            answer["logprobs"] = entries
        return Answer(200, answer)

    # Generation.

    def _events(self, name: str, ids: list[int], body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        options = body.get("options", {})
        error, after = self.error.pop(0) if self.error and body.get("stream") else (None, -1)
        told = body.get("logprobs") and not self.old
        written, sent, reason = 0, 0, "length"
        for shown in self._run(ids, options, body):
            written += 1
            if shown is None:
                reason = "stop"
                break
            if not shown.text:
                continue
            if sent == after:
                if error is not None:
                    yield {"error": error}
                return
            sent += 1
            event: dict[str, Any] = {"model": name, "created_at": "2026-11-20T10:00:00Z", "response": shown.text}
            if told and shown.entries:
                event["logprobs"] = shown.entries
            yield {**event, "done": False}
        if sent == after:
            return
        last = {"model": name, "created_at": "2026-11-20T10:00:00Z", "response": "", "done": True}
        yield {**last, "done_reason": reason, **self._counts(ids), "eval_count": written}

    def _counts(self, ids: list[int]) -> dict[str, int]:
        """What is told of the prompt. What it has in common with the one before is cached, but for the last token."""
        pairs = zip(ids[:-1], self._read, strict=False)
        known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._read = ids
        if self.cached == "hidden":
            return {"prompt_eval_count": len(ids) - known}
        return {"prompt_eval_count": len(ids), **({"prompt_eval_cached_count": known} if self.cached == "told" else {})}

    def _run(self, ids: Sequence[int], options: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[Shown | None]:
        """The tokens that are written; None for the end of sequence."""
        ids, held, waiting = list(ids), b"", list[dict[str, Any]]()
        place = 0 if NEUTRAL.items() <= options.items() else 1
        for _ in range(options.get("num_predict", 10**6)):
            if len(ids) >= self.context:
                if not body.get("shift", True):
                    return
                ids = [*ids[:1], *ids[1 - self.context // 2 :]]
            probs = self.model.next(tuple(n for n in ids if n != self.beginning))
            ranked = sorted(range(len(probs)), key=lambda n: (-probs[n], n))
            pick = ranked[place]
            if pick in self.model.end_ids:
                yield None
                return
            ids.append(pick)
            held += self.model.tokens[pick]
            top = [self._named(n, probs) for n in ranked[: body.get("top_logprobs", 0)]]
            waiting.append({**self._named(pick, probs), **({"top_logprobs": top} if top else {})})
            if whole(held) < len(held):
                yield Shown("", [])
                continue
            text, held = held.decode("utf-8", "replace"), b""
            # Without a text there is no event; one that is hidden leaves its bytes to the token that completes it.
            hides = self.runner == "llama-server"
            yield Shown(text, ([{**waiting[-1], "token": text}] if hides else waiting) if text else [])
            waiting = [] if text or hides else waiting

    def _named(self, n: int, probs: Sequence[float]) -> dict[str, Any]:
        data = self.model.tokens[n]
        if self.runner == "engine":
            named: dict[str, Any] = {"token": data.decode("utf-8", "replace"), "logprob": _log(probs[n])}
            return {**named, "bytes": list(data)} if data else named
        return {"token": data[: whole(data)].decode("utf-8", "replace"), "logprob": _log(probs[n])}


def _error(status: int, words: str) -> Answer:
    return Answer(status, {"error": words})


def _log(prob: float) -> float:
    return math.log(prob) if prob > 0 else -1e4
