"""The naive reference over real servers: plain HTTP, one prefix at a time, sharing no code with the library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx

GREEDY = {"temperature": 0, "n_predict": 1, "stream": False}


@dataclass
class HttpVocabulary:
    """A llama.cpp server's tokenizer, as `reference.fuse` wants one."""

    url: str
    client: httpx.Client
    tokens: dict[int, bytes] = field(default_factory=dict)
    _encoded: dict[bytes, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def end(self) -> int:
        """The id of the end of sequence."""
        text = self.client.get(f"{self.url}/props").json()["eos_token"]
        (end,) = self._tokenize(text, add_special=False)
        self.tokens[end] = b""
        return end

    @cached_property
    def turn_end(self) -> int | None:
        """The id that ends a turn of a chat, if it is another one: a server ends a text there, too."""
        found = self._tokenize("<|im_end|>", add_special=False)
        return found[0] if len(found) == 1 and found[0] != self.end else None

    def encode(self, text: bytes) -> tuple[int, ...]:
        """The ids of a text, as the server makes them of a prompt."""
        if text not in self._encoded:
            self._encoded[text] = self._tokenize(text.decode(), add_special=True)
        return self._encoded[text]

    def _tokenize(self, text: str, *, add_special: bool) -> tuple[int, ...]:
        body = {"content": text, "add_special": add_special, "parse_special": True}
        return tuple(self.client.post(f"{self.url}/tokenize", json=body).json()["tokens"])


@dataclass
class HttpModel:
    """A llama.cpp server, asked for one next token at a time.

    `closest`: the least difference so far between the two most probable tokens of a place.
    """

    url: str
    client: httpx.Client
    hides_end: bool = False
    depth: int = 10
    asked: int = 0
    closest: float = 1.0
    _known: dict[tuple[int, ...], list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.vocabulary = HttpVocabulary(self.url, self.client)
        self.size = int(self.client.get(f"{self.url}/v1/models").json()["data"][0]["meta"]["n_vocab"])

    def next(self, ids: Sequence[int]) -> list[float]:
        """The probabilities after `ids`: the `depth` most probable, and nothing for the others."""
        key = tuple(ids)
        if key not in self._known:
            self.asked += 1
            answer = self._ask(ids)
            if "completion_probabilities" not in answer:
                # The most probable token leaves a character open, and the server hides it. A letter that is forced
                # shows the list beside it: that is of the model, before any bias.
                answer = self._ask(ids, logit_bias=[["a", 1e4]])
            (position,) = answer["completion_probabilities"]
            probs = [0.0] * self.size
            for one in position["top_logprobs"]:
                probs[one["id"]] = math.exp(one["logprob"])
                self.vocabulary.tokens.setdefault(one["id"], bytes(one["bytes"]))
            end, turn_end = self.vocabulary.end, self.vocabulary.turn_end
            if turn_end is not None:  # the end is as probable as the more probable of the two
                probs[end], probs[turn_end] = max(probs[end], probs[turn_end]), 0.0
            self.vocabulary.tokens[end] = b""
            self._known[key] = probs
        second, first = sorted(self._known[key])[-2:]
        self.closest = min(self.closest, first - second)
        return self._known[key]

    def _ask(self, ids: Sequence[int], **more: object) -> dict[str, Any]:
        body = {"prompt": list(ids), **GREEDY, "n_probs": self.depth, **more}
        answer: dict[str, Any] = self.client.post(f"{self.url}/completion", json=body).json()
        return answer


class PathModel:
    """A server behind a prompt, as `reference_paths` wants a model: its ids of an answer alone, and the next token.

    `tokens` are known for the ids of texts that were encoded and of the tokens that were listed.
    """

    def __init__(self, model: HttpModel, prompt: str) -> None:
        self._model, self._start = model, model.vocabulary.encode(prompt.encode())
        self._encoded: dict[bytes, list[int]] = {}
        self.tokens: Any = model.vocabulary.tokens

    @property
    def end_ids(self) -> Sequence[int]:
        """The id that stands for all ends."""
        return [self._model.vocabulary.end]

    def encode(self, text: bytes) -> list[int]:
        """The ids of a text that nothing is added to."""
        if text and text not in self._encoded:
            body = {"content": text.decode(), "add_special": False, "parse_special": False, "with_pieces": True}
            found = self._model.client.post(f"{self._model.url}/tokenize", json=body).json()["tokens"]
            for one in found:
                piece = one["piece"]
                self.tokens.setdefault(one["id"], piece.encode() if isinstance(piece, str) else bytes(piece))
            self._encoded[text] = [one["id"] for one in found]
        return self._encoded.get(text, [])

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        """The probability of every id after the prompt and some ids."""
        return self._model.next([*self._start, *ids])


def known(model: HttpModel, text: bytes) -> dict[bytes, float]:
    """The probability of each token after a text, by its bytes; those of ends are empty, the most probable one's."""
    found: dict[bytes, float] = {}
    for n, prob in enumerate(model.next(model.vocabulary.encode(text))):
        if prob and prob > found.get(model.vocabulary.tokens[n], 0.0):
            found[model.vocabulary.tokens[n]] = prob
    return found
