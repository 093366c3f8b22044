"""A model's own answers: asked of its server without this library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from live_real.prompts import PROMPTS

LENGTH = 128


@dataclass(frozen=True)
class Alone:
    """The text that the model writes by itself, its ids, and their log probabilities as far as they are shown."""

    ids: list[int]
    text: str
    logprobs: list[float] = field(default_factory=list[float])


def answers(
    url: str, prompts: Sequence[str] = PROMPTS, *, length: int = LENGTH, shown: bool = False
) -> dict[str, Alone]:
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
