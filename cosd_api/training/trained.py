"""What comes of training: the tree, what it is trained on, and whether it is worth having."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

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
from cosd_api.verification import TreeVerifier

__all__ = ["Counts", "Training", "about_data", "about_tree", "about_worth"]

_WIDTH = 80
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
            f"{_count(self.examples, 'example')}: {_count(self.draft_right, 'place')} where the draft is right and the "
            "assistant is not, "
            f"{self.assistant_right} the other way round; {self.agreeing} where they agree, {self.dropped} where "
            f"neither is right, {self.skipped} that could not be judged"
        )


class Training(BaseModel):
    """A trained tree, and whether it is worth having. As text it is a report.

    Attributes:
        tree: the verifier: `Fusion(..., verifier=training.tree)`, or `training.tree.save(path)`.
        depth: how many questions it may ask in a row.
        min_leaf: how many places each of its answers stands for at least.
        chosen: whether these two were chosen on held-out examples; else they were given, or there were too few.
        counts: of the data.
        comparison: the tree beside the rule and the constants, on examples that were held out; None where there were
            too few. It judges how the tree was made: each fold has one of its own.
        warnings: why it may not be worth having, in words.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tree: TreeVerifier
    depth: int
    min_leaf: int
    chosen: bool
    counts: Counts
    comparison: Comparison | None
    warnings: tuple[str, ...] = ()

    def report(self) -> str:
        """The data, the tree, and the comparison; without the warnings, which `str()` adds."""
        how = "chosen on held-out examples" if self.chosen else "given, or the default for few examples"
        parts = [
            fill(f"{self.counts}.", _WIDTH),
            f"Tree of depth {self.depth}, at least {self.min_leaf} to a leaf ({how}):\n\n{_outline(self.tree)}",
            *([str(self.comparison)] if self.comparison is not None else []),
        ]
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return "\n\n".join([self.report(), *(fill(f"Note: {warning}.", _WIDTH) for warning in self.warnings)])


def _outline(tree: TreeVerifier) -> str:
    """The tree as indented lines: one for each way that a question can go."""
    if len(tree.nodes) > _LARGEST_SHOWN:
        return f"  {len(tree.nodes)} nodes, too many to show"

    def lines(index: int, indent: str) -> list[str]:
        node = tree.nodes[index]
        if node.threshold is None or node.left is None or node.right is None:
            return [f"{indent}{'replace' if node.value else 'keep'}"]
        found: list[str] = []
        for sign, child in (("<=", node.left), (">", node.right)):
            below = lines(child, f"{indent}  ")
            head = f"{indent}{node.feature} {sign} {node.threshold:.4g}"
            found += [f"{head}: {below[0].strip()}"] if len(below) == 1 else [head, *below]
        return found

    return "\n".join(lines(0, "  "))


# What speaks against the tree.


def about_data(pairs: int, places: Sequence[Place]) -> list[str]:
    """What speaks against data of so many pairs of models, in words."""
    found: list[str] = []
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


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
