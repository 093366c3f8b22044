"""Columns of the tables: one model alone, or a method with the settings printed in the papers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from _pairs import Pair

from cosd_api import CoSD, Defer, RuleVerifier, SettingError, collect, train_tree
from cosd_api.alignment import Unit
from cosd_api.apps.comparison.contestants import Alone, Contestant
from cosd_api.apps.training.dataset import read_examples
from cosd_api.common.wording import counted
from cosd_api.methods.base import Method
from cosd_providers.contract import Provider

DEEPEST = 12
"""The maximum depth of a tree. The paper states no limit; this is the largest depth that the library accepts."""


@dataclass(frozen=True)
class Setup:
    """A pair and its models, from which a column's method is made.

    Attributes:
        name: name of the pair.
        pair: servers of the pair.
        providers: the connected models.
        identities: the identity of each model: its place in the pair, its name on the server, and its revision.
        data: the folder of the questions.
        out: the folder of the results.
        dry: whether only an estimate is wanted.
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
        name: the paper's name for the column.
        method: a method, or a function that makes one for a pair.
        models: indices of the pair's models that take part, from 0; empty for all.
    """

    name: str
    method: Method | Made
    models: tuple[int, ...] = ()


def alone(name: str, model: int) -> Column:
    """A column for one model by itself."""
    return Column(name, Alone(), (model,))


PAPER = RuleVerifier.paper()


def rule(alpha: float = PAPER.alpha, beta: float = PAPER.beta, unit: Unit | None = None) -> CoSD:
    """CoSD-Rule, with the thresholds of the paper's section 4.1; `unit` overrides the pair's own."""
    return CoSD(verifier=RuleVerifier(alpha=alpha, beta=beta), unit=unit)


def tree(dataset: str = "alpacaeval", count: int = 3, unit: Unit | None = None) -> Made:
    """CoSD-Tree, trained on the first examples of `<data>/train/<dataset>.jsonl` as the paper describes.

    Places where the models agree are kept, classes are not weighted, and the depth is limited only by DEEPEST; see
    docs/training.md. `unit` overrides the pair's own, for the samples too.
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
            return rule(unit=unit)  # an estimate must not ask models; the rule costs about the same as a tree
        draft, *others = setup.providers
        samples = [
            await collect(
                examples,
                draft=draft,
                assistant=other,
                unit=unit or setup.pair.unit,
                path=setup.file("samples", f"{dataset}-{at}" + (f"-{unit}" if unit else "")),
            )
            for at, other in enumerate(others, 1)
        ]
        several = tuple(one for found in samples for one in found.examples)
        together = samples[0].model_copy(update={"examples": several})
        trained = train_tree(together, keep_agreeing=True, class_weight=None, depth=DEEPEST, min_leaf=1)
        return CoSD(verifier=trained.tree, unit=unit)

    return made


async def co_llm(setup: Setup) -> Method:
    """Co-LLM, with the gate named in the file of pairs."""
    if setup.pair.co_llm is None:
        raise SettingError("it needs a trained gate: co_llm in the file of pairs; see docs/training.md")
    return Defer(gate=setup.pair.co_llm)


@dataclass(frozen=True)
class Fused(Contestant):
    """A column as a contestant of a comparison, with some or all of the pair's models.

    Attributes:
        places: indices of the column's models; the first model drafts.
        identity: the identity of these models.
    """

    places: tuple[int, ...] = ()
    identity: str = ""

    def order(self, models: Sequence[ModelT]) -> list[ModelT]:
        """See `Contestant.order`; models that take no part are left out."""
        return [models[at] for at in self.places]

    def key(self, *more: object) -> str:
        """See `Contestant.key`."""
        return super().key(*more, self.identity)
