"""The library's graders, by name (`grader_named("last-number")`), and user-defined ones (`check_grader(function)`)."""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import ceil
from pathlib import Path
from typing import Any, cast

import regex

from cosd_api import Example, GradingError, SettingError
from cosd_api.comparison.grading import (
    BaseGrader,
    Grader,
    json_answer,
    json_value,
    last_number,
    letter,
    normalized,
)
from cosd_api.comparison.judge import JUDGE_QUESTION, JudgeGrader
from cosd_api.comparison.programs import ProgramGrader, ProgramLimits
from cosd_api.extend import check_positive, suggestion
from cosd_api.training.answers import is_right
from cosd_providers import Provider

__all__ = [
    "GRADERS",
    "ChoiceGrader",
    "ContainsGrader",
    "ExactGrader",
    "FunctionGrader",
    "JsonGrader",
    "LastNumberGrader",
    "RegexGrader",
    "check_grader",
    "grader_named",
]

GRADERS: Mapping[str, str] = {
    "exact": "the whole answer equals the reference, white space normalized",
    "contains": "the example's target, or its answer, appears in the answer as whole words",
    "last-number": "the last number of the answer equals that of the reference",
    "choice": "the answer chooses the letter of the reference",
    "regex": "the last match of a pattern equals the reference",
    "json": "a field of the JSON in the answer equals the reference",
    "program": "the example's tests pass when the answer is run as a Python program",
    "judge": "a model finds the answer right",
}
"""The library's graders, and their rules in words. `module:function` means a user-defined function."""

_PATTERN_SECONDS = 2.0


@dataclass(frozen=True)
class ExactGrader(BaseGrader):
    """A grader that accepts an answer if it equals the reference after normalization (Unicode NFC, white space).

    The comparison follows the rules of `cosd_api.training.answers.is_right`. If the example's `ends` is False, more
    text may follow the reference.

    Attributes:
        ignore_case: whether to ignore case.
    """

    ignore_case: bool = False

    @property
    def name(self) -> str:
        """The name, with the settings."""
        return "exact, any case" if self.ignore_case else "exact"

    async def __call__(self, example: Example, text: str) -> bool:
        """Compare the whole text with the reference."""
        wanted = self.reads(example, example.answer)
        return is_right(example.model_copy(update={"target": None, "answer": wanted}), self.reads(example, text))

    def reads(self, example: Example, text: str) -> str:  # noqa: ARG002
        """The normalized text."""
        return normalized(text.casefold() if self.ignore_case else text)


@dataclass(frozen=True)
class ContainsGrader(BaseGrader):
    """A grader that accepts an answer if it contains the example's target or, without a target, the example's answer.

    Only whole words match. Texts are compared in Unicode's form NFC, and differences in white space are ignored.

    Attributes:
        ignore_case: whether to ignore case.
    """

    ignore_case: bool = False

    @property
    def name(self) -> str:
        """The name, with the settings."""
        return "contains, any case" if self.ignore_case else "contains"

    def check(self, example: Example) -> None:
        """Check that the text to search for is not blank."""
        if not (example.target or example.answer).strip():
            raise SettingError("the grader contains looks for a text, but this answer is only white space")

    async def __call__(self, example: Example, text: str) -> bool:
        """Search the text for the target."""
        wanted = (example.target or example.answer).strip()
        folded = (wanted.casefold(), text.casefold()) if self.ignore_case else (wanted, text)
        return is_right(example.model_copy(update={"target": folded[0]}), folded[1])


class ReadingGrader(BaseGrader):
    """A grader that extracts a value from the answer and from the reference, and compares the two."""

    async def __call__(self, example: Example, text: str) -> bool:
        """Compare the two values."""
        found = self.reads(example, text)
        return found is not None and found == self._wanted(example)

    def _wanted(self, example: Example) -> str | None:
        """Extract the value of the reference."""
        return self.reads(example, example.target or example.answer)


@dataclass(frozen=True)
class LastNumberGrader(ReadingGrader):
    """A grader that compares the last number of the answer with that of the reference; see `grading.last_number`."""

    name: str = "last-number"

    def check(self, example: Example) -> None:
        """Check that the reference contains a number."""
        if self._wanted(example) is None:
            raise SettingError("the grader last-number needs a reference with a number, and this one has none")

    def reads(self, example: Example, text: str) -> str | None:  # noqa: ARG002
        """Extract the last number, as a plain decimal."""
        return last_number(text)


@dataclass(frozen=True)
class ChoiceGrader(ReadingGrader):
    """A grader for multiple choice: the answer must choose the letter of the reference; see `grading.letter`.

    The reference is a letter, or the text of one of the example's `choices`.
    """

    name: str = "choice"

    def check(self, example: Example) -> None:
        """Check that the reference names one of the options."""
        if self._wanted(example) is not None:
            return
        if example.choices is None:
            hint = 'write the letter, or give the options: "choices": ["Lima", "Quito"]'
        else:
            hint = f"write a letter from A to {chr(64 + len(example.choices))}, or the text of a choice"
        raise SettingError(f"the grader choice needs the letter of an option as the answer: {hint}")

    def reads(self, example: Example, text: str) -> str | None:
        """Extract the letter that the text chooses."""
        return letter(text, example.choices)

    def _wanted(self, example: Example) -> str | None:
        for reference in (example.target, example.answer):
            if reference is None:
                continue
            options = [normalized(choice) for choice in example.choices or ()]
            if options.count(normalized(reference)) == 1:
                return chr(65 + options.index(normalized(reference)))
            if (found := letter(reference, example.choices)) is not None:
                return found
        return None


class RegexGrader(ReadingGrader):
    """A grader that compares the last match of a pattern in the answer with the reference, normalizing white space.

    Args:
        pattern: a regular expression in the syntax of the package `regex`. If it has groups, the first group is
            compared, otherwise the whole match.

    Raises:
        SettingError: the pattern is invalid.
    """

    def __init__(self, pattern: str) -> None:
        try:
            self._pattern = regex.compile(pattern)
        except (regex.error, TypeError) as error:
            raise SettingError(f"pattern must be a regular expression: {error}") from None
        self.name = f"regex {pattern}"

    def reads(self, example: Example, text: str) -> str | None:  # noqa: ARG002
        """Extract the match, normalized.

        Raises:
            GradingError: matching takes too long.
        """
        try:
            found = deque(self._pattern.finditer(text, timeout=_PATTERN_SECONDS), maxlen=1)
        except TimeoutError:
            words = f"the pattern takes longer than {_PATTERN_SECONDS:g} s on an answer of {len(text):,} characters"
            raise GradingError(f"{words}: write it without repetitions inside of repetitions") from None
        part = found[0][1 if self._pattern.groups else 0] if found else None
        return None if part is None else normalized(part)

    def _wanted(self, example: Example) -> str:
        return normalized(example.target or example.answer)


class JsonGrader(ReadingGrader):
    """A grader that compares the JSON value in the answer, or one of its fields, with the reference.

    See `grading.json_value` for how the value is found. A reference that is not JSON counts as a string. If a field is
    named, the reference is the value of the field, or an object that contains the field.

    Args:
        field: path of keys and zero-based array indexes, joined by dots, such as `result.0.name`; None for the whole
            value.

    Raises:
        SettingError: the path is empty.
    """

    def __init__(self, field: str | None = None) -> None:
        if field is not None and (not isinstance(field, str) or not all(field.split("."))):
            raise SettingError(f"field must be a path such as answer or result.0.name, not {field!r}")
        self._path = () if field is None else tuple(field.split("."))
        self.name = "json" if field is None else f"json {field}"

    def check(self, example: Example) -> None:
        """Check that the reference is JSON, unless a field is named."""
        if not self._path and self.reads(example, example.answer) is None:
            raise SettingError(
                "the grader json compares whole values, so that the answer must be JSON; or name a field"
            )

    def reads(self, example: Example, text: str) -> str | None:  # noqa: ARG002
        """Extract the value as JSON, in a canonical form."""
        try:
            return json_answer(json_value(text), self._path)
        except ValueError:
            return None

    def _wanted(self, example: Example) -> str | None:
        reference = example.target or example.answer
        try:
            value = json_value(reference)
        except ValueError:
            return json_answer(reference)
        if self._path and isinstance(value, dict) and (inside := json_answer(value, self._path)) is not None:
            return inside
        return json_answer(value)


_Verdict = Callable[[Example, str], bool | Awaitable[bool]]


class FunctionGrader(BaseGrader):
    """A grader that calls a user-defined `function(example, text)`, which returns a bool or an awaitable of a bool.

    An error that the function raises ends the run, unless it is a `GradingError`.

    Args:
        function: the function that judges an answer.
        name: name of the grader in reports; by default `module:function`.
    """

    def __init__(self, function: _Verdict, name: str | None = None) -> None:
        self._function = function
        called = getattr(function, "__qualname__", type(function).__qualname__)
        self.name = name or f"{getattr(function, '__module__', '?')}:{called}"

    async def __call__(self, example: Example, text: str) -> bool:
        """Call the function.

        Raises:
            GradingError: the function does not return a bool.
        """
        verdict: object = self._function(example, text)
        if inspect.isawaitable(verdict):
            verdict = await verdict
        if type(verdict).__name__ in ("bool_", "bool"):  # also NumPy's bool
            return bool(verdict)
        raise GradingError(f"{self.name} returned {type(verdict).__name__}: return True for a right answer, else False")


def check_grader(given: object) -> Grader:
    """Make a grader from a name, a `Grader` or a user-defined function.

    Raises:
        SettingError: `given` is of a different type, or is a name that `grader_named` refuses.
    """
    if isinstance(given, str):
        return grader_named(given)
    if not isinstance(given, type):
        if isinstance(given, Grader):
            return given
        if callable(given):
            return FunctionGrader(cast("_Verdict", given))
    words = "a name such as last-number, a grader, or a function of an example and a text"
    raise SettingError(f"grader must be {words}, not {given!r}")


def grader_named(
    name: str,
    *,
    ignore_case: bool = False,
    pattern: str | None = None,
    field: str | None = None,
    judge: str | Provider | None = None,
    judge_question: str | None = None,
    run_programs: bool = False,
    time_limit: float | None = None,
) -> Grader:
    """Make one of the library's graders, or a grader from a user-defined function.

    Args:
        name: one of `GRADERS`, or `module:function` for a function of an example and a text.
        ignore_case: whether to ignore case; for `exact` and `contains`.
        pattern: the regular expression; required by `regex`.
        field: path of the field to compare; for `json`.
        judge: the judging model, as the URL of a server or a provider; required by `judge`.
        judge_question: the judge's question, with `{question}`, `{reference}` and `{answer}`; for `judge`.
        run_programs: True to allow programs that models wrote to run on this machine; required by `program`.
        time_limit: seconds for one program, by default the limit of `ProgramLimits`; for `program`.

    Raises:
        SettingError: the name is unknown, a required setting is missing, or the grader does not support a given
            setting.
    """
    given: dict[str, Any] = {
        "ignore_case": ignore_case or None,
        "pattern": pattern,
        "field": field,
        "judge": judge,
        "judge_question": judge_question,
        "run_programs": run_programs or None,
        "time_limit": time_limit,
    }
    given = {setting: value for setting, value in given.items() if value is not None}
    taken, make = _made(name)
    for setting in given:
        if setting not in taken:
            of = next((other for other in GRADERS if setting in _made(other)[0]), name)
            raise SettingError(f"{setting} is a setting of the grader {of}, not of {name}")
    return make(**given)


def _made(name: str) -> tuple[tuple[str, ...], Callable[..., Grader]]:
    """Return the names of a grader's settings, and the function that makes the grader from them."""
    makers: dict[str, tuple[tuple[str, ...], Callable[..., Grader]]] = {
        "exact": (("ignore_case",), ExactGrader),
        "contains": (("ignore_case",), ContainsGrader),
        "last-number": ((), LastNumberGrader),
        "choice": ((), ChoiceGrader),
        "regex": (("pattern",), _regex),
        "json": (("field",), JsonGrader),
        "program": (("run_programs", "time_limit"), _program),
        "judge": (("judge", "judge_question"), _judge),
    }
    if name in makers:
        return makers[name]
    if isinstance(name, str) and ":" in name:
        return (), lambda: FunctionGrader(_imported(name), name)
    more = suggestion(str(name), makers, f"known are {', '.join(makers)}, and module:function")
    raise SettingError(f"no grader is named {name!r}{more}")


def _regex(pattern: str | None = None) -> Grader:
    if pattern is None:
        raise SettingError(r"the grader regex needs a pattern, such as pattern=r'#### (\S+)'")
    return RegexGrader(pattern)


def _program(*, run_programs: bool = False, time_limit: float | None = None) -> Grader:
    if not run_programs:
        words = "the grader program runs what models wrote, on this machine and as this user"
        raise SettingError(f"{words}: read what its sandbox does not prevent, then allow it with run_programs=True")
    if time_limit is None:
        return ProgramGrader()
    check_positive("time_limit", time_limit)
    return ProgramGrader(ProgramLimits(seconds=time_limit, cpu_seconds=ceil(time_limit)))


def _judge(judge: str | Provider | None = None, judge_question: str = JUDGE_QUESTION) -> Grader:
    if judge is None:
        raise SettingError("the grader judge needs a model: judge=URL, or a provider")
    return JudgeGrader(judge, question=judge_question)


def _imported(name: str) -> _Verdict:
    """Import the function that `module:function` names; the module may be in the current folder."""
    module, _, function = name.partition(":")
    folder = str(Path.cwd())
    added = folder not in sys.path
    if added:
        sys.path.append(folder)
    try:
        found: Any = import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, ValueError, AttributeError) as error:
        raise SettingError(f"the grader {name} cannot be imported: {error}") from error
    finally:
        if added:
            sys.path.remove(folder)
    if not callable(found):
        raise SettingError(f"the grader {name} is not a function of an example and a text")
    return cast("_Verdict", found)
