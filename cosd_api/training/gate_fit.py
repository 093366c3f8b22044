"""Fitting a gate: logistic regression, then the marginal likelihood, then a threshold; see `fit_deferral`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pydantic import BaseModel, ConfigDict

from cosd_api.training.evaluation import ENOUGH_EXAMPLES, LabelledPlace, split

__all__ = [
    "ENOUGH_HANDED",
    "PENALTY",
    "GateFit",
    "GatePlace",
    "GateScore",
    "HeldOutPlaces",
    "constant",
    "held_out",
    "marginal",
    "rounded",
    "youden",
]

PENALTY = 1e-3
"""Factor of half the squares of the weights of standardised features, if these are few."""
ENOUGH_HANDED = 2
"""Number of examples with a token to be handed over that holding some out needs."""

_LEAST = 1e-12  # of a likelihood, so that its logarithm is finite
_DIGITS = 9  # of a weight, so that processors that round differently write the same file


@dataclass(frozen=True, slots=True)
class GatePlace(LabelledPlace):
    """One token of a reference: p and q are the models' probabilities of it, the label is z.

    Attributes:
        shown: the features of the draft's list or hidden state.
    """

    shown: Sequence[float] = ()


class GateScore(BaseModel):
    """The gate's decisions on the places by which `eta` was chosen.

    Attributes:
        found: share of the places with z = 1 at which it opens (the true positive rate).
        wasted: share of the other places at which it opens (the false positive rate).
        opens: share of all places at which it opens.
        held_out: whether the places were held out; if not, the gate was trained on them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    found: float
    wasted: float
    opens: float
    held_out: bool

    @property
    def youden(self) -> float:
        """Youden's index."""
        return self.found - self.wasted


@dataclass(frozen=True, slots=True)
class GateFit:
    """Weights of standardised features: `theta[0]` is the bias.

    Attributes:
        theta: the weights.
        mean: means of the features.
        scale: standard deviations of the features.
        penalty: factor of half the squares of the weights.
    """

    theta: Any
    mean: Any
    scale: Any
    penalty: float = PENALTY

    @classmethod
    def of(cls, places: Sequence[GatePlace], penalty: float = PENALTY) -> GateFit:
        """Lines 3 and 4: the gate trained on these places."""
        return cls.first(places, penalty).trained(places)

    @classmethod
    def first(cls, places: Sequence[GatePlace], penalty: float = PENALTY) -> GateFit:
        """Line 3: logistic regression of z."""
        import numpy as np  # noqa: PLC0415 - an extra, and slow to load

        shown, _, _, z = _arrays(places)
        mean, scale = shown.mean(axis=0), shown.std(axis=0)
        scale[scale < 1e-5] = np.inf  # a nearly constant feature gets no weight
        start = cls(np.zeros(shown.shape[1] + 1), mean, scale, penalty)

        def logistic(theta: Any, x: Any) -> tuple[float, Any]:
            logits = x @ theta
            slope = x.T @ (_sigmoid(logits) - z) / len(z)
            return float((np.logaddexp(0, logits) - z * logits).mean()), slope

        return start._minimised(shown, logistic)

    def trained(self, places: Sequence[GatePlace]) -> GateFit:
        """Line 4: the least negative marginal log-likelihood, from these weights."""
        shown, p, q, _ = _arrays(places)

        def negative(theta: Any, x: Any) -> tuple[float, Any]:
            return marginal(theta, x, p, q)

        return self._minimised(shown, negative)

    def _minimised(self, shown: Any, loss: Callable[[Any, Any], tuple[float, Any]]) -> GateFit:
        import numpy as np  # noqa: PLC0415

        minimize: Any = getattr(import_module("scipy.optimize"), "minimize")  # noqa: B009 - it has no types
        x = self._standardised(shown)
        counts = np.array([0.0] + [1.0] * shown.shape[1])  # no penalty on the bias

        def penalised(theta: Any) -> tuple[float, Any]:
            value, slope = loss(theta, x)
            drawn = self.penalty * counts * theta
            return value + float(drawn @ theta) / 2, slope + drawn

        found = minimize(penalised, self.theta, jac=True, method="L-BFGS-B", options={"maxiter": 500})
        return GateFit(found.x, self.mean, self.scale, self.penalty)

    def _standardised(self, shown: Any) -> Any:
        import numpy as np  # noqa: PLC0415

        return np.column_stack([np.ones(len(shown)), (shown - self.mean) / self.scale])

    def probabilities(self, places: Sequence[GatePlace]) -> list[float]:
        """The probability of deferral at each place."""
        shown, *_ = _arrays(places)
        found: list[float] = _sigmoid(self._standardised(shown) @ self.theta).tolist()
        return found

    def loss(self, places: Sequence[GatePlace]) -> float:
        """The mean negative marginal log-likelihood, without penalty."""
        shown, p, q, _ = _arrays(places)
        return marginal(self.theta, self._standardised(shown), p, q)[0]

    def weights(self) -> list[float]:
        """The bias, and the weights of the raw features, which are not standardised."""
        plain = self.theta[1:] / self.scale
        bias = self.theta[0] - float((plain * self.mean).sum())
        return [rounded(one) for one in (bias, *plain)]


def rounded(number: float) -> float:
    """A number rounded as the file of a gate has it."""
    return float(f"{number:.{_DIGITS}g}") + 0.0


def marginal(theta: Any, x: Any, p: Any, q: Any) -> tuple[float, Any]:
    """The mean of -log[(1 - s) p + s q] with s = sigma(x . theta), and its gradient by theta."""
    import numpy as np  # noqa: PLC0415

    s = _sigmoid(x @ theta)
    likelihood = np.maximum((1 - s) * p + s * q, _LEAST)
    slope = -(q - p) * s * (1 - s) / likelihood
    return float(-np.log(likelihood).mean()), x.T @ slope / len(p)


def _sigmoid(logits: Any) -> Any:
    import numpy as np  # noqa: PLC0415

    return np.exp(-np.logaddexp(0, -logits))


def constant(places: Sequence[GatePlace], s: float) -> float:
    """The loss of one model alone."""
    import numpy as np  # noqa: PLC0415

    p, q = (np.array([getattr(place, name) for place in places], dtype=np.float64) for name in ("p", "q"))
    return float(-np.log(np.maximum((1 - s) * p + s * q, _LEAST)).mean())


def _arrays(places: Sequence[GatePlace]) -> tuple[Any, Any, Any, Any]:
    """Features, p, q and z."""
    import numpy as np  # noqa: PLC0415

    shown = np.array([place.shown for place in places], dtype=np.float64)
    p, q, z = (np.array([getattr(place, name) for place in places], dtype=np.float64) for name in ("p", "q", "label"))
    return shown, p, q, z


# Held-out places, and the threshold.


@dataclass(frozen=True, slots=True)
class HeldOutPlaces:
    """Places with probabilities of deferral, by gates that were not trained on them if the examples suffice.

    Attributes:
        scores: the probabilities.
        labels: z.
        loss: the mean negative marginal log-likelihood.
        held_out: whether the examples sufficed.
    """

    scores: Sequence[float]
    labels: Sequence[int]
    loss: float
    held_out: bool


def held_out(places: Sequence[GatePlace], folds: int, seed: int, penalty: float = PENALTY) -> HeldOutPlaces:
    """Probabilities of deferral at every place, by gates that were trained on other examples if these suffice."""
    groups = {place.group for place in places}
    handed = {place.group for place in places if place.label}
    if len(groups) < ENOUGH_EXAMPLES or len(handed) < ENOUGH_HANDED:
        gate = GateFit.of(places, penalty)
        return HeldOutPlaces(gate.probabilities(places), [one.label for one in places], gate.loss(places), False)
    scores: list[float] = []
    labels: list[int] = []
    loss = 0.0
    for train, test in split(places, folds=folds, seed=seed):
        learned, held = ([one for one in part if isinstance(one, GatePlace)] for part in (train, test))
        gate = GateFit.of(learned, penalty)
        scores += gate.probabilities(held)
        labels += [place.label for place in held]
        loss += gate.loss(held) * len(held) / len(places)
    return HeldOutPlaces(scores, labels, loss, True)


def youden(found: HeldOutPlaces) -> tuple[float, GateScore]:
    """Line 5: the threshold with the largest index, halfway between two scores; among equals the largest."""
    labels = found.labels
    positives, negatives = sum(labels), len(labels) - sum(labels)
    best = (0.0, 1.0, 0, 0)  # index, eta, found, wasted, for a gate that never opens
    right = wasted = 0
    ranked = sorted(zip(found.scores, labels, strict=True), reverse=True)
    for at, (score, label) in enumerate(ranked):
        right, wasted = right + label, wasted + 1 - label
        after = ranked[at + 1][0] if at + 1 < len(ranked) else 0.0
        index = right / positives - wasted / negatives
        if after < score and index > best[0]:
            best = (index, (score + after) / 2, right, wasted)
    _, eta, right, wasted = best
    rates = GateScore(
        found=right / positives,
        wasted=wasted / negatives,
        opens=(right + wasted) / len(labels),
        held_out=found.held_out,
    )
    return rounded(eta), rates
