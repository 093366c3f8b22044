"""A stand-in for TGI (text-generation-inference) in front of any model: what it does, seen from outside, is what real
ones do by their published API document (`specs/tgi-openapi.json`) and source.

Every request, every answer and every event of a stream is held against that document. What breaks it is answered with
500 and kept in `VIOLATIONS`, which a fixture checks after every test.
"""

from __future__ import annotations

import copy
import json
import math
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]  # its types are a package of their own

from cosd_providers.testing import LanguageModel
from fakes.chats import SPECIALS, RefusedError, Template, parsed
from fakes.stand_in import Answer, StandIn, rendered

VIOLATIONS: list[str] = []

DOCUMENT = json.loads((Path(__file__).parents[1] / "specs" / "tgi-openapi.json").read_text())

LOOSENED: Mapping[tuple[str, str], tuple[str, ...]] = {
    # An error of a stream is an event after a status of success, although the document has the status of the error.
    ("/generate_stream", "200"): ("StreamResponse", "ErrorResponse"),
    # A model without a chat template: the document knows 404 alone, the source has 422 and the words of an error.
    ("/chat_tokenize", "422"): ("ErrorResponse",),
}
"""Where real servers differ from the document: path and status, and the schemas that are taken there."""

STATUS = {"validation": 422, "generation": 424, "overloaded": 429, "incomplete_generation": 500, "template_error": 422}

WORDS = {
    "generation": "Request failed during generation: Server error: CUDA out of memory",
    "overloaded": "Model is overloaded",
    "incomplete_generation": "Incomplete generation",
}


class RefusalError(Exception):
    """An error that is answered: its type and words."""

    def __init__(self, kind: str, words: str | None = None) -> None:
        super().__init__(words or WORDS[kind])
        self.kind = kind

    @property
    def body(self) -> dict[str, str]:
        return {"error": str(self), "error_type": self.kind}


def invalid(words: str) -> RefusalError:
    return RefusalError("validation", f"Input validation error: {words}")


# The document.


def _translated(schema: Any) -> Any:
    """OpenAPI 3.0's `nullable` as JSON schema has it; an object has no other fields than those that are named."""
    if isinstance(schema, list):
        return [_translated(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    one = {key: _translated(value) for key, value in schema.items() if key not in ("nullable", "default", "example")}
    if "properties" in one and "role" not in one["properties"] and "content" not in one["properties"]:
        one.setdefault("additionalProperties", False)
    return {"anyOf": [one, {"type": "null"}]} if schema.get("nullable") is True else one


@cache
def _validator(name: str) -> Any:
    schemas = _translated(copy.deepcopy(DOCUMENT["components"]["schemas"]))
    schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
    return jsonschema.Draft202012Validator(schema)


def _name(content: Mapping[str, Any], kind: str, where: str) -> str:
    if kind not in content:
        raise AssertionError(f"{where}: {kind} is not in the document")
    return str(content[kind]["schema"]["$ref"]).rpartition("/")[2]


def _checked(value: object, names: Sequence[str], where: str) -> None:
    problems = [next(iter(_validator(name).iter_errors(value)), None) for name in names]
    if all(problems):
        raise AssertionError(f"{where}: {[getattr(one, 'message', one) for one in problems]}")


def check_request(method: str, path: str, body: object) -> None:
    """Hold a request against the document."""
    operation = DOCUMENT["paths"].get(path, {}).get(method.lower())
    if operation is None:
        return
    if "requestBody" in operation:
        _checked(body, [_name(operation["requestBody"]["content"], "application/json", path)], f"{method} {path}")
    elif body is not None:
        raise AssertionError(f"{method} {path} takes no body")


def check_answer(method: str, path: str, status: int, kind: str, body: object) -> None:
    """Hold an answer, or an event of a stream, against the document."""
    where, answers = f"the answer of {path}, {status}", DOCUMENT["paths"][path][method.lower()]["responses"]
    loose = LOOSENED.get((path, str(status)))
    if loose is None:
        if str(status) not in answers:
            raise AssertionError(f"{where}: the document has no such status")
        loose = (_name(answers[str(status)]["content"], kind, where),)
    _checked(body, loose, where)


# The server.


@dataclass
class StandInTgi(StandIn):
    """Answers as TGI does.

    Attributes:
        model: what is asked for tokens.
        max_input: tokens that a prompt may have.
        max_total: tokens that fit, prompt and answer together.
        beginning: the id that stands before every text; None for none.
        specials: the text of special ids, beside the first end.
        prefill: whether it was started with `--enable-prefill-logprobs`.
        end: "nan" where the model computes no number for the end of sequence, as a broken quantization does.
        end_is_special: whether the end counts as a special token: some models end with one that does not.
        backend: "v3" for the usual one; "neuron" or "llamacpp".
        encoder: whether the model is an encoder-decoder, whose own tokens begin with a padding.
        max_top: `--max-top-n-tokens`; the llama.cpp backend has 0.
        template: what the chat template writes around a message, or what renders all; None where there is none.
        fast: whether it has a fast tokenizer: else it names no places of tokens.
        loses: whether a character of several tokens may be lost after fewer than five tokens, as by real ones.
        cut: it silently reads only that many tokens, the last ones.
        faults: the types of errors that the next generations end in, each with the number of events before it.
        broken: after how many events a stream ends without its last one.
        most: how many tokens a stream has at most, whatever is asked: no real server does this.
        pace: seconds between the events of a stream; it ends at once where the client leaves.
        read: the ids of each prompt.
        requests: path and body of each request, in order.
        gone: how many events were sent in each stream that the client left.
        finished: how many streams were sent to their end.
    """

    model: LanguageModel
    max_input: int = 4000
    max_total: int = 4096
    beginning: int | None = None
    specials: Mapping[int, str] = field(default_factory=dict)
    prefill: bool = False
    end: str = "told"
    end_is_special: bool = True
    backend: str = "v3"
    encoder: bool = False
    max_top: int = 5
    template: tuple[str, str] | Template | None = None
    fast: bool = True
    loses: bool = True
    cut: int | None = None
    faults: list[tuple[str, int]] = field(default_factory=list)
    broken: int | None = None
    most: int | None = None
    pace: float = 0.0
    read: list[list[int]] = field(default_factory=list)
    requests: list[tuple[str, Any]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    finished: int = 0

    def written(self, event: Mapping[str, Any]) -> str:
        return f"data:{json.dumps(event)}\n\n"

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """One request, answered; what breaks the document is answered with 500."""
        self.requests.append((path, body))
        try:
            check_request(method, path, body)
            answer = self._answer(method, path, body)
            if answer.events is not None:
                answer.events = self._checked_events(path, answer.events)
            elif answer.body is not None:
                check_answer(method, path, answer.status, "application/json", answer.body)
        except AssertionError as error:
            VIOLATIONS.append(str(error))
            return Answer(500, {"error": str(error), "error_type": "violation"})
        return answer

    def _checked_events(self, path: str, events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for event in events:
            try:
                check_answer("POST", path, 200, "text/event-stream", event)
            except AssertionError as error:
                VIOLATIONS.append(str(error))
                yield {"error": str(error), "error_type": "violation"}
                return
            yield event

    def _answer(self, method: str, path: str, body: Any) -> Answer:
        try:
            match method, path:
                case "GET", "/info":
                    return Answer(200, self._info())
                case "POST", "/tokenize":
                    return Answer(200, self._tokenize(body["inputs"]))
                case "POST", "/chat_tokenize":
                    return self._chat_tokenize(body)
                case "POST", "/generate":
                    return Answer(200, self._generate(body["inputs"], body.get("parameters", {})))
                case "POST", "/generate_stream":
                    return Answer(200, events=self._stream(body["inputs"], body.get("parameters", {})))
        except RefusalError as refusal:
            return Answer(STATUS[refusal.kind], refusal.body)
        return Answer(404)  # without a body, and in no document

    def _info(self) -> dict[str, Any]:
        return {
            "model_id": "toys/toy",
            "model_sha": None,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": 128,
            "max_best_of": 2,
            "max_stop_sequences": 4,
            "max_input_tokens": self.max_input,
            "max_total_tokens": self.max_total,
            "validation_workers": 2,
            "max_client_batch_size": 4,
            "router": "text-generation-router",
            "version": "3.3.6-dev0",
            "sha": None,
            "docker_label": None,
        }

    # Tokens and text.

    def _ids(self, text: str) -> list[int]:
        """What the model reads: special tokens first."""
        names = {name: n for n, name in self.specials.items() if n in getattr(self.model, "specials", ())}
        names |= {} if self.beginning is None else {"<s>": self.beginning}
        return [*([] if self.beginning is None else [self.beginning]), *parsed(self.model, text, names)]

    def _read(self, text: str) -> list[int]:
        ids = self._ids(text)
        return ids[-self.cut :] if self.cut else ids

    def _next(self, ids: Sequence[int]) -> Sequence[float]:
        begun = self.beginning is not None and ids[:1] == [self.beginning]
        return self.model.next(tuple(ids[1:] if begun else ids))

    def _special(self, n: int) -> str | None:
        """The text of a special token."""
        if n == self.beginning:
            return "<s>"
        return self.specials.get(n, "</s>" if n in self.model.end_ids else None)

    def _is_special(self, n: int) -> bool:
        return self._special(n) is not None and (self.end_is_special or n not in self.model.end_ids)

    def _decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        data = b""
        for n in ids:
            special = self._special(n)
            if not (skip_special and self._is_special(n)):
                data += self.model.tokens[n] if special is None else special.encode()
        return data.decode("utf-8", "replace")

    def _new(self, ids: Sequence[int], prefix: int, read: int, *, skip_special: bool = False) -> str:
        """The text of the ids from `read` on, seen from `prefix`; none where it ends inside a character."""
        before = self._decode(ids[prefix:read], skip_special=skip_special)
        after = self._decode(ids[prefix:], skip_special=skip_special)
        return after[len(before) :] if len(after) > len(before) and not after.endswith("\ufffd") else ""

    def _tokenize(self, text: str, *, begins: bool = True) -> list[dict[str, Any]]:
        """Offsets count bytes; every part of a character stands where all of it stands."""
        if not self.fast:
            return [{"id": n, "text": "", "start": 0, "stop": 0} for n in self._ids(text)]
        data, skipped = text.encode(), 0 if begins or self.beginning is None else 1
        starts = [at for at in range(len(data) + 1) if data[at : at + 1] < b"\x80" or data[at : at + 1] >= b"\xc0"]
        entries, byte = list[dict[str, Any]](), 0
        for at, n in enumerate(self._ids(text)[skipped:], skipped):
            size = len((self._special(n) or "").encode() or self.model.tokens[n])
            size = 0 if n == self.beginning and not at else size  # the one that is put before every text
            start = max(at for at in starts if at <= byte) if size else 0
            stop = min(at for at in starts if at >= byte + size) if size else 0
            entries.append({"id": n, "text": data[start:stop].decode(), "start": start, "stop": stop})
            byte += size
        return entries

    def _chat_tokenize(self, body: Any) -> Answer:
        if self.template is None:
            return Answer(422, {"error": "Template error: template not found", "error_type": "template_error"})
        try:
            text = rendered(self.template, body["messages"])
        except RefusedError as error:
            raise RefusalError("template_error", f"Template error: {error}") from None
        return Answer(200, {"tokenize_response": self._tokenize(text, begins=False), "templated_text": text})

    # Generation.

    def _validated(self, text: str, asked: Mapping[str, Any], *, stream: bool) -> list[int]:
        """The ids that the model reads, or the first thing that is wrong."""
        limit, top = asked.get("max_new_tokens"), asked.get("top_n_tokens") or 0
        if stream and asked.get("decoder_input_details"):
            raise invalid("`decoder_input_details` == true is not supported when streaming tokens")
        if asked.get("temperature") is not None and asked["temperature"] <= 0:
            raise invalid("`temperature` must be strictly positive")
        if limit == 0:
            raise invalid("`max_new_tokens` must be strictly positive")
        if top > self.max_top:
            raise invalid(f"`top_n_tokens` must be >= 0 and <= {self.max_top}. Given: {top}")
        if not text:
            raise invalid("`inputs` cannot be empty")
        ids = self._read(text)
        limit = self.max_total - len(ids) if limit is None else limit
        if len(ids) + limit > self.max_total:
            both = f"{len(ids)} `inputs` tokens and {limit} `max_new_tokens`"
            raise invalid(f"`inputs` tokens + `max_new_tokens` must be <= {self.max_total}. Given: {both}")
        if len(ids) > self.max_input:
            raise invalid(f"`inputs` must have less than {self.max_input} tokens. Given: {len(ids)}")
        self.read.append(ids)
        return ids

    def _run(self, ids: list[int], asked: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], list[Any], str | None]]:
        """Each token, the most probable ones at its place, and why it is the last one."""
        all_ids, prefix, read = list(ids), len(ids) - 5, len(ids)
        if not self.loses:
            prefix = max(prefix, 0)  # below 0, it is a place from the end, which moves with each token
        for count in range(1, (asked.get("max_new_tokens") or 100) + 1):
            probs = self._next(all_ids)
            n = max(range(len(probs)), key=lambda m: (probs[m], -m))
            all_ids.append(n)
            text = self._new(all_ids, prefix, read)
            if text:
                prefix, read = read, len(all_ids)
            full, ends = count == asked.get("max_new_tokens"), n in self.model.end_ids
            last = "eos_token" if ends and (self.backend != "v3" or not full) else "length" if full else None
            top = self._top(probs, asked.get("top_n_tokens") or 0) if self.backend == "v3" else []
            yield self._entry(n, probs[n] if self.backend != "neuron" else 1.0, text), top, last
            if last:
                return

    def _text(self, ids: Sequence[int], tokens: Sequence[Mapping[str, Any]]) -> str:
        """The whole answer: nothing where it ends inside a character."""
        whole, read = [*ids, *(token["id"] for token in tokens)], len(ids)
        return self._new(whole, read - 1, read, skip_special=True)

    def _entry(self, n: int, prob: float, text: str) -> dict[str, Any]:
        ends = n in self.model.end_ids
        value = None if ends and self.end == "nan" else _log(prob)
        return {"id": n, "text": text, "logprob": value, "special": self._is_special(n)}

    def _top(self, probs: Sequence[float], count: int) -> list[dict[str, Any]]:
        """At least `count`: all that are as probable as the last of them; each is decoded alone."""
        if not count:
            return []
        ranked = sorted((n for n, prob in enumerate(probs) if prob > 0), key=lambda n: -probs[n])
        least = probs[ranked[: count + 1][-1]] if len(ranked) <= count else probs[ranked[count - 1]]
        return [self._entry(n, probs[n], self._decode([n])) for n in ranked if probs[n] >= least]

    def _fault(self) -> tuple[str, int] | None:
        return self.faults.pop(0) if self.faults else None

    def _generate(self, text: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        ids = self._validated(text, asked, stream=False)
        if fault := self._fault():
            raise RefusalError(fault[0])
        steps = list(self._run(ids, asked))
        tokens = [token for token, _, _ in steps]
        answer: dict[str, Any] = {"generated_text": self._text(ids, tokens)}
        if asked.get("details") or asked.get("decoder_input_details"):
            details: dict[str, Any] = {
                "finish_reason": steps[-1][2],
                "generated_tokens": len(steps),
                "seed": None,
                "tokens": tokens,
            }
            details["prefill"] = self._scored(ids) if self.prefill and asked.get("decoder_input_details") else []
            if asked.get("top_n_tokens") and self.backend == "v3":
                details["top_tokens"] = [top for _, top, _ in steps]
            answer["details"] = details
        return answer

    def _scored(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        if self.encoder:
            return [{"id": 0, "text": "<pad>", "logprob": None}]
        return [
            {"id": n, "text": self._decode([n]), "logprob": _log(self._next(ids[:at])[n]) if at else None}
            for at, n in enumerate(ids)
        ]

    def _stream(self, text: str, asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            ids = self._validated(text, asked, stream=True)
        except RefusalError as refusal:
            yield refusal.body
            return
        if self.most is not None:
            asked = {**asked, "max_new_tokens": min(asked["max_new_tokens"], self.most)}
        fault, tokens = self._fault(), list[dict[str, Any]]()
        for index, (token, top, last) in enumerate(self._run(ids, asked)):
            if fault and fault[1] == index:
                yield RefusalError(fault[0]).body
                return
            if self.broken == index:
                return
            tokens.append(token)
            event: dict[str, Any] = {"index": index + 1, "token": token, "generated_text": None, "details": None}
            if top:
                event["top_tokens"] = top
            if last:
                event["generated_text"] = self._text(ids, tokens)
                if asked.get("details"):
                    details = {"finish_reason": last, "generated_tokens": len(tokens), "input_length": len(ids)}
                    event["details"] = {**details, "seed": None}
            yield event


def _log(prob: float) -> float:
    """A logarithm as it is sent: in 32 bits, and always a number."""
    return float(struct.unpack("f", struct.pack("f", math.log(prob) if prob > 0 else -1e4))[0])


@dataclass
class LlamaModel:
    """A real model behind llama.cpp's server, as a stand-in takes it: one plain request for each distribution."""

    url: str
    client: httpx.Client
    _known: dict[tuple[int, ...], list[float]] = field(default_factory=dict)
    _encoded: dict[bytes, list[int]] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        text = self.client.get(f"{self.url}/props").json()["eos_token"]
        found = {name: self._tokenize(name) for name in (text, *SPECIALS)}
        self.specials = {ids[0]: name for name, ids in found.items() if len(ids) == 1}
        self.end_ids = [n for n, name in self.specials.items() if name in (text, "<|im_end|>")]
        self.beginning = next(iter(self._tokenize("", add_special=True)), None)
        self._letter = self._tokenize("a")[-1]
        self.tokens: list[bytes] = []
        self.tokens = [data for _, data, _ in self._ask((self._letter,))]
        for end in self.end_ids:
            self.tokens[end] = b""

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text, none added."""
        with self._lock:
            if text not in self._encoded:
                self._encoded[text] = self._tokenize(text.decode())
            return self._encoded[text]

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every id."""
        key = (*([] if self.beginning is None else [self.beginning]), *ids)
        with self._lock:
            if key not in self._known:
                self._known[key] = [prob for _, _, prob in self._ask(key)]
            return self._known[key]

    def _tokenize(self, text: str, *, add_special: bool = False) -> list[int]:
        body = {"content": text, "add_special": add_special, "parse_special": True}
        return list(self.client.post(f"{self.url}/tokenize", json=body).json()["tokens"])

    def _ask(self, ids: Sequence[int]) -> list[tuple[int, bytes, float]]:
        """Every id with its bytes and probability. A letter is forced: what leaves a character open would be hidden."""
        body = {"prompt": list(ids), "temperature": 0, "n_predict": 1, "n_probs": 10**6}
        force = [[self._letter, 1e4]]
        answer = self.client.post(f"{self.url}/completion", json={**body, "logit_bias": force}).json()
        (entry,) = answer["completion_probabilities"]
        return sorted((one["id"], bytes(one["bytes"]), math.exp(one["logprob"])) for one in entry["top_logprobs"])
