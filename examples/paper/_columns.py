"""Columns of the tables: one model alone, or a method, with the settings that the papers print."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from _pairs import Pair

from cosd_api import CoSD, Defer, RuleVerifier, SettingError, collect, train_tree
from cosd_api.comparison.contestants import Alone, Contestant
from cosd_api.methods.base import Method
from cosd_api.training.dataset import read_examples
from cosd_api.wording import counted
from cosd_providers.contract import Provider

DEEPEST = 12
"""Questions in a row of a tree. The paper states no limit; this is the largest that the library reads."""


@dataclass(frozen=True)
class Setup:
    """The pair and its models, of which a column's method is made.

    Attributes:
        name: of the pair.
        pair: its servers.
        providers: the models, connected.
        identities: what tells each of these from others: its place, its name on the server, its revision.
        data: the folder of the questions.
        out: the folder of the results.
        dry: whether nothing but an estimate is wanted.
    """

    name: str
    pair: Pair
    providers: Sequence[Provider]
    identities: Sequence[str]
    data: Path
    out: Path
    dry: bool

    def file(self, kind: str, name: str) -> Path:
        folder = self.out / kind
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self.name.replace(' ', '-')}-{name}.jsonl"


ModelT = TypeVar("ModelT")
Made = Callable[[Setup], Awaitable[Method]]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: as the paper calls it.
        method: a method, or a function that makes it for a pair.
        models: those of the pair that take part, from 0; none stands for all.
    """

    name: str
    method: Method | Made
    models: tuple[int, ...] = ()


def alone(name: str, model: int) -> Column:
    """One model by itself."""
    return Column(name, Alone(), (model,))


PAPER = RuleVerifier.paper()


def rule(alpha: float = PAPER.alpha, beta: float = PAPER.beta) -> CoSD:
    """CoSD-Rule, with the thresholds of the paper's section 4.1."""
    return CoSD(verifier=RuleVerifier(alpha=alpha, beta=beta))


def tree(dataset: str = "alpacaeval", count: int = 3) -> Made:
    """CoSD-Tree: trained on the first examples of `<data>/train/<dataset>.jsonl`, as the paper describes it.

    It keeps places where the models agree, weighs all alike and bounds no depth; see docs/training.md.
    """

    async def made(setup: Setup) -> Method:
        path = setup.data / "train" / f"{dataset}.jsonl"
        if not path.exists():
            raise SettingError(f"{path} is missing, {counted(count, 'example')} to train the tree on")
        examples = read_examples(path)[:count]
        asked = setup.data / f"{dataset}.jsonl"
        if asked.exists() and {one.key for one in read_examples(asked)} & {one.key for one in examples}:
            raise SettingError(f"{path} has questions that {asked.name} has, too: leave them out of one of the two")
        if setup.dry:
            return rule()  # whose answers cost about the same; nothing is to be asked yet
        draft, *others = setup.providers
        samples = [
            await collect(
                examples,
                draft=draft,
                assistant=other,
                unit=setup.pair.unit,
                path=setup.file("samples", f"{dataset}-{at}"),
            )
            for at, other in enumerate(others, 1)
        ]
        trained = train_tree(samples, keep_agreeing=True, class_weight=None, depth=DEEPEST, min_leaf=1)
        return CoSD(verifier=trained.tree)

    return made


async def co_llm(setup: Setup) -> Method:
    """Co-LLM, with the gate that the file of pairs names."""
    if setup.pair.co_llm is None:
        raise SettingError("it needs a trained gate: co_llm in the file of pairs; see docs/training.md")
    return Defer(gate=setup.pair.co_llm)


@dataclass(frozen=True)
class Fused(Contestant):
    """A column, asked as a contestant of a comparison, by all of the models or by some.

    Attributes:
        places: of its models, the first of which drafts.
        identity: of these.
    """

    places: tuple[int, ...] = ()
    identity: str = ""

    def order(self, models: Sequence[ModelT]) -> list[ModelT]:
        """See `Contestant.order`; without the models that take no part."""
        return [models[at] for at in self.places]

    def key(self, *more: object) -> str:
        """See `Contestant.key`."""
        return super().key(*more, self.identity)
