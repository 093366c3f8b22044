"""The literal reader: Algorithm 1 over llama.cpp servers, one token at a time, by ids; no code of the library.

The servers share one vocabulary. The most probable id of every place is read alone, with a tie of 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import httpx

Top = tuple[int, float]
"""A token's id and its log probability."""


@dataclass
class LiteralModel:
    """A server, of which every place is read once."""

    url: str
    client: httpx.Client
    _prompts: dict[str, list[int]] = field(default_factory=dict)
    _read: dict[tuple[int, ...], list[Top]] = field(default_factory=dict)

    def after(self, question: str, ids: Sequence[int]) -> list[Top]:
        """The two most probable tokens, the first first, after a question (in the server's chat template) and `ids`."""
        if question not in self._prompts:
            text = self._post("/apply-template", messages=[{"role": "user", "content": question}])["prompt"]
            self._prompts[question] = self.ids(text)
        return self._top((*self._prompts[question], *ids))

    def ids(self, text: str) -> list[int]:
        """The ids of a text, names of special tokens among them."""
        return list(self._post("/tokenize", content=text, add_special=False, parse_special=True)["tokens"])

    def _top(self, ids: tuple[int, ...]) -> list[Top]:
        """Read one place. A letter is forced, because the server lists nothing beside an end or a part of a character;
        the list is that of the model, before the force.
        """
        if ids not in self._read:
            body = {"n_predict": 1, "n_probs": 2, "temperature": 0, "logit_bias": [["a", 1e4]]}
            [place] = self._post("/completion", prompt=list(ids), **body)["completion_probabilities"]
            self._read[ids] = [(one["id"], one["logprob"]) for one in place["top_logprobs"]]
        return self._read[ids]

    def _post(self, path: str, **body: Any) -> Any:
        return self.client.post(self.url + path, json=body).raise_for_status().json()


@dataclass(frozen=True)
class LiteralReader:
    """Algorithm 1 (equations 1 and 2) with one assistant or several, of whose words the most probable is taken."""

    draft: LiteralModel
    assistants: Sequence[LiteralModel]
    alpha: float
    beta: float
    ends: frozenset[int]

    def answer(self, question: str, tokens: int) -> list[int]:
        """The ids of the fused answer, at most `tokens`, without the end."""
        ids: list[int] = []
        while len(ids) < tokens:
            mine, p = self.draft.after(question, ids)[0]
            chosen, best = mine, -math.inf
            for assistant in self.assistants if math.exp(p) < self.alpha else ():
                other, q = assistant.after(question, ids)[0]
                if other != mine and math.exp(q) > self.beta * math.exp(p) and q > best:
                    chosen, best = other, q
            if chosen in self.ends:
                break
            ids.append(chosen)
        return ids

    def margin(self, question: str, ids: Sequence[int]) -> float:
        """The least difference of log probabilities on which the choice after `ids` hangs."""
        tops = [model.after(question, ids) for model in (self.draft, *self.assistants)]
        (mine, p), *others = (first for first, _ in tops)
        theirs = [(other, q) for other, q in others if other != mine]
        hangs = [first[1] - second[1] for first, second in tops]
        hangs += [one for _, q in theirs for one in (p - math.log(self.alpha), q - p - math.log(self.beta))]
        hangs += [one[1] - two[1] for one, two in combinations(theirs, 2) if one[0] != two[0]]
        return min(map(abs, hangs))
