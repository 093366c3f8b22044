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
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from cosd_api import CoLLMVerifier, DeferralVerifier, SettingError, __version__
from cosd_api.extend import (
    DEFERRAL_FEATURES,
    DeferralSample,
    DeferralWeights,
    Gate,
    check_count,
    counted,
    deferral_features,
    paragraph,
    state_from_text,
    with_notes,
)
from cosd_api.training.dataset import Samples
from cosd_api.training.evaluation import ENOUGH_EXAMPLES
from cosd_api.training.fit import (
    LARGEST_SEED,
    check_samples,
    digest_of,
    pairs_of,
    sklearn_version,
)
from cosd_api.training.gate_fit import (
    PENALTY,
    GateFit,
    GatePlace,
    GateScore,
    HeldOutPlaces,
    constant,
    held_out,
    youden,
)

__all__ = [
    "PENALTIES",
    "DeferralCounts",
    "DeferralTraining",
    "train_deferral",
]

PENALTIES = (1.0, 1e-1, 1e-2, 1e-3)
"""Penalties that are tried for gates on hidden states."""
_UNTRIED = 1e-1  # the penalty that is used if there are too few examples to hold some out


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


def train_deferral(
    samples: Samples | Sequence[Samples], *, hidden_states: bool = False, folds: int = 5, seed: int = 0
) -> DeferralTraining:
    """Train a gate of `Defer` on samples that were collected for gates. This sends no request.

    The same samples, in any order, and the same arguments produce the same gate. The threshold `eta` is chosen on
    held-out examples, and so is the penalty of a gate on hidden states. This requires at least five examples; at least
    two of them must contain a token that should be handed over, and two a token that should be kept. With fewer
    examples, `eta` is chosen on the training examples.

    Args:
        samples: samples from `collect(..., listed=...)`, one data set, or several with the same `listed`. For a gate on
            hidden states: samples from `collect(..., hidden_states=True)` with one draft model.
        hidden_states: train a `CoLLMVerifier`, which uses the draft's last hidden state, instead of a
            `DeferralVerifier`, which uses the draft's lists of tokens.
        folds: number of folds for holding out examples.
        seed: seed of the folds.

    Raises:
        SettingError: the samples contain nothing to learn from, or lack the lists or hidden states that the gate uses;
            or an argument is invalid.
    """
    data = _Data(samples, folds, seed)
    gate: Gate
    if hidden_states:
        width = _width(data.sets)
        data.read(lambda place: state_from_text(place.state or "", width))
        penalty = data.best_penalty()
        (bias, *weights), evidence = data.trained(penalty)
        origin = data.trained_on(penalty=penalty)
        gate = CoLLMVerifier(width=width, bias=bias, weights=tuple(weights), eta=data.eta, trained_on=origin)
    else:
        listed, penalty = _listed(data.sets), PENALTY
        data.read(lambda place: deferral_features(place.draft, place.listed, end=not place.draft))
        weights, evidence = data.trained(penalty)
        named = DeferralWeights.model_validate(dict(zip(("bias", *DEFERRAL_FEATURES), weights, strict=True)))
        origin = data.trained_on(features=[*DEFERRAL_FEATURES])
        gate = DeferralVerifier(listed=listed, weights=named, eta=data.eta, trained_on=origin)
    return DeferralTraining(gate=gate, penalty=penalty, **evidence)


class _Data:
    """The training data, and the steps of training that are the same for all gates.

    Attributes:
        sets: the data sets.
        places: the tokens of the references; set by `read`.
        counts: counts of the data; set by `read`.
        eta: the threshold; set by `trained`.
    """

    def __init__(self, samples: Samples | Sequence[Samples], folds: int, seed: int) -> None:
        check_count("folds", folds, least=2)
        if check_count("seed", seed, least=0) > LARGEST_SEED:
            raise SettingError(f"seed must be at most {LARGEST_SEED}, not {seed}")
        self.sets = check_samples(samples)
        self.eta = 1.0
        self._folds, self._seed = folds, seed
        self._tried: dict[float, HeldOutPlaces] = {}

    def read(self, shown: Callable[[DeferralSample], Sequence[float]]) -> None:
        """Compute the features and z of every place (lines 1 and 2)."""
        groups: dict[str, int] = {}
        self.places = list[GatePlace]()
        for one in self.sets:
            for example in one.examples:
                group = groups.setdefault(example.example.key, len(groups))
                for place in example.deferral or ():
                    label: Any = 1 if place.handed else 0
                    self.places.append(GatePlace(place.p, place.q, label, group, shown=shown(place)))
        self.counts = DeferralCounts(
            examples=len(groups),
            places=len(self.places),
            handed=sum(place.label for place in self.places),
            skipped=sum(example.deferral_skipped for one in self.sets for example in one.examples),
        )
        _check_labels(self.counts)

    def best_penalty(self) -> float:
        """Return the penalty with the smallest loss on held-out examples; if several are equal, the largest penalty."""
        if not self._held_out(PENALTIES[0]).held_out:
            return _UNTRIED
        return min(PENALTIES, key=lambda penalty: self._held_out(penalty).loss)

    def _held_out(self, penalty: float) -> HeldOutPlaces:
        if penalty not in self._tried:
            self._tried[penalty] = held_out(self.places, self._folds, self._seed, penalty)
        return self._tried[penalty]

    def trained(self, penalty: float) -> tuple[list[float], dict[str, Any]]:
        """Train the gate (lines 3 to 5); return its parameters, the bias first, and the evidence for it.

        The evidence consists of the fields of `DeferralTraining` that do not describe the gate itself.
        """
        places = self.places
        first = GateFit.first(places, penalty)
        fitted = first.trained(places)
        self.eta, score = youden(self._held_out(penalty))
        losses = {
            "draft": constant(places, 0.0),
            "assistant": constant(places, 1.0),
            "first": first.loss(places),
            "gate": fitted.loss(places),
        }
        doubts = _warnings(self.counts, losses, score, len(pairs_of(self.sets)))
        return fitted.weights(), {"counts": self.counts, "losses": losses, "score": score, "warnings": doubts}

    def trained_on(self, **more: JsonValue) -> dict[str, JsonValue]:
        """Return the description of the training that the gate's file records."""
        return {
            "pairs": pairs_of(self.sets),
            "data": digest_of([one.deferral_digest for one in self.sets]),
            "counts": self.counts.model_dump(),
            **more,
            "folds": self._folds,
            "seed": self._seed,
            "scikit_learn": sklearn_version(),
            "library_version": __version__,
        }


def _listed(sets: Sequence[Samples]) -> int:
    listed = {one.listed for one in sets}
    if None in listed:
        words = "the samples hold no lists of the draft's tokens, which a gate uses"
        raise SettingError(f"{words}: collect them with listed=10 (cosd collect --listed 10)")
    if len(listed) > 1:
        raise SettingError(f"the samples were collected with listed={' and '.join(map(str, sorted(map(str, listed))))}")
    return next(one for one in listed if one is not None)


def _width(sets: Sequence[Samples]) -> int:
    widths = {one.hidden_states for one in sets}
    if None in widths:
        words = "the samples hold no hidden states of the draft, which the gate uses"
        raise SettingError(f"{words}: collect them with hidden_states=True (cosd collect --hidden-states)")
    if len(widths) > 1:
        several = " and ".join(sorted(map(str, widths)))
        raise SettingError(f"the samples are of models with hidden states of {several} numbers")
    return next(one for one in widths if one is not None)


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


def _warnings(counts: DeferralCounts, losses: dict[str, float], score: GateScore, pairs: int) -> tuple[str, ...]:
    found: list[str] = []
    if pairs > 1:
        found.append(f"the samples are of {pairs} pairs of models, so the gate fits none of them alone")
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
