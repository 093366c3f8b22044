"""The settings of a fusion, checked; and the reasons why some that other libraries take are refused."""

from __future__ import annotations

import difflib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

from cosd_api.alignment import Unit
from cosd_api.errors import SettingError
from cosd_api.verification import Verifier
from cosd_providers import connect
from cosd_providers.contract import Provider
from cosd_providers.messages import Message, OnSpecialTokens, checked_messages

Asking = Literal["contestable", "all"]
"""What assistants are asked about: what could change the text, or everything."""
OnBudget = Literal["raise", "end"]
"""What a limit of one answer does: raise `BudgetError`, or end the answer with what is verified."""
OnAssistantError = Literal["raise", "draft"]
"""What an assistant that failed for good does: end the answer, or leave the rest of it to the others and the draft."""

Prompt = str | Sequence[Message | Mapping[str, Any]]
"""What a fusion answers: text that the models go on from, or a conversation."""

_GREEDY = "the draft of CoSD is greedy by definition (Algorithm 1: the most probable token)"
_ONE = "a fusion has one answer: with a greedy draft, every sample would be the same"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "typical_p", "do_sample", "seed", "mirostat"), _GREEDY),
    **dict.fromkeys(("n", "best_of", "num_return_sequences", "num_beams"), _ONE),
    **dict.fromkeys(
        ("frequency_penalty", "presence_penalty", "repetition_penalty", "repeat_penalty", "logit_bias"),
        "the verifier compares the models' own probabilities, which this would change",
    ),
    **dict.fromkeys(("logprobs", "top_logprobs"), "every token of the result carries its probabilities already"),
    "echo": "the result holds the answer alone; put the prompt before it",
    "stream": "use `async with fusion.stream(prompt)`",
}
"""Settings of other libraries that mean nothing here, with the reason."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a fusion decides and drafts; the same for all of its prompts. See `Fusion`."""

    verifier: Verifier
    draft_length: int | None
    max_ahead: int | None
    hedge: int
    in_flight: int
    batch_wait: float
    ask: Asking
    on_assistant_error: OnAssistantError
    on_special_tokens: OnSpecialTokens

    @classmethod
    def checked(
        cls,
        *,
        verifier: Verifier,
        draft_length: int | None,
        max_ahead: int | None,
        hedge: int,
        in_flight: int,
        batch_wait: float,
        ask: Asking,
        on_assistant_error: OnAssistantError,
        on_special_tokens: OnSpecialTokens,
    ) -> Self:
        """The plan as given.

        Raises:
            SettingError: something in it cannot be, or not together with something else.
        """
        check_choice("ask", ask, Asking)
        check_choice("on_assistant_error", on_assistant_error, OnAssistantError)
        check_choice("on_special_tokens", on_special_tokens, OnSpecialTokens)
        if draft_length is not None and (hedge or batch_wait):
            other = "hedge" if hedge else "batch_wait"
            raise SettingError(f"{other} is for a draft that streams on: leave out draft_length, which asks in rounds")
        return cls(
            verifier=check_verifier(verifier),
            draft_length=None if draft_length is None else check_count("draft_length", draft_length),
            max_ahead=None if max_ahead is None else check_count("max_ahead", max_ahead),
            hedge=check_count("hedge", hedge, least=0),
            in_flight=check_count("in_flight", in_flight),
            batch_wait=check_seconds("batch_wait", batch_wait, least=0),
            ask=ask,
            on_assistant_error=on_assistant_error,
            on_special_tokens=on_special_tokens,
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """What bounds one answer. See `Fusion.stream`."""

    max_tokens: int
    stop: tuple[str, ...]
    timeout: float | None
    max_requests: int | None
    max_billed_tokens: int | None
    on_budget: OnBudget

    @classmethod
    def checked(
        cls,
        max_tokens: int,
        stop: str | Sequence[str] | None,
        timeout: float | None,
        max_requests: int | None,
        max_billed_tokens: int | None,
        on_budget: OnBudget,
    ) -> Self:
        """The bounds as given.

        Raises:
            SettingError: one of them cannot be one.
        """
        check_choice("on_budget", on_budget, OnBudget)
        return cls(
            check_count("max_tokens", max_tokens),
            check_stop(stop),
            None if timeout is None else check_seconds("timeout", timeout),
            None if max_requests is None else check_count("max_requests", max_requests),
            None if max_billed_tokens is None else check_count("max_billed_tokens", max_billed_tokens),
            on_budget,
        )


_OPTIONS = {"strategy", "api", "dialect"}
"""What some adapters take beyond what `connect` names."""


def _elsewhere(name: str) -> str:
    """Where an argument belongs that was given in the wrong place; empty where it belongs nowhere."""
    if name in {field.name for field in fields(Bounds)}:
        return "it bounds one answer: give it to generate, stream or map"
    if name in {"draft", "assistant", "unit", *(field.name for field in fields(Plan))}:
        return "it is the same for all answers: give it to Fusion"
    if name in {*inspect.signature(connect).parameters, *_OPTIONS} - {"url", "options"}:
        return f"it is a server's own: give a provider, draft=connect(url, {name}=...)"
    return ""


def refuse(given: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raises for keyword arguments that `function` does not take.

    Raises:
        SettingError: a setting that other libraries know and a fusion cannot take, with the reason.
        TypeError: a name that belongs elsewhere, with the place; or that nobody knows, with the nearest one.
    """
    for name in given:
        if name in REFUSED:
            raise SettingError(f"{name} is not taken: {REFUSED[name]}. Leave it out.")
        known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        if place := _elsewhere(name):
            raise TypeError(f"{name} is not taken here: {place}")
        near = difflib.get_close_matches(name, known, 1, cutoff=0.75)
        raise TypeError(f"unknown argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def missing_members(given: object) -> list[str]:
    """What `given` lacks of a provider: the members of `cosd_providers.Provider` in their order, methods with `()`."""
    entered = ("__aenter__", "__aexit__")
    members = [name for name in vars(Provider) if name in entered or not name.startswith("_")]
    return [name if name == "name" else f"{name}()" for name in members if not hasattr(given, name)]


def check_verifier(verifier: Verifier) -> Verifier:
    """The verifier as given.

    Raises:
        SettingError: it is not one.
    """
    if isinstance(verifier, type) or not isinstance(verifier, Verifier):
        raise SettingError(
            "verifier must be a RuleVerifier, a TreeVerifier, an AgreementVerifier or an object with their methods, "
            f"not {verifier!r}"
        )
    return verifier


def check_hedge(hedge: int, draft: Provider) -> None:
    """Sees whether a draft can be hedged.

    Raises:
        SettingError: its provider takes no `alternatives`, such as one that was written for an earlier version.
    """
    taken = inspect.signature(draft.generate).parameters
    if hedge and "alternatives" not in taken and all(one.kind is not one.VAR_KEYWORD for one in taken.values()):
        words = f"generate() of {type(draft).__name__} takes no alternatives, from which a draft is hedged"
        raise SettingError(f"hedge={hedge} is of no use here: {words}")


def check_unit(unit: Unit | None) -> Unit | None:
    """The unit as given; None means that the endpoints' tokenizers are compared.

    Raises:
        SettingError: it is not one.
    """
    if unit not in (None, "token", "word"):
        raise SettingError(f'unit must be "token", "word" or None, not {unit!r}')
    return unit


def check_choice(name: str, given: str, choices: object) -> None:
    """Sees whether a setting is one of the words of a `Literal`.

    Raises:
        SettingError: it is not.
    """
    words = get_args(choices)
    if given not in words:
        raise SettingError(f"{name} must be {' or '.join(map(json.dumps, words))}, not {given!r}")


def check_seconds(name: str, value: float, *, least: float | None = None) -> float:
    """A time: above 0, or from `least` on.

    Raises:
        SettingError: it is no such number.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and value < math.inf and (value > 0 if least is None else value >= least)):
        words = "above 0" if least is None else f"from {least:g} on"
        raise SettingError(f"{name} must be a number of seconds {words}, not {value!r}")
    return float(value)


def check_count(name: str, value: int, *, least: int = 1) -> int:
    """A number of tokens or the like, from `least` on.

    Raises:
        SettingError: it is not a whole number from there on.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingError(f"{name} must be a whole number from {least} on, not {value!r}")
    return value


def check_prompt(prompt: Prompt) -> str | tuple[Message, ...]:
    """The prompt as given; messages as such.

    Raises:
        SettingError: it is neither text nor a conversation, or there is nothing to go on from.
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
        raise SettingError("prompt is empty: there is nothing to go on from")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise SettingError(f"prompt is not valid Unicode text at character {error.start}") from None
    return prompt


def check_stop(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple; one string alone is one stop string.

    Raises:
        SettingError: one of them is empty or not a string.
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
