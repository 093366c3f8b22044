"""Results of training and tuning, and their reports as plain text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import indent
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from cosd_api import RuleVerifier, TreeVerifier
from cosd_api.extend import counted, paragraph, with_notes
from cosd_api.training.dataset import Samples
from cosd_api.training.evaluation import DEFAULT, HeldOutScores, LabelledPlace

__all__ = [
    "Cell",
    "GridTuning",
    "Heatmap",
    "Interval",
    "Training",
    "TrainingCounts",
    "about_dropped",
    "in_words",
    "one_sided",
    "percent",
]

Interval = tuple[float, float]

_LARGEST_SHOWN = 31  # maximum number of nodes of a tree that is shown: a full tree of depth 4
_SURE = 0.5  # a model counts as confident of a word if it gives the word a higher probability than this


def about_dropped(labelled: int, dropped: int) -> list[str]:
    """Return a warning if neither model is right at more places than are labelled; else an empty list."""
    if dropped <= labelled:
        return []
    where = f"at {dropped} of {counted(labelled + dropped, 'place')} where the models differ neither is right"
    return [f"{where}: check that the answers are written as a model would write them, leading space included"]


def one_sided(draft_right: int, assistant_right: int) -> str | None:
    """Return a warning if all labels are equal; None if both labels occur, or neither."""
    right = draft_right + assistant_right
    if not right or (draft_right and assistant_right):
        return None
    samples = "the only labelled sample is" if right == 1 else f"all {right} labelled samples are"
    mine, other = ("draft", "assistant") if draft_right else ("assistant", "draft")
    return (
        f"{samples} the {mine}'s: the {other} was never right where the {mine} was wrong; "
        f"add examples that the {other} can answer and the {mine} cannot (if there are none, the {mine} alone is "
        "as good)"
    )


# Training a tree.


class TrainingCounts(BaseModel):
    """Counts of the data that a tree was trained on.

    Attributes:
        examples: number of examples, including examples without a labelled place.
        draft_right: number of places where the models differ and the draft is right (label 0).
        assistant_right: number of places where the models differ and the assistant is right (label 1).
        agreeing: number of places where both models would have written the same text.
        dropped: number of places where the models differ and neither is right.
        skipped: number of places that could not be judged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    examples: int
    draft_right: int
    assistant_right: int
    agreeing: int
    dropped: int
    skipped: int

    @classmethod
    def of(cls, samples: Sequence[Samples], places: Sequence[LabelledPlace]) -> TrainingCounts:
        """Count the places of several data sets, given their labelled places."""
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
    """A trained tree and the evidence for it; `str()` gives a report.

    Attributes:
        tree: the verifier, for `Fusion(..., verifier=training.tree)` or `training.tree.save(path)`.
        depth: maximum depth; the tree may be shallower.
        min_leaf: minimum number of places in each leaf.
        given: names of the limits (`depth`, `min_leaf`) that were given as arguments.
        chosen: whether the other limits were chosen on held-out examples; False if there were too few examples.
        counts: counts of the data.
        comparison: scores of a tree, the rules and the constants on held-out examples; None if there were too few
            examples. Each fold trains its own tree, so the scores measure the method of training, not `tree` itself.
        warnings: reasons to doubt the tree.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tree: TreeVerifier
    depth: int
    min_leaf: int
    given: tuple[Literal["depth", "min_leaf"], ...] = ()
    chosen: bool
    counts: TrainingCounts
    comparison: HeldOutScores | None
    warnings: tuple[str, ...] = ()

    @property
    def unsafe(self) -> str | None:
        """A reason not to use the tree, if it wrongly replaces words of which the draft is confident; else None."""
        return replaces_the_sure(self.tree)

    def report(self) -> str:
        """Describe the data, the tree and the comparison. `str()` adds the warnings."""
        nodes = len(self.tree.nodes)
        outline = f"{nodes} nodes, too many to show" if nodes > _LARGEST_SHOWN else self.tree.outline()
        parts = [paragraph(f"{self.counts}."), paragraph(self._heading()), indent(outline, "  ")]
        return "\n\n".join([*parts, *([str(self.comparison)] if self.comparison is not None else [])])

    def __str__(self) -> str:
        return with_notes(self.report(), self.warnings)

    def _heading(self) -> str:
        """Describe the depth of the tree, its limits, and how the limits were chosen."""
        otherwise = "chosen on held-out examples" if self.chosen else "the default for few examples"
        depth, leaf = ("given" if name in self.given else otherwise for name in ("depth", "min_leaf"))
        first = f" ({depth})" if depth != leaf else ""
        last = leaf if first else f"both {leaf}"
        leaves = f"at least {counted(self.min_leaf, 'place')} to a leaf"
        return f"Tree of depth {_depth(self.tree)}. Limits: depth {self.depth}{first}, {leaves} ({last}):"


def replaces_the_sure(tree: TreeVerifier) -> str | None:
    """Describe a case in which a tree wrongly replaces a word of which the draft is confident; None if there is none.

    A model is confident of a word if the word's probability is above 0.5. A replacement counts as wrong in two cases:
    the assistant is not confident of its own word; or, with the same q, the tree would keep a less probable word of the
    draft.
    """
    ps, qs = (_between_thresholds(tree, feature) for feature in ("p", "q"))
    for q in qs:
        kept: float | None = None
        for p in ps:
            if not tree.replaces(p, q):
                kept = p if kept is None else kept
            elif kept is not None and p > _SURE:
                return f"it replaces a draft of {p:.2g}, and keeps one of {kept:.2g}, beside an assistant of {q:.2g}"
        if q <= _SURE and tree.replaces(ps[-1], q):
            return f"it replaces a draft of {ps[-1]:.2g} by an assistant of {q:.2g}"
    return None


def _between_thresholds(tree: TreeVerifier, feature: Literal["p", "q"]) -> list[float]:
    """Return a probability from each interval between neighbouring thresholds of a feature, in ascending order."""
    bounds = {node.threshold for node in tree.nodes if node.feature == feature and node.threshold is not None}
    inner = sorted(one for one in {*bounds, _SURE} if 0 < one < 1)
    return [(low + high) / 2 for low, high in pairwise([0.0, *inner, 1.0])]


def _depth(tree: TreeVerifier) -> int:
    """Return the largest number of tests on any path from the root to a leaf."""
    depths = [0] * len(tree.nodes)
    for at, node in enumerate(tree.nodes):  # children come after their parents
        for child in (node.left, node.right):
            if child is not None:
                depths[child] = depths[at] + 1
    return max(depths)


# Tuning over a grid of alpha and beta.


@dataclass(frozen=True, slots=True)
class Cell:
    """A number in the text of a heatmap, with its position.

    Attributes:
        start: offset of the number's first character, including the space before it.
        stop: offset after the number's last character, including the space after it.
        value: the number, from 0 to 1.
        best: whether the number is marked as the best.
    """

    start: int
    stop: int
    value: float
    best: bool


@dataclass(frozen=True, slots=True)
class Heatmap:
    """A heatmap like one panel of the paper's Figure 2.

    In its text, alpha increases to the right and beta upwards, and `*` marks the best pair.

    Attributes:
        title: description of the numbers.
        values: numbers from 0 to 1, indexed by alpha and then by beta; not every alpha has every beta.
        best: the best alpha and beta.
    """

    title: str
    values: Mapping[float, Mapping[float, float]]
    best: tuple[float, float]

    @property
    def alphas(self) -> list[float]:
        """The values of alpha, in ascending order."""
        return sorted(self.values)

    @property
    def betas(self) -> list[float]:
        """The values of beta, in ascending order."""
        return sorted({beta for row in self.values.values() for beta in row})

    def shades(self) -> Callable[[float], float]:
        """Return a function that maps a value to a lightness, from 0 (lowest value) to 1 (highest value).

        If all values are equal, the lightness is 1.
        """
        everything = [value for row in self.values.values() for value in row.values()]
        low, high = min(everything), max(everything)
        return lambda value: (value - low) / (high - low) if high > low else 1.0

    def laid_out(self) -> tuple[str, list[Cell]]:
        """Return the text, and the numbers in it with their positions."""
        head = max(len("beta"), *(len(f"{beta:g}") for beta in self.betas))
        # A cell is wide enough for a marked value or an alpha, with a space on either side.
        width = max(len("*100.0"), *(len(f"{alpha:g}") for alpha in self.alphas)) + 2
        text, cells = f"{self.title}, in % (*: best)\n{'beta':>{head}}\n", list[Cell]()
        for beta in reversed(self.betas):
            text += f"{beta:>{head}g} "
            for alpha in self.alphas:
                if (value := self.values[alpha].get(beta)) is None:
                    text += " " * width
                    continue
                best = (alpha, beta) == self.best
                cells.append(Cell(len(text), len(text) + width, value, best))
                text += f"{('*' if best else '') + percent(value):>{width - 1}} "
            text += "\n"
        text += " " * head + " " + "".join(f"{alpha:>{width - 1}g} " for alpha in self.alphas) + " alpha"
        return text, cells

    def __str__(self) -> str:
        return self.laid_out()[0]


def in_words(pair: RuleVerifier) -> str:
    """Write the alpha and beta of a rule in words."""
    return f"alpha {pair.alpha:g} and beta {pair.beta:g}"


def percent(value: float) -> str:
    """Format a share as a percentage, without the percent sign."""
    return f"{100 * value:.1f}"


class GridTuning(BaseModel):
    """Accuracy of the rule for each pair of alpha and beta, and the recommended pair; `str()` gives a report.

    The default pair and the paper's pair are always included, even if they are not on the grid.

    The best pair is chosen and measured on the same examples, so its accuracy and its gain on them are partly luck. The
    intervals estimate the accuracy and the gain on new examples. The intervals come from a bootstrap that chooses the
    best pair again in each resample, which accounts for the luck of the choice.

    Attributes:
        accuracy: accuracy in [0, 1], indexed by alpha and then by beta.
        best: the most accurate pair. If several are equally accurate, it is the pair nearest to the default, measured
            by the sum of the differences in alpha and in beta; then the pair with the smaller alpha, which needs fewer
            requests; then the pair with the greater beta.
        interval: 95 % interval for the accuracy of `best` on new examples, by bootstrap over examples; None with a
            single example.
        default: accuracy of the default pair, `RuleVerifier()`.
        paper: accuracy of the paper's pair, `RuleVerifier.paper()`.
        gain_interval: 95 % interval for `gain` on new examples, by the same bootstrap; None with a single example.
        best_share: share of the resamples in which `best` is again the most accurate pair; None with a single example.
        examples: number of examples on which the accuracy was measured.
        resamples: number of bootstrap resamples.
        seed: seed of the resamples.
        warnings: reasons to doubt the result.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    measured: ClassVar[str] = ""
    """Plural noun for the things that are right or wrong, such as "answers"."""

    accuracy: dict[float, dict[float, float]]
    best: RuleVerifier
    interval: Interval | None
    default: float
    paper: float
    gain_interval: Interval | None
    best_share: float | None
    examples: int
    resamples: int
    seed: int
    warnings: tuple[str, ...] = ()

    @property
    def best_accuracy(self) -> float:
        """Accuracy of the best pair."""
        return self.accuracy[self.best.alpha][self.best.beta]

    @property
    def gain(self) -> float:
        """Accuracy of the best pair, minus the accuracy of the default."""
        return self.best_accuracy - self.default

    @property
    def ties(self) -> int:
        """Number of other pairs that are as accurate as the best pair."""
        return sum(value == self.best_accuracy for row in self.accuracy.values() for value in row.values()) - 1

    @property
    def recommended(self) -> RuleVerifier:
        """The best pair. If no pair is more accurate than the default, this is the default."""
        return self.best

    @property
    def panel(self) -> Heatmap:
        """The accuracies, as a heatmap."""
        return Heatmap(f"right {self.measured}", self.accuracy, (self.best.alpha, self.best.beta))

    def report(self) -> str:
        """Describe the accuracies, the findings and the recommendation. `str()` adds the warnings."""
        return "\n\n".join([str(self.panel), self.findings(), self.advice()])

    def __str__(self) -> str:
        return with_notes(self.report(), self.warnings)

    def findings(self) -> str:
        """Describe the accuracy of the best pair and its uncertainty."""
        return paragraph(f"{self._about_best()} {self._about_others()}")

    def advice(self) -> str:
        """The recommended pair, in words."""
        if self.recommended == DEFAULT:
            words = f"the default, {in_words(DEFAULT)}: none of the pairs that were tried is better."
            return paragraph(f"Recommended (by {self.measured}): {words}")
        return f"Recommended (by {self.measured}): {in_words(self.best)}."

    def _about_best(self) -> str:
        return f"Best by {self.measured}: {in_words(self.best)}."

    def _about_others(self) -> str:
        """Describe how the best pair compares with the other pairs, and how certain the choice is."""
        words: list[str] = []
        if self.best == DEFAULT:
            words.append("It is the default.")
        elif self.gain_interval is not None:
            low, high = (f"{100 * bound:+.1f}" for bound in self.gain_interval)
            gain = f"That is {100 * self.gain:+.1f} points against the default ({in_words(DEFAULT)})"
            words.append(f"{gain}; on new examples {low} to {high} (95 % interval, the choice of the pair included).")
        again = (
            "" if self.best_share is None else f"{self.best_share:.0%} of {self.resamples} resamples of the examples"
        )
        if self.ties:
            nearest = "" if self.best == DEFAULT else "; it is the nearest to the default"
            words.append(f"{counted(self.ties, 'other pair does', 'other pairs do')} as well{nearest}.")
            words += [f"Chosen in this way, it came out best in {again}."] if again else []
        elif again:
            words.append(f"It came out best in {again}.")
        return " ".join(words)

    def _interval_in_words(self) -> str:
        if self.interval is None:
            return ""
        low, high = self.interval
        if low == high:  # all resamples have the same accuracy
            return " (no interval: all examples say the same)"
        return f" (on new examples {low:.1%} to {high:.1%}: a 95 % interval)"
