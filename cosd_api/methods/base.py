"""Bases of all methods: a way to fuse, with its settings, which makes the run of each answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any, ClassVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from cosd_api.alignment import Unit
from cosd_api.checks import check_temperature
from cosd_api.decoding.commands import Decoder
from cosd_api.decoding.driver import Driver
from cosd_api.decoding.run import AnswerJob, Run
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.errors import SettingError
from cosd_api.methods.cost import Assumptions, Cost, Plan, Reading, assistant_cost, draft_cost, draft_first_assumptions
from cosd_api.verification import Verifier
from cosd_providers.contract import ServerInfo
from cosd_providers.deferred import outdated
from cosd_providers.suggestions import suggestion

METHODS: Mapping[str, str] = {
    "cosd": "cosd:CoSD",
    "rerank": "rerank:Rerank",
    "cool": "cool:CoolFusion",
    "speculative": "speculative:Speculative",
    "route": "route:Route",
    "cascade": "cascade:Cascade",
    "average": "average:Average",
    "nudging": "nudging:Nudging",
    "steps": "steps:Steps",
    "defer": "defer:Defer",
    "chared": "chared:CharED",
    "safe": "safe:Safe",
    "switch": "switch:Switch",
    "adafuse": "adafuse:AdaFuse",
}
"""The methods: a mapping of names to modules and classes."""

DEFAULT_METHOD = "cosd"
"""The default method of a fusion."""

_FORMER: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "cool-align": ("cool", {"align": True}, "CoolFusion(align=True), --method cool --set align=true"),
    "cool+rerank": ("cool", {"rerank": True}, "CoolFusion(rerank=True), --method cool --set rerank=true"),
    "mixture": ("average", {"temperature": 1}, "Average(temperature=1), --method average --temperature 1"),
    "co-llm": ("defer", {}, "Defer(gate=...), --method defer --set gate=FILE"),
}
"""Former names of methods, with the method, the settings that the name implied, and the words to write instead."""

Models = Sequence[tuple[str, ServerInfo]]
"""The models of a fusion that are known, by their names in results; the draft first."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A way to fuse, with its settings; give it, or its name, as `method`.

    Attributes:
        name: its name.
        accepts: the settings of `Fusion` that mean something to it.
        hoisted: its own settings that may be given beside it, as arguments of `Fusion`.
        decides: the basis of its decisions, for messages.
        symmetric: whether all models are equal, so that they may be given as `models`.
        ordered: whether its answer depends on the order of the models although all are equal.
        most_models: the largest number of models that it takes; None for any number.
        compares_tokenizers: whether it depends on the models having one tokenizer.
        one_tokenizer: whether it is refused if they are not known to have one.
        accepts_messages_only: whether it takes models that do not continue a partial answer (`Capabilities.continues`).
        why_greedy: the reason why it draws nothing, for messages.
        temperature: 0 if the models write their most probable tokens, 1 if tokens are drawn: then an answer has a seed.
    """

    name: ClassVar[str]
    accepts: ClassVar[frozenset[str]] = frozenset({"on_assistant_error", "on_special_tokens"})
    hoisted: ClassVar[tuple[str, ...]] = ()
    decides: ClassVar[str] = "a rule of its own"
    symmetric: ClassVar[bool] = False
    ordered: ClassVar[bool] = False
    most_models: ClassVar[int | None] = None
    compares_tokenizers: ClassVar[bool] = False
    one_tokenizer: ClassVar[bool] = False
    accepts_messages_only: ClassVar[bool] = False
    why_greedy: ClassVar[str] = "its models write their most probable tokens"

    @property
    def judge(self) -> Verifier | None:
        """The verifier that decides between the models' tokens, for the record; None if the method has none."""
        return None

    @property
    def asks_by_ids(self) -> bool:
        """True if it compares models with the same ids by ids: Algorithm 1, token by token."""
        return False

    @property
    def own_paths(self) -> bool:
        """True if it asks each model that takes ids after that model's own path through the answer."""
        return False

    @property
    def temperature(self) -> float:
        """The temperature at which the models write."""
        return 0.0

    def at_temperature(self, temperature: float | None) -> Method:
        """The same method at a temperature, 0 or 1; at its own if that is None.

        Raises:
            SettingError: it is another temperature, or the method has no such form.
        """
        if temperature is None or check_temperature(temperature) == self.temperature:
            return self
        return self._at(temperature)

    def _at(self, temperature: float) -> Method:
        """The form at the other temperature, if there is one; see `at_temperature`."""
        if temperature:
            words = f"temperature is not accepted by the method {self.name!r}: {self.why_greedy}"
            raise SettingError(f"{words}. Leave it out")
        raise SettingError(f"temperature=0 is not accepted by the method {self.name!r}, which draws. Leave it out")

    def with_unit(self, unit: Unit | None) -> Method:  # noqa: ARG002 - a hook
        """The same method with a unit, if the unit is a setting of its own and is not chosen yet."""
        return self

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002 - a hook
        """Check that the models can serve.

        Args:
            models: the models with their known facts.
            unit: the user's choice.

        Returns:
            Warnings, for every answer.

        Raises:
            UnsupportedError: a model cannot; the message names a method that would work.
        """
        return ()

    def examine_unit(self, unit: Unit, endpoint: str) -> None:  # noqa: B027 - a hook
        """Check that the method can judge by a unit: the user's, or the one that the tokenizers allow.

        Raises:
            UnsupportedError: it cannot; `endpoint` is the draft's.
        """

    def check_models(self, count: int) -> None:
        """Check the number of models.

        Raises:
            SettingError: there are too many, or its settings are for another number.
        """
        if self.most_models is not None and count > self.most_models:
            raise SettingError(f"{self.name!r} takes {self.most_models} models at most, not {count}")

    @abstractmethod
    def start(self, job: AnswerJob) -> Run:
        """The run of one answer."""

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost | None:  # noqa: ARG002 - a hook
        """The cost of an answer at one model, by its index: 0 is the draft. None if the method makes no forecast."""
        return None

    def assumptions(self, plan: Plan) -> Assumptions:  # noqa: ARG002 - a hook
        """The basis of `cost`."""
        return Assumptions("as the method reckons", "the same")

    def options(self) -> dict[str, Any]:
        """Its own settings, as a result records them."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, kw_only=True)
class DraftFirst(Method):
    """A method in which one model drafts and the others are asked about its draft."""

    accepts: ClassVar[frozenset[str]] = Method.accepts | {"draft_length", "ask", "tuning"}

    @property
    def own_paths(self) -> bool:
        """True if tokens are drawn."""
        return bool(self.temperature)

    @abstractmethod
    def decoder(self, job: AnswerJob) -> Decoder:
        """The decoder of one answer."""

    def start(self, job: AnswerJob) -> Run:
        """The run of one answer."""
        return Driver(self.decoder(job), job)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """The cost of an answer at one model; see `Method.cost`."""
        if model == 0:
            return draft_cost(plan, prompt)
        # An assistant that is certain spares the later ones.
        return assistant_cost(plan, model, prompt, always=model == 1 and not plan.skip)

    def assumptions(self, plan: Plan) -> Assumptions:
        """The basis of `cost`."""
        return draft_first_assumptions(plan)


@dataclass(frozen=True, kw_only=True)
class Written(Method):
    """A method that is a plain coroutine: it asks the models, and writes the decided text."""

    @property
    def own_paths(self) -> bool:
        """True: see `AnswerWriter`."""
        return True

    @abstractmethod
    async def write(self, writer: AnswerWriter) -> None:
        """Write one answer to its end."""

    def start(self, job: AnswerJob) -> Run:
        """The run of one answer."""
        return AnswerWriter(job, self.write)


def is_registered(method: Method) -> bool:
    """Test whether the method is one of `METHODS`: a name and settings describe it. A subclass may differ."""
    return method.name in METHODS and type(method) is method_class(method.name)


def method_named(name: str, *, also: Sequence[str] = (), **options: Any) -> Method:
    """A method by its name, with its defaults or with the `options` given.

    `also` are other names that would have been taken, for the error message.

    Raises:
        SettingError: there is no such method, or it has no such setting.
    """
    made = method_class(name, also)
    name, former = present_name(name)
    known = [one.name for one in fields(made)]
    for option in options:
        if option not in known:
            more = suggestion(option, known, f"it has {', '.join(known) or 'none'}")
            raise SettingError(f"the method {name!r} has no setting {option!r}{more}")
    return made(**{**former, **options})


def present_name(name: str) -> tuple[str, Mapping[str, Any]]:
    """The present name of a method that may be given by a former name, and the settings that come with that.

    A former name causes a `DeprecationWarning`.
    """
    method, settings = recorded_name(name)
    if name in _FORMER:
        more = "".join(f" with {setting}={value!r}" for setting, value in settings.items())
        outdated(f"the method {name!r}", f"{method!r}{more} ({_FORMER[name][2]})")
    return method, settings


def recorded_name(name: str) -> tuple[str, Mapping[str, Any]]:
    """The same for a name in a record, without a warning."""
    return _FORMER[name][:2] if name in _FORMER else (name, {})


def method_from_text(name: str, options: Mapping[str, str]) -> Method:
    """A method by its name, with options as text: `{"align": "true"}`, several numbers as `"2,1"`.

    Raises:
        SettingError: see `method_named`; or an option is not of its type.
    """
    made = method_class(name)
    hints = {one.name: get_type_hints(made)[one.name] for one in fields(made)}
    read: dict[str, Any] = {}
    for option, value in options.items():
        if option not in hints:
            read[option] = value  # refused with the rest
            continue
        adapter = TypeAdapter[Any](hints[option])
        try:
            several = "," in value and str not in (hints[option], *get_args(hints[option]))
            read[option] = adapter.validate_python(value.split(",")) if several else adapter.validate_strings(value)
        except ValidationError as error:
            words = error.errors(include_url=False, include_input=False)[0]["msg"]
            if "array" in words:
                words = "several numbers are written with commas, as 2,1"
            raise SettingError(f"{option} of the method {name!r} cannot be {value!r}: {words}") from None
    return method_named(name, **read)


def method_class(name: str, also: Sequence[str] = ()) -> type[Method]:
    """The class of a method, by its present or former name; `also`: other names for the error message.

    Raises:
        SettingError: there is no such method.
    """
    name = _FORMER[name][0] if name in _FORMER else name
    if name not in METHODS:
        names = [*METHODS, *also]
        more = suggestion(name, names, f"the methods are {', '.join(names)}")
        raise SettingError(f"there is no method {name!r}{more}")
    module, _, kind = METHODS[name].partition(":")
    found: type[Method] = getattr(import_module(f"cosd_api.methods.{module}"), kind)
    return found
