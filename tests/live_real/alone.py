"""A model's own answers: asked of its server without this library."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from live_real.prompts import PROMPTS

LENGTH = 128


@dataclass(frozen=True)
class Alone:
    """The text that the model writes by itself, and its ids."""

    ids: list[int]
    text: str


def answers(url: str) -> dict[str, Alone]:
    """The answer of the server itself to each prompt, greedy."""
    found: dict[str, Alone] = {}
    with httpx.Client(base_url=url, timeout=120) as client:
        for prompt in PROMPTS:
            conversation = {"messages": [{"role": "user", "content": prompt}]}
            body = {
                "prompt": client.post("/apply-template", json=conversation).json()["prompt"],
                "n_predict": LENGTH,
                "temperature": 0,
                "samplers": ["temperature"],
                "return_tokens": True,
            }
            answer = client.post("/completion", json=body).json()
            found[prompt] = Alone(answer["tokens"], answer["content"].rstrip("\ufffd"))
    return found
