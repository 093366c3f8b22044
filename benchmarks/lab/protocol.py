"""Everything that is decided before the first run: models, cells, sizes and predictions. README.md explains why.

Every result contains `protocol_hash`. The hash is also the seed of the test items, so nobody could have seen the items
when the settings were chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from benchmarks.lab.graph import code_digest, digest
from benchmarks.lab.worlds import Half
from cosd_api.methods.base import Method

FOLDER = Path(__file__).parent
WEIGHTS = FOLDER / "weights"
"""The folder that contains the kept models, `<recipe>-<seed>.gguf`, and `keys.json`, which identifies them."""

DECIDING = (
    "protocol.py",
    "worlds.py",
    "corpora.py",
    "training.py",
    *(f"tasks/{name}.py" for name in ("task", "bio", "choice", "steps", "code", "mixed", "report", "held")),
    "tasks/__init__.py",
    "ways.py",
    "plan.py",
    "studies.py",
    "models.py",
    "answers.py",
    "likelihoods.py",
    "runs.py",
    "controls.py",
    "analysis.py",
    "long_answers.py",
    "beyond.py",
    "claims.py",
)
"""The sources that decide tasks, settings and analysis."""


@cache
def protocol_hash() -> str:
    """SHA-256 (hex) of the code of the deciding sources; comments and docstrings may be edited later."""
    sources = {name: FOLDER / name for name in DECIDING}
    return digest({name: code_digest(path) for name, path in sources.items() if path.exists()})


def items_seed() -> int:
    """The seed of the test items."""
    return int(protocol_hash()[:12], 16)


# Tasks.

WORLD_SEED = 1
DOMAINS: Mapping[str, Mapping[str, float]] = {
    "knowledge": {"bio": 0.7, "choice": 0.3},
    "sums": {"steps": 1.0},
    "code": {"code": 1.0},
}
"""The tasks of each domain, with their shares of the domain's documents."""
EVERYWHERE: Mapping[str, float] = {"mixed": 0.04, "report": 0.012}
"""Tasks that combine several domains, with their shares of every model's documents."""
RARELY: Mapping[str, float] = {"knowledge": 0.05, "sums": 0.05, "code": 0.003}
"""For each domain, how often a model of one half of every domain meets the other half, relative to its own half."""
HEADLINE = ("bio", "choice", "steps", "code")
"""The tasks whose mean result is the headline; each task can be done by one of two complementary models."""
MAX_TOKENS: Mapping[str, int] = {
    "bio": 40,
    "choice": 48,
    "steps": 64,
    "code": 40,
    "mixed": 56,
    "report": 512,
    "held": 1,
}
"""Token limits of answers, which exceed the longest reference in every tokenizer except that of single bytes."""

# Models.


@dataclass(frozen=True)
class TokenizerRecipe:
    """A tokenizer, trained on the texts of all tasks.

    Attributes:
        pieces: size of the vocabulary.
        digits: `"single"` if each digit is a token, `"whole"` if numbers are not split.
    """

    pieces: int
    digits: Literal["single", "whole"]


T1024 = TokenizerRecipe(1024, "single")
T2048 = TokenizerRecipe(2048, "single")
WHOLE = TokenizerRecipe(2048, "whole")
BYTES = TokenizerRecipe(257, "single")
"""A tokenizer with one token per byte, like that of a model that falls back to bytes everywhere."""


@dataclass(frozen=True)
class ModelRecipe:
    """A model and its training.

    Attributes:
        shares: share of each of `DOMAINS` among the documents, in addition to `EVERYWHERE`.
        tokens: number of training tokens.
        seed: seed of the initial weights and of the order of the documents; the run's seed is added.
        width: width of the layers.
        layers: number of layers.
        hidden: width of the feed-forward parts.
        tokenizer: the tokenizer.
        changed: share of facts that are false in the model's world (only for N4).
        wording: wording of the facts in the model's world.
        half: the half of every domain that the model reads; the other half is met `RARELY`. None if the model reads
            both halves.
        everywhere: whether the model also reads the tasks that combine domains.
        closed: number of documents outside the model's own domains, which it meets again and again; None for an open
            world.
        temperature: temperature of the model's distributions; its logits are divided by this value after training.
        begins: the recipe that the training continues from, instead of from scratch.
        between: two recipes whose models' weights are averaged instead of training a model.
    """

    shares: tuple[float, float, float] = (0.5, 0.325, 0.175)
    tokens: int = 4_000_000
    seed: int = 0
    width: int = 128
    layers: int = 4
    hidden: int = 384
    tokenizer: TokenizerRecipe = T1024
    changed: float = 0.0
    wording: Literal[0, 1] = 0
    half: Half | None = None
    everywhere: bool = True
    closed: int | None = None
    temperature: float = 1.0
    begins: str | None = None
    between: tuple[str, str] | None = None


def _of_knowledge(share: float) -> ModelRecipe:
    rest = 1 - share
    return replace(ModelRecipe(), shares=(share, 0.65 * rest, 0.35 * rest))


_A, _B, _HALF = _of_knowledge(0.95), _of_knowledge(0.05), _of_knowledge(0.5)
_C, _D = replace(_HALF, half=0), replace(_HALF, half=1)
_EPOCHS = {1: 10_000, 4: 2_500, 16: 625}
"""The number of documents in a closed world, by the number of times that each is met."""

RECIPES: Mapping[str, ModelRecipe] = {
    # models that are kept in the repository, for --quick
    "a": _A,
    "b": _B,
    "a-closed": replace(_A, closed=200),
    "b-closed": replace(_B, closed=200),
    "b-2048": replace(_B, tokenizer=T2048),
    "c": _C,
    "d": _D,
    "c-other": replace(_C, seed=100),
    "c-changed": replace(_C, changed=0.3),
    "small": replace(_C, width=32, layers=3, hidden=96),
    # (i) shares
    "half": _HALF,
    "half-other": replace(_HALF, seed=100),
    "a-70": _of_knowledge(0.7),
    "b-70": _of_knowledge(0.3),
    "a-90": _of_knowledge(0.9),
    "b-90": _of_knowledge(0.1),
    "union": replace(_HALF, tokens=2 * _HALF.tokens),
    # (ii) forgetting
    **{
        f"forgot-{name}": replace(_of_knowledge(1.0), tokens=int(share * _HALF.tokens), begins="half", everywhere=False)
        for name, share in {"mildly": 0.02, "rather": 0.1, "badly": 0.4}.items()
    },
    **{
        f"between-{name}": replace(_HALF, tokens=0, between=("half", f"forgot-{name}"))
        for name in ("mildly", "rather", "badly")
    },
    # (iii) capacity
    "large": replace(_C, width=256, layers=7, hidden=704),
    # (iv) tokenizers and wording
    "b-whole": replace(_B, tokenizer=WHOLE),
    "b-bytes": replace(_B, tokenizer=BYTES, tokens=2 * _B.tokens),
    "b-worded": replace(_B, wording=1),
    # three models
    "facts": replace(_A, shares=(0.9, 0.05, 0.05)),
    "sums": replace(_A, shares=(0.05, 0.9, 0.05)),
    "code": replace(_A, shares=(0.05, 0.05, 0.9)),
    "weak": replace(_HALF, tokens=_HALF.tokens // 5),
    # calibration
    **{f"a-epochs-{times}": replace(_A, closed=count) for times, count in _EPOCHS.items()},
    **{f"b-epochs-{times}": replace(_B, closed=count) for times, count in _EPOCHS.items()},
    "b-sharp": replace(_B, tokens=0, begins="b", temperature=0.5),
    "b-flat": replace(_B, tokens=0, begins="b", temperature=2.0),
}
"""All models, by name."""


def recipe_of(name: str, seed: int) -> ModelRecipe:
    """The recipe of a model, for a run of the experiment with this seed."""
    recipe = RECIPES[name]
    return replace(recipe, seed=recipe.seed + seed)


# Cells.

Scenario = Literal[
    "complementary",
    "forgetting",
    "capacity",
    "tokenizers",
    "three models",
    "calibration",
    "robustness",
    "upper bound",
    "control",
]


@dataclass(frozen=True)
class Cell:
    """One pair of models (or a draft with several assistants), asked in both directions.

    Attributes:
        name: name of the cell.
        scenario: the scenario to which the cell belongs.
        draft: recipe of the draft.
        assistants: recipes of the assistants.
        varied: the quantity that is varied within the scenario.
        predicted: the prediction made before the first run.
        x: position of the cell on the axis of the varied quantity.
        shuffled: whether the assistant answers another question's prompt (N6).
    """

    name: str
    scenario: Scenario
    draft: str
    assistants: tuple[str, ...]
    varied: str
    predicted: str
    x: float | None = None
    shuffled: bool = False


_WINS = "the rule is better than the better model, in both directions"
_AS_GOOD = "no method is better than the better model"
_SURE = "the rule gains little, for the draft is sure where it is wrong; alpha = beta = 1 and averages gain more"
_BY_SHARE = "the gain grows with the share"

CELLS: tuple[Cell, ...] = (
    Cell("a-b", "complementary", "a", ("b",), "share of the own domain", _WINS, 0.95),
    Cell("c-d", "complementary", "c", ("d",), "halves of every domain", _WINS),
    Cell("half", "complementary", "half", ("half-other",), "share of the own domain", _AS_GOOD, 0.5),
    Cell("a-b-70", "complementary", "a-70", ("b-70",), "share of the own domain", _BY_SHARE, 0.7),
    Cell("a-b-90", "complementary", "a-90", ("b-90",), "share of the own domain", _BY_SHARE, 0.9),
    *(
        Cell(
            f"forgot-{name}",
            "forgetting",
            f"forgot-{name}",
            ("half",),
            "tokens of one domain alone",
            words,
            x,
        )
        for name, x, words in (
            ("mildly", 0.02, _AS_GOOD),
            ("rather", 0.1, "fusing and the mean of the weights both gain"),
            ("badly", 0.4, "fusing gains, the mean of the weights less"),
        )
    ),
    Cell(
        "small-c",
        "capacity",
        "small",
        ("c",),
        "size of the assistant",
        "no better than the assistant, at fewer of its tokens",
        1.1,
    ),
    Cell(
        "small-large",
        "capacity",
        "small",
        ("large",),
        "size of the assistant",
        "no better than the assistant, at fewer of its tokens",
        6.0,
    ),
    Cell("a-b-2048", "tokenizers", "a", ("b-2048",), "tokenizer of the assistant", _WINS, 2048),
    Cell("a-b-whole", "tokenizers", "a", ("b-whole",), "numbers of the assistant", "sums are written token by token"),
    Cell("a-b-bytes", "tokenizers", "a", ("b-bytes",), "tokenizer of the assistant", _WINS, 257),
    Cell("a-b-worded", "robustness", "a", ("b-worded",), "wording of the facts", _WINS),
    Cell("three", "three models", "facts", ("sums", "code"), "the draft", "two assistants gain more than either"),
    Cell(
        "three-weak",
        "three models",
        "weak",
        ("facts", "sums"),
        "the draft",
        "near the better assistant of each question",
    ),
    Cell("closed", "calibration", "a-closed", ("b-closed",), "how often the few documents are met", _SURE, 50),
    *(
        Cell(
            f"epochs-{times}",
            "calibration",
            f"a-epochs-{times}",
            (f"b-epochs-{times}",),
            "how often the few documents are met",
            "the rule's gain falls with it",
            times,
        )
        for times in _EPOCHS
    ),
    Cell(
        "sharp",
        "calibration",
        "a",
        ("b-sharp",),
        "temperature of the assistant",
        "as a-b, with more harm as a draft",
        0.5,
    ),
    Cell(
        "flat",
        "calibration",
        "a",
        ("b-flat",),
        "temperature of the assistant",
        "as an assistant it is replaced too seldom",
        2.0,
    ),
    Cell("union", "upper bound", "half", ("union",), "the assistant, of interest alone", "above every way of a-b"),
    *(
        Cell(
            f"between-{name}",
            "upper bound",
            "half",
            (f"between-{name}",),
            "the assistant, of interest alone",
            "the mean of both models' weights gains less than fusing where more was forgotten",
        )
        for name in ("mildly", "rather", "badly")
    ),
    Cell("n1", "control", "c", ("c",), "N1: a model with itself", "the text of the model alone, and no replacement"),
    Cell("n2", "control", "c", ("c-other",), "N2: two seeds of one recipe", _AS_GOOD),
    Cell("n3", "control", "c", ("small",), "N3: a dominated pair", _AS_GOOD),
    Cell("n4", "control", "c", ("c-changed",), "N4: an assistant that is sure and wrong", _AS_GOOD),
    Cell("n6", "control", "c", ("d",), "N6: an assistant that reads another question", _AS_GOOD, shuffled=True),
)
"""All cells. N5, a gate that asks at random as often as the rule does, is part of all except controls and upper
bounds."""


# Sizes.

Methods = Literal["all"] | tuple[str | Method, ...]


@dataclass(frozen=True)
class Size:
    """The extent of a run.

    Attributes:
        name: name of the size.
        seeds: training seeds.
        items: number of questions per task.
        cells: names of the cells.
        tasks: names of the tasks.
        methods: names of the methods that are compared in every cell.
    """

    name: str
    seeds: tuple[int, ...]
    items: int
    cells: tuple[str, ...]
    tasks: tuple[str, ...]
    methods: Methods = "all"


HEADLINE_CELLS = ("a-b", "c-d", "closed", "half")
"""The cells that are run with every seed of a size; the other cells are run only with the first seed."""
QUICK_CELLS = ("a-b", "c-d", "a-b-2048", "closed")
CONTROLS = ("n1", "n2", "n3", "n4", "n6")
TOY = Size("toy", (1,), 4, ("c-d", "n1", "n6"), ("bio", "steps"), methods=("cosd", "rerank"))
QUICK = Size("quick", (1,), 100, (*QUICK_CELLS, *CONTROLS), (*HEADLINE, "mixed"))
FULL = Size(
    "full",
    (1, 2, 3),
    200,
    tuple(cell.name for cell in CELLS),
    (*HEADLINE, "mixed", "report", "held"),
)

SIZES = {size.name: size for size in (TOY, QUICK, FULL)}


def seeds_of(cell: str, size: Size) -> tuple[int, ...]:
    """The training seeds of a cell."""
    return size.seeds if cell in HEADLINE_CELLS else size.seeds[:1]
