"""Questions of a comparison, and the graders that decide whether an answer is right: `grader_named("last-number")`."""

from __future__ import annotations

import inspect
import json
import shlex
import sys
import unicodedata
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from string import ascii_uppercase
from typing import Any, cast

import anyio
import regex

from cosd_api import Example, GradingError, SettingError
from cosd_api.apps.training.answer_tuning import is_right
from cosd_api.extend import check_positive
from cosd_providers.suggestions import suggestion

_SHOWN = 300  # maximum number of characters shown of what a command said
_Verdict = Callable[[Example, str], bool | Awaitable[bool]]

# Questions.


def group_of(example: Example) -> str:
    """The key of the group that a question belongs to; without `group`, the question is its own group."""
    return example.key if example.group is None else f"group {example.group}"


def repeated_prompts(examples: Iterable[Example]) -> int:
    """Count the questions that share their prompt with another question; questions with a group are ignored."""
    count = Counter(one.prompt for one in examples if one.group is None)
    return sum(number for number in count.values() if number > 1)


# Graders.


@dataclass(frozen=True)
class Grader:
    """A grader: await `grader(example, text)` to learn whether a text is a right answer.

    Every run of a comparison grades known texts again, so that a change to the grader takes effect.

    Attributes:
        name: name for reports, including the settings that change verdicts.
        judge: function of an example and a text, which returns a bool or an awaitable of a bool. It raises
            `GradingError` if an answer cannot be judged; any other error ends the run.
        reads: function that extracts the answer from a text, in a canonical form; None if it finds none. The baseline
            self-consistency counts votes by it.
        check: function that raises `SettingError` if an example lacks what the grader needs, before any model is asked.
    """

    name: str
    judge: Callable[[Example, str], bool | Awaitable[bool]]
    reads: Callable[[Example, str], str | None] = lambda _example, _text: None
    check: Callable[[Example], None] = lambda _example: None

    async def __call__(self, example: Example, text: str) -> bool:
        """Return True if the text is a right answer.

        Raises:
            GradingError: the answer cannot be judged right or wrong.
        """
        verdict: object = self.judge(example, text)
        if inspect.isawaitable(verdict):
            verdict = await verdict
        if type(verdict).__name__ in ("bool_", "bool"):  # also NumPy's bool
            return bool(verdict)
        raise GradingError(f"{self.name} returned {type(verdict).__name__}: return True for a right answer, else False")


def exact(*, ignore_case: bool = False) -> Grader:
    """A grader that accepts an answer if it equals the reference after normalization (Unicode NFC, white space).

    If the example's `ends` is False, more text may follow the reference.
    """

    def reads(_example: Example, text: str) -> str:
        return normalized(text.casefold() if ignore_case else text)

    def judge(example: Example, text: str) -> bool:
        wanted = example.model_copy(update={"target": None, "answer": reads(example, example.answer)})
        return is_right(wanted, reads(example, text))

    return Grader("exact, any case" if ignore_case else "exact", judge, reads)


def contains(*, ignore_case: bool = False) -> Grader:
    """A grader that accepts an answer if it contains the example's target or, without a target, the example's answer.

    Only whole words match. Texts are compared in Unicode's form NFC, and differences in white space are ignored.
    """

    def check(example: Example) -> None:
        if not (example.target or example.answer).strip():
            raise SettingError("the grader contains looks for a text, but this answer is only white space")

    def judge(example: Example, text: str) -> bool:
        wanted = (example.target or example.answer).strip()
        if ignore_case:
            wanted, text = wanted.casefold(), text.casefold()
        return is_right(example.model_copy(update={"target": wanted}), text)

    return Grader("contains, any case" if ignore_case else "contains", judge, check=check)


def last_numbers() -> Grader:
    """A grader that compares the last number of the answer with that of the reference; see `last_number`."""

    def wanted(example: Example) -> str | None:
        return last_number(example.target or example.answer)

    def check(example: Example) -> None:
        if wanted(example) is None:
            raise SettingError("the grader last-number needs a reference with a number, and this one has none")

    def judge(example: Example, text: str) -> bool:
        return last_number(text) == wanted(example)

    return Grader("last-number", judge, lambda _example, text: last_number(text), check)


def choice() -> Grader:
    """A grader for multiple choice: the answer must choose the letter of the reference; see `letter`.

    The reference is a letter, or the text of one of the example's `choices`.
    """

    def wanted(example: Example) -> str | None:
        options = [normalized(choice) for choice in example.choices or ()]
        for reference in filter(None, (example.target, example.answer)):
            if options.count(normalized(reference)) == 1:
                return ascii_uppercase[options.index(normalized(reference))]
            if (found := letter(reference, example.choices)) is not None:
                return found
        return None

    def check(example: Example) -> None:
        if wanted(example) is None:
            hint = 'write the letter, or give the options: "choices": ["Lima", "Quito"]'
            if example.choices is not None:
                hint = f"write a letter from A to {ascii_uppercase[len(example.choices) - 1]}, or the text of a choice"
            raise SettingError(f"the grader choice needs the letter of an option as the answer: {hint}")

    def reads(example: Example, text: str) -> str | None:
        return letter(text, example.choices)

    return Grader("choice", lambda example, text: reads(example, text) == wanted(example), reads, check)


def command(*, command: str = "", time_limit: float = 60) -> Grader:
    """A grader that runs a command of the user, as this user and without a sandbox.

    The command reads a JSON object with the fields of the example and `text`, the answer, on standard input. It exits
    with 0 if the answer is right, and with 1 if it is wrong. No shell reads the command. `time_limit` limits the
    seconds for one answer.

    Raises:
        SettingError: the command is empty, or the limit is not above 0.
    """
    check_positive("time_limit", time_limit)
    name, words = f"command {command}", shlex.split(command)
    if not words:
        raise SettingError("the grader command needs a command, such as command='python grade.py'")

    async def judge(example: Example, text: str) -> bool:
        given = json.dumps(example.model_dump(mode="json") | {"text": text})
        try:
            with anyio.fail_after(time_limit):
                done = await anyio.run_process(words, input=given.encode(), check=False)
        except TimeoutError:
            raise GradingError(f"{name} takes longer than {time_limit:g} s") from None
        except OSError as error:
            raise GradingError(f"{name} cannot be started: {error.strerror}") from error
        if done.returncode in (0, 1):
            return done.returncode == 0
        said = next(iter(done.stderr.decode(errors="replace").strip().splitlines()[-1:]), "nothing")[:_SHOWN]
        raise GradingError(f"{name} exited with {done.returncode}, not with 0 or 1, and said: {said}")

    return Grader(name, judge)


def check_grader(given: object) -> Grader:
    """Make a grader from a name, a `Grader` or a user-defined function.

    Raises:
        SettingError: `given` is of a different type, or is a name that `grader_named` refuses.
    """
    if isinstance(given, str):
        return grader_named(given)
    if isinstance(given, Grader):
        return given
    if callable(given) and not isinstance(given, type):
        name = getattr(given, "__qualname__", type(given).__qualname__)
        return Grader(f"{getattr(given, '__module__', '?')}:{name}", cast("_Verdict", given))
    words = "a name such as last-number, a grader, or a function of an example and a text"
    raise SettingError(f"grader must be {words}, not {given!r}")


GRADERS: Mapping[str, Callable[..., Grader]] = {
    "exact": exact,
    "contains": contains,
    "last-number": last_numbers,
    "choice": choice,
    "command": command,
}
"""The library's graders. `module:function` means a user-defined function."""


def grader_named(name: str, **settings: Any) -> Grader:
    """Make one of the library's graders, or a grader from a user-defined function.

    Args:
        name: one of `GRADERS`, or `module:function` for a function of an example and a text.
        settings: `ignore_case` for `exact` and `contains`; `command` and `time_limit` for `command`.

    Raises:
        SettingError: the name is unknown, a required setting is missing, or the grader does not support a given
            setting.
    """
    if name not in GRADERS and ":" not in name:
        more = suggestion(name, GRADERS, f"known are {', '.join(GRADERS)}, and module:function")
        raise SettingError(f"no grader is named {name!r}{more}")
    taken = {one: inspect.signature(kind).parameters for one, kind in GRADERS.items()}
    for setting in settings:
        if setting not in taken.get(name, ()):
            of = " and ".join(one for one, known in taken.items() if setting in known)
            raise SettingError(f"{setting} is a setting of the grader {of}, not of {name}")
    return GRADERS[name](**settings) if name in GRADERS else Grader(name, _imported(name))


def _imported(name: str) -> _Verdict:
    """Import the function that `module:function` names; the module may be in the current folder."""
    module, _, function = name.partition(":")
    before = list(sys.path)
    sys.path.append(str(Path.cwd()))
    try:
        found: Any = import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, ValueError, AttributeError) as error:
        raise SettingError(f"the grader {name} cannot be imported: {error}") from error
    finally:
        sys.path[:] = before
    if not callable(found):
        raise SettingError(f"the grader {name} is not a function of an example and a text")
    return cast("_Verdict", found)


# Values in texts.


def normalized(text: str) -> str:
    """Normalize a text: Unicode's NFC, stripped, with each run of white space replaced by a single space."""
    return " ".join(unicodedata.normalize("NFC", text).split())


# Numbers.

# After a word or a closing bracket, a minus could be a subtraction or a hyphen, so it is not read as a sign. A
# currency symbol may follow a sign. A comma separates groups of three digits.
_NUMBER = regex.compile(
    r"(?P<sign>(?<![\w.)\]])[-+])?\p{Sc}?"
    r"(?<!\^\{?)(?P<digits>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+)"
    r"(?P<power>[eE][-+]?\d{1,3}(?!\d))?"
)
_DIGIT = regex.compile(r"[^\P{Nd}0-9]")


def last_number(text: str) -> str | None:
    """Extract the last number of a text as a plain decimal, such as `1234.5` for `$1,234.50`; None without a number.

    Digits of all scripts and Unicode's minus sign are treated like their ASCII forms. A comma separates thousands, and
    a point separates decimals. Exponents after `^`, superscripts and percent signs are ignored.
    """
    found = deque(_NUMBER.finditer(_DIGIT.sub(_as_digit, text).replace("\u2212", "-")), maxlen=1)
    if not found:
        return None
    sign, digits, power = found[0].group("sign", "digits", "power")
    number = Decimal(f"{sign or ''}{digits.replace(',', '')}{power or ''}")
    written = format(number, "f") if number else "0"
    return written.rstrip("0").rstrip(".") if "." in written else written


def _as_digit(found: regex.Match[str]) -> str:
    """Convert a digit of any script to ASCII; return U+FFFD if Python's version of Unicode does not know the digit."""
    return str(unicodedata.decimal(found[0], "\ufffd"))


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
