"""What comes of tuning: how right the rule is at each pair, the pair to use, and how much is to be thought of that."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from cosd_api.training.panel import Heatmap
from cosd_api.training.wording import counted, filled, with_notes
from cosd_api.verification import RuleVerifier

__all__ = ["PAPER", "Interval", "Tuned"]

PAPER = RuleVerifier(alpha=0.5, beta=0.5)
"""What the paper settled on."""

Interval = tuple[float, float]


class Tuned(BaseModel):
    """How right the rule is at each pair of a grid, and the pair to use. As text it is a report.

    The interval is that of a pair that was chosen for doing best on these very examples: with new ones it does a little
    worse, which the bootstrap does not show.

    Attributes:
        accuracy: by alpha, then by beta, in [0, 1].
        best: the most accurate pair of the grid. Of several it is the nearest to the paper's (0.5, 0.5), by
            the sum of both differences; of those the one with the smaller alpha, which asks less, and then with the
            greater beta.
        interval: of its accuracy, 95 %, by bootstrap over examples; None with a single example, which tells nothing of
            others.
        paper: accuracy of (0.5, 0.5), on the grid or not.
        gain_interval: of `gain`, likewise, both pairs being judged on the same resampled examples.
        best_share: in what part of the resamples the best pair is the best one again; None likewise.
        examples: how many there are of use.
        resamples: how often the bootstrap drew as many of them.
        seed: of those draws.
        warnings: why this may tell little, in words.
    """

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    counts_what: ClassVar[str] = ""
    """What is right or wrong."""

    accuracy: dict[float, dict[float, float]]
    best: RuleVerifier
    interval: Interval | None
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
        """By how much it is more accurate than the paper's (0.5, 0.5)."""
        return self.best_accuracy - self.paper

    @property
    def ties(self) -> int:
        """How many other pairs of the grid are as accurate."""
        return sum(value == self.best_accuracy for row in self.accuracy.values() for value in row.values()) - 1

    @property
    def recommended(self) -> RuleVerifier:
        """The best pair; or the paper's, which is the default, where no pair of the grid is better."""
        return self.best if self.gain > 0 else PAPER

    @property
    def panel(self) -> Heatmap:
        """The accuracies as they are drawn."""
        return Heatmap(f"right {self.counts_what}", self.accuracy, (self.best.alpha, self.best.beta))

    def report(self) -> str:
        """The accuracies, what is to be thought of the best pair, and the recommendation; `str()` adds the warnings."""
        return "\n\n".join([str(self.panel), self.told(), self.advice()])

    def __str__(self) -> str:
        return with_notes(self.report(), self.warnings)

    def told(self) -> str:
        """What is to be thought of the best pair."""
        return filled(f"{self._about_best()} {self._about_others()}")

    def advice(self) -> str:
        """The pair to use."""
        if self.recommended != self.best:
            return filled(
                f"Recommended (by {self.counts_what}): the default, alpha 0.5 and beta 0.5: none of the pairs that "
                "were tried is better."
            )
        return f"Recommended (by {self.counts_what}): alpha {self.best.alpha:g} and beta {self.best.beta:g}."

    def _about_best(self) -> str:
        return f"Best by {self.counts_what}: alpha {self.best.alpha:g} and beta {self.best.beta:g}."

    def _about_others(self) -> str:
        """What other pairs do, and how sure the choice is."""
        words: list[str] = []
        if self.best == PAPER:
            words.append("It is the paper's own pair.")
        elif self.gain_interval is not None:
            low, high = (f"{100 * bound:+.1f}" for bound in self.gain_interval)
            gain = f"That is {100 * self.gain:+.1f} points against the paper's (0.5, 0.5)"
            words.append(f"{gain} (95 % interval: {low} to {high}).")
        again = (
            "" if self.best_share is None else f"{self.best_share:.0%} of {self.resamples} resamples of the examples"
        )
        if self.ties:
            does = "does" if self.ties == 1 else "do"
            nearest = "" if self.best == PAPER else "; it is the nearest to (0.5, 0.5)"
            words.append(f"{counted(self.ties, 'other pair')} {does} as well{nearest}.")
            words += [f"Chosen so, it came out best in {again}."] if again else []
        elif again:
            words.append(f"It came out best in {again}.")
        return " ".join(words)

    def _in_words(self) -> str:
        """The interval, in brackets."""
        if self.interval is None:
            return ""
        low, high = self.interval
        if low == high:  # nothing else is in the data to be drawn
            return " (no interval: all examples say the same)"
        return f" (95 % interval: {low:.1%} to {high:.1%})"
