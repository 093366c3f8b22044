"""Base classes of all fusion methods. A method has settings, and creates the object that writes each answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from cosd_api.alignment import Unit
from cosd_api.checks import check_setting, check_temperature
from cosd_api.errors import SettingError
from cosd_api.methods.cost import Assumptions, Cost, Plan, Reading, assistant_cost, draft_cost, draft_first_assumptions
from cosd_api.methods.loader import address_of, class_at, is_address
from cosd_api.methods.needs import Models, Need, RoleNeeds, check_needs
from cosd_api.verification import Verifier
from cosd_providers.suggestions import suggestion

if TYPE_CHECKING:
    from cosd_api.decoding.answer_job import AnswerJob, Run
    from cosd_api.decoding.program import Answer

METHODS: Mapping[str, str] = {
    "cosd": "cosd:CoSD",
    "rerank": "rerank:Rerank",
    "cool": "cool:CoolFusion",
    "speculative": "speculative:Speculative",
    "average": "average:Average",
    "steps": "steps:Steps",
    "defer": "defer:Defer",
    "chared": "chared:CharED",
    "safe": "safe:Safe",
}
"""The module and class of each method, by the method's name."""

EXAMPLES: Mapping[str, str] = {
    "adafuse": "adafuse.py:AdaFuse",
    "cascade": "cascade.py:Cascade",
    "nudging": "nudging.py:Nudging",
    "route": "route.py:Route",
    "switch": "switch.py:Switch",
}
"""Methods in `examples/methods` of the repository, by their names, under which the library had them before."""

DEFAULT_METHOD = "cosd"
"""The default method of a fusion."""

DEFAULT_IS_GREEDY = "the draft of CoSD is greedy by definition (Algorithm 1: the most probable token)"
"""The reason why the default method does not draw tokens; see `Method.why_greedy`."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A fusion method and its settings. Pass an instance, or the method's name, as `method`.

    Attributes:
        name: the name of the method.
        accepts: the settings of `Fusion` that apply to the method.
        hoisted: the method's own settings that can also be passed to `Fusion` directly.
        decides: what the method bases its decisions on, as a phrase for error messages.
        symmetric: whether all models have the same role; if so, they can be passed as `models`.
        ordered: whether the answer depends on the order of the models although all have the same role.
        most_models: the largest number of models that the method accepts; None for no limit.
        compares_tokenizers: whether the method depends on whether the models share a tokenizer.
        one_tokenizer: whether the method requires models that are known to share a tokenizer.
        accepts_messages_only: whether the method accepts models that do not continue a partial answer
            (`Capabilities.continues`).
        why_greedy: the reason why the method does not draw tokens, as a clause for error messages.
        temperature: 0 if the models write their most probable tokens; 1 if tokens are drawn at random, in which case
            each answer has a seed.
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

    def __post_init__(self) -> None:
        """Check the settings against their annotations; see `check_setting`."""
        for name, hint in settings_of(type(self)).items():
            check_setting(name, getattr(self, name), hint)

    @property
    def judge(self) -> Verifier | None:
        """The verifier that decides between the models' tokens, for results to record; None if there is no verifier."""
        return None

    @property
    def asks_by_ids(self) -> bool:
        """True if models that share the same token ids are compared token by token, as in Algorithm 1."""
        return False

    @property
    def own_paths(self) -> bool:
        """True if each model whose server accepts ids is sent its own path: the answer as the model's own token ids."""
        return False

    @property
    def temperature(self) -> float:
        """The temperature at which the models write: 0 or 1."""
        return 0.0

    def at_temperature(self, temperature: float | None) -> Method:
        """Return the same method at `temperature`, which is 0 or 1; None keeps the present temperature.

        Raises:
            SettingError: the temperature is neither 0 nor 1, or the method does not support it.
        """
        if temperature is None or check_temperature(temperature) == self.temperature:
            return self
        return self._at(temperature)

    def _at(self, temperature: float) -> Method:
        """Return the method at a temperature that is not its present one, if it supports it; see `at_temperature`."""
        if temperature:
            words = f"temperature is not accepted by the method {self.name!r}: {self.why_greedy}"
            raise SettingError(f"{words}. Leave it out")
        raise SettingError(f"temperature=0 is not accepted by the method {self.name!r}, which draws. Leave it out")

    def with_unit(self, unit: Unit | None) -> Method:  # noqa: ARG002 - a hook
        """Return the same method with the setting `unit` set, if the method has that setting and it is None."""
        return self

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002 - a hook
        """Check that the models have the capabilities that the method needs.

        Args:
            models: the models, draft first, with information about their servers.
            unit: the unit that the user chose; None if no unit was chosen.

        Returns:
            Warnings to attach to every answer.

        Raises:
            UnsupportedError: a model lacks a capability; the message names a remedy.
        """
        return ()

    def examine_unit(self, unit: Unit, endpoint: str) -> None:  # noqa: B027 - a hook
        """Check that the method can judge by a unit that the user chose, or that the tokenizers determine.

        Args:
            unit: the unit.
            endpoint: the draft's endpoint, for the error.

        Raises:
            UnsupportedError: the method cannot judge by this unit.
        """

    def check_models(self, count: int) -> None:
        """Check the number of models.

        Raises:
            SettingError: there are too many models, or the method's settings are for a different number of models.
        """
        if self.most_models is not None and count > self.most_models:
            raise SettingError(f"{self.name!r} accepts at most {self.most_models} models, not {count}")

    @abstractmethod
    def start(self, job: AnswerJob) -> Run:
        """Create the `Run` that writes one answer."""

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost | None:  # noqa: ARG002 - a hook
        """Forecast the cost of one answer at one model.

        Bounds hold for all answers of at most `plan.max_tokens` tokens; the expected cost is for an answer of this
        length. A second plan, with the likely length, is therefore passed for the expected cost.

        Args:
            plan: the planned answer.
            model: the index of the model; 0 is the draft.
            prompt: the length of the prompt in this model's tokens.

        Returns:
            The cost; None if the method makes no forecast.
        """
        return None

    def assumptions(self, plan: Plan) -> Assumptions:  # noqa: ARG002 - a hook
        """Describe in words what `cost` assumes."""
        return Assumptions("as the method reckons", "the same")

    def options(self) -> dict[str, Any]:
        """Return the method's own settings in the form that results record."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, kw_only=True)
class DraftFirst(Method):
    """A method in which one model drafts and the other models are asked about its draft."""

    accepts: ClassVar[frozenset[str]] = Method.accepts | {"draft_length", "ask", "max_ahead"}

    @property
    def own_paths(self) -> bool:
        """True if tokens are drawn at random."""
        return bool(self.temperature)

    @property
    @abstractmethod
    def judge(self) -> Verifier:
        """The verifier that decides each disagreement."""

    def start(self, job: AnswerJob) -> Run:
        """Create the `Run` that writes one answer."""
        from cosd_api.decoding.decoder import Decoder  # noqa: PLC0415 - not before an answer

        return Decoder(job, self.judge)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Forecast the cost of one answer at one model; see `Method.cost`."""
        if model == 0:
            return draft_cost(plan, prompt)
        # If one assistant is certain of its token, later assistants need not be asked.
        return assistant_cost(plan, model, prompt, always=model == 1 and not plan.skip)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        return draft_first_assumptions(plan)


@dataclass(frozen=True, kw_only=True)
class Program(Method):
    """A method that is one coroutine, `write`, which asks the models and appends to the answer.

    Attributes:
        needs: what each model must do, by the name of its parameter of `write`. The parameter `*models` stands for all
            models.
        roles: the names of these parameters.
    """

    needs: ClassVar[RoleNeeds] = {}
    roles: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Read the roles of the models from the parameters of `write`."""
        super().__init_subclass__()
        if "write" in vars(cls):
            roles = [*signature(cls.write).parameters.values()][2:]
            cls.roles = tuple(one.name for one in roles)
            several = any(one.kind is one.VAR_POSITIONAL for one in roles)
            cls.most_models = None if several else len(roles)
        if cls.roles and (unknown := {*cls.needs}.difference(cls.roles)):
            words = f"{cls.__name__}.needs names {min(unknown)!r}, which is no parameter of its write"
            raise SettingError(f"{words}: it has {', '.join(cls.roles) or 'none'}")
        if strange := {need for needs in cls.needs.values() for need in needs}.difference(get_args(Need)):
            words = f"{cls.__name__}.needs names {min(strange)!r}, which is no capability"
            raise SettingError(f"{words}: the capabilities are {', '.join(get_args(Need))}")

    @property
    def own_paths(self) -> bool:
        """True, because each model is sent its own path; see `Method.own_paths`."""
        return True

    @property
    def least_listed(self) -> int:
        """The number of other tokens that a model must be able to list with each token, if `needs` contains lists."""
        return 1

    @abstractmethod
    async def write(self, answer: Answer, *models: Any, **_: Any) -> None:  # each method names its models
        """Write one answer, which ends the coroutine as soon as it is complete; see `Answer`."""

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse a model that lacks a capability in `needs`; see `Method.examine`."""
        return check_needs(self.needs, self.roles, models, self.name, self.least_listed)

    def start(self, job: AnswerJob) -> Run:
        """Create the `Run` that writes one answer."""
        from cosd_api.decoding.program import Answer  # noqa: PLC0415 - not before an answer

        return Answer(job, self.write)


@cache
def settings_of(kind: type[Method]) -> Mapping[str, Any]:
    """The annotation of each setting of a method, with its bounds."""
    hints = get_type_hints(kind, include_extras=True)
    return {one.name: hints[one.name] for one in fields(kind)}


def known_as(method: Method) -> str | None:
    """The name or the address that, with the settings, is enough to recreate a method; None if its class has none."""
    if method.name in METHODS and type(method) is method_class(method.name):
        return method.name
    return address_of(type(method))


def method_named(name: str, *, also: Sequence[str] = (), **options: Any) -> Method:
    """Create a method from its name or its address in a file; the `options` override its defaults.

    `also` contains other names that the caller accepts, for the error message.

    Raises:
        SettingError: there is no such method, or it has no such setting.
    """
    made = method_class(name, also)
    known = [one.name for one in fields(made)]
    for option in options:
        if option not in known:
            more = suggestion(option, known, f"it has {', '.join(known) or 'none'}")
            raise SettingError(f"the method {name!r} has no setting {option!r}{more}")
    return made(**options)


def method_from_text(name: str, options: Mapping[str, str]) -> Method:
    """Create a method from its name and from settings as text, such as `{"align": "true"}` or `{"weights": "2,1"}`.

    Raises:
        SettingError: there is no such method or setting, or a value does not have the type of its setting.
    """
    made = method_class(name)
    hints = {one.name: get_type_hints(made)[one.name] for one in fields(made)}
    read: dict[str, Any] = {}
    for option, value in options.items():
        if option not in hints:
            read[option] = value  # `method_named` below refuses this option
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
    """Return the class of the method with this name, which may be the address of a class in a file; see `class_at`.

    `also` contains other names that the caller accepts, for the error message.

    Raises:
        SettingError: there is no such method.
    """
    if is_address(name):
        return class_at(name, Method, METHODS)  # type: ignore[type-abstract]  # a base, not to be created
    if name not in METHODS:
        if name in EXAMPLES:
            words = f"the method {name!r} is now a file of the repository"
            raise SettingError(f"{words}: in a clone, give examples/methods/{EXAMPLES[name]}")
        names = [*METHODS, *also]
        more = suggestion(name, names, f"the methods are {', '.join(names)}")
        raise SettingError(f"there is no method {name!r}{more}")
    module, _, kind = METHODS[name].partition(":")
    found: type[Method] = getattr(import_module(f"cosd_api.methods.{module}"), kind)
    return found
