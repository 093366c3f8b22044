"""Pairs of alpha and beta, which of them is best, and how sure that is: what `tune` and `tune_answers` share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from cosd_api.errors import SettingError
from cosd_api.training.tuned import PAPER, Interval, Tuned
from cosd_api.verification import RuleVerifier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ENOUGH_EXAMPLES", "PAPER", "QUARTERS", "Tuned", "check_grid", "check_numpy", "chosen", "gridded"]

QUARTERS = (0.25, 0.5, 0.75, 1.0)
"""The values of alpha and of beta in the paper's Figure 2."""
ENOUGH_EXAMPLES = 5
"""From so many examples on an estimate on held-out ones says something."""

_TAILS = (2.5, 97.5)  # per cent: what lies between is the 95 % interval
_BLOCK = 4_000_000  # examples drawn at a time: some 100 MB


def check_grid(alphas: Sequence[float], betas: Sequence[float]) -> list[RuleVerifier]:
    """Every pair, in the order in which equally good ones are recommended: see `Tuned.best`.

    Raises:
        SettingError: there are none, a value is no alpha or no beta, or one is given twice.
    """
    for name, values in (("alphas", alphas), ("betas", betas)):
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise SettingError(f"{name} must be several numbers, such as (0.25, 0.5), not {values!r}")
        for value in values:
            _check_value(name, value)
        if len(set(values)) < len(values):
            raise SettingError(f"{name} has a value twice: {', '.join(f'{value:g}' for value in values)}")
    pairs = (RuleVerifier(alpha=alpha, beta=beta) for alpha in alphas for beta in betas)
    return sorted(pairs, key=lambda pair: (_distance(pair), pair.alpha, -pair.beta))


def _check_value(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        RuleVerifier.model_validate({name.removesuffix("s"): value if number else None})
    except ValidationError:
        raise SettingError(f"{name} must be numbers from 0 on, not {value!r}") from None


def _distance(pair: RuleVerifier) -> float:
    return abs(pair.alpha - PAPER.alpha) + abs(pair.beta - PAPER.beta)


def check_numpy() -> None:
    """Sees whether resampling can be done: before anything that takes long.

    Raises:
        SettingError: NumPy is missing; the message names the extra.
    """
    try:
        import_module("numpy")  # comes with an extra, and is slow to load
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise SettingError('tuning needs NumPy: pip install "cosd-api[train]"') from None


def gridded(pairs: Sequence[RuleVerifier], values: Iterable[float]) -> dict[float, dict[float, float]]:
    """Values of pairs by alpha and then by beta, both ascending."""
    found = {alpha: dict[float, float]() for alpha in sorted({pair.alpha for pair in pairs})}
    for pair, value in sorted(zip(pairs, values, strict=True), key=lambda one: one[0].beta):
        found[pair.alpha][pair.beta] = float(value)  # of NumPy's, perhaps
    return found


def chosen(pairs: Sequence[RuleVerifier], counts: NDArray[np.int64], resamples: int, seed: int) -> Tuned:
    """The best of `pairs`, and by the bootstrap over examples how sure that is.

    Args:
        pairs: as `check_grid` gives them.
        counts: a row for each example: how much is right with each pair, then with the paper's, and out of how much.
        resamples: how often as many examples are drawn with replacement.
        seed: of the draws.
    """
    import numpy as np  # noqa: PLC0415

    found: NDArray[np.float64] = _shares(counts.sum(axis=0, keepdims=True).astype(np.float64))[0]
    best = int(np.argmax(found[:-1]))  # the first of several
    interval = gain_interval = best_share = None
    if len(counts) > 1:
        ordered = counts[np.lexsort(counts.T)]  # in what order the examples come is a matter of timing
        again = _shares(_resampled(ordered, resamples, seed))
        interval = _interval(again[:, best])
        gain_interval = _interval(again[:, best] - again[:, -1])
        best_share = np.count_nonzero(again[:, :-1].argmax(axis=1) == best) / resamples
    return Tuned(
        accuracy=gridded(pairs, found[:-1]),
        best=pairs[best],
        interval=interval,
        paper=float(found[-1]),
        gain_interval=gain_interval,
        best_share=best_share,
        examples=len(counts),
        resamples=resamples,
        seed=seed,
        warnings=_about_few(len(counts)),
    )


def _about_few(examples: int) -> tuple[str, ...]:
    if examples >= ENOUGH_EXAMPLES:
        return ()
    words = (
        "a single example tells nothing of others" if examples == 1 else f"{examples} examples tell little of others"
    )
    interval = "" if examples == 1 else ", and so does an interval of so few"
    return (f"{words}{interval}: give at least {ENOUGH_EXAMPLES}",)


def _shares(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return sums[:, :-1] / sums[:, -1:]


def _interval(values: NDArray[np.float64]) -> Interval:
    import numpy as np  # noqa: PLC0415

    low, high = np.percentile(values, _TAILS)
    return float(low), float(high)


def _resampled(counts: NDArray[np.int64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Sums of the rows that were drawn: one line for each resample. They are whole numbers, exact as floats."""
    import numpy as np  # noqa: PLC0415

    source, size = np.random.default_rng(seed), len(counts)
    lines = max(1, _BLOCK // size)
    table = counts.astype(np.float64)
    blocks: list[NDArray[np.float64]] = []
    for begin in range(0, resamples, lines):
        count = min(lines, resamples - begin)
        draws = source.integers(size, size=(count, size)) + size * np.arange(count)[:, None]
        times = np.bincount(draws.ravel(), minlength=count * size).reshape(count, size)
        blocks.append(times.astype(np.float64) @ table)
    return np.concatenate(blocks)
