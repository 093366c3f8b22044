"""The stand-in for TGI answers as TGI's model server did: the same requests, with the recorded probabilities."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer

from fakes import tgi as stand_in_tgi
from fakes.tgi import StandInTgi
from naive.plain_http import ALPHABET, MODELS
from tgi_cpu.recorded import FILE, NAMES, requests, shortened

RECORDED: dict[str, list[Any]] = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def nothing_breaks_the_document() -> Iterator[None]:
    stand_in_tgi.VIOLATIONS.clear()
    yield
    assert stand_in_tgi.VIOLATIONS == []


class Recorded:
    """A model's continuations, by the ids before them, without its beginning of sequence."""

    def __init__(self, name: str) -> None:
        folder = MODELS / name
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        words = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        self.specials = {n: one.content for n, one in self._tokenizer.get_added_tokens_decoder().items()}
        ids = {text: n for n, text in self.specials.items()}
        self.end_ids, self.beginning = (ids[words["eos_token"]],), ids.get(words["bos_token"])
        vocabulary = sorted(self._tokenizer.get_vocab().items(), key=lambda one: one[1])
        self.tokens = [bytes(ALPHABET[character] for character in text) for text, _ in vocabulary]
        self._known: dict[tuple[int, ...], dict[int, float]] = {}

    def hear(self, text: str, details: Any) -> None:
        """Remember an answer's numbers."""
        ids, tops = self.encode(text.encode()), details.get("top_tokens") or []
        if read := details["prefill"]:
            told = read[1:] if self.beginning is not None else read
            for at, token in enumerate(told):
                self._keep(ids[:at], token)
        for at, token in enumerate(details["tokens"]):
            for one in (token, *(tops[at] if tops else ())):
                self._keep(ids, one)
            ids.append(token["id"])

    def spans(self, text: str) -> list[tuple[int, ...]]:
        """The ids of a text, each with its place in bytes."""
        found = self._tokenizer.encode(text)
        return [
            (n, *(len(text[:at].encode()) for at in span)) for n, span in zip(found.ids, found.offsets, strict=True)
        ]

    def _keep(self, ids: Sequence[int], token: Any) -> None:
        if token["logprob"] is not None:
            self._known.setdefault(tuple(ids), {})[token["id"]] = math.exp(token["logprob"])

    def encode(self, text: bytes) -> list[int]:
        return list(self._tokenizer.encode(text.decode(), add_special_tokens=False).ids)

    def next(self, ids: Sequence[int]) -> list[float]:
        known = self._known[tuple(ids)]
        return [known.get(n, 0.0) for n in range(len(self.tokens))]


def near(answer: Any) -> Any:
    """An answer whose numbers are as those of a rounded logarithm."""
    if isinstance(answer, dict):
        return {key: near(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [near(one) for one in answer]
    return pytest.approx(answer, abs=2e-3) if isinstance(answer, float) else answer


@pytest.mark.parametrize("name", NAMES)
def test_the_answers_are_those_of_the_model_server(name: str) -> None:
    model: Any = Recorded(name)
    pairs = [*zip(requests(name), RECORDED[name], strict=True)]
    for (text, _), answer in pairs:
        model.hear(text, answer["details"])
    server = StandInTgi(model, beginning=model.beginning, specials=model.specials, prefill=True)
    differing = []
    for (text, fields), answer in pairs:
        found = server.answer("POST", "/generate", {"inputs": text, "parameters": fields}).body
        if shortened(found) != near(answer):
            differing.append((text, fields, found, answer))
    assert differing == []
    for text, _ in requests(name):
        spans: Any = server.answer("POST", "/tokenize", {"inputs": text}).body
        assert [(one["id"], one["start"], one["stop"]) for one in spans] == model.spans(text)
        assert [one["text"] for one in spans] == [text.encode()[one["start"] : one["stop"]].decode() for one in spans]


def test_the_recorded_answers_hold_what_trained_models_seldom_write() -> None:
    answers = [answer for one in RECORDED.values() for answer in one]
    written = [answer["details"]["tokens"] for answer in answers]
    assert len(answers) == 240
    assert sum(not answer["generated_text"] for answer in answers) > 50  # most end inside a character
    assert sum(any(token["special"] for token in tokens[:-1]) for tokens in written) > 5
    assert sum(any(token["text"] == "<s>" for token in tokens) for tokens in written) > 3
    assert {answer["details"]["finish_reason"] for answer in answers} == {"length", "eos_token"}
