"""What comes of training: the tree, what it is trained on, and whether it is worth having."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent
from typing import Literal

from pydantic import BaseModel, ConfigDict

from cosd_api.training.evaluation import (
    ALWAYS_ASSISTANT,
    ALWAYS_DRAFT,
    DEFAULT_RULE,
    TREE,
    TUNED_RULE,
    Comparison,
    Place,
    lacking,
)
from cosd_api.training.growing import Growing
from cosd_api.training.samples import Samples
from cosd_api.training.wording import about_dropped, counted, filled, with_notes
from cosd_api.verification import TreeVerifier

__all__ = ["Counts", "Training", "about_data", "about_tree", "about_worth"]

_LARGEST_SHOWN = 31  # nodes: a full tree of depth 4


class Counts(BaseModel):
    """What a tree was trained on, counted.

    Attributes:
        examples: in all, those without a place of use included.
        draft_right: places where the two models differ and the draft is right (label 0).
        assistant_right: where the assistant is, and the draft is not (label 1).
        agreeing: where both would have written the same.
        dropped: where they differ and neither is right.
        skipped: that could not be judged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    examples: int
    draft_right: int
    assistant_right: int
    agreeing: int
    dropped: int
    skipped: int

    @classmethod
    def of(cls, samples: Sequence[Samples], places: Sequence[Place]) -> Counts:
        """Of several data sets, and of the places with a label in them."""
        labels = [place.label for place in places if not place.agreed]
        return cls(
            examples=sum(len(one.examples) for one in samples),
            draft_right=labels.count(0),
            assistant_right=labels.count(1),
            agreeing=sum(one.agreeing for one in samples),
            dropped=sum(one.dropped for one in samples),
            skipped=sum(one.skipped for one in samples),
        )

    def __str__(self) -> str:
        return (
            f"{counted(self.examples, 'example')}: {counted(self.draft_right, 'place')} where the draft is right and "
            f"the assistant is not, {self.assistant_right} the other way round; {self.agreeing} where they agree, "
            f"{self.dropped} where neither is right, {self.skipped} that could not be judged"
        )


class Training(BaseModel):
    """A trained tree, and whether it is worth having. As text it is a report.

    Attributes:
        tree: the verifier: `Fusion(..., verifier=training.tree)`, or `training.tree.save(path)`.
        depth: how many questions it may ask in a row: a limit, which it need not come to.
        min_leaf: how many places each of its answers stands for at least.
        given: which of these two were given.
        chosen: whether what was not given was chosen on held-out examples; else there were too few.
        counts: of the data.
        comparison: the tree beside the rule and the constants, on examples that were held out; None where there were
            too few. It judges how the tree was made: each fold has one of its own.
        warnings: why it may not be worth having, in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tree: TreeVerifier
    depth: int
    min_leaf: int
    given: tuple[Literal["depth", "min_leaf"], ...] = ()
    chosen: bool
    counts: Counts
    comparison: Comparison | None
    warnings: tuple[str, ...] = ()

    def report(self) -> str:
        """The data, the tree, and the comparison; without the warnings, which `str()` adds."""
        parts = [filled(f"{self.counts}."), filled(self._heading()), _outlined(self.tree)]
        return "\n\n".join([*parts, *([str(self.comparison)] if self.comparison is not None else [])])

    def __str__(self) -> str:
        return with_notes(self.report(), self.warnings)

    def _heading(self) -> str:
        """How deep the tree is, and what it was held to."""
        otherwise = "chosen on held-out examples" if self.chosen else "the default for few examples"
        depth, leaf = ("given" if name in self.given else otherwise for name in ("depth", "min_leaf"))
        first = f" ({depth})" if depth != leaf else ""
        last = leaf if first else f"both {leaf}"
        leaves = f"at least {counted(self.min_leaf, 'place')} to a leaf"
        return f"Tree of depth {_depth(self.tree)}. Limits: depth {self.depth}{first}, {leaves} ({last}):"


def _outlined(tree: TreeVerifier) -> str:
    if len(tree.nodes) > _LARGEST_SHOWN:
        return f"  {len(tree.nodes)} nodes, too many to show"
    return indent(tree.outline(), "  ")


def _depth(tree: TreeVerifier) -> int:
    """How many questions it asks in a row at most."""
    depths = [0] * len(tree.nodes)
    for at, node in enumerate(tree.nodes):  # children stand behind their parents
        for child in (node.left, node.right):
            if child is not None:
                depths[child] = depths[at] + 1
    return max(depths)


# What speaks against the tree.


def about_data(pairs: int, places: Sequence[Place], counts: Counts) -> list[str]:
    """What speaks against data of so many pairs of models, in words."""
    found = about_dropped(counts.draft_right + counts.assistant_right, counts.dropped)
    if pairs > 1:
        found.append(f"the samples are of {pairs} pairs of models, and the tree is of none of them alone")
    if (lack := lacking(places)) is not None:
        found.append(f"how good the tree is is not known: {lack}")
    return found


def about_tree(tree: TreeVerifier) -> list[str]:
    """What speaks against the tree as it is."""
    if (value := tree.nodes[0].value) is None:
        return []
    does = "takes the assistant's word" if value else "keeps the draft's word, so that the assistant is never asked"
    return [f"the tree found nothing to tell the two apart by: it always {does}"]


def about_worth(comparison: Comparison | None, growing: Growing) -> list[str]:
    """What speaks against trees that were grown so, on held-out examples."""
    if comparison is None:
        return []
    scores, mine = comparison.scores, comparison.scores[TREE]
    found: list[str] = []
    rule = max((DEFAULT_RULE, TUNED_RULE), key=lambda name: growing.measure(scores[name]))
    if growing.measure(mine) <= growing.measure(scores[rule]):
        name = "balanced accuracy" if growing.class_weight else "plain accuracy"
        found.append(
            f"on held-out examples the tree has a {name} of {growing.measure(mine):.1%}, and the {rule}, which is "
            f"simpler, {growing.measure(scores[rule]):.1%}"
        )
    constant = max((ALWAYS_DRAFT, ALWAYS_ASSISTANT), key=lambda name: scores[name].accuracy)
    if mine.accuracy <= scores[constant].accuracy:
        who = constant.removeprefix("always ")
        found.append(
            f"on held-out examples the {who} alone is right at {scores[constant].accuracy:.1%} of the places, and what "
            f"the tree takes at {mine.accuracy:.1%}"
        )
    return found
