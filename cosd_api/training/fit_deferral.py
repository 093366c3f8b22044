"""Training the gate of `defer`: by the marginal likelihood of reference answers, as Co-LLM trains its own.

::

    1   features f_t of what the draft shows in the place of the reference's token x_t, at every place
    2   z_t = 1 if the assistant's most probable token is x_t and the draft's is not
    3   first weights: logistic regression of z on f
    4   from there, least -log[(1 - s_t) p_draft(x_t) + s_t p_assistant(x_t)], s_t = sigma(bias + weights . f_t)
    5   eta: the largest TPR - FPR (Youden's index) of s > eta against z, on held-out examples

Lines 3 and 4 minimise a mean over all places with a small quadratic penalty on the weights of the standardised
features, without which a feature that tells the two cases apart would get an infinite weight. scipy, which comes with
scikit-learn, minimises; the file of the gate needs neither.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue

from cosd_api.checks import check_count
from cosd_api.errors import SettingError
from cosd_api.training.dataset import Samples
from cosd_api.training.evaluation import ENOUGH_EXAMPLES, LabelledPlace, split
from cosd_api.training.fit import (
    LARGEST_SEED,
    check_samples,
    check_sklearn,
    digest_of,
    pairs_of,
    sklearn_version,
)
from cosd_api.verification import DeferralVerifier
from cosd_api.verification.deferral import FEATURES, DeferralWeights, features
from cosd_api.version import __version__
from cosd_api.wording import counted, paragraph, with_notes

__all__ = ["DeferralCounts", "DeferralTraining", "HeldOut", "check_gate_training", "train_deferral"]

_PENALTY = 1e-3  # on half the squares of the weights of standardised features
_LEAST = 1e-12  # of a likelihood, so that its logarithm is finite
_DIGITS = 9  # of a weight: what a processor rounds otherwise does not reach the file
_ENOUGH_HANDED = 2


class DeferralCounts(BaseModel):
    """Counts of the data that a gate was trained on.

    Attributes:
        examples: all examples.
        places: tokens of their answers with known probabilities.
        handed: places where the assistant is right and the draft is not.
        skipped: tokens whose probabilities are not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    examples: int
    places: int
    handed: int
    skipped: int


class HeldOut(BaseModel):
    """The gate's decisions on the places by which `eta` was chosen.

    Attributes:
        found: share of the places with z = 1 at which it opens (the true positive rate).
        wasted: share of the others (the false positive rate).
        opens: share of all places.
        held_out: whether the places were held out; if not, it was trained on them.
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


class DeferralTraining(BaseModel):
    """A trained gate and the evidence for it; `str()` gives a report.

    Attributes:
        gate: `Fusion(..., method=Defer(gate=training.gate))`, or `training.gate.save(path)`.
        counts: counts of the data.
        losses: mean negative log-likelihood of a token of the references, in nats: by the `draft` alone, the
            `assistant` alone, the `first` weights (line 3), and the `gate`.
        score: the gate on the places by which `eta` was chosen.
        warnings: reasons to doubt it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    gate: DeferralVerifier
    counts: DeferralCounts
    losses: dict[str, float]
    score: HeldOut
    warnings: tuple[str, ...] = ()

    def report(self) -> str:
        """The data, the gate and its score. `str()` adds the warnings."""
        counts, score, gate = self.counts, self.score, self.gate
        about = (
            f"{counted(counts.examples, 'example')}: {counted(counts.places, 'token')}, "
            f"{counts.handed:,} of which the assistant would have written and the draft would not; "
            f"{counts.skipped:,} more whose probabilities are not known."
        )
        width = max(map(len, self.losses))
        likely = [f"  {name:{width}}  {loss:.4f}" for name, loss in self.losses.items()]
        weights = [f"  {name:8} {value:+.4g}" for name, value in gate.weights.model_dump().items()]
        where = "held-out examples" if score.held_out else "the examples that it was trained on"
        opens = (
            f"It opens where its probability is above {gate.eta:.4g}: on {where} at {score.opens:.1%} of all tokens, "
            f"at {score.found:.1%} of those to be handed over, and at {score.wasted:.1%} of the others "
            f"(Youden's index {score.youden:.3f})."
        )
        parts = [paragraph(about), "\n".join(["Negative log-likelihood of a token, in nats:", *likely])]
        parts += ["\n".join([f"Gate over {gate.listed} listed tokens:", *weights]), paragraph(opens)]
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return with_notes(self.report(), self.warnings)


def train_deferral(samples: Samples | Sequence[Samples], *, folds: int = 5, seed: int = 0) -> DeferralTraining:
    """Train the gate of `Defer` on samples that were collected with `listed`; sends no request.

    The same samples, in any order, and the same arguments give the same gate. With five or more examples, two of them
    with a token to be handed over, `eta` is chosen on held-out ones; with fewer on those that the gate was trained on.

    Args:
        samples: samples from `collect(..., listed=...)`, one data set or several with equal `listed`.
        folds: number of folds in which examples are held out.
        seed: seed of the folds.

    Raises:
        SettingError: the samples hold nothing to learn from, or were collected without `listed`; an argument is
            invalid; or scikit-learn is missing (`pip install "cosd-api[train]"`).
    """
    check_count("folds", folds, least=2)
    if check_count("seed", seed, least=0) > LARGEST_SEED:
        raise SettingError(f"seed must be at most {LARGEST_SEED}, not {seed}")
    check_gate_training()
    sets = check_samples(samples)
    listed = _listed(sets)
    places = _places(sets)
    skipped = sum(example.deferral_skipped for one in sets for example in one.examples)
    examples = len({example.example.key for one in sets for example in one.examples})
    counts = DeferralCounts(
        examples=examples, places=len(places), handed=sum(place.label for place in places), skipped=skipped
    )
    _check_labels(counts)
    first = _Gate.first(places)
    fitted = first.trained(places)
    scores, labels, is_held_out = _held_out(places, folds, seed)
    eta, score = _youden(scores, labels, held_out=is_held_out)
    pairs = pairs_of(sets)
    trained_on: dict[str, JsonValue] = {
        "pairs": pairs,
        "data": digest_of([one.deferral_digest for one in sets]),
        "counts": counts.model_dump(),
        "features": [*FEATURES],
        "folds": folds,
        "seed": seed,
        "scikit_learn": sklearn_version(),
        "library_version": __version__,
    }
    gate = DeferralVerifier(listed=listed, weights=fitted.weights(), eta=eta, trained_on=trained_on)
    losses = {
        "draft": _constant(places, 0.0),
        "assistant": _constant(places, 1.0),
        "first": first.loss(places),
        "gate": fitted.loss(places),
    }
    return DeferralTraining(
        gate=gate, counts=counts, losses=losses, score=score, warnings=_warnings(counts, losses, score, len(pairs))
    )


def check_gate_training() -> None:
    """Check that scikit-learn, and scipy with it, can be imported.

    Raises:
        SettingError: it is missing; the message names the extra.
    """
    check_sklearn("training a gate")


# The data.


@dataclass(frozen=True, slots=True)
class GatePlace(LabelledPlace):
    """One token of a reference: p and q are the models' probabilities of it, the label is z.

    Attributes:
        shown: the features of what the draft shows.
    """

    shown: tuple[float, ...] = ()


def _listed(sets: Sequence[Samples]) -> int:
    listed = {one.listed for one in sets}
    if None in listed:
        words = "the samples hold no lists of the draft's tokens, which a gate looks at"
        raise SettingError(f"{words}: collect them with listed=10 (cosd collect --listed 10)")
    if len(listed) > 1:
        raise SettingError(f"the samples were collected with listed={' and '.join(map(str, sorted(map(str, listed))))}")
    return next(one for one in listed if one is not None)


def _places(sets: Sequence[Samples]) -> list[GatePlace]:
    """Lines 1 and 2: every place, with its features and z."""
    groups: dict[str, int] = {}
    found: list[GatePlace] = []
    for one in sets:
        for example in one.examples:
            group = groups.setdefault(example.example.key, len(groups))
            for place in example.deferral or ():
                shown = features(place.draft, place.listed, end=not place.draft)
                found.append(GatePlace(place.p, place.q, 1 if place.handed else 0, group, shown=shown))
    return found


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


def _arrays(places: Sequence[GatePlace]) -> tuple[Any, Any, Any, Any]:
    """Features, p, q and z."""
    import numpy as np  # noqa: PLC0415 - an extra, and slow to load

    shown = np.array([place.shown for place in places], dtype=np.float64)
    p, q, z = (np.array([getattr(place, name) for place in places], dtype=np.float64) for name in ("p", "q", "label"))
    return shown, p, q, z


# The gate while it is trained.


@dataclass(frozen=True, slots=True)
class _Gate:
    """Weights of standardised features: `theta[0]` is the bias."""

    theta: Any
    mean: Any
    scale: Any

    @classmethod
    def first(cls, places: Sequence[GatePlace]) -> _Gate:
        """Line 3: logistic regression of z."""
        import numpy as np  # noqa: PLC0415

        shown, _, _, z = _arrays(places)
        mean, scale = shown.mean(axis=0), shown.std(axis=0)
        scale[scale < 1e-5] = np.inf  # what is nearly constant says nothing, and gets no weight
        start = cls(np.zeros(shown.shape[1] + 1), mean, scale)

        def logistic(theta: Any, x: Any) -> tuple[float, Any]:
            logits = x @ theta
            slope = x.T @ (_sigmoid(logits) - z) / len(z)
            return float((np.logaddexp(0, logits) - z * logits).mean()), slope

        return start._minimised(shown, logistic)

    def trained(self, places: Sequence[GatePlace]) -> _Gate:
        """Line 4: the least negative marginal log-likelihood, from these weights."""
        shown, p, q, _ = _arrays(places)

        def negative(theta: Any, x: Any) -> tuple[float, Any]:
            return marginal(theta, x, p, q)

        return self._minimised(shown, negative)

    def _minimised(self, shown: Any, loss: Callable[[Any, Any], tuple[float, Any]]) -> _Gate:
        import numpy as np  # noqa: PLC0415

        minimize: Any = getattr(import_module("scipy.optimize"), "minimize")  # noqa: B009 - it has no types
        x = self._standardised(shown)
        counts = np.array([0.0] + [1.0] * shown.shape[1])  # the bias is not drawn to 0

        def penalised(theta: Any) -> tuple[float, Any]:
            value, slope = loss(theta, x)
            return value + _PENALTY / 2 * float((counts * theta**2).sum()), slope + _PENALTY * counts * theta

        found = minimize(penalised, self.theta, jac=True, method="L-BFGS-B", options={"maxiter": 500})
        return _Gate(found.x, self.mean, self.scale)

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

    def weights(self) -> DeferralWeights:
        """The weights of the features as they are, not standardised."""
        plain = self.theta[1:] / self.scale
        bias = self.theta[0] - float((plain * self.mean).sum())
        rounded = [float(f"{one:.{_DIGITS}g}") + 0.0 for one in (bias, *plain)]
        return DeferralWeights.model_validate(dict(zip(("bias", *FEATURES), rounded, strict=True)))


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


def _constant(places: Sequence[GatePlace], s: float) -> float:
    """The loss of one model alone."""
    import numpy as np  # noqa: PLC0415

    _, p, q, _ = _arrays(places)
    return float(-np.log(np.maximum((1 - s) * p + s * q, _LEAST)).mean())


# The threshold.


def _held_out(places: Sequence[GatePlace], folds: int, seed: int) -> tuple[list[float], list[int], bool]:
    """Probabilities of deferral and z at every place: by gates that were trained on other examples, if they suffice."""
    groups = {place.group for place in places}
    handed = {place.group for place in places if place.label}
    if len(groups) < ENOUGH_EXAMPLES or len(handed) < _ENOUGH_HANDED:
        gate = _Gate.first(places).trained(places)
        return gate.probabilities(places), [place.label for place in places], False
    scores: list[float] = []
    labels: list[int] = []
    for train, test in split(places, folds=folds, seed=seed):
        learned, held = ([one for one in part if isinstance(one, GatePlace)] for part in (train, test))
        scores += _Gate.first(learned).trained(learned).probabilities(held)
        labels += [place.label for place in held]
    return scores, labels, True


def _youden(scores: Sequence[float], labels: Sequence[int], *, held_out: bool) -> tuple[float, HeldOut]:
    """Line 5: the threshold with the largest index, halfway between two scores; of equal ones the largest."""
    positives, negatives = sum(labels), len(labels) - sum(labels)
    best = (0.0, 1.0, 0, 0)  # index, eta, found, wasted: it never opens
    found = wasted = 0
    ranked = sorted(zip(scores, labels, strict=True), reverse=True)
    for at, (score, label) in enumerate(ranked):
        found, wasted = found + label, wasted + 1 - label
        after = ranked[at + 1][0] if at + 1 < len(ranked) else 0.0
        index = found / positives - wasted / negatives
        if after < score and index > best[0]:
            best = (index, (score + after) / 2, found, wasted)
    _, eta, found, wasted = best
    rates = HeldOut(
        found=found / positives, wasted=wasted / negatives, opens=(found + wasted) / len(labels), held_out=held_out
    )
    return float(f"{eta:.{_DIGITS}g}"), rates


def _warnings(counts: DeferralCounts, losses: dict[str, float], score: HeldOut, pairs: int) -> tuple[str, ...]:
    found: list[str] = []
    if pairs > 1:
        found.append(f"the samples are of {pairs} pairs of models, so the gate fits none of them alone")
    if not score.held_out:
        needed = f"{ENOUGH_EXAMPLES} examples, {_ENOUGH_HANDED} of them with a token to be handed over"
        found.append(f"eta was chosen on the examples that the gate was trained on: holding some out takes {needed}")
    if score.youden <= 0:
        found.append("the gate found nothing to tell the places apart by: it never opens")
    no_worse = [name for name in ("draft", "assistant") if losses["gate"] >= losses[name]]
    found += [f"the {name} alone gives the references as much likelihood as the gate" for name in no_worse]
    if counts.skipped > counts.places:
        words = f"{counts.skipped} tokens have no known probability, and {counts.places} have"
        found.append(f"{words}: do the models have one tokenizer?")
    return tuple(found)
