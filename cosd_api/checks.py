"""Checks of the values that a caller passes; a failed check raises a `SettingError` that suggests a remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

from cosd_api.alignment import Unit
from cosd_api.errors import SettingError
from cosd_api.verification import Verifier
from cosd_providers.contract import Provider
from cosd_providers.messages import Message, checked_messages, checked_own

Prompt = str | Sequence[Message | Mapping[str, Any]]
"""A prompt: text that all models continue, or a conversation."""

Check = Callable[[str, Any], object]
"""A check of a setting, called with its name and value; it raises a `SettingError`. `Annotated` declares it."""

OwnMessages = Mapping[str, str | Sequence[Message | Mapping[str, Any]]]
"""Extra messages for single models, by endpoint name (`"draft"`, `"assistant"`); a string is a system message."""


def missing_members(given: object) -> list[str]:
    """The members of `cosd_providers.Provider` that `given` lacks, in the protocol's order; methods end in `()`."""
    entered = ("__aenter__", "__aexit__")  # Python looks these up on the class, not on the instance
    members = [name for name in vars(Provider) if name in entered or not name.startswith("_")]
    lacks = [name for name in members if not hasattr(type(given) if name in entered else given, name)]
    return [name if name == "name" else f"{name}()" for name in lacks]


def check_verifier(verifier: Verifier) -> Verifier:
    """Check a verifier and return it.

    Raises:
        SettingError: the argument is not a verifier.
    """
    if isinstance(verifier, type) or not isinstance(verifier, Verifier):
        raise SettingError(
            "verifier must be a RuleVerifier, another verifier of cosd_api, or an object with the methods replaces, "
            f"contestable and explain, not {verifier!r}"
        )
    return verifier


def check_unit(unit: Unit | None) -> Unit | None:
    """Check a unit and return it; None means that the endpoints' tokenizers are compared.

    Raises:
        SettingError: the unit is invalid.
    """
    if unit not in (None, *get_args(Unit)):
        raise SettingError(f'unit must be "token", "word", "literal" or None, not {unit!r}')
    return unit


def check_installed(module: str, needed: str, extra: str) -> None:
    """Check that an optional package can be imported, before any long work starts.

    Args:
        module: name of the module, such as `"uvicorn"`.
        needed: first words of the error message, such as `"the gateway needs a web server"`.
        extra: the extra that installs the package.

    Raises:
        SettingError: the package is not installed; the message names the extra.
    """
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise SettingError(f'{needed}: pip install ".[{extra}]" in a clone of the repository') from None


def check_choice(name: str, given: str, choices: object) -> None:
    """Check that a setting is one of the values of a `Literal`.

    Raises:
        SettingError: the value is not valid.
    """
    words = get_args(choices)
    if given not in words:
        raise SettingError(f"{name} must be {' or '.join(map(json.dumps, words))}, not {given!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_seconds(name: str, value: float) -> None:
    """Check that a time limit is above 0.

    Raises:
        SettingError: the value is not valid.
    """
    if not (_is_number(value) and 0 < value < math.inf):
        raise SettingError(f"{name} must be a number of seconds above 0, not {value!r}")


def check_tie(value: float) -> None:
    """Check the width of a tie.

    Raises:
        SettingError: the width is not a number from 0 to 1.
    """
    if not (_is_number(value) and 0 <= value <= 1):
        words = f"tie must be a number from 0 to 1, a difference of two log probabilities, not {value!r}"
        raise SettingError(f"{words}. cosd probe measures one")


def check_positive(name: str, value: float) -> None:
    """Check that a setting is a finite number above 0.

    Raises:
        SettingError: the value is not valid.
    """
    if not (_is_number(value) and 0 < value < math.inf):
        raise SettingError(f"{name} must be a number above 0, not {value!r}")


def check_between(name: str, value: float, low: float, high: float) -> None:
    """Check that a setting is a finite number from `low` to `high`.

    Raises:
        SettingError: the value is not valid.
    """
    if not (_is_number(value) and low <= value <= high and value < math.inf):
        words = f"of at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise SettingError(f"{name} must be a number {words}, not {value!r}")


def between(low: float, high: float = math.inf) -> Check:
    """A bound for the annotation of a setting: a finite number from `low` to `high`."""
    return lambda name, value: check_between(name, value, low, high)


def check_setting(name: str, value: Any, hint: Any) -> None:
    """Check a setting against its annotation: the checks of `Annotated`, the values of `Literal`, or a bool.

    Raises:
        SettingError: the value is not valid.
    """
    for check in getattr(hint, "__metadata__", ()):
        check(name, value)
    if get_origin(hint) is Literal:
        check_choice(name, value, hint)
    if hint is bool and not isinstance(value, bool):
        raise SettingError(f"{name} must be True or False, not {value!r}")


def check_temperature(value: float) -> float:
    """Check a temperature and return it: 0 writes the most probable tokens, 1 draws from the models' own distributions.

    Raises:
        SettingError: the temperature is neither 0 nor 1. Other values would change the probabilities that are compared.
    """
    if not (_is_number(value) and value in (0, 1)):
        words = "0 takes the most probable tokens, 1 draws from the models' own distributions, and servers change the"
        raise SettingError(f"temperature must be 0 or 1, not {value!r}: {words} probabilities at any other")
    return float(value)


def check_count(name: str, value: int, *, least: int = 1) -> int:
    """Check that a number is an integer of at least `least`, and return it.

    Raises:
        SettingError: the value is not valid.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value


def check_prompt(prompt: Prompt) -> str | tuple[Message, ...]:
    """Check a prompt and return it; a conversation becomes a tuple of `Message`.

    Raises:
        SettingError: the prompt is neither text nor a conversation, or it is empty or invalid.
    """
    if not isinstance(prompt, str):
        if isinstance(prompt, Message | Mapping | bytes | bytearray) or not isinstance(prompt, Sequence):
            more = "; one message is a list, too" if isinstance(prompt, Message | Mapping) else ""
            raise SettingError(f"prompt must be a string or a list of messages, not {type(prompt).__name__}{more}")
        try:
            return checked_messages(prompt)
        except ValueError as error:
            raise SettingError(str(error)) from None
    if not prompt:
        raise SettingError("prompt is empty: there is nothing to continue")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise SettingError(f"prompt is not valid Unicode text at character {error.start}") from None
    return prompt


def check_own(own: OwnMessages | None) -> dict[str, tuple[Message, ...]]:
    """Check the extra messages for single models and return them as tuples, by endpoint name.

    Raises:
        SettingError: `own` is not a mapping, or a message is invalid.
    """
    if own is None:
        return {}
    if not isinstance(own, Mapping):
        words = f"own must map names of models to their messages, not {type(own).__name__}"
        raise SettingError(f'{words}: own={{"assistant": "a system message"}}')
    found: dict[str, tuple[Message, ...]] = {}
    for name, given in own.items():
        system, messages = (given, None) if isinstance(given, str) else (None, given)
        try:
            found[name] = checked_own(system, messages)
        except ValueError as error:
            raise SettingError(f"own[{name!r}]: {error}") from None
    return found


def check_stop(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Check the stop strings and return them as a tuple. If `stop` is a string, it is the only stop string.

    Raises:
        SettingError: a stop string is empty, not a string, or not valid Unicode.
    """
    if not (stop is None or isinstance(stop, str | Sequence)):
        raise SettingError(f"stop must be a string or several, not {stop!r}")
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for one in stops:
        if not isinstance(one, str) or not one:
            raise SettingError(f"stop must be strings of at least one character, not {one!r}")
        if not one.isprintable() and any("\ud800" <= character <= "\udfff" for character in one):
            raise SettingError(f"stop is not valid Unicode text: {one!r}")
    return stops
