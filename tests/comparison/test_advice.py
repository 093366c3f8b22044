"""Advice in words: each sentence for each decision, from counts alone."""

from __future__ import annotations

import random
from typing import Any

import pytest

from cosd_api.comparison.advice import AdviceCounts, Bill, Doubts, advice_words, reasoned
from cosd_api.comparison.looks import LookLine, Outcomes, SequentialTest, in_order, looked_at, room, schedule

MODELS = {"draft": "small", "assistant": "large"}
SETTINGS = {"method": "cosd", "options": {}, "verifier": {"kind": "rule", "alpha": 0.5, "beta": 0.5}}


def outcomes(*kinds: tuple[int, str]) -> Outcomes:
    """So many questions of each kind: who is right, the draft (d), the assistant (a), the ways v and w."""
    right: dict[str, dict[str, bool]] = {name: {} for name in "davw"}
    every = [kind for count, kind in kinds for _ in range(count)]
    for key, kind in zip(in_order(f"q{at}" for at in range(len(every))), every, strict=True):
        for name, one in right.items():
            one[key] = name in kind
    return Outcomes({"draft": right["d"], "assistant": right["a"]}, {"v": right["v"], "w": right["w"]})


def words(found: Outcomes, looks: Any = "end", **more: Any) -> tuple[AdviceCounts, str]:
    """The advice on outcomes, and it in words."""
    order, trial = in_order(found.questions), SequentialTest()
    looked_at(found, order, schedule(len(order), looks=looks), trial)
    fields = {**reasoned(found, trial, 0.05, complete=True), "questions": len(order), "settings": SETTINGS, **more}
    advice = AdviceCounts(**fields)
    return advice, advice_words(advice, MODELS, [*MODELS])


def test_fuse() -> None:
    bills = {"draft": Bill(requests=1, billed=100, seconds=2, money=0.001)}
    bills["fused"] = Bill(requests=3.5, billed=420, seconds=3, money=0.004)
    advice, text = words(outcomes((60, "davw"), (20, "vw"), (20, "dvw")), bills=bills)
    assert (advice.decision, advice.model, advice.way, advice.tested, advice.looks) == ("fuse", "draft", "v", 100, 1)
    assert advice.gain is not None
    assert text == (
        "Fuse them. Let the draft (small) draft and the assistant (large) assist, by cosd with the verifier rule "
        f"(alpha=0.5, beta=0.5). That gains at least {100 * advice.gain.low:.0f} points over the better model alone "
        "(the draft): of 100 questions it had 100 (100%) right, and that model 80 (80%). The error is at most 5 %, "
        "with 2 ways and 1 look counted; the gain seen, +20, tends to be too large, as it was picked for being large. "
        "An answer takes 3.5 requests and bills 420 tokens, 4.2 times those of the draft alone, and 1.5 times its "
        "time; a thousand answers cost 4.00, and 1.00 alone. The draft does not report its probabilities: where it "
        "doubts is not known. The assistant does not report its probabilities: where it doubts is not known."
    )


def test_alone() -> None:
    advice, text = words(outcomes((148, "davw"), (50, "dvw"), (1, "dw"), (1, "dv")))
    assert (advice.decision, advice.model) == ("alone", "draft") and advice.upper is not None
    assert text.startswith(
        "Use the draft (small) alone. No way to fuse gains 5 points or more: the best of 2, cosd with the verifier "
        "rule (alpha=0.5, beta=0.5), is 0.5 points behind, and none gains more than 1 point. Of 200 questions the "
        "draft alone had 200 (100%) right, the assistant alone 148 (74%). The draft does not"
    )
    advice, text = words(outcomes((60, "dav"), (40, "d")))
    assert "the best of 2, cosd with the verifier rule (alpha=0.5, beta=0.5), is 40 points behind. Of 100" in text


def test_alone_for_want_of_room() -> None:
    found = outcomes((150, "davw"), (49, "d"), (1, "a"))
    keys = found.questions
    there = room(found, keys, keys[:150])
    advice = AdviceCounts(
        **reasoned(Outcomes(found.alone, {}), SequentialTest(), 0.05, complete=True, room=there), questions=len(keys)
    )
    assert (advice.decision, advice.model, advice.way) == ("alone", "draft", None)
    assert advice_words(advice, MODELS, [*MODELS]).startswith(
        "Use the draft (small) alone. No way to fuse gains 5 points or more: that model was wrong, and the models' "
        "texts differ, at only 1 of 200 questions (at most 4 points of all questions). Of 200 questions the draft "
        "alone had 199"
    )


def test_undecided() -> None:
    advice, text = words(outcomes((70, "davw"), (10, "vw"), (5, "d"), (15, "a")))
    assert (advice.decision, advice.way, advice.more is not None) == ("undecided", "v", True)
    assert advice.gain is not None and advice.gain.low < 0 < advice.gain.high
    assert text.startswith(
        "Undecided. Use the assistant (large) alone for now. Of 2 ways to fuse the best is cosd with the verifier rule "
        "(alpha=0.5, beta=0.5), with 80 (80%) of 100 questions right: -5, between "
    )
    assert (
        "points. With an error of at most 5 % (2 ways and 1 look counted) that shows no gain, and it does not exclude "
        "one of 5 points. Of 100 questions the assistant alone had 85 (85%) right, the draft alone 75 (75%). About "
    ) in text
    assert "more questions would decide: add them to the file and ask again." in text


def test_the_number_still_needed_has_two_digits() -> None:
    for more, shown in ((7, "7"), (86, "86"), (123, "130"), (1101, "1,200"), (12_000, "12,000")):
        _, text = words(outcomes((70, "davw"), (10, "vw"), (5, "d"), (15, "a")), more=more)
        assert f"About {shown} more questions would decide" in text


def test_an_audit_that_disagrees_is_said() -> None:
    found = outcomes((70, "davw"), (10, "vw"), (5, "d"), (15, "a"))
    assert (
        "If all models wrote the same text, ways are assumed to write it, too. Of 9 answers to such questions that "
        "were requested as a check, 2 had another grade: distrust this advice, and compare instead."
    ) in words(found, equal=60, audited=9, disagreed=2)[1]
    assert "distrust" not in words(found, equal=60, audited=9)[1]


def test_where_doubts_sit() -> None:
    found = outcomes((60, "davw"), (20, "vw"), (20, "dvw"))
    doubts = {"draft": Doubts(answers=9, wrong=4, sure=0, alpha=0.9)}
    doubts["assistant"] = Doubts(answers=9, wrong=4, sure=1, alpha=0.9)
    assert words(found, doubts=doubts)[1].endswith(
        "The assistant alone was wrong in 4 of 9 answers, and in 1 of these it was sure of every token (0.9 or more). "
        "So the doubts are where the errors are, as a rule with alpha = 0.9 needs."
    )
    doubts = dict.fromkeys(MODELS, Doubts(answers=9, wrong=4, sure=3, alpha=0.9))
    assert (
        "If the draft and the assistant draft, a rule with alpha = 0.9 asks no assistant"
        in words(found, doubts=doubts)[1]
    )
    doubts["draft"] = Doubts(answers=9, wrong=0, sure=0, alpha=0.9)
    assert "If the assistant drafts, a rule with alpha = 0.9 asks no assistant" in words(found, doubts=doubts)[1]


def test_doubts_of_an_earlier_record_are_those_by_the_default_of_that_time() -> None:
    old = Doubts.model_validate({"answers": 9, "wrong": 4, "sure": 3})
    text = words(outcomes((60, "davw"), (20, "vw"), (20, "dvw")), doubts=dict.fromkeys(MODELS, old))[1]
    assert (
        "sure of every token (0.5 or more)" in text and "a rule with alpha = 0.5 asks no assistant about these" in text
    )


# How often it errs.


def advised(runs: int, seed: int, gain: float, counts: tuple[int, ...]) -> float:
    """The share of runs that advise to fuse, on a file that grows; six ways gain so much over one of two models."""
    rng, fused = random.Random(seed), 0
    for run in range(runs):
        keys = [f"{seed} {run} {at}" for at in range(counts[-1])]
        draft = {key: rng.random() < 0.5 for key in keys}
        ways: dict[str, dict[str, bool]] = {}
        for way in "uvwxyz":
            ways[way] = {key: one != (rng.random() < (0.2 if one else 0.2 + 2 * gain)) for key, one in draft.items()}
        found = Outcomes({"draft": draft, "assistant": dict.fromkeys(keys, False)}, ways)
        trial, earlier = SequentialTest(), list[LookLine]()
        for count in counts:
            order = in_order(keys[:count], [key for one in earlier for key in one.questions])
            plan, made = schedule(count, earlier), len(trial.seen)
            verdict = looked_at(found, order, plan, trial)
            for seen, (_, spend) in zip(trial.seen[made:], plan, strict=False):
                there = {key for one in earlier for key in one.questions}
                new = tuple(key for key in seen.questions if key not in there)
                earlier.append(LookLine(questions=new, ways=tuple(seen.ways), spent=spend, of=count))
            if verdict == "fuse":
                fused += 1
                break
    return fused / runs


@pytest.mark.extended
def test_pairs_that_must_not_be_fused_are_not_however_often_they_are_asked() -> None:
    # At most 0.05 in the long run; three standard deviations of 100 runs are 0.065.
    assert advised(100, 1, 0.0, (40, 80, 160)) <= 0.05 + 0.065


@pytest.mark.extended
def test_gains_are_found() -> None:
    assert advised(60, 2, 0.15, (100,)) >= 0.8
