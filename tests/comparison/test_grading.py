"""Answers, read out of texts."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api.comparison.grading import last_number, letter, normalized


def test_normalized_texts_differ_in_neither_spaces_nor_accents() -> None:
    assert normalized(" Bogota\u0301 \n\t is\u00a0here ") == "Bogotá is here"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("The total is 42.", "42"),
        ("#### 1,234,567.50", "1234567.5"),
        ("It costs $1,000.00!", "1000"),
        ("-$3.50", "-3.5"),
        ("5-3", "3"),
        ("5 - 3", "3"),
        ("x = -3", "-3"),
        ("(2)-1", "1"),
        ("\u22127", "-7"),
        ("−0.0", "0"),
        ("+4", "4"),
        ("１２ units", "12"),
        (".5", "0.5"),
        ("007", "7"),
        ("50%", "50"),
        ("3e3", "3000"),
        ("1.5E-3", "0.0015"),
        ("12,34", "34"),
        ("1,2345", "2345"),
        ("1.2.3", "3"),
        ("3 eggs", "3"),
        ("答案是42。", "42"),
        ("between 1 and 10, then 20", "20"),
        ("1e9999", "9999"),
        ("The area is 25 cm².", "25"),
        ("25 m³", "25"),
        ("So 25 m2.", "25"),
        ("25㎡", "25"),
        ("25 cm^2", "25"),
        (r"$25 \text{ cm}^{2}$", "25"),
        ("9.8 m/s^2", "9.8"),
        ("9.8 m·s⁻²", "9.8"),
        ("42¹ and CO₂", "42"),
        ("It is 3½.", "3.5"),
        ("-1,234 ¾ cups", "-1234.75"),
        ("½", "0.5"),
        ("3⅓", "3"),
        ("USD50", "50"),
        ("2^3 = 8", "8"),
        ("in 3 days", "3"),
        ("room m4", "4"),
        ("٤٢", "42"),
        ("no number", None),
        ("", None),
        ("...", None),
    ],
)
def test_last_number(text: str, number: str | None) -> None:
    assert last_number(text) == number


def test_a_digit_that_this_python_does_not_know_is_none() -> None:
    """Python 3.14 knows this one, of Unicode 16."""
    assert last_number("4 or \U00010d41") in ("4", "1")


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**12), max_value=10**12))
def test_every_spelling_of_a_number_is_read_alike(number: Decimal) -> None:
    spellings = {
        last_number(f"so {spelling} apples.") for spelling in (f"{number:f}", f"{number:,f}", f"{number:f}000")
    }
    assert len(spellings) == 1 and Decimal(spellings.pop() or "nan") == number


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_can_be_read(text: str) -> None:
    last_number(text), letter(text), letter(text, ("yes", "no"))


def test_a_number_that_would_fill_the_memory_is_not_written_out() -> None:
    assert len(last_number("9" * 5000) or "") == 5000


OPTIONS = ("Lima", "Quito", "New Lima", "La Paz")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (" B", "B"),
        ("B.", "B"),
        ("(b)", "B"),
        ("b", "B"),
        ("**C**", "C"),
        ("C because Peru", "C"),
        ("B) Quito", "B"),
        ("D\n\nQuestion: what", "D"),
        ("A", "A"),
        ("A: Lima", "A"),
        ("A city in Peru", None),
        ("I think (C) is right", "C"),
        ("I think (C) or (D)", None),
        ("The answer is B", "B"),
        ("The answer is (b).", "B"),
        ("Answer: **D**", "D"),
        ("First I said the answer is A. No: the answer is C.", "C"),
        ("A is wrong, so the answer is B", "B"),
        ("The answer is A or B", None),
        ("A and B", None),
        ("A, B", None),
        ("The answer is a city", None),
        ("Quito, of course", "B"),
        ("It is new lima!", "C"),
        ("Lima or Quito", None),
        ("The answer is Z", None),
        ("E", None),
        ("", None),
    ],
)
def test_letter_of_a_choice(text: str, found: str | None) -> None:
    assert letter(text, OPTIONS) == found


def test_letters_without_known_choices() -> None:
    assert letter("The answer is Z") == "Z"
    assert letter("Quito") is None


@given(
    st.sampled_from("ABCD"),
    st.sampled_from(["{}", "({})", "{}.", "{}) text", "Answer: {}", "So the answer is {}!", "[{}]"]),
)
def test_every_form_of_a_letter(option: str, form: str) -> None:
    assert letter(form.format(option), OPTIONS) == option
