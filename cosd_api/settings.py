"""The settings of a fusion and the limits of one answer: declared here once, checked, and recorded in results.

Each group has two forms: the keywords that a caller gives (a `TypedDict`, which type checkers look into) and the
checked values (a dataclass, which has the defaults). A new setting is a line in both, a line in `Settings`, the code
that obeys it, and an option of the command line.
"""

from __future__ import annotations

import difflib
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from importlib import import_module
from inspect import Parameter
from typing import Annotated, Any, Literal, Self, TypedDict, TypeVar, Unpack, get_args

from pydantic import Field

from cosd_api.alignment import Unit
from cosd_api.errors import SettingError
from cosd_api.records import Record
from cosd_api.verification import AgreementVerifier, RuleVerifier, TreeVerifier, Verifier
from cosd_providers import connect
from cosd_providers.contract import Provider
from cosd_providers.messages import Message, OnSpecialTokens, checked_messages

Asking = Literal["contestable", "all"]
"""The places that assistants are asked about: those that could change the text, or all."""
OnBudget = Literal["raise", "end"]
"""At a limit of one answer: raise `BudgetError`, or end the answer with what is verified."""
OnAssistantError = Literal["raise", "draft"]
"""After an assistant has failed for good: end the answer, or continue without it."""

Prompt = str | Sequence[Message | Mapping[str, Any]]
"""Text that all models continue, or a conversation."""

DEFAULT_MAX_TOKENS = 256


# ------------------------------------------------------------------------------------------------------- one answer


class AnswerOptions(TypedDict, total=False):
    """Keywords that bound one answer; see `Fusion.stream`."""

    max_tokens: int
    stop: str | Sequence[str] | None
    timeout: float | None
    max_requests: int | None
    max_billed_tokens: int | None
    on_budget: OnBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """The limits of one answer, checked; see `Fusion.stream`."""

    max_tokens: int = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    timeout: float | None = None
    max_requests: int | None = None
    max_billed_tokens: int | None = None
    on_budget: OnBudget = "raise"

    @classmethod
    def checked(cls, **given: Unpack[AnswerOptions]) -> Self:
        """The limits as given.

        Raises:
            SettingError: one of them is invalid.
        """
        chosen: dict[str, Any] = {**given, "stop": check_stop(given.get("stop"))}
        limits = cls(**chosen)
        check_count("max_tokens", limits.max_tokens)
        if limits.timeout is not None:
            check_seconds("timeout", limits.timeout)
        for name in ("max_requests", "max_billed_tokens"):
            if (most := getattr(limits, name)) is not None:
                check_count(name, most)
        check_choice("on_budget", limits.on_budget, OnBudget)
        return limits


# --------------------------------------------------------------------------------------------------------- a fusion


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Trade requests and drafted tokens for time. None of these changes the text.

    Attributes:
        hedge: while a verdict is pending, start up to this many drafts from the tokens that the draft found nearly as
            probable. If the replacement is one of them, that draft continues without a restart; the others are
            cancelled. The draft's endpoint has up to `hedge` more streams at a time and writes more tokens. After two
            failures in a row no more are started in this answer.
        in_flight: requests to one assistant at a time. With 2, new questions are sent before one is answered: a little
            faster, and many more requests.
        batch_wait: seconds that a question waits for others to join it while drafting continues: fewer requests, and a
            slower answer.
        max_ahead: limit on tokens drafted beyond what is verified; none by default. It bounds each hedged draft
            separately.

    Raises:
        SettingError: one of them is invalid.
    """

    hedge: int = 0
    in_flight: int = 1
    batch_wait: float = 0.0
    max_ahead: int | None = None

    def __post_init__(self) -> None:
        check_count("hedge", self.hedge, least=0)
        check_count("in_flight", self.in_flight)
        object.__setattr__(self, "batch_wait", check_seconds("batch_wait", self.batch_wait, least=0))
        if self.max_ahead is not None:
            check_count("max_ahead", self.max_ahead)


class FusionOptions(TypedDict, total=False):
    """Keywords of `Fusion` beside its models."""

    verifier: Verifier | None
    unit: Unit | None
    draft_length: int | None
    ask: Asking
    on_assistant_error: OnAssistantError
    on_special_tokens: OnSpecialTokens
    tuning: Tuning | None


class FuseOptions(FusionOptions, AnswerOptions, total=False):
    """Keywords of `fuse` beside its models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionSettings:
    """The settings of a fusion, checked; the same for all of its answers. See `Fusion`."""

    verifier: Verifier = field(default_factory=RuleVerifier)
    unit: Unit | None = None
    draft_length: int | None = None
    ask: Asking = "contestable"
    on_assistant_error: OnAssistantError = "raise"
    on_special_tokens: OnSpecialTokens = "warn"
    tuning: Tuning = field(default_factory=Tuning)

    @classmethod
    def checked(cls, **given: Unpack[FusionOptions]) -> Self:
        """The settings as given.

        Raises:
            SettingError: one of them is invalid, or excludes another one.
        """
        by_default = {name for name in ("verifier", "tuning") if given.get(name) is None}
        chosen: dict[str, Any] = {name: value for name, value in given.items() if name not in by_default}
        settings = cls(**chosen)
        check_verifier(settings.verifier)
        check_unit(settings.unit)
        if settings.draft_length is not None:
            check_count("draft_length", settings.draft_length)
        check_choice("ask", settings.ask, Asking)
        check_choice("on_assistant_error", settings.on_assistant_error, OnAssistantError)
        check_choice("on_special_tokens", settings.on_special_tokens, OnSpecialTokens)
        if not isinstance(settings.tuning, Tuning):
            raise SettingError(f"tuning must be a Tuning, such as Tuning(hedge=1), not {settings.tuning!r}")
        hedge, batch_wait = settings.tuning.hedge, settings.tuning.batch_wait
        if settings.draft_length is not None and (hedge or batch_wait):
            name = "hedge" if hedge else "batch_wait"
            raise SettingError(f"{name} is for a draft that streams on: leave out draft_length, which asks in rounds")
        return settings


# ---------------------------------------------------------------------------------------------------- as a record


class CustomVerifier(Record):
    """Stands in a result for a verifier of the user's own."""

    kind: Literal["custom"] = "custom"
    description: str


KnownVerifier = RuleVerifier | TreeVerifier | AgreementVerifier


def describe_verifier(verifier: Verifier) -> KnownVerifier | CustomVerifier:
    """The verifier as a result can hold it."""
    if isinstance(verifier, KnownVerifier) and type(verifier) in get_args(KnownVerifier):  # a subclass may differ
        return verifier
    return CustomVerifier(description=f"{type(verifier).__module__}.{type(verifier).__qualname__}")


class Settings(Record):
    """Settings and limits of one answer: with the prompt and the same endpoints, enough to repeat it."""

    verifier: Annotated[RuleVerifier | TreeVerifier | AgreementVerifier | CustomVerifier, Field(discriminator="kind")]
    unit: Unit
    max_tokens: int
    stop: tuple[str, ...] = ()
    draft_length: int | None = None
    max_ahead: int | None = None
    hedge: int = 0
    in_flight: int = 1
    batch_wait: float = 0.0
    ask: Asking = "contestable"
    on_assistant_error: OnAssistantError = "raise"
    on_special_tokens: OnSpecialTokens = "warn"
    timeout: float | None = None
    max_requests: int | None = None
    max_billed_tokens: int | None = None
    on_budget: OnBudget = "raise"

    @classmethod
    def of(cls, settings: FusionSettings, limits: AnswerLimits, unit: Unit) -> Self:
        """The record of one answer, which was judged by `unit`."""
        parts = (settings, settings.tuning, limits)
        values: dict[str, Any] = {one.name: getattr(part, one.name) for part in parts for one in fields(part)}
        del values["tuning"]
        values |= {"verifier": describe_verifier(settings.verifier), "unit": unit}
        return cls(**values)


# ------------------------------------------------------------------------------------- refused keywords

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

_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


def spell_out(options: type, *defaults: type) -> Callable[[_FunctionT], _FunctionT]:
    """Let a function with `**keywords: Unpack[options]` show them one by one to `help()` and `inspect.signature`.

    Args:
        options: the `TypedDict`.
        defaults: dataclasses with fields of the same names, whose defaults are shown.
    """
    known = {one.name: one.default for group in defaults for one in fields(group)}
    keyword: Any = partial(Parameter, kind=Parameter.KEYWORD_ONLY)
    shown: list[Parameter] = [
        keyword(name, annotation=hint.__forward_arg__, default=None if known[name] is MISSING else known[name])
        for name, hint in options.__annotations__.items()
    ]

    def mark(function: _FunctionT) -> _FunctionT:
        signature = inspect.signature(function)
        named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        vars(function)["__signature__"] = signature.replace(parameters=[*named, *shown])
        return function

    return mark


def refuse(given: Mapping[str, object], function: Callable[..., Any]) -> None:
    """Raise for keyword arguments that `function` does not take.

    Raises:
        SettingError: a setting that other libraries know and a fusion cannot take, with the reason.
        TypeError: a name that belongs elsewhere, with the place; or an unknown one, with the nearest that is known.
    """
    if not given:
        return
    known = [one.name for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    for name in given:
        if name in known:
            continue
        if name in REFUSED:
            raise SettingError(f"{name} is not accepted: {REFUSED[name]}. Leave it out.")
        if place := _elsewhere(name):
            raise TypeError(f"{name} is not accepted here: {place}")
        near = difflib.get_close_matches(name, known, 1, cutoff=0.75)
        raise TypeError(f"unknown argument {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def _elsewhere(name: str) -> str:
    """The right place for an argument that was given in the wrong one; empty where it belongs nowhere."""
    if name in AnswerOptions.__annotations__:
        return "it bounds one answer: give it to generate, stream or map"
    if name in {one.name for one in fields(Tuning)}:
        return f"it is a part of tuning: give tuning=Tuning({name}=...) to Fusion or fuse"
    if name in {"draft", "assistant", *FusionOptions.__annotations__}:
        return "it is the same for all answers: give it to Fusion"
    if name in inspect.signature(connect).parameters.keys() - {"url", "unknown"}:
        return f"it is a server's own: give a provider, draft=connect(url, {name}=...)"
    return ""


# ------------------------------------------------------------------------------------------------------------- checks


def missing_members(given: object) -> list[str]:
    """The members of `cosd_providers.Provider` that `given` lacks, in their order, methods with `()`."""
    entered = ("__aenter__", "__aexit__")
    members = [name for name in vars(Provider) if name in entered or not name.startswith("_")]
    return [name if name == "name" else f"{name}()" for name in members if not hasattr(given, name)]


def check_verifier(verifier: Verifier) -> Verifier:
    """The verifier as given.

    Raises:
        SettingError: it is not a verifier.
    """
    if isinstance(verifier, type) or not isinstance(verifier, Verifier):
        raise SettingError(
            "verifier must be a RuleVerifier, a TreeVerifier, an AgreementVerifier or an object with the "
            f"methods replaces, contestable and explain, not {verifier!r}"
        )
    return verifier


def check_hedge(hedge: int, draft: Provider) -> None:
    """Check that a draft can be hedged.

    Raises:
        SettingError: its provider takes no `alternatives`, such as one written for an earlier version.
    """
    taken = inspect.signature(draft.generate).parameters
    if hedge and "alternatives" not in taken and all(one.kind is not one.VAR_KEYWORD for one in taken.values()):
        words = f"generate() of {type(draft).__name__} has no argument `alternatives`, which hedges start from"
        raise SettingError(f"hedge={hedge} cannot be used: {words}. Leave it out, or add the argument")


def check_unit(unit: Unit | None) -> Unit | None:
    """The unit as given; None compares the endpoints' tokenizers.

    Raises:
        SettingError: it is invalid.
    """
    if unit not in (None, "token", "word"):
        raise SettingError(f'unit must be "token", "word" or None, not {unit!r}')
    return unit


def check_installed(module: str, needed: str, extra: str) -> None:
    """Check that a package of an extra can be imported, before work that takes long.

    Args:
        module: its name, such as `"sklearn"`.
        needed: its use, for the message, such as `"training a tree needs scikit-learn"`.
        extra: the extra that contains it.

    Raises:
        SettingError: it is missing; the message names the extra.
    """
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise SettingError(f'{needed}: pip install "cosd-api[{extra}]"') from None


def check_choice(name: str, given: str, choices: object) -> None:
    """Check that a setting is one of the words of a `Literal`.

    Raises:
        SettingError: it is not.
    """
    words = get_args(choices)
    if given not in words:
        raise SettingError(f"{name} must be {' or '.join(map(json.dumps, words))}, not {given!r}")


def check_seconds(name: str, value: float, *, least: float | None = None) -> float:
    """The seconds as given: above 0, or at least `least`.

    Raises:
        SettingError: they are not.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and value < math.inf and (value > 0 if least is None else value >= least)):
        words = "above 0" if least is None else f"of at least {least:g}"
        raise SettingError(f"{name} must be a number of seconds {words}, not {value!r}")
    return float(value)


def check_count(name: str, value: int, *, least: int = 1) -> int:
    """The number as given: a whole one, at least `least`.

    Raises:
        SettingError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value


def check_prompt(prompt: Prompt) -> str | tuple[Message, ...]:
    """The prompt as given; messages as such.

    Raises:
        SettingError: it is neither text nor a conversation, or it is empty.
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
