"""Fitting of a gate: logistic regression, marginal likelihood and threshold.

Line numbers in this module refer to the numbered lines in the docstring of `fit_deferral`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from cosd_api.training.evaluation import LabelledPlace, lacking, split

__all__ = [
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
"""Factor of the penalty for gates with few features. The penalty is half the sum of the squared weights."""

_LEAST = 1e-12  # lower bound on a likelihood, so that its logarithm is finite
_DIGITS = 9  # significant digits of a weight: few enough that all processors, despite rounding, write the same file


@dataclass(frozen=True, slots=True)
class GatePlace(LabelledPlace):
    """A token of a reference: p and q are the two models' probabilities of this token, and the label is z (line 2).

    Attributes:
        shown: the features of the draft's list or hidden state.
    """

    shown: Sequence[float] = ()


class GateScore(BaseModel):
    """Rates of the gate's decisions at the places on which `eta` was chosen.

    Attributes:
        found: share of the places with z = 1 at which the gate opens (true positive rate).
        wasted: share of the places with z = 0 at which the gate opens (false positive rate).
        opens: share of all places at which the gate opens.
        held_out: whether the places were held out. If not, the gate was trained on the same places.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    found: float
    wasted: float
    opens: float
    held_out: bool

    @property
    def youden(self) -> float:
        """Youden's index: the true positive rate minus the false positive rate."""
        return self.found - self.wasted


@dataclass(frozen=True, slots=True)
class GateFit:
    """The fitted bias and weights of a gate, for standardised features.

    Attributes:
        theta: the bias, followed by the weights.
        mean: mean of each feature.
        scale: standard deviation of each feature.
        penalty: factor of the penalty, which is half the sum of the squared weights.
    """

    theta: Any
    mean: Any
    scale: Any
    penalty: float = PENALTY

    @classmethod
    def of(cls, places: Sequence[GatePlace], penalty: float = PENALTY) -> GateFit:
        """Train a gate on these places (lines 3 and 4)."""
        return cls.first(places, penalty).trained(places)

    @classmethod
    def first(cls, places: Sequence[GatePlace], penalty: float = PENALTY) -> GateFit:
        """Fit the first weights by logistic regression of z on the features (line 3)."""
        import numpy as np  # noqa: PLC0415 - an extra, and slow to load
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

        shown, _, _, z = _arrays(places)
        mean, scale = shown.mean(axis=0), shown.std(axis=0)
        scale[scale < 1e-5] = np.inf  # so that a nearly constant feature gets no weight
        # scikit-learn minimises C times the sum of the losses, plus half the sum of the squared weights.
        found: Any = LogisticRegression(C=1 / (penalty * len(z)), tol=1e-6, max_iter=500)
        found.fit((shown - mean) / scale, z)
        return cls(np.append(found.intercept_, found.coef_), mean, scale, penalty)

    def trained(self, places: Sequence[GatePlace]) -> GateFit:
        """Minimise the negative marginal log-likelihood, starting from these weights (line 4)."""
        import numpy as np  # noqa: PLC0415

        minimize: Any = getattr(import_module("scipy.optimize"), "minimize")  # noqa: B009 - it has no types
        shown, p, q, _ = _arrays(places)
        x = self._standardised(shown)
        counts = np.array([0.0] + [1.0] * shown.shape[1])  # the bias is not penalised

        def penalised(theta: Any) -> tuple[float, Any]:
            value, slope = marginal(theta, x, p, q)
            drawn = self.penalty * counts * theta
            return value + float(drawn @ theta) / 2, slope + drawn

        found = minimize(penalised, self.theta, jac=True, method="L-BFGS-B", options={"maxiter": 500})
        return GateFit(found.x, self.mean, self.scale, self.penalty)

    def _standardised(self, shown: Any) -> Any:
        import numpy as np  # noqa: PLC0415

        return np.column_stack([np.ones(len(shown)), (shown - self.mean) / self.scale])

    def probabilities(self, places: Sequence[GatePlace]) -> list[float]:
        """Return the probability of deferral at each place."""
        shown, *_ = _arrays(places)
        found: list[float] = _sigmoid(self._standardised(shown) @ self.theta).tolist()
        return found

    def loss(self, places: Sequence[GatePlace]) -> float:
        """The mean negative marginal log-likelihood, without the penalty."""
        shown, p, q, _ = _arrays(places)
        return marginal(self.theta, self._standardised(shown), p, q)[0]

    def weights(self) -> list[float]:
        """Return the bias, followed by the weights, for features that are not standardised."""
        plain = self.theta[1:] / self.scale
        bias = self.theta[0] - float((plain * self.mean).sum())
        return [rounded(one) for one in (bias, *plain)]


def rounded(number: float) -> float:
    """Round a number to the precision with which a gate's file stores it."""
    return float(f"{number:.{_DIGITS}g}") + 0.0


def marginal(theta: Any, x: Any, p: Any, q: Any) -> tuple[float, Any]:
    """The mean of -log[(1 - s) p + s q] with s = sigma(x . theta), and its gradient with respect to theta."""
    import numpy as np  # noqa: PLC0415

    s = _sigmoid(x @ theta)
    likelihood = np.maximum((1 - s) * p + s * q, _LEAST)
    slope = -(q - p) * s * (1 - s) / likelihood
    return float(-np.log(likelihood).mean()), x.T @ slope / len(p)


def _sigmoid(logits: Any) -> Any:
    import numpy as np  # noqa: PLC0415

    return np.exp(-np.logaddexp(0, -logits))


def constant(places: Sequence[GatePlace], s: float) -> float:
    """Return the loss of a constant probability `s` of deferral: 0 for the draft alone, 1 for the assistant alone."""
    import numpy as np  # noqa: PLC0415

    p, q = (np.array([getattr(place, name) for place in places], dtype=np.float64) for name in ("p", "q"))
    return float(-np.log(np.maximum((1 - s) * p + s * q, _LEAST)).mean())


def _arrays(places: Sequence[GatePlace]) -> tuple[Any, Any, Any, Any]:
    """Return the features, p, q and z of the places as arrays."""
    import numpy as np  # noqa: PLC0415

    shown = np.array([place.shown for place in places], dtype=np.float64)
    p, q, z = (np.array([getattr(place, name) for place in places], dtype=np.float64) for name in ("p", "q", "label"))
    return shown, p, q, z


# Held-out places, and the threshold.


@dataclass(frozen=True, slots=True)
class HeldOutPlaces:
    """The probability of deferral at each place, from gates that were trained on other examples if possible.

    Attributes:
        scores: the probability of deferral at each place.
        labels: z of each place.
        loss: the mean negative marginal log-likelihood.
        held_out: whether the gates were trained on other examples.
    """

    scores: Sequence[float]
    labels: Sequence[int]
    loss: float
    held_out: bool


def held_out(places: Sequence[GatePlace], folds: int, seed: int, penalty: float = PENALTY) -> HeldOutPlaces:
    """Compute the probability of deferral at each place, with gates trained on other examples if there are enough."""
    if lacking(places) is not None:
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
    """Choose the threshold with the largest Youden's index, halfway between two scores (line 5).

    If several thresholds have the same index, the largest is chosen.
    """
    import numpy as np  # noqa: PLC0415
    from sklearn import metrics  # noqa: PLC0415

    curve: Any = cast("Any", metrics).roc_curve(found.labels, found.scores, drop_intermediate=False)
    wasted, right, scores = curve
    at = int(np.argmax(right - wasted))  # among equals the first, which has the largest threshold
    below = scores[at + 1] if at + 1 < len(scores) else 0.0
    eta = (scores[at] + below) / 2 if at else 1.0  # the first point of the curve is a gate that never opens
    rates = GateScore(
        found=float(right[at]),
        wasted=float(wasted[at]),
        opens=float(np.mean(np.array(found.scores) > eta)),
        held_out=found.held_out,
    )
    return rounded(eta), rates
