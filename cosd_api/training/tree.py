"""Training the tree `T(p, q)` that decides (section 3.2 and equation 7 of the CoSD paper)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from pydantic import JsonValue

from cosd_api.errors import SettingError
from cosd_api.records import Endpoint
from cosd_api.training.evaluation import TREE, Comparison, Decide, Place, baselines, held_out, places_of
from cosd_api.training.grid import QUARTERS
from cosd_api.training.growing import COMPARING, ClassWeight, Growing, check_sklearn, sklearn_version
from cosd_api.training.samples import Samples
from cosd_api.training.trained import Counts, Training, about_data, about_tree, about_worth
from cosd_api.training.wording import about_dropped, one_sided
from cosd_api.verification import TreeVerifier
from cosd_api.version import __version__

__all__ = ["compare", "train_tree"]


def train_tree(
    samples: Samples | Sequence[Samples],
    *,
    depth: int | None = None,
    min_leaf: int | None = None,
    keep_agreeing: bool = False,
    class_weight: ClassWeight | None = "balanced",
    folds: int = 5,
    seed: int = 0,
) -> Training:
    """Trains a decision tree on `[p, q]` to say whose word stands where two models differ; nothing is sent.

    Three examples are enough, as in the paper. From five on that have a place where just one of the models is right,
    depth and leaf size are chosen by cross-validation over whole examples, and the tree is compared with the rule on
    held-out ones; with fewer its depth is 2, and nothing is known of how good it is. The same samples, in any order,
    and the same arguments give the same tree.

    Args:
        samples: what `collect` gathered, or several of that. An example that occurs more than once is held out once.
        depth: questions in a row at most, up to 12; None chooses.
        min_leaf: places that an answer stands for at least; None chooses.
        keep_agreeing: trains on places too where both models are right, with label 0, as the paper words it. They
            carry no decision, and never count in the comparison.
        class_weight: `"balanced"` makes the places where the draft is right weigh as much in all as those where the
            assistant is, and chooses by balanced accuracy; None counts every place as one, and chooses by accuracy.
        folds: of the cross-validation.
        seed: of the folds and of scikit-learn's draws.

    Raises:
        SettingError: the samples hold nothing to learn from, with what they lack; an argument is none; scikit-learn is
            missing (`pip install "cosd-api[train]"`).
    """
    growing = Growing(depth, min_leaf, class_weight, folds, seed)
    check_sklearn()
    sets = _checked(samples)
    places = places_of(sets, keep_agreeing=keep_agreeing)
    counts = Counts.of(sets, places)
    _check_labels(counts, places)
    grown = growing.grow(places)
    comparison = _compared(places, growing)
    pairs = _pairs(sets)
    trained_on: dict[str, JsonValue] = {
        "pairs": pairs,
        "data": _digest(sets),
        "counts": counts.model_dump(),
        "features": ["p", "q"],
        "depth": grown.depth,
        "min_leaf": grown.min_leaf,
        "keep_agreeing": keep_agreeing,
        "class_weight": class_weight,
        "folds": folds,
        "seed": seed,
        "scikit_learn": sklearn_version(),
        "library_version": __version__,
    }
    tree = TreeVerifier(nodes=grown.nodes, trained_on=trained_on)
    warnings = (*about_data(len(pairs), places, counts), *about_tree(tree), *about_worth(comparison, growing))
    return Training(
        tree=tree,
        depth=grown.depth,
        min_leaf=grown.min_leaf,
        given=growing.given,
        chosen=grown.chosen,
        counts=counts,
        comparison=comparison,
        warnings=warnings,
    )


def compare(
    samples: Samples | Sequence[Samples],
    *,
    alphas: Sequence[float] = QUARTERS,
    betas: Sequence[float] = QUARTERS,
    folds: int = 5,
    seed: int = 0,
) -> Comparison | None:
    """Both constants, the rule, the rule tuned over a grid, and a tree, on the same held-out examples.

    None where the samples do not suffice: with fewer than five examples that have a place where just one of the models
    is right, or fewer than two for one of the models.

    Raises:
        SettingError: a value is no alpha or beta, or scikit-learn is missing.
    """
    check_sklearn(COMPARING)
    return _compared(places_of(_checked(samples)), Growing(folds=folds, seed=seed), alphas, betas)


def _compared(
    places: Sequence[Place], growing: Growing, alphas: Sequence[float] = QUARTERS, betas: Sequence[float] = QUARTERS
) -> Comparison | None:
    # The tree's depth and leaf size are chosen anew for each fold, from what it is trained on.
    def grown(train: Sequence[Place]) -> Decide:
        return growing.grow(train).tree.replaces

    methods = {**baselines(alphas, betas), TREE: grown}
    return held_out(places, methods, folds=growing.folds, seed=growing.seed)


# What the data lacks.


def _checked(samples: Samples | Sequence[Samples]) -> Sequence[Samples]:
    sets = [samples] if isinstance(samples, Samples) else samples
    if not isinstance(sets, Sequence) or not all(isinstance(one, Samples) for one in sets):
        raise SettingError("samples must be what collect() returns or Samples.load() reads, or a list of such")
    if not any(one.examples for one in sets):
        raise SettingError("there is nothing to train on: the samples have no examples")
    # `collect` keeps examples as they are done, which is a matter of timing: no tree may depend on that.
    ordered = [
        one.model_copy(update={"examples": tuple(sorted(one.examples, key=lambda found: found.example.key))})
        for one in sets
    ]
    return sorted(ordered, key=lambda one: one.digest)


def _check_labels(counts: Counts, places: Sequence[Place]) -> None:
    right = counts.draft_right + counts.assistant_right
    if not right + counts.agreeing + counts.dropped:
        raise SettingError(
            f"there is nothing to train on: no place of the {counts.examples} examples could be judged "
            f"({counts.skipped} were skipped)"
        )
    if not right:
        words = f"the two models agree at {counts.agreeing} places, and at {counts.dropped} neither is right"
        more = "add examples that one of them can answer and the other cannot"
        raise SettingError("; ".join([f"there is nothing to decide: {words}", more, *about_dropped(0, counts.dropped)]))
    if len({place.label for place in places}) == 1:  # those where both agree included, where they are to train
        raise SettingError(one_sided(counts.draft_right, counts.assistant_right))


# Where the tree comes from.


def _pairs(sets: Sequence[Samples]) -> list[JsonValue]:
    """The pairs of models, each once; of an endpoint no address, which may hold what is nobody's business."""
    found: list[JsonValue] = []
    for one in sets:
        pair: JsonValue = {"draft": _model(one.draft), "assistant": _model(one.assistant), "unit": one.unit}
        if pair not in found:
            found.append(pair)
    return found


def _model(endpoint: Endpoint | None) -> JsonValue:
    return None if endpoint is None else {"engine": endpoint.engine, "model": endpoint.model}


def _digest(sets: Sequence[Samples]) -> str:
    if len(sets) == 1:
        return sets[0].digest
    return hashlib.sha256(" ".join(one.digest for one in sets).encode()).hexdigest()
