"""The library's graders, by name (`grader_named("last-number")`), and user-defined ones (`check_grader(function)`)."""

from __future__ import annotations

import inspect
import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import anyio

from cosd_api import Example, GradingError, SettingError
from cosd_api.comparison.grading import (
    BaseGrader,
    Grader,
    last_number,
    letter,
    normalized,
)
from cosd_api.extend import check_positive, suggestion
from cosd_api.training.answers import is_right

__all__ = [
    "GRADERS",
    "ChoiceGrader",
    "CommandGrader",
    "ContainsGrader",
    "ExactGrader",
    "FunctionGrader",
    "LastNumberGrader",
    "check_grader",
    "grader_named",
]

GRADERS: Mapping[str, str] = {
    "exact": "the whole answer equals the reference, white space normalized",
    "contains": "the example's target, or its answer, appears in the answer as whole words",
    "last-number": "the last number of the answer equals that of the reference",
    "choice": "the answer chooses the letter of the reference",
    "command": "your command exits with 0",
}
"""The library's graders, and their rules in words. `module:function` means a user-defined function."""

_SHOWN = 300  # maximum number of characters shown of what a command said


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


class CommandGrader(BaseGrader):
    """A grader that runs a command of the user, as this user and without a sandbox.

    The command reads a JSON object with the fields of the example and `text`, the answer, on standard input. It exits
    with 0 if the answer is right, and with 1 if it is wrong.

    Args:
        command: the command with its arguments, as in a shell; no shell reads it.
        seconds: time limit for one answer.

    Raises:
        SettingError: the command is empty, or the limit is not above 0.
    """

    def __init__(self, command: str, seconds: float = 60) -> None:
        check_positive("time_limit", seconds)
        self._command, self._seconds = shlex.split(command), seconds
        self.name = f"command {command}"
        if not self._command:
            raise SettingError("the grader command needs a command, such as command='python grade.py'")

    async def __call__(self, example: Example, text: str) -> bool:
        """Run the command.

        Raises:
            GradingError: the command cannot be started, takes too long, or exits with another code than 0 or 1.
        """
        given = json.dumps(example.model_dump(mode="json") | {"text": text})
        try:
            with anyio.fail_after(self._seconds):
                done = await anyio.run_process(self._command, input=given.encode(), check=False)
        except TimeoutError:
            raise GradingError(f"{self.name} takes longer than {self._seconds:g} s") from None
        except OSError as error:
            raise GradingError(f"{self.name} cannot be started: {error.strerror}") from error
        if done.returncode in (0, 1):
            return done.returncode == 0
        said = next(iter(done.stderr.decode(errors="replace").strip().splitlines()[-1:]), "nothing")[:_SHOWN]
        raise GradingError(f"{self.name} exited with {done.returncode}, not with 0 or 1, and said: {said}")


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
    name: str, *, ignore_case: bool = False, command: str | None = None, time_limit: float | None = None
) -> Grader:
    """Make one of the library's graders, or a grader from a user-defined function.

    Args:
        name: one of `GRADERS`, or `module:function` for a function of an example and a text.
        ignore_case: whether to ignore case; for `exact` and `contains`.
        command: the command; required by `command`.
        time_limit: seconds for one answer, 60 by default; for `command`.

    Raises:
        SettingError: the name is unknown, a required setting is missing, or the grader does not support a given
            setting.
    """
    settings = {"ignore_case": ignore_case or None, "command": command, "time_limit": time_limit}
    given = {setting: value for setting, value in settings.items() if value is not None}
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
        "command": (("command", "time_limit"), _command),
    }
    if name in makers:
        return makers[name]
    if isinstance(name, str) and ":" in name:
        return (), lambda: FunctionGrader(_imported(name), name)
    more = suggestion(str(name), makers, f"known are {', '.join(makers)}, and module:function")
    raise SettingError(f"no grader is named {name!r}{more}")


def _command(command: str = "", time_limit: float = 60) -> Grader:
    return CommandGrader(command, time_limit)


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
