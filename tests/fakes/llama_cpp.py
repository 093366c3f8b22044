"""A stand-in for llama.cpp's server in front of any model: what it does, seen from outside, is what real ones do.

Measured on a real server and copied here: an event for each raw token but those that leave a character open, whose
bytes the next event shows; ids counted all the same; probabilities from before any sampler; the shapes of lists,
streams and errors. The live tests hold it against a real server.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import httpx

from cosd_providers.testing import LanguageModel
from fakes.stand_in import StandIn, event_stream

NAMES = ("</s>", "<|eot_id|>", "<|im_end|>")
"""Names of the tokens that end a generation."""


def incomplete(data: bytes) -> bool:
    """The server's own test: whether one of the last four bytes starts a character that is not complete."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        needed = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 0
        if needed:
            return back < needed
    return False


class FakeLlamaCpp(StandIn):
    """Answers like the server; `client()` is an httpx client that talks to it.

    Attributes:
        requests: path and body of each request, in order.
        changes: what to change in every answer or event of `/completion`, for faults; None removes a field.
        changes_from: from how many tokens on.
        queries: the query of the last request to each path.
        ends: ids of the model's ends, by their names.
        vocabulary: its size as `/v1/models` says it.
        slots: what `/slots` says.
        states: the last hidden state after some ids, if it was started with embeddings.
        physical: the most tokens that it computes states for.
        pooled: whether it gives one vector for a text.
        cache: where it can resume the last prompt: `"anywhere"` or, as with a sliding window, only at a `"checkpoint"`
            four tokens before the prompt's end; by default it has no cache.
        banned: ids that it bans if it is told to ignore the end of sequence; older builds ban one end of several.
    """

    def __init__(
        self, model: LanguageModel, *, context: int = 4096, beginning: bool = False, special: bool = False
    ) -> None:
        self.model = model
        self.context = context
        self.beginning = beginning
        self.special = special
        self.requests: list[tuple[str, Any]] = []
        self.changes: Mapping[str, Any] = {}
        self.changes_from = 1
        self.queries: dict[str, str] = {}
        self.slots: list[dict[str, Any]] = []
        names = zip(NAMES, sorted(model.end_ids), strict=False)
        self.ends = {model.tokens[end].decode() or name: end for name, end in names}  # some models name their own
        self.models = ["toy"]
        self.vocabulary: int | None = None
        self.states: Callable[[Sequence[int]], Sequence[float]] | None = None
        self.physical = 512
        self.pooled = False
        self.banned = sorted(model.end_ids)
        self.cache: Literal["", "anywhere", "checkpoint"] = ""
        self._last: list[int] = []

    def handle(self, request: httpx.Request) -> httpx.Response:
        """One request, answered."""
        body: Any = json.loads(request.content) if request.content else None
        self.requests.append((request.url.path, body))
        self.queries[request.url.path] = request.url.query.decode()
        match request.url.path:
            case "/props":
                settings = {"n_ctx": self.context, "params": {}}
                named = {"eos_token": "</s>", **({"bos_token": "<s>"} if self.beginning else {})}
                return httpx.Response(200, json={"default_generation_settings": settings, **named})
            case "/v1/models":
                more = {"meta": {"n_vocab": self.vocabulary}} if self.vocabulary else {}
                listed = [{"id": name, "aliases": [name], **more} for name in self.models]
                return httpx.Response(200, json={"data": listed})
            case "/tokenize":
                special = self.beginning and body.get("add_special")
                try:
                    encoded = self._encode(body["content"])
                except (StopIteration, KeyError):  # a toy has no token for it
                    return httpx.Response(400, json={"error": {"code": 400, "message": "the toy cannot encode that"}})
                ids = [*([len(self.model.tokens)] if special else []), *encoded]
                tokens = [self._piece(n) for n in ids] if body.get("with_pieces") else ids
                return httpx.Response(200, json={"tokens": tokens})
            case "/detokenize":
                data = b"".join(self.model.tokens[n] for n in body["tokens"] if n < len(self.model.tokens))
                return httpx.Response(200, json={"content": data.decode("utf-8", "replace")})
            case "/slots":
                return httpx.Response(200, json=self.slots)
            case "/completion":
                return self._completion(body)
            case "/embedding":
                return self._embedding(body)
        return httpx.Response(
            404, json={"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}
        )

    def _encode(self, text: str) -> list[int]:
        if text.startswith("</s>"):  # names of ends, of which the model has some
            return [self.ends[name] for name in re.findall(r"<[^>]*>", text) if name in self.ends]
        return list(self.model.encode(text.encode()))

    def _piece(self, n: int) -> dict[str, Any]:
        data = next((name.encode() for name, end in self.ends.items() if end == n), self.model.tokens[n])
        try:
            return {"id": n, "piece": data.decode()}
        except UnicodeDecodeError:
            return {"id": n, "piece": list(data)}

    def _embedding(self, body: dict[str, Any]) -> httpx.Response:
        if self.states is None:
            words = "This server does not support embeddings. Start it with `--embeddings`"
            return httpx.Response(501, json={"error": {"code": 501, "message": words, "type": "not_supported_error"}})
        content = body["content"]
        parts = content if isinstance(content, list) else [content]
        ids = [n for part in parts for n in (self._encode(part) if isinstance(part, str) else [part])]
        begins = [-1] if self.beginning and isinstance(parts[0], str) else []
        if len(ids) + len(begins) > self.physical:
            words = f"input ({len(ids)} tokens) is too large to process. increase the physical batch size"
            words = f"{words} (current batch size: {self.physical})"
            return httpx.Response(500, json={"error": {"code": 500, "message": words, "type": "server_error"}})
        rows = [list(self.states(ids[:at])) for at in range(1 - len(begins), len(ids) + 1)]
        return httpx.Response(200, json=[{"index": 0, "embedding": rows[-1:] if self.pooled else rows}])

    def _completion(self, body: dict[str, Any]) -> httpx.Response:
        prompts = body["prompt"]
        kinds = {type(item) for item in prompts}
        if isinstance(prompts, str) or kinds == {int} or kinds == {int, str}:
            prompts = [prompts]
        asked: list[list[int]] = []
        for prompt in prompts:
            parts = prompt if isinstance(prompt, list) else [prompt]
            ids = [n for part in parts for n in (self._encode(part) if isinstance(part, str) else [part])]
            ids = [n for n in ids if n < len(self.model.tokens)]  # the beginning of sequence is counted anyway
            asked.append(ids)
            if len(ids) + self.beginning >= self.context:
                words = f"request ({len(ids)} tokens) exceeds the available context size ({self.context} tokens)"
                error: dict[str, Any] = {"code": 400, "message": words, "type": "exceed_context_size_error"}
                return httpx.Response(400, json={"error": error})
        runs = [list(self._run(ids, body, index)) for index, ids in enumerate(asked)]
        if body.get("stream"):
            return event_stream((event for run in runs for event in run), done=False)
        answers = [self._joined(run) for run in runs]
        return httpx.Response(200, json=answers if len(answers) > 1 else answers[0])

    def _cached(self, ids: list[int]) -> int:
        """The number of these ids that come from the cache, which then holds them."""
        pairs = enumerate(zip(ids, self._last, strict=False))
        common = next((n for n, (one, other) in pairs if one != other), min(len(ids), len(self._last)))
        point, self._last = max(0, len(self._last) - 4), ids
        if self.cache == "checkpoint":
            return point if point <= common else 0
        return min(common, len(ids) - 1) if self.cache else 0

    def _joined(self, run: list[dict[str, Any]]) -> dict[str, Any]:
        entries = [entry for event in run for entry in event.get("completion_probabilities", [])]
        answer = {**run[-1], "tokens": run[-1]["all"]}
        return {**answer, "completion_probabilities": entries} if entries else answer

    def _run(self, ids: list[int], body: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
        """The events of one generation."""
        ids, start, read, cached = list(ids), len(ids), len(ids) + self.beginning, self._cached(ids)
        bias = dict(body.get("logit_bias", []))
        bias |= {n: -math.inf for n in self.banned if body.get("ignore_eos")}
        chance = random.Random(f"{body['seed']} {index}") if "seed" in body else None
        text, shown, kind = b"", 0, "limit"
        full = False
        while read and len(ids) - start < body["n_predict"] and not full:
            probs = self.model.next(tuple(ids))
            if chance is None:
                ids.append(max(range(len(probs)), key=lambda n: (bias.get(n, 0), probs[n], -n)))
            else:
                ids += chance.choices(range(len(probs)), probs)
            text += b"" if ids[-1] in self.model.end_ids and not self.special else self._shown(ids[-1])
            end = ids[-1] in self.model.end_ids
            common = {"index": index, "tokens_predicted": len(ids) - start, "tokens_evaluated": read}
            if not incomplete(text):
                entry = self._entry(ids[-1], probs, text[shown:], body.get("n_probs", 0))
                shown = len(text)
                yield self._changed({**common, "stop": False, "completion_probabilities": [entry]})
            full = read + len(ids) - start >= self.context
            if end:
                kind = "eos"
                break
        last: dict[str, Any] = {
            "index": index,
            "tokens_predicted": len(ids) - start,
            "tokens_evaluated": read,
            "stop": True,
        }
        last |= {
            "stop_type": kind,
            "truncated": full and kind == "limit",
            "timings/cache_n": cached,
            "all": ids[start:],
        }
        if body.get("ignore_eos"):
            last["generation_settings/logit_bias"] = [{"token": n, "bias": None} for n in self.banned]
        yield self._changed(last)

    def _shown(self, n: int) -> bytes:
        return b"</s>" if n in self.model.end_ids else self.model.tokens[n]

    def _entry(self, n: int, probs: Sequence[float], data: bytes, count: int) -> dict[str, Any]:
        # Equals all, and in reverse: which of them the server lists first is nothing to rely on.
        count = max(count, list(probs).count(max(probs)))
        best = sorted(range(len(probs)), key=lambda m: (probs[m], m), reverse=True)[:count]
        top = [{"id": m, "bytes": list(self._data(m)), "logprob": _log(probs[m])} for m in best]
        return {"id": n, "bytes": list(data), "logprob": _log(probs[n]), "top_logprobs": top}

    def _data(self, n: int) -> bytes:
        if n in self.model.end_ids:
            return b"</s>" if self.special else b""
        return self.model.tokens[n]

    def _changed(self, answer: dict[str, Any]) -> dict[str, Any]:
        if answer["tokens_predicted"] < self.changes_from:
            return answer
        changed = {**answer, **{key: value for key, value in self.changes.items() if key in answer}}
        return {key: value for key, value in changed.items() if value is not None}


def _log(prob: float) -> float:
    return math.log(prob) if prob > 0 else -3.4028234663852886e38
