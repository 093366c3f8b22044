"""The real pair: questions that no training has, a grader that can say no, and the rules at the seam."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from functools import cache
from itertools import islice, pairwise
from pathlib import Path

import pytest

from benchmarks.real_pair import learned, own_messages
from benchmarks.real_pair.arithmetic import KINDS, calculation, split_of
from benchmarks.real_pair.cells import CELLS
from benchmarks.real_pair.kept import ALL, RESULTS, keep, keep_journal, read, restore_journal
from benchmarks.real_pair.learned import LEARNED
from benchmarks.real_pair.outcomes import Answered, apart, better, lower_bound
from benchmarks.real_pair.page import written
from benchmarks.real_pair.plot import drawn, label
from benchmarks.real_pair.questions import (
    COUNTS,
    FAMILIES,
    FORMAT,
    MIXTURES,
    documents,
    families_of,
    family_of,
    is_right,
    main,
    question_of,
    questions,
    training_questions,
)
from benchmarks.real_pair.router import router
from benchmarks.real_pair.seam import RULES, Listed, SeamRule
from benchmarks.real_pair.spoilt import kind_of
from benchmarks.real_pair.trainings import literal, scenario, swapped
from benchmarks.real_pair.world import ATTRIBUTES, general, library, names
from cosd_api import CoSD, RuleVerifier
from cosd_api.apps.comparison.contestants import ORACLE, REVERSED
from cosd_api.apps.demo.real import QUESTIONS, real_questions, tells_all
from toys.sample_comparison import sample_comparison

asked = cache(questions)  # it takes seconds


def test_the_questions_are_those_of_the_protocol() -> None:
    count = {family: sum(family_of(one) == family for one in asked("test")) for family in FAMILIES}
    assert {name: count[name] for name in FAMILIES[:3]} == {name: COUNTS[name] for name in FAMILIES[:3]}
    assert count["general"] == 22
    assert [one.key for one in asked("test")] == [one.key for one in questions("test")]
    assert not {one.group for one in asked("test")} & {one.group for one in asked("development")}


@pytest.mark.parametrize("specialist", MIXTURES)
def test_no_training_has_read_what_a_test_asks(specialist: str) -> None:
    read_by = {one.question for one in islice(documents(specialist, 1), 6000)}
    later = [question_of(one) for one in [*asked("test"), *asked("development")]]
    assert not read_by & set(later)
    alone = [question_of(one) for one in asked("test") if family_of(one) == "numbers"]
    assert not [text for text in alone for one in list(read_by)[:500] if text in one]


def test_a_specialist_reads_its_shares_and_every_conversation_is_true() -> None:
    for specialist, mixture in MIXTURES.items():
        several = [*islice(documents(specialist, 7), 3000)]
        two = sum(re.search("And another question|Two questions|Also:", one.question) is not None for one in several)
        assert abs(two / 3000 - mixture.get("both", 0.0)) < 0.03
        assert sum(mixture.values()) == pytest.approx(1)
    assert next(documents("products", 1)) != next(documents("products", 2))


@pytest.mark.parametrize("kind", KINDS)
def test_calculations_are_right(kind: str) -> None:
    """Every equation in an answer holds, and its last number is the value."""
    rng = random.Random(3)
    for _ in range(200):
        part = calculation(rng, "test", kind)
        assert split_of(part.group) == "test"
        for left, sign, right, total in re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", part.answer):
            assert int(left) + int(right) * (1 if sign == "+" else -1) == int(total)
        assert tells_all(part.value, part.answer)


def test_a_right_answer_is_right_and_another_one_is_not() -> None:
    for one in asked("test"):
        assert is_right(one, one.answer)
    by_family = {family: [one for one in asked("test") if family_of(one) == family] for family in FAMILIES}
    for several in by_family.values():
        wrong = sum(is_right(one, other.answer) for one, other in pairwise(several))
        assert wrong < 0.2 * len(several)
    assert not tells_all("59", "34 + 25 = 59 and 59 - 12 = 47.") and tells_all("47", "34 + 25 = 59 and 59 - 12 = 47.")
    assert not tells_all("green", "The lamp is evergreen.") and tells_all("green", "Green is the lamp.")
    assert not tells_all("1964 | 12", "It appeared in 1964.")


def test_names_are_different_and_there_are_enough() -> None:
    assert len({*names()}) == 160 and len(library()) == 84 and len(general()) == 76
    for one in ATTRIBUTES:
        assert not {*one.questions} & {*one.held}


def test_the_router_tells_both_families_apart() -> None:
    assert {*training_questions(100).values()} == {"facts", "numbers"}
    chosen = router()
    right = [
        chosen(question_of(one)) == (family_of(one) == "facts")
        for one in asked("test")
        if family_of(one) in FAMILIES[:2]
    ]
    assert sum(right) > 0.95 * len(right)


def test_the_demonstration_has_the_first_questions() -> None:
    before = QUESTIONS.read_text(encoding="utf-8")
    main()
    assert QUESTIONS.read_text(encoding="utf-8") == before
    assert len(real_questions()) == 20 and all(tells_all(one.target, one.answer) for one in real_questions())


def test_ways_of_a_cell_have_names() -> None:
    for cell in CELLS.values():
        if not {*cell.ways} & {*LEARNED}:
            assert [*cell.methods(1)] == [*cell.ways]


def test_learned_verifiers_are_read_for_the_draft_that_they_were_learned_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = {"kind": "rule", "alpha": 0.75, "beta": 1.0}
    found = {"products": dict.fromkeys(LEARNED, rule), "numbers": {name: {**rule, "alpha": 0.25} for name in LEARNED}}
    monkeypatch.setattr(learned, "path_of", lambda seed: tmp_path / f"{seed}.json")
    (tmp_path / "3.json").write_text(json.dumps(found), encoding="utf-8")
    first, second = (CELLS[name].methods(3)["cosd-tuned"] for name in ("learned", "learned-reversed"))
    assert (first, second) == tuple(CoSD(verifier=RuleVerifier(alpha=alpha, beta=1)) for alpha in (0.75, 0.25))


def test_questions_of_forgetting_know_a_list_and_a_function() -> None:
    asked = CELLS["forgetting"].questions(1.0)
    assert families_of(asked) == ["facts", "general", FORMAT]
    assert all(is_right(one, one.answer) for one in asked)
    listed, function = [one for one in asked if family_of(one) == FORMAT][:2]
    assert is_right(listed, "1. Apple\n2. Pear\n3. Plum") and is_right(
        function, "```python\ndef f(a):\n    return a\n```"
    )
    assert not is_right(listed, "The fruits are apple, pear and plum.") and not is_right(
        function, "def f is a function"
    )
    read_by = [one.question for one in islice(documents("facts-only", 1), 500)]
    assert not [text for text in read_by if re.search(r"plus|capital|opposite|And another", text)]


def test_own_messages_tell_what_is_asked() -> None:
    several = [*own_messages.asked()]
    assert len({one.example.key for one in several}) == len(several) == 252
    for one in several:
        assert is_right(one.example, one.example.answer)
        if family_of(one.example) == "facts":
            assert one.example.answer in one.document
        assert one.document.count(".") == 15


def _answers(way: str, right: Sequence[bool], groups: Sequence[str] = ()) -> list[Answered]:
    return [
        Answered(way, str(at), "facts", groups[at] if groups else str(at), right=one, uncached=10.0, seconds=2.0)
        for at, one in enumerate(right)
    ]


def test_a_table_has_the_questions_that_all_have_answered_and_counts_groups_once() -> None:
    half, all_right = [True, False] * 20, [True] * 40
    several = [*_answers("draft", half), *_answers("assistant", [*half, True]), *_answers("x", all_right)]
    table = apart("t", several, ("draft", "assistant"))
    assert table.columns[1:3] == ["facts (40)", "all (40)"]
    assert [row[1] for row in table.rows] == ["50.0", "50.0", "100.0"]
    assert str(table.rows[2][3]).startswith("+50.0 (+")
    one_group = [
        line for way, right in (("draft", half), ("x", all_right)) for line in _answers(way, right, ["a"] * 40)
    ]
    [_, row] = apart("t", one_group, ("draft",)).rows
    assert row[3] == "+50.0 (+0 to +100)"  # a single piece of evidence shows nothing


def test_a_table_has_the_questions_rescued_and_lost_beside_the_ceiling() -> None:
    either = _answers("either", [True, True, False, False])
    models = [*_answers("draft", [True, False, False, False]), *_answers("assistant", [False, True, False, False])]
    table = apart("t", [*models, *either, *_answers("x", [False, True, True, True])], ("draft", "assistant"), "either")
    at = table.columns.index("rescued:lost")
    assert [row[at] for row in table.rows] == ["", "", "", "2:1"]
    assert str(table.rows[3][at + 1]).startswith("+25.0 (-")


def test_the_lower_bound_is_below_the_difference_and_grows_with_the_questions() -> None:
    def bounds(count: int) -> tuple[float, float]:
        first, second = [True, False, True, True] * count, [True, True, False, True] * count
        return lower_bound([*_answers("a", first), *_answers("b", second)], "a", "b")

    (few, low), (many, lower) = bounds(10), bounds(100)
    assert few == many == 0 and low < lower < 0


def test_swapped_labels_seldom_differ() -> None:
    rng = random.Random(1)
    several = [
        *_answers("draft", [rng.random() < 0.5 for _ in range(60)]),
        *_answers("cosd-0.9-1", [rng.random() < 0.9 for _ in range(60)]),
    ]
    assert 0 < swapped(several, 100) <= 0.12


def test_the_picture_is_the_same_each_time_and_compares_with_the_better_model() -> None:
    models = [*_answers("draft", [True, False, False]), *_answers("assistant", [True, True, False])]
    table = apart("t", [*models, *_answers("cosd, reversed", [True] * 3)], ("draft", "assistant"))
    assert table.columns[better(table)] == "vs assistant"
    labels = {"cosd": "the rule", REVERSED: ", `numbers` drafts"}
    picture = drawn({"capacity": table}, labels)
    assert picture == drawn({"capacity": table}, labels)
    assert "the rule, numbers drafts" in picture and "capacity" in picture
    assert label("vs draft", {"draft": "`products` alone"}) == "vs `products` alone"


def test_a_scenario_has_the_ceiling_and_the_literal_ways_by_name() -> None:
    table = scenario(("copy", 1))
    rows = {str(row[0]): row for row in table.rows}
    assert {"draft", "assistant", ORACLE, "cosd-1-1"} <= {*rows} and table.columns.count("rescued:lost") == 1
    assert literal("cosd-1-1, reversed") == "cosd-1-1, literal, reversed"


def test_kept_results_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "x-1.json.xz"
    found = sample_comparison()
    keep({ALL: found, "facts": found}, path)
    back = read(path)
    assert back[ALL].model_dump_json() == found.model_dump_json()
    assert back["facts"].model_dump_json() == found.model_copy(update={"answers": ()}).model_dump_json()


def test_a_journal_comes_back_where_there_is_none(tmp_path: Path) -> None:
    journal, result = tmp_path / "work" / "x-1.jsonl", tmp_path / "x-1.json.xz"
    restore_journal(journal, result)
    assert not journal.exists()
    journal.parent.mkdir()
    journal.write_text("a\n", encoding="utf-8")
    keep_journal(journal, result)
    journal.write_text("a\nb\n", encoding="utf-8")
    restore_journal(journal, result)
    assert journal.read_text(encoding="utf-8") == "a\nb\n"
    journal.unlink()
    restore_journal(journal, result)
    assert journal.read_text(encoding="utf-8") == "a\n"


@pytest.mark.extended
def test_kept_results_are_of_these_questions() -> None:
    for path in RESULTS.glob("*.json.xz"):
        known = {one.key for one in CELLS[path.name.rsplit("-", 1)[0]].questions(1.0)}
        assert {one.question for one in read(path)[ALL].answers} <= known, path


@pytest.mark.extended
def test_the_documents_have_the_tables_of_what_was_kept() -> None:
    for path, text in written().items():
        assert path.read_text(encoding="utf-8") == text, "run `python -m benchmarks.real_pair --page`"


# The seam.


def test_kinds_of_spoilt_answers() -> None:
    draft, assistant = "The lamp is red. 34 + 25 = 59.", "The lamp is blue. 34 + 25 = 58."
    assert kind_of("The lamp is red. 34 + 25 = 50.", draft, assistant, cut=False) == "a value that neither wrote"
    assert kind_of("The lamp is reddish. 34 + 25 = 59.", draft, assistant, cut=False) == "a word that neither wrote"
    assert kind_of("The lamp is blue. 34 + 25 = 59.", draft, assistant, cut=False) == "the assistant's words"
    assert kind_of(draft * 9, draft, assistant, cut=True) == "cut or repeated"


def test_rules_ask_and_replace_as_defined() -> None:
    paper, floor = RULES["(.5, .5)"], RULES["(.5, .5), q >= .5"]
    assert paper.asks(0.49, "x", fresh=False, inside=False) and not paper.asks(0.5, "x", fresh=True, inside=True)
    own, other, sure = (Listed(n, "", {1: p, 2: q}) for n, p, q in ((1, 0.3, 0.2), (2, 0.15, 0.16), (2, 0.2, 0.5)))
    assert [paper.chosen(own, other), floor.chosen(own, other), floor.chosen(own, sure)] == [2, 1, 2]
    margin, mean = SeamRule(0.9, 1, margin=0.3), SeamRule(0.9, 1, mean=True)
    assert [margin.chosen(own, sure), mean.chosen(own, sure), mean.chosen(own, other)] == [1, 2, 1]
    named = SeamRule(0.5, 1, named=0.97)
    assert [named.asks(0.6, text, fresh=False, inside=False) for text in (" Rome", " 7", " is")] == [True, True, False]
    after, whole = SeamRule(0.5, 1, after=True), SeamRule(0.5, 1, whole=True)
    assert after.asks(0.9, "x", fresh=True, inside=False) and not after.asks(0.9, "x", fresh=False, inside=True)
    assert whole.asks(0.9, "7", fresh=False, inside=True) and not whole.asks(0.9, " 7", fresh=True, inside=True)
    assert RULES["(1, 1)"].asks(1.0, "x", fresh=False, inside=False)
