"""Calculations with numbers and dates, worked out step by step, which the specialist `numbers` learns.

No calculation in the tests occurs in training.
"""

from __future__ import annotations

import calendar
import hashlib
import random
from collections.abc import Callable
from typing import Literal

from benchmarks.real_pair.world import Part

Split = Literal["training", "development", "test"]

_MONTHS = tuple(calendar.month_name)[1:]
_DAYS = tuple(calendar.day_name)
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def split_of(group: str) -> Split:
    """The split of a calculation or fact, by a hash of its name: a quarter is for tests, an eighth for development."""
    byte = hashlib.sha256(group.encode()).digest()[0]
    return "test" if byte < 64 else "development" if byte < 96 else "training"


def _sum(rng: random.Random) -> Part:
    a, b = rng.randrange(11, 90), rng.randrange(11, 90)
    wording = rng.choice(("What is {a} plus {b}?", "Add {b} to {a}.", "How much is {a} plus {b}?"))
    total = str(a + b)
    group = f"sum {min(a, b)} {max(a, b)}"
    return Part("sum", group, wording.format(a=a, b=b), f"{a} + {b} = {total}.", total)


def _difference(rng: random.Random) -> Part:
    a, b = rng.randrange(31, 99), rng.randrange(11, 90)
    a, b = max(a, b) + 1, min(a, b)
    wording = rng.choice(("What is {a} minus {b}?", "Take {b} away from {a}.", "How much is {a} minus {b}?"))
    left = str(a - b)
    return Part("difference", f"difference {a} {b}", wording.format(a=a, b=b), f"{a} - {b} = {left}.", left)


def _chain(rng: random.Random) -> Part:
    a, b = rng.randrange(11, 60), rng.randrange(11, 60)
    c = rng.randrange(3, a + b - 2)
    question = f"Start with {a}, add {b} and take away {c}."
    answer = f"{a} + {b} = {a + b} and {a + b} - {c} = {a + b - c}."
    return Part("chain", f"chain {a} {b} {c}", question, answer, str(a + b - c))


def _minutes(rng: random.Random) -> Part:
    hours, more = rng.randrange(2, 10), rng.randrange(1, 60)
    question = f"How many minutes are {hours} hours and {more} minutes?"
    answer = f"{hours} hours are {60 * hours} minutes and {60 * hours} + {more} = {60 * hours + more}."
    return Part("minutes", f"minutes {hours} {more}", question, answer, str(60 * hours + more))


def _date(rng: random.Random) -> Part:
    month, later = rng.randrange(12), rng.randrange(3, 28)
    day = rng.randrange(1, _LENGTHS[month] + 1)
    reached = day + later
    question = f"Which date is {later} days after {day} {_MONTHS[month]}?"
    if reached <= _LENGTHS[month]:
        value = f"{reached} {_MONTHS[month]}"
        answer = f"{day} + {later} = {reached}, so it is {value}."
    else:
        value = f"{reached - _LENGTHS[month]} {_MONTHS[(month + 1) % 12]}"
        answer = (
            f"{day} + {later} = {reached} and {reached} - {_LENGTHS[month]} = {value.split()[0]}, so it is {value}."
        )
    return Part("date", f"date {day} {month} {later}", question, answer, value)


def _weekday(rng: random.Random) -> Part:
    today, later = rng.randrange(7), rng.randrange(2, 21)
    value = _DAYS[(today + later) % 7]
    weeks = later // 7
    step = f"{later} - {7 * weeks} = {later % 7}, and " if weeks else ""
    answer = f"{step}{later % 7} days after {_DAYS[today]} is {value}."
    return Part(
        "weekday",
        f"weekday {today} {later}",
        f"Today is {_DAYS[today]}. What day is it in {later} days?",
        answer,
        value,
    )


KINDS: dict[str, Callable[[random.Random], Part]] = {
    "sum": _sum,
    "difference": _difference,
    "chain": _chain,
    "minutes": _minutes,
    "date": _date,
    "weekday": _weekday,
}
"""The functions that draw a calculation, by kind."""


def calculation(rng: random.Random, split: Split, kind: str | None = None) -> Part:
    """Draw a calculation of a split; if a kind is given, of that kind."""
    while True:
        part = KINDS[kind or rng.choice([*KINDS])](rng)
        if split_of(part.group) == split:
            return part
