"""Plain HTTP requests to each kind of server, made by the tests themselves: what adapters are held against.

Nothing here is shared with the library, and nothing is clever: one request for one answer, read by its shape.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import httpx

from naive import over_http as naive

LISTED = 20
"""Choices at one place: the most that some servers list."""
MODELS = Path(__file__).parents[1] / "models"


@dataclass(frozen=True)
class Raw:
    """A token as a server shows it: its bytes (none while a character is unfinished), its probability, the end."""

    data: bytes
    prob: float | None
    end: bool = False


def merged(raws: Iterable[Raw]) -> list[Raw]:
    """Tokens that share a character as one, as sure as the least sure; what is unfinished at the end is left out."""
    done: list[Raw] = []
    parts: list[Raw] = []
    for raw in raws:
        if raw.end and any(part.data for part in parts):
            done.append(_one(parts))
            parts = []
        parts.append(raw)
        if raw.end or _whole(b"".join(part.data for part in parts)):
            done.append(_one(parts))
            parts = []
    return done


def _one(parts: list[Raw]) -> Raw:
    probs = [part.prob for part in parts]
    least = None if None in probs else min(prob for prob in probs if prob is not None)
    return Raw(b"".join(part.data for part in parts), least, parts[-1].end)


def _whole(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return bool(data)


class Plain(ABC):
    """One server, asked directly.

    Attributes:
        engine: its kind.
        name: its model's id.
        context: tokens that fit, prompt and answer together.
    """

    engine: str
    name: str
    context: int

    def __init__(self, url: str) -> None:
        self.url = url
        # Connections are not kept: some servers close theirs after a while without a word.
        self.client = httpx.Client(timeout=60, headers={"Connection": "close"})

    def get(self, path: str) -> Any:
        return self.client.get(self.url + path).raise_for_status().json()

    def post(self, path: str, body: object) -> Any:
        response = self.client.post(self.url + path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    @abstractmethod
    def after(self, text: str, count: int) -> list[Raw]:
        """The model's `count` most probable tokens after `text`, one after the other, up to its end."""

    @abstractmethod
    def choices(self, text: str, count: int) -> list[list[Raw]]:
        """The same tokens, each with what the model might have said in its place, the most probable first."""

    @abstractmethod
    def ids(self, text: str) -> list[int]:
        """The model's encoding of `text` as a prompt, with the special tokens that the server puts before it."""

    def scores(self, prompt: str, text: str) -> list[Raw]:
        """The tokens of `prompt + text` that lie in `text`, with their probabilities."""
        raise NotImplementedError

    @abstractmethod
    def busy(self) -> bool:
        """Whether the server has not yet seen that it was left."""

    @abstractmethod
    def written(self) -> int:
        """A count of the tokens that the server has written, whatever it began with."""

    def before(self, prompt: str) -> int:
        """What that count is before the server writes anything after `prompt`."""
        return self.written()


CLOSE = {"Connection": "close"}


def _ends(name: str) -> set[int]:
    """The ids that end a sequence, or a turn, of one of our own models; none of another."""
    path = MODELS / name / "generation_config.json"
    if not path.exists():
        return set()
    ends = json.loads(path.read_text(encoding="utf-8"))["eos_token_id"]
    return {*ends} if isinstance(ends, list) else {ends}


def ask(url: str, prompt: Any, **fields: Any) -> Any:
    """A plain request to a llama.cpp server; the answer, or the answers to a list."""
    body = {"prompt": prompt, "temperature": 0, "n_probs": 5, "n_predict": 1, "return_tokens": True, **fields}
    response = httpx.post(f"{url}/completion", json=body, timeout=60, headers=CLOSE)
    assert response.status_code == 200, response.text
    return response.json()


def get(url: str) -> Any:
    """The answer of a route."""
    return httpx.get(url, headers=CLOSE).json()


class PlainLlamaCpp(Plain):
    """llama.cpp's server, by its own routes; one token at a time, on ids."""

    engine = "llama.cpp"

    def __init__(self, url: str, model: naive.HttpModel | None = None) -> None:
        super().__init__(url)
        self.model = model or naive.HttpModel(url, self.client, depth=10**6)
        self.context = int(self.get("/props")["default_generation_settings"]["n_ctx"])
        self.name = self.get("/v1/models")["data"][0]["id"]
        self.ends = {self.model.vocabulary.end, *_ends(self.name)}  # the server names one of them

    def after(self, text: str, count: int) -> list[Raw]:
        return [listed[0] for listed in self.choices(text, count)]

    def choices(self, text: str, count: int) -> list[list[Raw]]:
        ids, steps = self.ids(text), list[list[Raw]]()
        while len(steps) < count and not (steps and steps[-1][0].end):
            probs = self.model.next(ids)
            best = sorted(range(len(probs)), key=lambda n: (-probs[n], n))[:LISTED]
            steps.append([self._raw(n, probs[n]) for n in best])
            ids.append(best[0])
        return steps

    def _raw(self, token_id: int, prob: float) -> Raw:
        end = token_id in self.ends
        return Raw(b"" if end else self.model.vocabulary.tokens[token_id], prob, end)

    def ids(self, text: str) -> list[int]:
        return list(self.model.vocabulary.encode(text.encode()))

    def scores(self, prompt: str, text: str) -> list[Raw]:
        ids, size, raws = self.ids(prompt + text), len(text.encode()), list[Raw]()
        while size > 0:
            *ids, last = ids
            raws.insert(0, self._raw(last, self.model.next(ids)[last]))
            size -= len(raws[0].data)
        assert size == 0, "the prompt's last token lies across the border"
        return raws

    def busy(self) -> bool:
        return any(slot["is_processing"] for slot in self.get("/slots"))

    def written(self) -> int:
        latest = max(self.get("/slots"), key=lambda slot: int(slot.get("id_task", -1)))
        return int(latest["n_prompt_tokens"])  # what the slot holds, written tokens included

    def before(self, prompt: str) -> int:
        return len(self.ids(prompt))


class Behind(PlainLlamaCpp):
    """The model behind a stand-in, asked directly.

    Attributes:
        server: the stand-in, which sees what its clients do.
    """

    engine = "stand-in"

    def __init__(
        self, plain: PlainLlamaCpp, url: str, server: Any, name: str, context: int, *, tells_end: bool = True
    ) -> None:
        super().__init__(plain.url, plain.model)
        self.url, self.server, self.name, self.context = url, server, name, context
        self._tells_end = tells_end
        self._before = (0, 0)

    def after(self, text: str, count: int) -> list[Raw]:
        """What the server does not show is left out."""
        raws = super().after(text, count)
        return raws if self._tells_end else [replace(raw, prob=None) if raw.end else raw for raw in raws]

    def before(self, prompt: str) -> int:
        self._before = self._streams()
        return 0

    def busy(self) -> bool:
        return self._streams() == self._before

    def written(self) -> int:
        left, _ = self._streams()
        return int(self.server.gone[-1]) if left > self._before[0] else self.context

    def _streams(self) -> tuple[int, int]:
        """How many the client has left, and how many were sent to their end."""
        return len(self.server.gone), self.server.finished


class PlainLlamaCppPython(PlainLlamaCpp):
    """llama-cpp-python's server, and what llama.cpp's own says of the same model, which is asked in its place.

    It computes with llama.cpp, and shows too little to be asked by itself: no ids, no bytes, one distribution a token.
    """

    engine = "llama-cpp-python"

    def __init__(self, url: str, native: str) -> None:
        super().__init__(native)
        self.url = url

    def busy(self) -> bool:
        raise NotImplementedError("it does not tell")

    def written(self) -> int:
        raise NotImplementedError("it does not tell")


class PlainModel(Plain):
    """A server with one of our own models, by generated tokens only: no prompt is ever scored.

    Its bytes are taken from the model's own file: a server's strings are not right for parts of characters.
    """

    tokenize: ClassVar[str] = "/tokenize"

    def __init__(self, url: str, context: int | None = None) -> None:
        super().__init__(url)
        [model] = self.get("/v1/models")["data"]
        self.name, self.context = model["id"], context or int(model["max_model_len"])
        vocabulary = json.loads((MODELS / self.name / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
        self.ends = _ends(self.name)
        self.tokens = {n: bytes(ALPHABET[one] for one in string) for string, n in vocabulary.items()}

    def ids(self, text: str) -> list[int]:
        return list(self.post(self.tokenize, {"model": self.name, "prompt": text})["tokens"])

    def scores(self, prompt: str, text: str) -> list[Raw]:
        ids, raws = self.ids(prompt + text), list[Raw]()
        for at in range(len(self.ids(prompt)), len(ids)):
            raws.append(Raw(self.tokens[ids[at]], math.exp(self.logprob(ids[:at], ids[at]))))
        assert b"".join(raw.data for raw in raws).decode() == text, "the prompt's last token lies across the border"
        return raws

    @abstractmethod
    def logprob(self, before: list[int], n: int) -> float:
        """The logarithm of the probability of one token after others."""

    def figure(self, name: str, label: str = "") -> int:
        """A count of the server's."""
        lines = self.client.get(f"{self.url}/metrics").text.splitlines()
        named = [line for line in lines if line.startswith(f"{self.engine}:{name}{{") and label in line]
        return sum(int(float(line.rpartition(" ")[2])) for line in named)

    def _raw(self, n: int, value: float) -> Raw:
        return Raw(b"" if n in self.ends else self.tokens[n], math.exp(value), n in self.ends)


class PlainVllm(PlainModel):
    """vLLM's server."""

    engine = "vllm"

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked = 0

    def complete(self, prompt: str | list[int], **fields: object) -> Any:
        body = {"model": self.name, "prompt": prompt, "temperature": 0, **fields}
        return self.post("/v1/completions", body)["choices"][0]

    def after(self, text: str, count: int) -> list[Raw]:
        count = min(count, self.context - len(self.ids(text)))
        found = self.complete(text, max_tokens=count, logprobs=1, return_token_ids=True)
        values = found["logprobs"]["token_logprobs"]
        raws = [Raw(self.tokens[n], math.exp(value)) for n, value in zip(found["token_ids"], values, strict=True)]
        if found["finish_reason"] == "stop":
            raws[-1] = Raw(b"", raws[-1].prob, end=True)
        return raws

    def choices(self, text: str, count: int) -> list[list[Raw]]:
        count = min(count, self.context - len(self.ids(text)))
        found = self.complete(text, max_tokens=count, logprobs=LISTED, return_tokens_as_token_ids=True)
        ranked = (sorted(one.items(), key=lambda item: -item[1]) for one in found["logprobs"]["top_logprobs"])
        return [[self._raw(int(name.removeprefix("token_id:")), value) for name, value in one] for one in ranked]

    def logprob(self, before: list[int], n: int) -> float:
        options = {"logprobs": 1, "logprob_token_ids": [n], "return_tokens_as_token_ids": True}
        [entries] = self.complete(before, max_tokens=1, **options)["logprobs"]["top_logprobs"]
        return float(entries[f"token_id:{n}"])

    def busy(self) -> bool:
        before = self.figure("generation_tokens_total")
        self.complete("a", max_tokens=1)  # the figures are of the last step that the engine made: let it make one
        self.asked += 1
        return self.figure("generation_tokens_total") != before + 1

    def written(self) -> int:
        return self.figure("generation_tokens_total") - self.asked


class PlainSglang(PlainModel):
    """SGLang's server; its counts are those of streams, which rise when one has ended."""

    engine = "sglang"
    tokenize = "/v1/tokenize"
    streamed = 'is_streaming="true"'

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._ended = 0

    def generate(self, ids: list[int], count: int, **fields: object) -> Any:
        body = {
            "input_ids": ids,
            "sampling_params": {"temperature": 0, "max_new_tokens": count},
            "return_logprob": True,
            "logprob_start_len": -1,
        }
        return self.post("/generate", body | fields)["meta_info"]

    def after(self, text: str, count: int) -> list[Raw]:
        ids = self.ids(text)
        found = self.generate(ids, min(count, self.context - len(ids) - 2))["output_token_logprobs"]
        return [self._raw(n, value) for value, n, *_ in found]

    def choices(self, text: str, count: int) -> list[list[Raw]]:
        ids = self.ids(text)
        found = self.generate(ids, min(count, self.context - len(ids) - 2), top_logprobs_num=LISTED)
        return [[self._raw(n, value) for value, n, *_ in step] for step in found["output_top_logprobs"]]

    def logprob(self, before: list[int], n: int) -> float:
        [[[value, *_]]] = self.generate(before, 1, token_ids_logprob=[n])["output_token_ids_logprobs"]
        return float(value)

    def busy(self) -> bool:
        return self.figure("num_requests_total", self.streamed) == self._ended

    def written(self) -> int:
        return self.figure("generation_tokens_total", self.streamed)

    def before(self, prompt: str) -> int:
        self._ended = self.figure("num_requests_total", self.streamed)
        return self.written()


class PlainTgi(PlainModel):
    """TGI's server, which takes texts only and lists five tokens."""

    engine = "tgi"
    context = 512

    def __init__(self, url: str) -> None:
        super().__init__(url, self.context)

    def ids(self, text: str) -> list[int]:
        return [one["id"] for one in self.post("/tokenize", {"inputs": text})]

    def generate(self, text: str, count: int, **fields: object) -> Any:
        """The details of an answer."""
        count = min(count, self.context - len(self.ids(text)))
        return self.post("/generate", {"inputs": text, "parameters": {"max_new_tokens": count, **fields}})["details"]

    def after(self, text: str, count: int) -> list[Raw]:
        return [self._raw(one["id"], one["logprob"]) for one in self.generate(text, count, details=True)["tokens"]]

    def choices(self, text: str, count: int) -> list[list[Raw]]:
        steps = self.generate(text, count, details=True, top_n_tokens=5)["top_tokens"]
        return [[self._raw(one["id"], one["logprob"]) for one in step] for step in steps]

    def scores(self, prompt: str, text: str) -> list[Raw]:
        read = self.generate(prompt + text, 1, decoder_input_details=True)["prefill"][len(self.ids(prompt)) :]
        assert b"".join(self.tokens[one["id"]] for one in read).decode() == text
        return [self._raw(one["id"], one["logprob"]) for one in read]

    def logprob(self, before: list[int], n: int) -> float:
        raise NotImplementedError("it takes no ids")

    def busy(self) -> bool:
        return not self.client.get(f"{self.url}/metrics").text.startswith("tgi_batch_current_size 0\n")

    def written(self) -> int:
        return int(self.client.get(f"{self.url}/metrics").text.split()[-1])


def _alphabet() -> dict[str, int]:
    """How GPT-2's vocabulary writes bytes: those that can be printed as themselves, the others from U+0100 on."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


ALPHABET = _alphabet()
