"""Studies of one pair, which vary a setting, or measure something that cells do not; most repeat a table of a paper.

On the command line, studies are named like cells: `make lab ARGS=trees`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.lab.protocol import HEADLINE, Size
from benchmarks.lab.ways import GRID, PRINTED_SPECULATIVE, TREE

__all__ = ["LENGTHS", "STUDIES", "Study", "TreeOf", "studies_of"]

LENGTHS = (128, 256, 512)
"""Token limits of reports, as in the paper's Table 7."""


@dataclass(frozen=True)
class TreeOf:
    """The questions that a tree is learned from.

    Attributes:
        task: the task of the questions; empty for the same task that the models are asked.
        count: number of questions.
    """

    task: str
    count: int = 3


@dataclass(frozen=True)
class Study:
    """One study.

    Attributes:
        name: name of the study.
        shows: the quantity that the study varies or measures.
        ways: the ways to answer.
        tasks: the tasks; reports are run at each of `LENGTHS`.
        trees: ways that use CoSD with a tree, and the questions from which each tree is learned.
        share: the study's number of questions, as a share of the size's number.
        alone: whether no other step may run meanwhile, because times are measured.
        seconds: simulated network delay of each request to either model.
    """

    name: str
    shows: str
    ways: tuple[str, ...] = ()
    tasks: tuple[str, ...] = HEADLINE
    trees: Mapping[str, TreeOf] = field(default_factory=dict[str, TreeOf])
    share: float = 1.0
    alone: bool = False
    seconds: float = 0.0

    @property
    def cell(self) -> str:
        """The cell whose models are asked, in their original roles."""
        return "c-d"


_TIMED = (PRINTED_SPECULATIVE, "cosd", "cosd-1-1", "average", "rerank")
_MIXED = {TREE: TreeOf("mixed")}

STUDIES: tuple[Study, ...] = (
    Study("thresholds", "alpha and beta (CoSD, Figure 2)", ("cosd", "cosd-1-1", *GRID), ("choice", "steps")),
    Study(
        "trees",
        "the task whose questions a tree was learned from (CoSD, Table 4)",
        tasks=("choice", "steps", "code"),
        trees={
            "cosd-tree of choice": TreeOf("choice", 10),
            "cosd-tree of steps": TreeOf("steps"),
            "cosd-tree of code": TreeOf("code"),
            "cosd-tree of mixed": TreeOf("mixed"),
            "cosd-tree of its own": TreeOf(""),
        },
    ),
    Study(
        "examples",
        "the number of questions that a tree was learned from",
        tasks=("choice", "steps", "code"),
        trees={f"cosd-tree of {count}": TreeOf("mixed", count) for count in (1, 3, 10, 30)},
    ),
    Study("lengths", "the limit of an answer (CoSD, Table 7)", ("cosd", PRINTED_SPECULATIVE), ("report",), _MIXED, 0.2),
    Study(
        "windows",
        "the tokens of a draft that surprise has scored at once",
        ("cosd-surprise", *(f"cosd-surprise, window {window}" for window in (1, 4, 64))),
    ),
    Study(
        "gammas",
        "the probability below which a token surprises",
        ("cosd-surprise", *(f"cosd-surprise {gamma}" for gamma in (0.01, 0.05, 0.2, 0.5))),
    ),
    Study("latency", "time for a token, on loopback (CoSD, Table 5)", _TIMED, ("steps",), _MIXED, 0.4, alone=True),
    Study(
        "network",
        "the same where each request waits for 20 ms",
        _TIMED,
        ("steps",),
        _MIXED,
        0.4,
        alone=True,
        seconds=0.02,
    ),
)
"""All studies."""

_QUICK = ("lengths", "latency", "network")


def studies_of(size: Size) -> tuple[Study, ...]:
    """The studies of a size."""
    known = {"full": [one.name for one in STUDIES], "quick": _QUICK}.get(size.name, ())
    return tuple(one for one in STUDIES if one.name in known)
