"""The real pair: questions that no training has, a grader that can say no, and the rules at the seam."""

from __future__ import annotations

import random
import re
from itertools import islice, pairwise
from pathlib import Path

import pytest

from benchmarks.real_pair.arithmetic import KINDS, calculation, split_of
from benchmarks.real_pair.cells import CELLS
from benchmarks.real_pair.kept import ALL, RESULTS, keep, keep_journal, read, restore_journal
from benchmarks.real_pair.page import written
from benchmarks.real_pair.questions import (
    COUNTS,
    FAMILIES,
    MIXTURES,
    documents,
    family_of,
    is_right,
    main,
    question_of,
    questions,
    training_questions,
)
from benchmarks.real_pair.router import router
from benchmarks.real_pair.seam import RULES, SeamRule
from benchmarks.real_pair.spoilt import kind_of
from benchmarks.real_pair.world import ATTRIBUTES, general, library, names
from cosd_api.demo.real_questions import QUESTIONS, real_questions, tells_all
from sample_comparison import sample_comparison

TEST, DEVELOPMENT = questions("test"), questions("development")


def test_the_questions_are_those_of_the_protocol() -> None:
    count = {family: sum(family_of(one) == family for one in TEST) for family in FAMILIES}
    assert {name: count[name] for name in FAMILIES[:3]} == {name: COUNTS[name] for name in FAMILIES[:3]}
    assert count["general"] == 22
    assert [one.key for one in TEST] == [one.key for one in questions("test")]
    assert not {one.group for one in TEST} & {one.group for one in DEVELOPMENT}


@pytest.mark.parametrize("specialist", MIXTURES)
def test_no_training_has_read_what_a_test_asks(specialist: str) -> None:
    read_by = {one.question for one in islice(documents(specialist, 1), 6000)}
    later = [question_of(one) for one in [*TEST, *DEVELOPMENT]]
    assert not read_by & set(later)
    alone = [question_of(one) for one in TEST if family_of(one) == "numbers"]
    assert not [text for text in alone for one in list(read_by)[:500] if text in one]


def test_a_specialist_reads_its_shares_and_every_conversation_is_true() -> None:
    for specialist, mixture in MIXTURES.items():
        several = [*islice(documents(specialist, 7), 3000)]
        two = sum(re.search("And another question|Two questions|Also:", one.question) is not None for one in several)
        assert abs(two / 3000 - mixture["both"]) < 0.03
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
    for one in TEST:
        assert is_right(one, one.answer)
    by_family = {family: [one for one in TEST if family_of(one) == family] for family in FAMILIES}
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
    right = [chosen(question_of(one)) == (family_of(one) == "facts") for one in TEST if family_of(one) in FAMILIES[:2]]
    assert sum(right) > 0.95 * len(right)


def test_the_demonstration_has_the_first_questions() -> None:
    before = QUESTIONS.read_text(encoding="utf-8")
    main()
    assert QUESTIONS.read_text(encoding="utf-8") == before
    assert len(real_questions()) == 20 and all(tells_all(one.target, one.answer) for one in real_questions())


def test_ways_of_a_cell_have_names() -> None:
    for cell in CELLS.values():
        assert [*cell.methods] == [*cell.ways]


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


def test_kept_results_are_of_these_questions() -> None:
    known = {one.key for one in TEST}
    for path in RESULTS.glob("*.json.xz"):
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
    assert paper.replaces(0.3, 0.16) and not floor.replaces(0.3, 0.16) and floor.replaces(0.3, 0.5)
    after, whole = SeamRule(0.5, 1, after=True), SeamRule(0.5, 1, whole=True)
    assert after.asks(0.9, "x", fresh=True, inside=False) and not after.asks(0.9, "x", fresh=False, inside=True)
    assert whole.asks(0.9, "7", fresh=False, inside=True) and not whole.asks(0.9, " 7", fresh=True, inside=True)
    assert RULES["(1, 1)"].asks(1.0, "x", fresh=False, inside=False)
