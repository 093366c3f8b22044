"""The open world: how often persons are met, what is told of them, and what is kept for tests."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from benchmarks.lab.worlds import ASKED, ATTRIBUTES, HEAD, PERSONS, World, known_facts, split_of

pytestmark = pytest.mark.extended

WORLD = World(1)


def test_persons_are_different_and_depend_on_the_seed() -> None:
    assert len(set(WORLD.persons)) == PERSONS
    assert WORLD.persons == World(1).persons
    assert len(set(WORLD.persons) & set(World(2).persons)) < PERSONS / 20


def test_a_person_is_met_as_often_as_the_law_of_zipf_and_mandelbrot_says() -> None:
    rng, drawn = random.Random(1), 40_000
    met = Counter(WORLD.some_person(rng) for _ in range(drawn))
    assert set(met) <= set(range(PERSONS))
    whole = sum((number + HEAD + 0.5) ** -2 for number in range(PERSONS))
    for first, last in ((0, 10), (10, 50), (50, HEAD), (HEAD, 500), (500, 5_000), (5_000, PERSONS)):
        expected = drawn * sum((number + HEAD + 0.5) ** -2 for number in range(first, last)) / whole
        found = sum(met[number] for number in range(first, last))
        assert abs(found - expected) < 4 * expected**0.5 + drawn * 0.002, (first, last)
    assert sum(met[number] for number in range(HEAD)) / drawn == pytest.approx(0.5, abs=0.02)
    assert sum(met[number] <= 1 for number in range(PERSONS)) > 0.8 * PERSONS  # the rare are met once or never


def test_facts_are_the_same_wherever_they_are_met_and_take_all_values() -> None:
    again = World(1)
    for attribute in ATTRIBUTES:
        values = Counter(WORLD.value(person, attribute) for person in range(PERSONS))
        assert set(values) == set(attribute.values)
        assert max(values.values()) < 1.4 * PERSONS / len(attribute.values)  # no value can be guessed
        assert all(WORLD.value(person, attribute) == again.value(person, attribute) for person in range(200))


def test_in_a_changed_world_the_same_persons_have_other_facts() -> None:
    changed = World(1, changed=0.3)
    assert changed.persons == WORLD.persons
    facts = [(person, attribute) for person in range(2_000) for attribute in ATTRIBUTES]
    false = sum(changed.value(*fact) != WORLD.value(*fact) for fact in facts)
    assert false / len(facts) == pytest.approx(0.3, abs=0.02)


def test_the_second_wording_tells_the_same_facts() -> None:
    other = World(1, wording=1)
    for attribute in ATTRIBUTES:
        said, told = other.sentence(3, attribute), WORLD.sentence(3, attribute)
        assert said != told
        assert WORLD.value(3, attribute) in said
        assert WORLD.persons[3] in said


def test_a_half_of_the_world_is_about_every_other_person() -> None:
    rng = random.Random(1)
    for half in (0, 1):
        world = World(1, half=half, rarely={"knowledge": 0.1})
        met = Counter(world.some_person(rng) % 2 for _ in range(4_000))
        assert met[1 - half] / met[half] == pytest.approx(0.1, abs=0.03)
        assert world.meets("sums", half, rng)
        assert not world.meets("sums", 1 - half, rng)


def test_every_fact_is_asked_about_in_one_split_only() -> None:
    splits = {split: known_facts(split) for split in ("training", "development", "test")}
    assert sum(map(len, splits.values())) == ASKED * len(ATTRIBUTES)
    assert len({(person, one.name) for facts in splits.values() for person, one in facts}) == ASKED * len(ATTRIBUTES)
    assert len(splits["test"]) == pytest.approx(ASKED * len(ATTRIBUTES) / 4, rel=0.25)
    assert len(splits["development"]) == pytest.approx(ASKED * len(ATTRIBUTES) / 8, rel=0.35)


def test_a_quarter_is_for_tests_and_an_eighth_for_development() -> None:
    found = Counter(split_of("thing", number) for number in range(8_000))
    assert found["test"] == pytest.approx(2_000, rel=0.06)
    assert found["development"] == pytest.approx(1_000, rel=0.1)
    assert split_of("x | sort") == "test"  # of a hash that does not change, or models would have to be trained again
