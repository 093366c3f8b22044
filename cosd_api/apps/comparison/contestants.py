"""Contestants of a comparison: each model alone, methods with each model as the draft, and baselines."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic_core import to_jsonable_python

from cosd_api import Average, CoolFusion, CoSD, Fusion, RuleVerifier, SettingError
from cosd_api.extend import (
    FINER,
    Answer,
    Assumptions,
    Bounds,
    Cost,
    Method,
    Model,
    Models,
    Passage,
    Plan,
    Program,
    Reading,
    Unit,
    check_count,
    readable,
)
from cosd_api.methods import METHODS, check_draws, is_address, method_named
from cosd_api.settings import FusionOptions, describe_verifier
from cosd_api.types import CustomVerifier
from cosd_api.verification import KINDS, default_of
from cosd_providers import Message, Provider

ContestantKind = Literal["alone", "method", "baseline", "derived", "pilot"]
"""A model alone; a fusion method; a baseline that asks the models; a contestant whose answers are derived from the
models' own answers; or a pilot, which answers only the development questions, to find the settings of a baseline."""
Chosen = Literal["all"] | Sequence[str | Method] | Mapping[str, str | Method]
"""Methods to compare: `"all"`; a sequence of names or methods; or a mapping whose values are names or methods."""

DRAFT_ALONE, ASSISTANT_ALONE = "draft", "assistant"
COSD = CoSD.name
ORACLE = "oracle"
SELF_CONSISTENCY, RANDOM = "self-consistency", "random gate"
EVERYWHERE = "cosd asked everywhere"
REVERSED = ", reversed"
"""Suffix for the name of a contestant in which the two models have swapped roles."""
_RUN = secrets.token_hex(8)
"""Identity of this process, for keys that must differ from the keys of all other runs."""
_ModelT = TypeVar("_ModelT")

VARIANTS: Mapping[str, Method] = {
    "cosd-1-1": CoSD(verifier=RuleVerifier(alpha=1, beta=1)),
    "cosd-paper": CoSD(verifier=RuleVerifier.paper()),
    "cosd-0.97-1": CoSD(verifier=RuleVerifier(alpha=0.97, beta=1)),
    **{
        f"cosd-{kind}": CoSD(verifier=default_of(kind))
        for kind, one in KINDS.items()
        if getattr(one, "compared", False)
    },
    "average-drawn": Average(temperature=1),
    "cool-align": CoolFusion(align=True),
    "cool+rerank": CoolFusion(rerank=True),
}
"""Methods with settings other than the defaults, keyed by their names in a comparison."""

_UNASKED = {"speculative": "it draws what the assistant would write; its greedy text is that of cosd-match"}
"""Methods that are compared only if the user names them; the values give the reasons."""


@dataclass(frozen=True, kw_only=True)
class Alone(Program):
    """One model's own answer: the draft writes its most probable tokens, and no other model is asked."""

    name: ClassVar[str] = "alone"
    decides: ClassVar[str] = "one model alone"
    accepts_messages_only: ClassVar[bool] = True

    async def write(self, answer: Answer, *models: Model) -> None:  # noqa: ARG002 - the draft writes alone
        """Write the draft's own answer."""
        await models[0].finish("no other model is asked")

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Estimate the cost: one request to the draft; see `Method.cost`."""
        if model:
            return Cost(Bounds(0, 0, 0), Bounds(0, 0, 0), 0)
        n = plan.max_tokens
        return Cost(Bounds(1, 1, 1), Bounds(prompt.least + 1, prompt.expected + n, prompt.most + FINER * n), n)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Return the assumptions on which `cost` is based."""
        return Assumptions(f"{plan.max_tokens} tokens, in one request", "the same")


@dataclass(frozen=True, kw_only=True)
class SelfConsistency(Program):
    """A majority vote among several sampled answers of the first model; no other model is asked.

    If several answers have the most votes, the answer that was drawn first wins. If no sample has an answer, the first
    sample is taken.

    Attributes:
        samples: number of samples, at least 1.
        grader: name of the grader that reads the answers, as recorded in results.
        reads: function that is given the prompt's plain text and a sample, and returns the answer that the sample votes
            for; None if it votes for nothing.
    """

    name: ClassVar[str] = SELF_CONSISTENCY
    decides: ClassVar[str] = "a vote of whole answers"
    symmetric: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    accepts_messages_only: ClassVar[bool] = True

    samples: Annotated[int, check_count] = 5
    grader: str = ""
    reads: Callable[[str, str], str | None] = lambda _, text: text.strip() or None

    @property
    def temperature(self) -> float:
        """Always 1, because every token is drawn."""
        return 1.0

    def options(self) -> dict[str, Any]:
        """The method's own settings, as recorded in results."""
        return {"samples": self.samples, "grader": self.grader}

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002
        """Raise an error if the first model cannot sample; see `Method.examine`."""
        return check_draws([("better model", models[0][1])], f"{self.name!r}")

    async def write(self, answer: Answer, *models: Model) -> None:
        """Draw the samples, and write the first one with the answer that has the most votes."""
        model = models[0]
        plain = answer.conversation is None and not await model.continues()
        prompt = await model.rendered([Message("user", answer.prompt)]) if plain else None

        async def draw(number: int) -> Passage:
            return await model.write(draw=("sample", model.index, number), prompt=prompt)

        samples = await model.several(draw, range(self.samples))
        read = [self.reads(answer.prompt, readable(answer.alone(one).data)) for one in samples]
        votes = Counter(one for one in read if one is not None)
        best, share = max(votes.items(), key=lambda one: one[1], default=(None, 0))  # the first one drawn, if equal
        why = f"{share} of {self.samples} samples have this answer" if share else "no sample has an answer"
        answer.append(samples[read.index(best) if share else 0], why, whole=True)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Estimate the cost of the first model's samples; see `Method.cost`."""
        if model:
            return Alone().cost(plan, model, prompt)
        n, drawn = plan.max_tokens, self.samples
        tokens = Bounds(
            drawn * (prompt.least + 1), drawn * (prompt.expected + n), 2 * drawn * (prompt.most + FINER * n)
        )
        return Cost(Bounds(drawn, drawn, 2 * drawn), tokens, drawn * n)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Return the assumptions on which `cost` is based."""
        high = "each sample takes a second request for its last token"
        return Assumptions(f"each of {self.samples} samples has {plan.max_tokens} tokens", high)


@dataclass(frozen=True)
class Contestant:
    """A participant of a comparison: a model alone, a method, or a baseline.

    Attributes:
        name: name of the contestant; if an assistant drafts, a method's name ends with the suffix from `turned`.
        method: the method that answers; None if the answers are derived from other contestants' answers.
        first: index of the model that drafts, or is listed first: 0 is the draft, 1 the first assistant. The other
            models assist, in the order in which the user gave them.
    """

    name: str
    kind: ContestantKind
    method: Method | None = None
    first: int = 0

    def order(self, models: Sequence[_ModelT]) -> list[_ModelT]:
        """Reorder the models from the user's order into the order of this contestant."""
        return [models[self.first], *(one for at, one in enumerate(models) if at != self.first)]

    def fusion(self, models: Sequence[Provider], unit: Unit | None = None) -> Fusion:
        """Create the fusion that answers; `models` are the draft and the assistants, as the user gave them.

        Raises:
            SettingError: the method does not support the unit or this number of models.
        """
        assert self.method is not None, f"{self.name} asks no model"
        method = self.method.with_unit(unit)
        options: FusionOptions = {"method": method, "ask": "all"} if self.kind == "pilot" else {"method": method}
        if "unit" not in method.hoisted and unit is not None and ("unit" in method.accepts or method.one_tokenizer):
            options["unit"] = unit
        draft, *assistants = self.order(models)
        if method.symmetric:
            return Fusion(models=[draft, *assistants], **options)
        return Fusion(draft=draft, assistant=assistants, **options)

    def role(self, names: Sequence[str]) -> dict[str, str]:
        """Map each endpoint's name in the fusion to the user's name for it; `names` are the names of all models."""
        mine = self.order(names)
        return dict(zip(model_names(len(mine)), mine, strict=True))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings of the method as JSON: its name, its own settings, and its verifier if it has one."""
        if self.method is None:
            return {}
        judge = self.method.judge
        verifier = None if judge is None else describe_verifier(judge).model_dump(mode="json")
        found: dict[str, Any] = {"method": self.method.name, "options": self.method.options(), "verifier": verifier}
        found |= {name: getattr(self.method, name) for name in self.method.hoisted if name != "verifier"}
        return dict(to_jsonable_python(found, fallback=repr))

    def key(self, *more: object) -> str:
        """Identity of an answer: SHA-256 (hex) of the settings and of `more`, all other inputs of the text.

        A user-defined verifier is identified by its `repr` or, if it does not define one, by the id of the object.
        """
        place = self.first if self.first > 1 else self.first > 0  # a bool for 0 and 1, as in older journals
        judge = None if self.method is None else self.method.judge
        own: list[str] = []
        if judge is not None and isinstance(describe_verifier(judge), CustomVerifier):
            own = [f"{id(judge)} of {_RUN}" if type(judge).__repr__ is object.__repr__ else repr(judge)]
        known = [self.settings, place, self.kind == "pilot", *own, *more]
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class LeftOut:
    """A contestant that is left out, because these endpoints cannot serve it; and the reason."""

    name: str
    reason: str


def model_names(count: int) -> tuple[str, ...]:
    """The models' names, in order: `"draft"`, then either `"assistant"` or several numbered assistants."""
    if count == 2:
        return (DRAFT_ALONE, ASSISTANT_ALONE)
    return (DRAFT_ALONE, *(f"{ASSISTANT_ALONE} {number}" for number in range(1, count)))


def turned(first: int, count: int) -> str:
    """The suffix of a contestant's name that says which of `count` models comes first; empty for the draft."""
    if not first:
        return ""
    return REVERSED if count == 2 else f", {model_names(count)[first]} first"


def alone(count: int = 2) -> list[Contestant]:
    """Create a contestant for each model alone: the draft, then the assistants."""
    return [Contestant(name, "alone", Alone(), first) for first, name in enumerate(model_names(count))]


def baseline_names(count: int) -> list[str]:
    """The names of the baselines that depend on other contestants' answers, in the order of the standings."""
    return [SELF_CONSISTENCY, *(RANDOM + turned(first, count) for first in range(count))]


def contestants_of(chosen: Chosen, count: int = 2, *, both_ways: bool = True) -> tuple[list[Contestant], list[LeftOut]]:
    """Return the methods to compare, and the methods of `"all"` that are left out, with the reasons.

    A method that treats all models alike is included only once, unless its answer depends on which model comes first.

    Args:
        chosen: `"all"`; methods, given as names or objects; or a mapping whose values are names or objects.
        count: number of models.
        both_ways: whether to include each method with each assistant as the draft.

    Raises:
        SettingError: a method does not exist, no method is given, two methods have the same name, or a named method
            does not support this number of models.
    """
    named, without = _named(chosen)
    found: list[Contestant] = []
    for name, method in named:
        try:
            method.check_models(count)
        except SettingError as error:
            if chosen != "all":
                words = f"the method {name!r} cannot fuse these {count} models: {error}"
                raise SettingError(f"{words}. Leave it out, or compare it by itself") from None
            without.append(LeftOut(name, str(error)))
            continue
        turns = both_ways and (not method.symmetric or method.ordered or method.temperature > 0)
        found += [Contestant(name + turned(at, count), "method", method, at) for at in range(count if turns else 1)]
    taken = {*model_names(count), ORACLE, *baseline_names(count)}
    for one in found:
        if one.name in taken:
            raise SettingError(f"two contestants would be called {one.name!r}: give the methods names, methods={{...}}")
        taken.add(one.name)
    return found, without


def _named(chosen: Chosen) -> tuple[list[tuple[str, Method]], list[LeftOut]]:
    """Name the chosen methods; also return the methods that `"all"` leaves out, with the reasons."""
    if chosen == "all":
        found: list[tuple[str, Method]] = []
        without = [LeftOut(name, reason) for name, reason in _UNASKED.items()]
        for name in [name for name in METHODS if name not in _UNASKED]:
            try:
                found.append((name, method_named(name)))
            except SettingError as error:  # the method has a setting without a default
                without.append(LeftOut(name, str(error)))
        return [*found, *VARIANTS.items()], without
    if isinstance(chosen, Mapping):
        named = [(str(name), _made(one)) for name, one in chosen.items()]
    elif isinstance(chosen, str | Method) or not isinstance(chosen, Sequence):
        raise SettingError(f'methods must be "all", or several names or objects, not {chosen!r}')
    else:
        made = [(one, _made(one)) for one in chosen]
        named = [
            (one if isinstance(one, str) and not is_address(one) else _name(method), method) for one, method in made
        ]
    if not named:
        raise SettingError('methods is empty: give some, or "all"')
    return named, []


def _made(one: str | Method) -> Method:
    if isinstance(one, Method):
        return one
    if not isinstance(one, str):
        raise SettingError(f'a method must be a name such as "cosd", or an object such as CoSD(), not {one!r}')
    if one in VARIANTS:
        return VARIANTS[one]
    try:
        return method_named(one, also=[*VARIANTS])
    except SettingError as error:
        if one not in METHODS:
            raise
        raise SettingError(f"{one!r} has no defaults: {error}") from None


def _name(method: Method) -> str:
    """The name of a method that was given as an object."""
    for name, one in VARIANTS.items():
        if one == method:
            return name
    if "verifier" in method.hoisted and method.judge is not None and method.judge != RuleVerifier():
        return f"{method.name}-{describe_verifier(method.judge).kind}"
    return method.name
