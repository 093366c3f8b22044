"""Tuning of alpha and beta by the number of right answers, as in the paper's Figure 2.

For every pair of alpha and beta, all examples are answered and the right answers are counted.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar, Never

from cosd_api import Example, Fusion, FusionResult, RuleVerifier
from cosd_api.apps.training.dataset import check_examples
from cosd_api.apps.training.evaluation import ENOUGH_EXAMPLES, QUARTERS, check_grid
from cosd_api.apps.training.fit import check_folds
from cosd_api.apps.training.tuning import GridTuning, by_grid, grid_tuning
from cosd_api.checks import check_unit
from cosd_api.common.wording import counted
from cosd_api.extend import Endpoints, Unit
from cosd_api.settings import DEFAULT_MAX_TOKENS, refuse_settings
from cosd_providers import Provider
from cosd_providers.messages import OnSpecialTokens

_Pair = tuple[float, float]
"""A pair of alpha and beta."""


class AnswerTuning(GridTuning):
    """Accuracy of fused answers, and the recommended pair: `Fusion(..., verifier=tuning.recommended)`.

    `accuracy` is the share of right answers, and `examples` counts all examples.

    Attributes:
        acceptance_rate: draft tokens kept / (kept + replaced) over all answers, indexed by alpha and then by beta. A
            lower rate means slower answers.
        fused: number of answers that were fused. The remaining answers needed no request: a pair's answer is the same
            as an earlier pair's if it contests only places that the earlier pair contests, and makes the same decisions
            there.
    """

    measured: ClassVar[str] = "answers"

    acceptance_rate: dict[float, dict[float, float]]
    fused: int

    def _about_best(self) -> str:
        kept = self.acceptance_rate[self.best.alpha][self.best.beta]
        answers = counted(self.examples, "answer")
        return f"{super()._about_best()} {answers} are right, and {kept:.0%} of the draft's tokens are kept."


def is_right(example: Example, text: str) -> bool:
    """Test whether a text is a right answer to the example.

    If the example has a `target`, the text must contain it as whole words. Otherwise, the text must equal the example's
    `answer`; if `ends` is False, the text only has to begin with the answer. Case matters, but the amount of white
    space does not.
    """
    wanted, found = (
        " ".join(unicodedata.normalize("NFC", one).split()) for one in (example.target or example.answer, text)
    )
    if example.target is not None:
        return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", found) is not None
    return found == wanted if example.ends else re.match(rf"{re.escape(wanted)}(?!\w)", found) is not None


async def tune_answers(
    examples: Iterable[Example | Mapping[str, Any]],
    *,
    draft: str | Provider,
    assistant: str | Provider | Sequence[str | Provider],
    alphas: Sequence[float] = QUARTERS,
    betas: Sequence[float] = QUARTERS,
    right: Callable[[Example, str], bool] | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    stop: str | Sequence[str] | None = None,
    unit: Unit | None = None,
    on_special_tokens: OnSpecialTokens = "warn",
    concurrency: int = 8,
    progress: Callable[[int, int], None] | None = None,
    folds: int = 5,
    seed: int = 0,
    **refused: Never,
) -> AnswerTuning:
    """Count the right answers for every pair of alpha and beta, and recommend a pair.

    The default pair and the paper's pair are always tried as well. Each example needs at most
    `len(alphas) * len(betas) + 2` answers, and usually far fewer (see `AnswerTuning.fused`). Answers are checked as
    they arrive, in the order of the examples. The first error ends the run, as in `Fusion.map`.

    Args:
        examples: `Example` objects, or dictionaries with the same fields.
        draft: URL of a server, or a provider, which stays open for the whole run.
        assistant: URL or provider, or a list of them.
        alphas: values of alpha to try; by default as in the paper's Figure 2.
        betas: values of beta to try; by default as in the paper's Figure 2.
        right: function that judges whether a text is a right answer to an example; by default `is_right`.
        max_tokens: limit for each answer, as in `Fusion.stream`.
        stop: stop strings; an answer ends before the first one that it contains.
        unit: unit in which the draft's tokens are judged; by default, it is chosen by comparing the tokenizers.
        on_special_tokens: as in `Fusion`.
        concurrency: number of answers written at the same time.
        progress: function that is called with the number of known answers and the total, at the start and after each
            answer.
        folds: number of folds in which examples are held out.
        seed: seed of the folds and of the interval's resamples.

    Raises:
        SettingError: an argument is invalid.
        ProviderError: a server failed; the error's `partial` contains the unfinished answer.
    """
    refuse_settings(refused, tune_answers)
    import numpy as np  # noqa: PLC0415 - slow to load

    pairs = check_grid(alphas, betas)
    check_folds(folds, seed)
    asked = [*check_examples(examples).values()]
    servers = Endpoints(draft, assistant, unit=check_unit(unit))
    known: list[dict[_Pair, _Outcome]] = [{} for _ in asked]
    # Pairs that contest the most places come first, because their answers can then often be reused for other pairs.
    wanted = sorted(pairs, key=lambda pair: (-pair.alpha, pair.beta))
    judge, fused = right or is_right, 0
    async with servers:
        for number, pair in enumerate(wanted):
            missing = _missing(known, pair)
            done = (number + 1) * len(asked) - len(missing)
            if progress is not None:
                progress(done, len(asked) * len(wanted))
            fusion = Fusion(
                draft=servers.draft,
                assistant=servers.assistants,
                verifier=pair,
                unit=unit,
                on_special_tokens=on_special_tokens,
            )
            prompts = [asked[at].prompt for at in missing]
            answers = fusion.map(prompts, concurrency=concurrency, max_tokens=max_tokens, stop=stop)
            async with fusion, aclosing(answers):
                for at in missing:
                    result = await anext(answers)
                    known[at][_key(pair)] = _Outcome.of(result, pair, right=bool(judge(asked[at], result.text)))
                    done, fused = done + 1, fused + 1
                    if progress is not None:
                        progress(done, len(asked) * len(wanted))
    # A row of `counts` has a 1 for each pair whose answer is right, and then a total of 1.
    counts = np.array([[*(one[_key(pair)].right for pair in pairs), True] for one in known], dtype=np.int64)
    fold = np.random.default_rng(seed).permutation(len(asked)) % folds if len(asked) >= ENOUGH_EXAMPLES else None
    tuned = dict(grid_tuning(pairs, counts, fold, seed))
    if fold is None:
        doubt = f"the gain on new examples is unknown: an estimate needs {ENOUGH_EXAMPLES} examples"
        tuned["warnings"] = (doubt,)
    rates = by_grid(pairs, [_acceptance([one[_key(pair)] for one in known]) for pair in pairs])
    return AnswerTuning(**tuned, acceptance_rate=rates, fused=fused)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Summary of one answer.

    Attributes:
        pair: the rule with which the answer was fused.
        right: whether the answer is right.
        kept: number of draft tokens that were kept.
        replaced: number of draft tokens that were replaced.
        decisions: p, q, and whether the assistant's word replaced the draft's, for every place where the models
            differed.
        whole: whether `decisions` contains every decision that influenced the answer. Decisions after a stop string are
            unknown. With several assistants, a replacement by one of them hides the word that another would have
            written.
    """

    pair: RuleVerifier
    right: bool
    kept: int
    replaced: int
    decisions: frozenset[tuple[float, float, bool]]
    whole: bool

    @classmethod
    def of(cls, result: FusionResult, pair: RuleVerifier, *, right: bool) -> _Outcome:
        """Summarise an answer that was fused with `pair`."""
        decisions = frozenset(
            (one.draft_prob, one.prob, one.fired)
            for token in result.tokens
            for one in token.decisions
            if not one.agreed and one.draft_prob is not None and one.prob is not None
        )
        ended = bool(result.tokens) and result.tokens[-1].end
        whole = ended or (result.finish_reason, result.stop_reason) == ("length", "max_tokens")
        whole &= len(result.assistants) == 1 or not result.replacements
        return cls(pair, right, result.kept_tokens or 0, result.replaced_tokens or 0, decisions, whole)

    def holds_with(self, other: RuleVerifier) -> bool:
        """Test whether the rule `other` would provably produce the same answer.

        The answer is the same if `other` contests only places that `pair` contests, and makes the same decision at
        every place where an assistant differed from the draft.
        """
        return (
            self.whole
            and _contests_no_more(other, self.pair)
            and all(other.replaces(p, q) == fired for p, q, fired in self.decisions)
        )


def _contests_no_more(other: RuleVerifier, pair: RuleVerifier) -> bool:
    """Test whether `pair` contests every draft probability that `other` contests.

    Every rule contests all probabilities up to some bound, so only the highest probability below `other.alpha` is
    tested.
    """
    highest = min(1.0, math.nextafter(other.alpha, 0.0))  # the largest probability below alpha
    return pair.contestable(highest) or (other.alpha <= pair.alpha and other.beta >= pair.beta)


def _key(pair: RuleVerifier) -> _Pair:
    return pair.alpha, pair.beta


def _missing(known: Sequence[dict[_Pair, _Outcome]], pair: RuleVerifier) -> list[int]:
    """Return the indices of the examples whose answer with this pair is unknown.

    If the answer with an earlier pair provably holds for this pair, record it for this pair, too.
    """
    missing: list[int] = []
    for at, outcomes in enumerate(known):
        same = next((one for one in outcomes.values() if one.holds_with(pair)), None)
        if same is None:
            missing.append(at)
        else:
            outcomes[_key(pair)] = same
    return missing


def _acceptance(outcomes: Sequence[_Outcome]) -> float:
    kept, replaced = sum(one.kept for one in outcomes), sum(one.replaced for one in outcomes)
    return kept / (kept + replaced) if kept + replaced else 1.0
