"""The protocol and base class of graders, and functions that extract answers from texts in a canonical form."""

from __future__ import annotations

import unicodedata
from collections import deque
from collections.abc import Sequence
from decimal import Decimal
from string import ascii_uppercase
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

import regex

from cosd_api import Example


@runtime_checkable
class Grader(Protocol):
    """A judge of answers, to be used within `async with`.

    Every run of a comparison grades known texts again, so that a change to the grader takes effect. A grader whose
    verdicts are expensive can define an attribute `identity`, under which its grades are kept; see `BaseGrader`.

    Attributes:
        name: name for reports, including the settings that change verdicts.
    """

    @property
    def name(self) -> str:
        """The name for reports, including the settings that change verdicts."""
        ...

    async def __call__(self, example: Example, text: str) -> bool:
        """Return True if `text` is a right answer to `example`.

        Raises:
            GradingError: the answer cannot be judged right or wrong.
            ProviderError: the judging model failed.
        """
        ...

    def check(self, example: Example) -> None:
        """Check that the example has what this grader needs, before any model is asked.

        Raises:
            SettingError: the example lacks something that the grader needs; the message names it.
        """
        ...

    def reads(self, example: Example, text: str) -> str | None:
        """Extract the answer from a text, in a canonical form; None if the grader finds no answer."""
        ...

    async def __aenter__(self) -> Self:
        """Open the resources of the grader."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close the resources of the grader."""
        ...


class BaseGrader:
    """Base class for graders: it opens no resources, accepts every example, and extracts no answers.

    Attributes:
        identity: everything that verdicts depend on besides the example and the text. A resumed comparison keeps grades
            whose identity is unchanged. If the identity is None, texts are graded again.
        warnings: warnings to show with the grades, set when the grader is entered.
    """

    warnings: tuple[str, ...] = ()

    @property
    def identity(self) -> str | None:
        """Always None, because grading again is cheap."""
        return None

    def check(self, example: Example) -> None:
        """See `Grader.check`."""

    def reads(self, example: Example, text: str) -> str | None:  # noqa: ARG002
        """See `Grader.reads`."""
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def identity_of(grader: Grader) -> str | None:
    """The identity of a grader, or None if its grades are not kept; see `BaseGrader`."""
    found = getattr(grader, "identity", None)
    return found if isinstance(found, str) else None


# Texts.


def normalized(text: str) -> str:
    """Normalize a text: Unicode's NFC, stripped, with each run of white space replaced by a single space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


# Numbers.

# After a word or a closing bracket, a minus could be a subtraction or a hyphen, so it is not read as a sign. A
# currency symbol may follow a sign. A comma separates groups of three digits.
_NUMBER = regex.compile(
    r"(?P<sign>(?<![\w.)\]])[-+])?\p{Sc}?"
    r"(?P<digits>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)"
    r"(?P<power>[eE][-+]?\d{1,3}(?!\d))?"
)
_DIGIT = regex.compile(r"[^\P{Nd}0-9]")
_LARGEST = 1000  # numbers with more digits are not written out
_RAISED = regex.compile(r"(?<=[\w)\]}])[\u2070\u00b9\u00b2\u00b3\u2074-\u207b\u2080-\u208b]+")
_FRACTION = regex.compile(r"(?:(?P<whole>(?<![.,\d])\d[\d,]*+)\s?)?(?P<part>[\u00bc-\u00be\u2150-\u215e\u2189])")
# Matches the exponent of a unit, as in 25 m2, 25 cm^2, 9.8 m/s^2 and 25 \text{ cm}^{2}.
_EXPONENT = regex.compile(
    r"(?:(?<!\p{L})(?:[cdkmn\u03bc]?m|ft|in|yd|mi)|(?<=/\s?)s|\^(?<=\d\s?\p{L}+\^)|(?<=\p{L}\})\^)"
    r"\K\}?\^?\{?-?[23]\}?(?!\w|[.,]\d)"
)


def last_number(text: str) -> str | None:
    """Extract the last number of a text as a plain decimal, such as `1234.5` for `$1,234.50`; None without a number.

    Full-width digits and Unicode's minus sign are treated like their ASCII forms. A comma separates thousands, and a
    point separates decimals. Units with their exponents, superscripts and percent signs are ignored; `3½` is 3.5.
    """
    plain = _FRACTION.sub(_as_decimal, _RAISED.sub("", text))
    plain = _DIGIT.sub(_as_digit, unicodedata.normalize("NFKC", plain).replace("\u2212", "-"))
    plain = _EXPONENT.sub("", plain)
    found = deque(_NUMBER.finditer(plain), maxlen=1)
    if not found:
        return None
    last = found[0]
    parts = (last["sign"] or "", last["digits"].replace(",", ""), last["power"] or "")
    return _decimal(Decimal("".join(parts)))


def _as_digit(found: regex.Match[str]) -> str:
    """Convert a digit of any script to ASCII; return U+FFFD if Python's version of Unicode does not know the digit."""
    return str(unicodedata.decimal(found[0], "\ufffd"))


def _as_decimal(found: regex.Match[str]) -> str:
    """Convert a one-character fraction, and a whole number before it, to a decimal; thirds stay fractions."""
    whole, part = found["whole"] or "", unicodedata.normalize("NFKC", found["part"])
    above, below = map(int, part.split("\u2044"))
    value = Decimal(above) / below
    return f"{whole or 0}{str(value)[1:]}" if value and value * below == above else f"{whole} {above}/{below}"


def _decimal(number: Decimal) -> str:
    """Format a number in its canonical form."""
    if not number:
        return "0"
    if abs(number.adjusted()) > _LARGEST:  # written out, the number could fill the memory
        return str(number)
    written = format(number, "f")
    return written.rstrip("0").rstrip(".") if "." in written else written


# Letters of options.

_STATED = regex.compile(
    r"\b(?i:answer|choice|option)\s*(?i:is|would\s+be|[:=])[:\s]*(?i:option\s+)?[\s\"'“*_(\[{]*"
    r"(?:(?P<letter>[A-Z])(?![\w'’])|(?P<letter>[a-z])(?=[)\]}.,;:*\"”]|\s*$))"
)
_FIRST = regex.compile(
    r"[\s\"'“*_(\[{]*(?:(?P<letter>[A-Z])(?=\s*$|\n|\s*[.:,;)\]}*_\"”])|(?P<letter>[B-HJ-Z])(?=\s)"
    r"|(?P<letter>[a-z])(?=[)\]}])|(?P<letter>[a-z])[\s.]*$)"
)
_BRACKETED = regex.compile(r"[(\[](?P<letter>[A-Z])[)\]]")
_ANOTHER = regex.compile(r"[)\]}*_\"”]*\s*(?:,|/|\b(?:or|and)\b)\s*[(\[{*_\"“]*[A-Z](?![\w'’])")


def letter(text: str, choices: Sequence[str] | None = None) -> str | None:
    """Extract the letter of the option that a text chooses, in upper case; None if it chooses no option or several.

    Only letters of options count. The first rule that applies decides:

    1. the last statement such as "the answer is B", "Answer: (b)", "Option: **B**";
    2. a letter at the beginning of the text: "B", "(B)", "b) Lima", "B. Lima", "C because ..."; but not "A" or "I" as a
       word before another word;
    3. the only letter in brackets: "so (B) is right";
    4. the only option whose text appears as whole words, ignoring case.

    Args:
        text: the answer.
        choices: texts of the options A, B, C, ...; if None, every letter may be an option.
    """
    known = ascii_uppercase[: len(choices)] if choices is not None else ascii_uppercase
    stated = [found for found in _STATED.finditer(text) if found["letter"].upper() in known]
    if stated:
        return None if _ANOTHER.match(text, stated[-1].end()) else stated[-1]["letter"].upper()
    first = _FIRST.match(text)
    if first is not None and first["letter"].upper() in known:
        return None if _ANOTHER.match(text, first.end("letter")) else first["letter"].upper()
    bracketed = {found["letter"] for found in _BRACKETED.finditer(text)}.intersection(known)
    if bracketed:
        return bracketed.pop() if len(bracketed) == 1 else None
    return _named(text, choices or ())


def _named(text: str, choices: Sequence[str]) -> str | None:
    """Find the only option whose text appears; it does not count within the text of a longer option."""

    def within(option: str, whole: str) -> bool:
        return bool(option) and regex.search(rf"(?<!\w){regex.escape(option)}(?!\w)", whole) is not None

    options = [normalized(choice).casefold() for choice in choices]
    there = [at for at, option in enumerate(options) if within(option, normalized(text).casefold())]
    largest = [
        at
        for at in there
        if not any(options[at] != options[other] and within(options[at], options[other]) for other in there)
    ]
    return ascii_uppercase[largest[0]] if len(largest) == 1 else None
