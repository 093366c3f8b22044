"""The table of methods for live tests has all of them; and what excuses a text that differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from cosd_api import CoSD, FusionResult, SettingError
from cosd_api.methods.base import METHODS
from cosd_api.verification import KINDS, TRAINED
from cosd_providers.testing import ScriptedProvider, TableModel
from support.every_method import LINES, Line, excuse, with_the_rest
from toys.samples import sample_method

TOKENS = (b"", b"Q", b"a", b"b", b"c")


@pytest.mark.parametrize("chosen", [LINES, LINES[:1], ()])
def test_every_method_and_every_verifier_has_a_line(chosen: Sequence[Line]) -> None:
    lines = with_the_rest(chosen)
    assert lines[: len(chosen)] == tuple(chosen)
    assert len({line.name for line in lines}) == len(lines)
    named = {line.method if isinstance(line.method, str) else line.method.name for line in lines}
    assert METHODS.keys() - named == set()
    judges = [sample_method(line.method).judge if isinstance(line.method, str) else line.method.judge for line in lines]
    assert KINDS.keys() - TRAINED.keys() - {getattr(one, "kind", None) for one in judges} == set()


def test_a_sample_that_is_missing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Needy(BaseModel):
        kind: Literal["needy"] = "needy"
        level: float

    @dataclass(frozen=True, kw_only=True)
    class NeedyMethod(CoSD):
        level: float

    monkeypatch.setitem(KINDS, "needy", Needy)
    with pytest.raises(SettingError, match="the verifier 'needy' has no defaults: add the settings"):
        with_the_rest(LINES)
    monkeypatch.delitem(KINDS, "needy")
    monkeypatch.setattr("cosd_api.methods.cosd.CoSD", NeedyMethod)
    with pytest.raises(SettingError, match="the method 'cosd' has no defaults: add the settings"):
        sample_method("cosd")


def table(*probs: Mapping[bytes, float]) -> TableModel:
    """A model by position behind the one-token prompt; in the end it ends."""

    def following(ids: Sequence[int]) -> list[float]:
        known = probs[len(ids) - 1] if 0 < len(ids) <= len(probs) else {b"": 1.0}
        return [known.get(token, 0.0) for token in TOKENS]

    return TableModel(TOKENS, following, end_ids=(0,))


@dataclass
class Asked:
    """A model as `naive.HttpModel` shows it."""

    model: TableModel
    depth: int = 0

    def __post_init__(self) -> None:
        self.size = len(TOKENS)
        self.vocabulary = SimpleNamespace(encode=self.model.encode, tokens=dict(enumerate(TOKENS)))

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        return list(self.model.next(tuple(ids)))


async def excused(method: str, ours: Sequence[TableModel], theirs: Sequence[TableModel]) -> str | None:
    """The excuse for two models of which another engine has other numbers."""
    made = CoSD(unit="token") if method == "cosd" else method
    line = Line("one", made, ("first", "second"))
    found: list[FusionResult] = []
    for models in (ours, theirs):
        served = dict(zip(line.models, map(ScriptedProvider, models), strict=True))
        async with line.fusion(served.__getitem__) as fusion:
            found.append(await fusion.generate("Q"))
    assert found[0].text != found[1].text
    asked: Any = {name: Asked(model) for name, model in zip(line.models, ours, strict=True)}
    return excuse(line, "Q", found[0], found[1], asked)


def by(first: float) -> TableModel:
    return table({b"a": first, b"b": 1 - first})


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ((by(0.501), by(0.6)), (by(0.499), by(0.4)), "draft is undecided by 0.002"),
        ((by(0.55), by(0.6)), (by(0.45), by(0.4)), None),
        # The draft's `a` stands or not, by alpha = 0.9.
        ((by(0.901), by(0.05)), (table({b"a": 0.899, b"b": 0.05}), by(0.05)), "a verdict on 0.899 and 0.95"),
        ((by(0.97), by(0.05)), (table({b"a": 0.85, b"b": 0.1}), by(0.05)), None),
    ],
)
async def test_of_a_verdict(ours: Sequence[TableModel], theirs: Sequence[TableModel], words: str | None) -> None:
    assert await excused("cosd", ours, theirs) == words


async def test_of_a_comparison() -> None:
    """Of two answers the one with the least mean perplexity is taken."""
    ours, near, far = (by(0.7), by(0.299)), (by(0.7), by(0.301)), (by(0.7), by(0.4))
    words = await excused("rerank", ours, near)
    assert words is not None
    assert words.startswith("means of ")
    assert await excused("rerank", (by(0.7), by(0.2)), far) is None
