"""The settings of a fusion and the limits of one answer: how they are given, checked, and recorded in results.

Both have two forms: the keywords that a caller passes (a `TypedDict`, for type checkers) and the checked values (a
dataclass). The dataclass declares each setting once: its type, its default, its bounds and a sentence of help. The
checks, the options of the command line and the fields of a settings file are derived from these declarations. A new
setting needs a line in both forms, a line in `Settings`, and the code that implements it.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache, partial
from inspect import Parameter
from typing import Annotated, Any, Literal, NamedTuple, Self, TypedDict, TypeVar, Unpack, cast, get_args, get_type_hints

from pydantic import Field, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from cosd_api.alignment import Unit
from cosd_api.checks import (
    OwnMessages,
    check_choice,
    check_count,
    check_own,
    check_seconds,
    check_stop,
    check_tie,
    check_unit,
)
from cosd_api.decoding.pace import Pace
from cosd_api.decoding.route import BY_IDS, Route, in_words
from cosd_api.errors import SettingError
from cosd_api.methods.base import DEFAULT_IS_GREEDY, DEFAULT_METHOD, Method, method_class, method_named
from cosd_api.records import Record
from cosd_api.structured.response_format import ResponseFormat
from cosd_api.verification import KnownVerifier, RuleVerifier, Verifier
from cosd_providers import connect
from cosd_providers.messages import Message, OnSpecialTokens
from cosd_providers.suggestions import suggestion

Asking = Literal["contestable", "all"]
"""The places about which assistants are asked: only the places where the text could change, or all places."""
OnBudget = Literal["raise", "end"]
"""The reaction when an answer reaches a limit: raise `BudgetError`, or end the answer with its verified text."""
OnAssistantError = Literal["raise", "draft"]
OnDraftError = Literal["raise", "assistant"]
"""The reaction when an assistant has failed, after any retries: raise an error, or continue without the assistant."""

DEFAULT_TIE = 0.02
"""Default width of a tie: log probabilities that differ by at most this number count as equal; see `Fusion`."""

DEFAULT_MAX_TOKENS = 256
MOST_ALTERNATIVES = 20
"""Maximum number of other tokens to list with each token, which is the maximum of OpenAI's API and of vLLM."""


# ----------------------------------------------------------------------------------------------------- declarations


@dataclass(frozen=True, slots=True)
class Setting:
    """The part of a setting's declaration that its type does not contain, as metadata of the type (`Annotated`).

    Attributes:
        help: one sentence for the help of the command line and for the schema of settings files.
        least: minimum of a number.
        most: maximum of a number.
        above: number that a number of seconds must exceed.
        value: placeholder for the value in the help of the command line.
    """

    help: str
    least: int | None = None
    most: int | None = None
    above: int | None = None
    value: str = "N"

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add the help and the bounds to the schema of a settings file; `check_declared` checks the bounds."""
        bounds = {"minimum": self.least, "maximum": self.most, "exclusiveMinimum": self.above}
        shown = {name: bound for name, bound in bounds.items() if bound is not None}
        return {**handler(schema), "description": self.help, **shown}


class DeclaredSetting(NamedTuple):
    """A setting as a dataclass declares it: its type without `Setting`, its default, and its `Setting`."""

    type: Any
    default: Any
    about: Setting


@cache
def declared_settings(kind: type[Any]) -> Mapping[str, DeclaredSetting]:
    """The settings that a dataclass declares with a `Setting`, by name."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, DeclaredSetting] = {}
    for one in fields(kind):
        about = [mark for mark in getattr(hints[one.name], "__metadata__", ()) if isinstance(mark, Setting)]
        if about:
            found[one.name] = DeclaredSetting(hints[one.name].__origin__, one.default, about[0])
    return found


def check_declared(settings: Any) -> None:
    """Check the values of a dataclass against its declarations: whole numbers, seconds, and choices.

    Raises:
        SettingError: a value is invalid.
    """
    for name, (hint, default, about) in declared_settings(cast("Any", type(settings))).items():
        if getattr(settings, name) is None and default is None:
            continue
        value = getattr(settings, name)
        if int in (hint, *get_args(hint)):
            check_count(name, value, least=about.least or 0)
        elif about.above is not None:
            check_seconds(name, value)
        elif isinstance(default, str):
            check_choice(name, value, hint)


# ------------------------------------------------------------------------------------------------------- one answer


class SpendingOptions(TypedDict, total=False):
    """Keyword arguments that limit what an answer or a log-likelihood may cost."""

    timeout: float | None
    max_requests: int | None
    max_billed_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingLimits:
    """The checked limits on what an answer or a log-likelihood may cost."""

    timeout: Annotated[
        float | None, Setting("Limit on the time of the whole answer; none by default.", above=0, value="SECONDS")
    ] = None
    max_requests: Annotated[int | None, Setting("Limit on requests to all servers, retries included.", least=1)] = None
    max_billed_tokens: Annotated[
        int | None,
        Setting(
            "Limit on tokens read and written by all servers. By default, the command line limits only expensive "
            "methods (more than ten times the draft's tokens); a note names the limit.",
            least=1,
        ),
    ] = None


class AnswerOptions(SpendingOptions, total=False):
    """Keyword arguments that limit one answer; see `Fusion.stream`."""

    max_tokens: int
    stop: str | Sequence[str] | None
    on_budget: OnBudget
    seed: int | None
    own: OwnMessages | None
    alternatives: int
    response_format: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits(SpendingLimits):
    """The checked limits of one answer; see `Fusion.stream`."""

    max_tokens: Annotated[int, Setting("Limit on the tokens of an answer.", least=1)] = DEFAULT_MAX_TOKENS
    stop: Annotated[
        tuple[str, ...],
        Setting("An answer ends before this text; may be repeated. $'\\n' is a line end.", value="TEXT"),
    ] = ()
    on_budget: Annotated[
        OnBudget, Setting("At a limit of time, requests or billed tokens: fail, or end with the verified text.")
    ] = "raise"
    seed: Annotated[int | None, Setting("Seed for methods that draw.", least=0)] = None
    own: Mapping[str, tuple[Message, ...]] = field(default_factory=dict[str, tuple[Message, ...]], repr=False)
    alternatives: Annotated[
        int, Setting("Other tokens to list with each token of the answer.", least=0, most=MOST_ALTERNATIVES)
    ] = 0
    response_format: ResponseFormat | None = None

    @classmethod
    def checked(cls, **given: Unpack[AnswerOptions]) -> Self:
        """Check the given limits and return them.

        Raises:
            SettingError: a setting is invalid.
        """
        chosen: dict[str, Any] = {**given, "stop": check_stop(given.get("stop")), "own": check_own(given.get("own"))}
        chosen["response_format"] = ResponseFormat.of(given.get("response_format"))
        limits = cls(**chosen)
        check_declared(limits)
        if limits.alternatives > MOST_ALTERNATIVES:
            words = f"alternatives={limits.alternatives} is too many"
            raise SettingError(f"{words}: at most {MOST_ALTERNATIVES} other tokens are listed with each")
        return limits

    def options(self) -> dict[str, Any]:
        """The limits as keyword arguments."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def seeded(self, method: Method) -> Self:
        """Return the limits for one answer, with a random seed if the method draws and no seed is given.

        Raises:
            SettingError: a seed is given, but the method does not draw; or a format, which the method cannot keep.
        """
        if self.response_format is not None and ("response_format" not in method.accepts or method.temperature):
            why = "it draws its tokens" if method.temperature else f"it decides by {method.decides}"
            words = f"response_format is not accepted by the method {method.name!r}, because {why}"
            raise SettingError(f"{words}. Leave it out, or use method='cosd' without a temperature")
        if method.temperature:
            return self if self.seed is not None else replace(self, seed=secrets.randbits(31))
        if self.seed is not None:
            words = f"seed is not accepted: the method {method.name!r} draws nothing, as {method.why_greedy}"
            raise SettingError(f"{words}. Leave it out")
        return self


class LikelihoodOptions(SpendingOptions, total=False):
    """Keyword arguments of one log-likelihood; see `Fusion.log_likelihood`."""

    end: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelihoodLimits(SpendingLimits):
    """The checked limits of one log-likelihood; see `Fusion.log_likelihood`."""

    end: bool = False

    @classmethod
    def checked(cls, **given: Unpack[LikelihoodOptions]) -> Self:
        """Check the given limits and return them.

        Raises:
            SettingError: a setting is invalid.
        """
        limits = cls(**given)
        if not isinstance(limits.end, bool):
            raise SettingError(f"end must be True or False, not {limits.end!r}")
        check_declared(limits)
        return limits


# --------------------------------------------------------------------------------------------------------- a fusion


class FusionOptions(TypedDict, total=False):
    """Keyword arguments of `Fusion` other than its models."""

    method: str | Method | None
    verifier: Verifier | None
    unit: Unit | None
    draft_length: int | None
    ask: Asking
    on_assistant_error: OnAssistantError
    on_draft_error: OnDraftError
    on_special_tokens: OnSpecialTokens
    max_ahead: int | None
    temperature: float | None
    tie: float | None


class FuseOptions(FusionOptions, AnswerOptions, total=False):
    """Keyword arguments of `fuse` other than its models."""


class LogLikelihoodOptions(FusionOptions, LikelihoodOptions, total=False):
    """Keyword arguments of `log_likelihood` other than its models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionSettings:
    """The checked settings of a fusion, which apply to all of its answers; see `Fusion`."""

    method: Method = field(default_factory=partial(method_named, DEFAULT_METHOD))
    verifier: Verifier = field(default_factory=RuleVerifier)
    unit: Annotated[
        Unit | None,
        Setting(
            "The unit that is judged; by default it depends on a comparison of the tokenizers. `literal` is equation "
            "3 of the paper as printed."
        ),
    ] = None
    draft_length: Annotated[
        int | None, Setting("Draft in rounds of this many tokens; by default in one stream.", least=1, value="K")
    ] = None
    ask: Annotated[
        Asking, Setting("Ask assistants only about places where the text could change, or about all places.")
    ] = "contestable"
    on_assistant_error: Annotated[
        OnAssistantError, Setting("If an assistant fails despite retries: fail, or continue without it.")
    ] = "raise"
    on_draft_error: Annotated[
        OnDraftError, Setting("If the draft fails despite retries: fail, or let an assistant write on alone.")
    ] = "raise"
    on_special_tokens: Annotated[
        OnSpecialTokens, Setting("If a message holds the text of a special token and may be read as one.")
    ] = "warn"
    max_ahead: Annotated[int | None, Setting("Limit on tokens drafted ahead of verification.", least=1)] = None
    temperature: Annotated[
        float,
        Setting("1 draws every token, if the method can; 0 takes the most probable tokens.", value="0|1"),
    ] = 0.0
    tie: Annotated[
        float,
        Setting(
            "Log probabilities this close count as equal; `cosd probe` proposes a value.", least=0, most=1, value="X"
        ),
    ] = DEFAULT_TIE

    @classmethod
    def checked(cls, **given: Unpack[FusionOptions]) -> Self:
        """Check the given settings and return them.

        Raises:
            SettingError: a setting is invalid, or two settings exclude each other.
        """
        defaults = ("method", "verifier", "temperature", "tie")
        by_default = {name for name in defaults if given.get(name) is None}
        chosen: dict[str, Any] = {name: value for name, value in given.items() if name not in by_default}
        settings = cls(**chosen | _method(chosen))
        check_declared(settings)
        check_tie(settings.tie)
        _check_pace(settings)
        return settings

    @property
    def pace(self) -> Pace:
        """The pace of drafting, for methods that draft."""
        return Pace(
            draft_length=self.draft_length,
            max_ahead=self.max_ahead,
        )


def declared_setting(name: str) -> DeclaredSetting:
    """Look up the declaration of a setting of a fusion or of an answer."""
    kinds: tuple[Any, ...] = (FusionSettings, AnswerLimits)
    return next(known[name] for known in map(declared_settings, kinds) if name in known)


def _check_pace(settings: FusionSettings) -> None:
    """Refuse a limit that is meant for a continuous draft if the draft is written in rounds."""
    if settings.temperature and settings.max_ahead is not None:
        words = "max_ahead is for a draft that is verified while it streams, but a drawn draft is written in rounds"
        raise SettingError(f"{words}: leave it out, or give draft_length")


_OTHER_DECISION = "it decides by {decides}"
_OF_A_DRAFT = "it is for methods in which one model drafts and the others are asked about its tokens"
_MEANINGLESS = {
    "verifier": _OTHER_DECISION,
    "unit": _OTHER_DECISION,
    "tie": _OTHER_DECISION,
    "draft_length": _OF_A_DRAFT,
    "ask": _OF_A_DRAFT,
    "on_draft_error": "only Algorithm 1 (method cosd) lets an assistant write on alone",
    "max_ahead": _OF_A_DRAFT,
}
"""Settings that only some methods accept, with the reason why the other methods refuse them."""


def _method(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that depend on the method: the method itself, its temperature, and its verifier and unit, if any.

    Raises:
        SettingError: `method` is invalid, or another setting has no meaning for the method.
    """
    method = DEFAULT_METHOD if given.get("method") is None else given["method"]
    beside = {name: one for name in ("verifier", "unit") if (one := given.get(name)) is not None}
    if isinstance(method, str):
        hoisted = method_class(method).hoisted
        method = method_named(method, **{name: one for name, one in beside.items() if name in hoisted})
    elif isinstance(method, Method):
        if not isinstance(getattr(method, "name", None), str):
            words = f"the class {type(method).__name__} has no name for results and messages"
            raise SettingError(f'{words}: give it one, name: ClassVar[str] = "..."')
        for name, one in beside.items():
            if name in method.hoisted and one != getattr(method, name):
                place = f"in {type(method).__name__}(...), and beside it"
                raise SettingError(f"{name} is given twice: {place}. Leave one of them out")
    else:
        raise SettingError(f'method must be a name such as "cosd", or an object such as CoSD(), not {method!r}')
    defaults = FusionSettings()
    for name, reason in _MEANINGLESS.items():
        if name not in method.accepts and given.get(name) not in (None, getattr(defaults, name)):
            words = reason.format(decides=method.decides)
            raise SettingError(f"{name} means nothing to the method {method.name!r}: {words}. Leave it out")
    unit = check_unit(given.get("unit"))
    if method.one_tokenizer and unit in ("word", "literal"):
        words = "single tokens" if unit == "word" else "tokens of one tokenizer"
        raise SettingError(f'unit="{unit}" means nothing to the method {method.name!r}: it compares {words}')
    method = method.at_temperature(given.get("temperature")).with_unit(unit)
    chosen: dict[str, Any] = {"method": method, "temperature": method.temperature}
    chosen |= {name: getattr(method, name) for name in method.hoisted}
    return chosen if method.judge is None else {**chosen, "verifier": method.judge}


# ---------------------------------------------------------------------------------------------------- as a record


class CustomVerifier(Record):
    """A user's own verifier, as a result records it."""

    kind: Literal["custom"] = "custom"
    description: str


def describe_verifier(verifier: Verifier) -> KnownVerifier | CustomVerifier:
    """The verifier as a result records it: one of the library's own unchanged, a user's own as a description."""
    if isinstance(verifier, KnownVerifier) and type(verifier) in get_args(KnownVerifier):  # subclasses may differ
        return verifier
    return CustomVerifier(description=f"{type(verifier).__module__}.{type(verifier).__qualname__}")


class Settings(Record):
    """The settings and limits of one answer. With the same prompt and endpoints, they suffice to repeat the answer.

    Attributes:
        method: name of the method.
        method_options: the method's own settings.
        verifier: the verifier; None for methods without one.
        unit: the unit in which tokens were judged; None if the method judges no units.
        temperature: 1 if tokens were drawn at random, else 0.
        seed: seed of the random draws; None if nothing was drawn.
        contexts: `"ids"` if all models were sent their contexts as token ids, `"text"` if any model was sent text.
        routes: if the method judges a draft, how each model was sent the answer, by name: `"ids"` (the draft's ids),
            `"own"` (its own encoding), `"text"` (up to a safe cut) or `"literal"` (equation 3 of the paper as printed).
            Models that were left out from the beginning are missing. Empty in answers from earlier versions.
        tie: largest difference of log probabilities at which an assistant's two most probable ids counted as equal.
        response_format: the format of the answer, in the form of OpenAI's API as far as it has one; None for any text.
    """

    method: str = DEFAULT_METHOD
    method_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    verifier: Annotated[KnownVerifier | CustomVerifier, Field(discriminator="kind")] | None
    unit: Unit | None
    max_tokens: int
    stop: tuple[str, ...] = ()
    draft_length: int | None = None
    max_ahead: int | None = None
    ask: Asking = "contestable"
    on_assistant_error: OnAssistantError = "raise"
    on_draft_error: OnDraftError = "raise"
    on_special_tokens: OnSpecialTokens = "warn"
    timeout: float | None = None
    max_requests: int | None = None
    max_billed_tokens: int | None = None
    on_budget: OnBudget = "raise"
    temperature: float = 0.0
    seed: int | None = None
    contexts: Literal["ids", "text"] = "text"
    routes: dict[str, Route] = Field(default_factory=dict[str, Route])
    tie: float = 0.0
    response_format: dict[str, Any] | None = None

    @property
    def route(self) -> str:
        """The routes in words, such as `"ids to ids"`; empty if there are none."""
        return in_words(self.routes) if self.routes else ""

    @classmethod
    def of(
        cls,
        settings: FusionSettings,
        limits: AnswerLimits,
        unit: Unit,
        *,
        routes: Mapping[str, Route] | None = None,
        ties: bool = False,
    ) -> Self:
        """Make the record of one answer.

        Args:
            settings: the settings of the fusion.
            limits: the limits of the answer.
            unit: the unit in which the answer was judged.
            routes: the route of each model, by name.
            ties: whether ties could occur.
        """
        parts = (settings, limits)
        values: dict[str, Any] = {one.name: getattr(part, one.name) for part in parts for one in fields(part)}
        del values["own"]  # messages are private, like the prompt
        del values["alternatives"]  # the tokens contain them, and they do not affect the answer
        chosen = limits.response_format
        values["response_format"] = None if chosen is None else chosen.record
        method = settings.method
        values |= {
            "method": method.name,
            "method_options": method.options(),
            "verifier": None if method.judge is None else describe_verifier(method.judge),
            "unit": unit if "unit" in method.accepts else None,
            "contexts": "ids" if routes and all(one in BY_IDS for one in routes.values()) else "text",
            "routes": {} if method.own_paths else dict(routes or {}),
            "tie": settings.tie if ties else 0.0,
        }
        return cls(**values)


# ------------------------------------------------------------------------------------- refused keywords

_OF_ALL = "it is a setting of the method, the same for all answers: give it to Fusion or fuse"
_OF_ONE = "it belongs to one answer of a method that draws: give it to generate, stream, map or fuse"
_ONE = "a fusion has one answer: with a greedy draft, every sample would be the same"
REFUSED_SETTINGS: Mapping[str, str] = {
    **dict.fromkeys(("top_p", "top_k", "min_p", "typical_p", "do_sample", "mirostat"), DEFAULT_IS_GREEDY),
    "temperature": _OF_ALL,
    "seed": _OF_ONE,
    **dict.fromkeys(("n", "best_of", "num_return_sequences", "num_beams"), _ONE),
    **dict.fromkeys(
        ("frequency_penalty", "presence_penalty", "repetition_penalty", "repeat_penalty", "logit_bias"),
        "the verifier compares the models' own probabilities, which this would change",
    ),
    "logprobs": "every token of the result carries its probabilities already",
    "top_logprobs": "every token of the result carries its probabilities; alternatives=5 also lists other tokens",
    "echo": "the result holds the answer alone; put the prompt before it",
    "stream": "use `async with fusion.stream(prompt)`",
}
"""Settings of other libraries that a fusion refuses, with the reason."""

_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


def spell_out_options(options: type, *defaults: type) -> Callable[[_FunctionT], _FunctionT]:
    """Make `help()` and `inspect.signature` list the keywords of a function with `**keywords: Unpack[options]`.

    Args:
        options: the `TypedDict` of the keywords.
        defaults: dataclasses whose fields have the same names and the defaults to show.
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


def refuse_settings(given: Mapping[str, object], function: Callable[..., Any]) -> None:
    """Refuse keyword arguments that `function` does not accept.

    Raises:
        SettingError: other libraries have this setting, but a fusion does not; the message gives the reason.
        TypeError: the argument belongs to another function, which the message names; or the name is unknown, and the
            message suggests the most similar known name.
    """
    if not given:
        return
    known = [one.name for one in inspect.signature(function).parameters.values() if one.kind is one.KEYWORD_ONLY]
    for name in given:
        if name in known:
            continue
        if name in REFUSED_SETTINGS:
            raise SettingError(f"{name} is not accepted: {REFUSED_SETTINGS[name]}. Leave it out.")
        if place := _elsewhere(name):
            raise TypeError(f"{name} is not accepted here: {place}")
        raise TypeError(f"unknown argument {name!r}{suggestion(name, known)}")


def _elsewhere(name: str) -> str:
    """Advice about the right place for an argument that was given in the wrong place; empty for an unknown argument."""
    if name in AnswerOptions.__annotations__:
        return "it bounds one answer: give it to generate, stream or map"
    if name in {"draft", "assistant", "models", *FusionOptions.__annotations__}:
        return "it is the same for all answers: give it to Fusion"
    if name in inspect.signature(connect).parameters.keys() - {"url", "unknown"}:
        return f"it is a server's own: give a provider, draft=connect(url, {name}=...)"
    return ""
