"""Training of the gates of `defer`, by the marginal likelihood of reference answers, as in Co-LLM.

::

    1   for every token x_t of a reference: features f_t of the draft's list or hidden state at its position
    2   z_t = 1 if the assistant's most probable token is x_t and the draft's is not
    3   first weights: logistic regression of z on f
    4   from there, minimise -log[(1 - s_t) p_draft(x_t) + s_t p_assistant(x_t)], s_t = sigma(bias + weights . f_t)
    5   eta: the threshold with the largest TPR - FPR (Youden's index) of s > eta against z, on held-out examples

The features describe the draft's list of tokens, or are the numbers of its last hidden state. Lines 3 and 4 minimise a
mean over all places, plus a small quadratic penalty on the weights of the standardised features. Without the penalty, a
feature that separates the two cases perfectly would get an infinite weight. A hidden state has many features;
therefore, its penalty is chosen from a few values, by the smallest loss (line 4) on held-out examples. Line 3 and the
curve of line 5 are scikit-learn's; the minimiser of line 4 is part of SciPy, which is installed with it. Neither is
needed to load a trained gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from cosd_api import CoLLMVerifier, DeferralVerifier, SettingError
from cosd_api.apps.training.dataset import Samples
from cosd_api.apps.training.evaluation import ENOUGH_EXAMPLES, LabelledPlace, fold_of_each, lacking
from cosd_api.apps.training.fit import check_folds, check_samples, origin_of
from cosd_api.common.wording import counted, paragraph, with_notes
from cosd_api.forcing import DeferralSample, state_from_text
from cosd_api.verification import DEFERRAL_FEATURES, DeferralWeights, Gate, deferral_features

PENALTY = 1e-3
"""Factor of the penalty for gates with few features. The penalty is half the sum of the squared weights."""
PENALTIES = (1.0, 1e-1, 1e-2, 1e-3)
"""Penalties that are tried for gates on hidden states."""
_UNTRIED = 1e-1  # the penalty that is used if there are too few examples to hold some out
_LEAST = 1e-12  # lower bound on a likelihood, so that its logarithm is finite
_DIGITS = 9  # significant digits of a weight: few enough that all processors, despite rounding, write the same file


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


class DeferralCounts(BaseModel):
    """Counts of the data that a gate was trained on.

    Attributes:
        examples: number of examples.
        places: number of tokens in the reference answers for which both models' probabilities are known.
        handed: number of places where the assistant is right and the draft is not.
        skipped: number of tokens whose probabilities are unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    examples: int
    places: int
    handed: int
    skipped: int


class DeferralTraining(BaseModel):
    """A trained gate of `Defer` and the evidence for it; `str()` gives a report.

    Attributes:
        gate: the gate, for `Fusion(..., method=Defer(gate=training.gate))` or `training.gate.save(path)`.
        penalty: coefficient of the L2 penalty. The penalty itself is half the sum of the squared weights of the
            standardised features.
        counts: counts of the data.
        losses: mean negative log-likelihood per token of the references, in nats: for the `draft` alone, the
            `assistant` alone, the `first` weights (line 3), and the `gate`.
        score: the gate's score on the places by which `eta` was chosen.
        warnings: reasons to doubt the gate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    gate: Annotated[Gate, Field(discriminator="kind")]
    penalty: float = PENALTY
    counts: DeferralCounts
    losses: dict[str, float]
    score: GateScore
    warnings: tuple[str, ...] = ()

    def report(self) -> str:
        """Describe the data, the gate and its score. `str()` adds the warnings."""
        counts, score = self.counts, self.score
        about = (
            f"{counted(counts.examples, 'example')}: {counted(counts.places, 'token')}, "
            f"{counts.handed:,} of which the assistant would have written and the draft would not; "
            f"{counts.skipped:,} more whose probabilities are not known."
        )
        width = max(map(len, self.losses))
        likely = [f"  {name:{width}}  {loss:.4f}" for name, loss in self.losses.items()]
        where = "held-out examples" if score.held_out else "the examples that it was trained on"
        opens = (
            f"It was trained with a penalty of {self.penalty:g}, and opens where its probability is above "
            f"{self.gate.eta:.4g}: on {where} at {score.opens:.1%} of all tokens, at {score.found:.1%} of the tokens "
            f"to be handed over, and at {score.wasted:.1%} of the others (Youden's index {score.youden:.3f})."
        )
        losses = "\n".join(["Negative log-likelihood of a token, in nats:", *likely])
        return "\n\n".join([paragraph(about), losses, self.gate.summary, paragraph(opens)])

    def __str__(self) -> str:
        return with_notes(self.report(), self.warnings)


def train_deferral(samples: Samples, *, hidden_states: bool = False, folds: int = 5, seed: int = 0) -> DeferralTraining:
    """Train a gate of `Defer` on samples that were collected for gates. This sends no request.

    The same samples, in any order, and the same arguments produce the same gate. The threshold `eta` is chosen on
    held-out examples, and so is the penalty of a gate on hidden states. This requires at least five examples; at least
    two of them must contain a token that should be handed over, and two a token that should be kept. With fewer
    examples, `eta` is chosen on the training examples.

    Args:
        samples: samples from `collect(..., listed=...)`; for a gate on hidden states, from
            `collect(..., hidden_states=True)`.
        hidden_states: train a `CoLLMVerifier`, which uses the draft's last hidden state, instead of a
            `DeferralVerifier`, which uses the draft's lists of tokens.
        folds: number of folds for holding out examples.
        seed: seed of the folds.

    Raises:
        SettingError: the samples contain nothing to learn from, or lack the lists or hidden states that the gate uses;
            or an argument is invalid.
    """
    check_folds(folds, seed)
    samples = check_samples(samples)
    if hidden_states:
        if (width := samples.hidden_states) is None:
            words = "the samples hold no hidden states of the draft, which the gate uses"
            raise SettingError(f"{words}: collect them with hidden_states=True (cosd collect --hidden-states)")
        data = _Data.of(samples, lambda place: state_from_text(place.state or "", width), folds, seed)
        penalty = data.best_penalty()
    else:
        if samples.listed is None:
            words = "the samples hold no lists of the draft's tokens, which a gate uses"
            raise SettingError(f"{words}: collect them with listed=10 (cosd collect --listed 10)")
        data = _Data.of(samples, _features, folds, seed)
        penalty = PENALTY
    first = _Weights.first(data, penalty)
    fitted = first.trained(data)
    eta, score = youden(data.held_out(penalty), data.z, held_out=data.folds is not None)
    losses = {
        "draft": data.loss(0.0),
        "assistant": data.loss(1.0),
        "first": first.loss(data),
        "gate": fitted.loss(data),
    }
    more: dict[str, JsonValue] = {"penalty": penalty} if hidden_states else {"features": [*DEFERRAL_FEATURES]}
    origin = origin_of(samples, samples.deferral_digest, data.counts, **more, folds=folds, seed=seed)
    bias, *weights = fitted.plain()
    gate: Gate
    if hidden_states:
        gate = CoLLMVerifier(width=len(weights), bias=bias, weights=tuple(weights), eta=eta, trained_on=origin)
    else:
        named = DeferralWeights.model_validate({"bias": bias, **dict(zip(DEFERRAL_FEATURES, weights, strict=True))})
        gate = DeferralVerifier(listed=samples.listed or 0, weights=named, eta=eta, trained_on=origin)
    doubts = _warnings(data.counts, losses, score)
    return DeferralTraining(gate=gate, penalty=penalty, counts=data.counts, losses=losses, score=score, warnings=doubts)


def _features(place: DeferralSample) -> Sequence[float]:
    return deferral_features(place.draft, place.listed, end=not place.draft)


@dataclass(slots=True)
class _Data:
    """The tokens of the references, as arrays with one entry for each token.

    Attributes:
        shown: the features of the draft's list or hidden state (line 1).
        p: the draft's probability of the token.
        q: the assistant's probability of the token.
        z: 1 if the token is to be handed over, else 0 (line 2).
        folds: number of the fold that holds the token's example out; None if there are too few examples.
    """

    counts: DeferralCounts
    shown: Any
    p: Any
    q: Any
    z: Any
    folds: Any = None

    @classmethod
    def of(cls, samples: Samples, shown: Callable[[DeferralSample], Sequence[float]], folds: int, seed: int) -> _Data:
        """Compute the features and z of every token."""
        import numpy as np  # noqa: PLC0415 - slow to load

        places: list[LabelledPlace] = []
        features: list[Sequence[float]] = []
        for group, one in enumerate(samples.examples):
            for place in one.deferral or ():
                places.append(LabelledPlace(place.p, place.q, 1 if place.handed else 0, group))
                features.append(shown(place))
        counts = DeferralCounts(
            examples=len(samples.examples),
            places=len(places),
            handed=sum(place.label for place in places),
            skipped=sum(one.deferral_skipped for one in samples.examples),
        )
        _check_labels(counts)
        p, q, z = (np.array([getattr(place, name) for place in places], dtype=float) for name in ("p", "q", "label"))
        found = cls(counts, np.array(features, dtype=float), p, q, z)
        if lacking(places) is None:
            fold = fold_of_each(places, folds=folds, seed=seed)
            found.folds = np.array([fold[place.group] for place in places])
        return found

    def part(self, chosen: Any) -> _Data:
        """Return the tokens at which the array `chosen` is True."""
        return _Data(self.counts, self.shown[chosen], self.p[chosen], self.q[chosen], self.z[chosen])

    def loss(self, s: Any) -> float:
        """Return the mean negative marginal log-likelihood if `s` is the probability of deferral at each token."""
        return _losses(s, self.p, self.q)[0]

    def held_out(self, penalty: float) -> Any:
        """Return the probability of deferral at each token, by gates that were trained on other examples.

        If there are too few examples, the gate was trained on the same examples.
        """
        import numpy as np  # noqa: PLC0415

        if self.folds is None:
            return _Weights.of(self, penalty).probabilities(self.shown)
        found = np.empty(len(self.z))
        for fold in range(self.folds.max() + 1):
            there = self.folds == fold
            found[there] = _Weights.of(self.part(~there), penalty).probabilities(self.shown[there])
        return found

    def best_penalty(self) -> float:
        """Return the penalty with the smallest loss on held-out examples; if several are equal, the largest penalty."""
        if self.folds is None:
            return _UNTRIED
        return min(PENALTIES, key=lambda penalty: self.loss(self.held_out(penalty)))


@dataclass(frozen=True, slots=True)
class _Weights:
    """The bias and weights of a gate, for standardised features.

    Attributes:
        theta: the bias, followed by the weights.
        penalty: factor of the penalty, which is half the sum of the squared weights.
    """

    theta: Any
    mean: Any
    scale: Any
    penalty: float

    @classmethod
    def of(cls, data: _Data, penalty: float) -> _Weights:
        """Train a gate (lines 3 and 4)."""
        return cls.first(data, penalty).trained(data)

    @classmethod
    def first(cls, data: _Data, penalty: float) -> _Weights:
        """Fit the first weights by logistic regression of z on the features (line 3)."""
        import numpy as np  # noqa: PLC0415
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415

        mean, scale = data.shown.mean(axis=0), data.shown.std(axis=0)
        scale[scale < 1e-5] = np.inf  # so that a nearly constant feature gets no weight
        # scikit-learn minimises C times the sum of the losses, plus half the sum of the squared weights.
        found: Any = LogisticRegression(C=1 / (penalty * len(data.z)), tol=1e-6, max_iter=500)
        found.fit((data.shown - mean) / scale, data.z)
        return cls(np.append(found.intercept_, found.coef_), mean, scale, penalty)

    def trained(self, data: _Data) -> _Weights:
        """Minimise the negative marginal log-likelihood, starting from these weights (line 4)."""
        import numpy as np  # noqa: PLC0415

        minimize: Any = getattr(import_module("scipy.optimize"), "minimize")  # noqa: B009 - it has no types
        x = self._standardised(data.shown)
        counts = np.array([0.0] + [1.0] * data.shown.shape[1])  # the bias is not penalised

        def penalised(theta: Any) -> tuple[float, Any]:
            value, slope = marginal(theta, x, data.p, data.q)
            drawn = self.penalty * counts * theta
            return value + float(drawn @ theta) / 2, slope + drawn

        found = minimize(penalised, self.theta, jac=True, method="L-BFGS-B", options={"maxiter": 500})
        return replace(self, theta=found.x)

    def _standardised(self, shown: Any) -> Any:
        import numpy as np  # noqa: PLC0415

        return np.column_stack([np.ones(len(shown)), (shown - self.mean) / self.scale])

    def probabilities(self, shown: Any) -> Any:
        """Return the probability of deferral for each row of features."""
        return _sigmoid(self._standardised(shown) @ self.theta)

    def loss(self, data: _Data) -> float:
        """The mean negative marginal log-likelihood, without the penalty."""
        return data.loss(self.probabilities(data.shown))

    def plain(self) -> list[float]:
        """Return the bias, followed by the weights, for features that are not standardised."""
        weights = self.theta[1:] / self.scale
        bias = self.theta[0] - float((weights * self.mean).sum())
        return [_rounded(one) for one in (bias, *weights)]


def _rounded(number: float) -> float:
    """Round a number to the precision with which a gate's file stores it."""
    return float(f"{number:.{_DIGITS}g}") + 0.0


def marginal(theta: Any, x: Any, p: Any, q: Any) -> tuple[float, Any]:
    """The mean of -log[(1 - s) p + s q] with s = sigma(x . theta), and its gradient with respect to theta."""
    s = _sigmoid(x @ theta)
    loss, likelihood = _losses(s, p, q)
    slope = -(q - p) * s * (1 - s) / likelihood
    return loss, x.T @ slope / len(p)


def _losses(s: Any, p: Any, q: Any) -> tuple[float, Any]:
    """Return the mean of -log[(1 - s) p + s q], and the likelihood of each token."""
    import numpy as np  # noqa: PLC0415

    likelihood = np.maximum((1 - s) * p + s * q, _LEAST)
    return float(-np.log(likelihood).mean()), likelihood


def _sigmoid(logits: Any) -> Any:
    import numpy as np  # noqa: PLC0415

    return np.exp(-np.logaddexp(0, -logits))


def youden(s: Any, z: Any, *, held_out: bool) -> tuple[float, GateScore]:
    """Choose the threshold with the largest Youden's index, halfway between two probabilities (line 5).

    If several thresholds have the same index, the largest is chosen.

    Args:
        s: the probability of deferral at each token.
        z: 1 for each token to be handed over, else 0.
        held_out: whether the tokens were held out.
    """
    import numpy as np  # noqa: PLC0415
    from sklearn import metrics  # noqa: PLC0415

    curve: Any = cast("Any", metrics).roc_curve(z, s, drop_intermediate=False)
    wasted, right, thresholds = curve
    at = int(np.argmax(right - wasted))  # among equals the first, which has the largest threshold
    below = thresholds[at + 1] if at + 1 < len(thresholds) else 0.0
    eta = (thresholds[at] + below) / 2 if at else 1.0  # the first point of the curve is a gate that never opens
    opens = float(np.mean(np.asarray(s) > eta))
    score = GateScore(found=float(right[at]), wasted=float(wasted[at]), opens=opens, held_out=held_out)
    return _rounded(eta), score


def _check_labels(counts: DeferralCounts) -> None:
    if not counts.places:
        words = f"no token of the {counted(counts.examples, 'example')} has known probabilities"
        raise SettingError(f"there is nothing to train on: {words} ({counts.skipped} were skipped)")
    if not counts.handed:
        words = f"at none of {counted(counts.places, 'token')} is the assistant right and the draft wrong"
        more = "add examples that the assistant can answer and the draft cannot (if there are none, the draft alone"
        raise SettingError(f"there is nothing to hand over: {words}; {more} is as good)")
    if counts.handed == counts.places:
        words = f"at all {counted(counts.places, 'token')} the assistant is right and the draft wrong"
        raise SettingError(f"there is nothing to keep: {words}; add examples that the draft can answer")


def _warnings(counts: DeferralCounts, losses: dict[str, float], score: GateScore) -> tuple[str, ...]:
    found: list[str] = []
    if not score.held_out:
        needed = f"{ENOUGH_EXAMPLES} examples, 2 of them with a token to be handed over, and 2 with one to be kept"
        found.append(f"eta was chosen on the examples that the gate was trained on: holding some out needs {needed}")
    if score.youden <= 0:
        found.append("the gate found no way to tell the places apart: it never opens")
    no_worse = [name for name in ("draft", "assistant") if losses["gate"] >= losses[name]]
    found += [f"the {name} alone gives the references as much likelihood as the gate" for name in no_worse]
    if counts.skipped > counts.places:
        words = f"{counts.skipped} tokens have no known probability, and {counts.places} have"
        found.append(f"{words}: do the models have one tokenizer?")
    return tuple(found)
