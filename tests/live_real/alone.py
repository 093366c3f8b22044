"""A model's own answers: asked of its server without this library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

LENGTH = 128
NOISE = 0.3  # of log probabilities; see `lead_over`


@dataclass(frozen=True)
class Alone:
    """The text that the model writes by itself, its ids, and their log probabilities as far as they are shown."""

    ids: list[int]
    text: str
    logprobs: list[float] = field(default_factory=list[float])


def lead_over(url: str, prompt: str, ids: Sequence[int], own: int, other: int, *, listed: int = 50) -> float:
    """The log probability of an id behind those of an answer, less that of another one.

    It is that of a server that reads all at once. One that wrote the ids, or read them in small parts, gives another
    one: this model on llama.cpp has the same numbers to the bit as long as fewer than 64 tokens are read at a time, and
    differs by up to 0.3 if more are.
    """
    with httpx.Client(base_url=url, timeout=120) as client:
        conversation = {"messages": [{"role": "user", "content": prompt}]}
        text = client.post("/apply-template", json=conversation).json()["prompt"]
        before: list[int] = client.post(
            "/tokenize", json={"content": text, "parse_special": True, "add_special": True}
        ).json()["tokens"]
        body = {"prompt": [*before, *ids], "n_predict": 1, "temperature": 0, "n_probs": listed, "cache_prompt": False}
        [place] = client.post("/completion", json=body).json()["completion_probabilities"]
    found = {one["id"]: one["logprob"] for one in place["top_logprobs"]}
    return float(found.get(own, -1e9) - found.get(other, -1e9))


class Answers(dict[str, Alone]):
    """The answers of a server to prompts, each asked when it is first looked up.

    Args:
        url: the server's.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def __missing__(self, prompt: str) -> Alone:
        self.update(answers(self._url, [prompt]))
        return self[prompt]


def answers(url: str, prompts: Sequence[str], *, length: int = LENGTH, shown: bool = False) -> dict[str, Alone]:
    """The answer of the server itself to each prompt, greedy, of `length` tokens at most.

    Log probabilities are `shown` for tokens that have an event of their own: no part of a character has.
    """
    found: dict[str, Alone] = {}
    with httpx.Client(base_url=url, timeout=120) as client:
        for prompt in prompts:
            conversation = {"messages": [{"role": "user", "content": prompt}]}
            body = {
                "prompt": client.post("/apply-template", json=conversation).json()["prompt"],
                "n_predict": length,
                "temperature": 0,
                "samplers": ["temperature"],
                "return_tokens": True,
                **({"n_probs": 1} if shown else {}),
            }
            answer = client.post("/completion", json=body).json()
            logprobs = [one["logprob"] for one in answer.get("completion_probabilities", ())]
            found[prompt] = Alone(answer["tokens"], answer["content"].rstrip("\ufffd"), logprobs)
    return found
