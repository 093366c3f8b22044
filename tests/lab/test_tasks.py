"""The tasks of the laboratory: graders, what is kept from training, and that everything can be drawn again."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import islice
from typing import Literal

import anyio
import pytest

from benchmarks.lab.tasks import TASKS, bio, choice, code, report, steps
from benchmarks.lab.tasks.task import Document, distinct, example, ways_to_ask
from benchmarks.lab.worlds import ASKED, ATTRIBUTES, HEAD, World, split_of
from cosd_api.forcing.samples import Example

pytestmark = pytest.mark.extended

WORLD = World(1)
GENERATED = [name for name in TASKS if name != "held"]


def right(task: str, item: Example, text: str) -> bool:
    async def graded() -> bool:
        async with TASKS[task].GRADER as grader:
            grader.check(item)
            return await grader(item, text)

    return anyio.run(graded)


def some_documents(task: str, count: int = 800, world: World = WORLD) -> Iterator[Document]:
    return islice(TASKS[task].documents(world, random.Random(5)), count)


@pytest.mark.parametrize("task", GENERATED)
def test_the_grader_accepts_the_reference_and_not_another_ones(task: str) -> None:
    items = TASKS[task].items(WORLD, 1, 12)
    for item, other in zip(items, [*items[1:], items[0]], strict=True):
        assert right(task, item, item.answer)
        assert not right(task, item, "")
        assert right(task, item, other.answer) == (item.target is not None and item.target == other.target)


def test_near_misses_of_facts() -> None:
    item = TASKS["bio"].items(WORLD, 1, 1)[0]
    assert item.target is not None
    assert not right("bio", item, item.answer.replace(item.target, f"{item.target}n"))
    assert right("bio", item, f"It is {item.target}, I think.")


def test_near_misses_of_choices() -> None:
    item = choice.items(WORLD, 1, 1)[0]
    assert item.choices is not None
    for option, text in zip(item.choices, choice.continuations(item), strict=True):
        assert right("choice", item, text) == (option == item.target)
        assert right("choice", item, f"The answer is {choice.LETTERS[item.choices.index(option)]}.") == (
            option == item.target
        )
    assert item.answer in choice.continuations(item)
    assert not right("choice", item, " ".join(choice.continuations(item)))


def test_near_misses_of_steps() -> None:
    item = TASKS["steps"].items(WORLD, 1, 1)[0]
    assert item.target is not None
    off = str(int(item.target) + 1)
    assert not right("steps", item, item.answer.replace(f"is {item.target}.", f"is {off}."))
    assert right("steps", item, f"The answer is {item.target}")


def test_code_is_graded_by_running_it() -> None:
    def graded(reference: str, text: str) -> bool:
        return right("code", Example(prompt="Q: Write it.\nA:", answer=f" {reference}"), text)

    assert graded("w | upper | reverse", " w | reverse | upper")  # the same by another way
    assert graded("x | take 3 | take 2", "x | take 2\nand more")
    assert not graded("x | take 3", "x | take 2")
    assert not graded("x | sort | reverse", "x | reverse | sort")
    for broken in ("", "x", "x |", "x | take", "x | sort 3", "x | take -1", "x | take 0", "x | upper", "w | take 3"):
        assert not graded("x | take 3", broken)
    assert not graded("x | take 3", "x | explode 3")
    assert not graded("x | take 3", "__import__('os')")


@pytest.mark.parametrize(
    ("program", "value", "made"),
    [
        ("x | reverse | odd | take 2", [1, 2, 3, 5], [5, 3]),
        ("x | sort | drop 1 | double", [3, 1, 2], [4, 6]),
        ("x | last 2 | square | add 1", [7, 2, 3], [5, 10]),
        ("x | even | negate | twice", [1, 2], [-2, -2]),
        ("w | vowels | upper | dash", "banana", "A-A-A"),
        ("w | twice | drop 2", "abc", "cabc"),
    ],
)
def test_the_language(program: str, value: code.Value, made: code.Value) -> None:
    assert code.run(program, value) == made


def test_near_misses_of_mixed_questions() -> None:
    item = TASKS["mixed"].items(WORLD, 1, 1)[0]
    number = item.answer.rpartition("=")[2]
    assert not right("mixed", item, item.answer.replace(f"={number}", "=100."))
    assert not right("mixed", item, item.answer.partition(".")[2])


def test_a_report_is_graded_slot_by_slot() -> None:
    item = report.items(WORLD, 1, 1)[0]
    statements = item.answer.count(". ") + 1
    assert len(report.slots(item, item.answer)) == statements
    missing = item.answer.replace("=", "=1", 1)
    assert report.slots(item, missing).count(False) == 1
    assert not right("report", item, missing)
    assert 0 < sum(report.slots(item, item.answer[: len(item.answer) // 2])) < statements


def test_a_report_tells_what_it_is_asked_for() -> None:
    item = report.items(WORLD, 1, 1)[0]
    assert item.answer.count("=") == str(item.prompt).count("(") == report.LONGEST
    asked = sum(len(names.split(" and ")) for names in re.findall(r"\(([^,]+),", str(item.prompt)))
    assert len(report.slots(item, item.answer)) == asked + report.LONGEST


OPERATION = re.compile(r"(\d+)([+-])(\d+)=")


def operations(text: str) -> set[tuple[int, str, int]]:
    return {(int(first), sign, int(second)) for first, sign, second in OPERATION.findall(text)}


def test_operations_about_the_same_sum_stay_together() -> None:
    assert {steps.family(34, "+", 25), steps.family(25, "+", 34), steps.family(59, "-", 34)} == {(25, 34)}


def test_no_operation_of_a_test_is_met_in_training() -> None:
    for task in ("steps", "mixed", "report"):
        met = {found for document in some_documents(task) for found in operations(document.written)}
        assert {split_of("sum", *steps.family(*found)) for found in met} == {"training"}
        for split in ("test", "development"):
            asked = {found for item in TASKS[task].items(WORLD, 1, 60, split) for found in operations(item.answer)}
            assert {split_of("sum", *steps.family(*found)) for found in asked} == {split}


@pytest.mark.parametrize("task", ["bio", "choice", "mixed"])
def test_a_fact_that_a_test_asks_about_is_told_but_never_asked_for_in_training(task: str) -> None:
    facts = {WORLD.sentence(person, one): (person, one.name) for person in range(ASKED) for one in ATTRIBUTES}

    def told(text: str) -> set[str]:
        return {split_of(*fact) for sentence, fact in facts.items() if text.strip().startswith(sentence[:-1])}

    asked = [one.written for one in some_documents(task) if one.read.startswith("Q:")]
    assert set().union(*map(told, asked)) == {"training"}
    assert {one for item in TASKS[task].items(WORLD, 1, 60) for one in told(item.answer)} == {"test"}


def test_reports_of_the_training_tell_no_fact_of_a_test() -> None:
    training = " ".join(one.written for one in some_documents("report"))
    kept = [(person, one) for person in range(HEAD) for one in ATTRIBUTES if split_of(person, one.name) != "training"]
    assert not [fact for fact in kept if WORLD.sentence(*fact) in training]


def test_held_biographies_are_not_read() -> None:
    read = {one.read + one.written for one in some_documents("bio", 20_000)}
    assert not read & {str(item.prompt) + item.answer for item in TASKS["held"].items(WORLD, 1, 200)}
    assert bio.biography(WORLD, random.Random(1), "test") == bio.biography(WORLD, random.Random(1), "test")


@pytest.mark.parametrize(("half", "own", "other"), [(0, "+", "-"), (1, "-", "+")])
def test_a_half_of_the_world_has_half_of_every_task(half: Literal[0, 1], own: str, other: str) -> None:
    world = World(1, half=half)
    sums = " ".join(one.written for one in some_documents("steps", 100, world))
    assert own in sums
    assert other not in sums
    named = {part.split()[0] for one in some_documents("code", 300, world) for part in one.written.split("|")[1:]}
    rest = {part.split()[0] for one in some_documents("code", 900) for part in one.written.split("|")[1:]} - named
    assert len(named) in range(len(code.OPERATIONS) // 2, len(code.OPERATIONS) // 2 + 2)
    assert len(named | rest) == len(code.OPERATIONS)
    facts = {WORLD.persons[person] for person in range(1 - half, ASKED, 2)}
    assert not any(name in one.read for one in some_documents("bio", 400, world) for name in facts)


def test_biographies_tell_every_fact() -> None:
    tales = [one.read + one.written for one in some_documents("bio", 40_000) if not one.read.startswith("Q:")]
    told = set(re.findall(r"[^.]+\.", " ".join(tales)))
    told = {sentence.strip() for sentence in told}
    assert all(WORLD.sentence(person, one) in told for person in range(HEAD) for one in ATTRIBUTES)


def test_wordings_of_questions_are_divided_too() -> None:
    for attribute in ATTRIBUTES:
        ways = [ways_to_ask(attribute, split) for split in ("training", "development", "test")]
        assert list(map(len, ways)) == [8, 4, 4]
        assert len({way for several in ways for way in several}) == 16


def test_programs_of_tests_are_new() -> None:
    assert {split_of(one.written.strip()) for one in some_documents("code")} == {"training"}
    assert {split_of(one.answer.strip()) for one in code.items(WORLD, 1, 60)} == {"test"}


@pytest.mark.parametrize("task", TASKS)
def test_items_are_different_and_can_be_drawn_again(task: str) -> None:
    items = TASKS[task].items(WORLD, 7, 40)
    assert len({item.prompt for item in items}) == 40
    assert items == TASKS[task].items(World(1), 7, 40)
    assert items[:15] == TASKS[task].items(WORLD, 7, 15)
    assert items != TASKS[task].items(WORLD, 8, 40)
    prompts = {item.prompt for item in items} if task != "held" else set[object]()
    assert not prompts & {item.prompt for item in TASKS[task].items(WORLD, 7, 40, "development")}


@pytest.mark.parametrize("task", TASKS)
def test_documents_can_be_drawn_again(task: str) -> None:
    assert list(some_documents(task, 30)) == list(some_documents(task, 30))


@pytest.mark.parametrize("task", GENERATED)
def test_a_question_ends_and_its_answer_begins_as_in_the_documents(task: str) -> None:
    """So that tokens are cut at the same place."""
    document = next(one for one in some_documents(task) if ":" in one.read)
    item = TASKS[task].items(WORLD, 1, 1)[0]
    assert str(item.prompt)[-3:] == document.read[-3:]
    assert item.answer.startswith(" ") and document.written.startswith(" ")


def test_too_few_different_questions() -> None:
    document = Document("Q: Why?\nA:", " So.")
    with pytest.raises(ValueError, match=r"no more than 1 different questions were found, and not 2"):
        distinct((example(document) for _ in range(10)), 2)
