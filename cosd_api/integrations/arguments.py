"""Arguments of a fusion in the form that evaluation tools use: names with plain values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self, cast

from pydantic import Field, TypeAdapter, ValidationError

from cosd_api import Fusion, SettingError, Tuning
from cosd_api.extend import (
    DEFAULT_METHOD,
    KINDS,
    TRAINED,
    AnswerOptions,
    FusionOptions,
    KnownVerifier,
    Method,
    Verifier,
    method_from_text,
    numbers_of,
    suggestion,
)
from cosd_providers import Provider, connect

__all__ = ["FusionArguments"]

_OF_THE_TASK = ("max_tokens", "stop")
_SERVERS = ("draft", "assistant", "draft_model", "assistant_model")
_NUMBERS = (*dict.fromkeys(name for kind in KINDS for name in numbers_of(kind) or ()), "tree")


@dataclass(frozen=True, slots=True)
class FusionArguments:
    """The models, settings and limits that a tool's arguments specify.

    `draft` and `assistant` are URLs or providers; `assistant` can also be a list. By default, the URLs are read from
    the environment variables `COSD_DRAFT_URL` and `COSD_ASSISTANT_URL`. `draft_model` and `assistant_model` choose
    models on servers that have several. `config` is a settings file (`Fusion.load`); all other arguments override its
    values. Settings of `Fusion` and limits on an answer have their usual names. All other arguments belong to the
    method or, with CoSD, to the verifier (`alpha=0.6`, or `verifier=diff, tau=0.1`, or `tree=FILE`).

    Attributes:
        fusion: a fusion of these models, which is not open and has sent no request.
        limits: limits on each answer, except for those that the task sets (stop strings and length).
    """

    fusion: Fusion
    limits: AnswerOptions

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """Create a fusion and its limits from a tool's arguments.

        Raises:
            OSError: a file cannot be read.
            SettingError: an argument is missing, invalid or unknown.
        """
        left = {name: value for name, value in given.items() if value is not None}
        for name in _OF_THE_TASK:
            if name in left:
                raise SettingError(f"{name} is the task's own, for each answer. Leave it out")
        config = left.pop("config", None)
        servers = {role: found for role in ("draft", "assistant") if (found := _providers(role, left, config is None))}
        if len(servers.get("draft", ())) > 1:
            raise SettingError("draft is one server: the others are assistants")
        roles: dict[str, Any] = {role: found[0] if role == "draft" else found for role, found in servers.items()}
        method = left.pop("method", None)
        settings = {name: left.pop(name) for name in FusionOptions.__annotations__ if name in left}
        if isinstance(settings.get("tuning"), Mapping):
            settings["tuning"] = Tuning(**settings["tuning"])
        cosd = method in (None, DEFAULT_METHOD)
        of_verifier = cosd and not settings.get("temperature")
        taken = [name for name in AnswerOptions.__annotations__ if not (of_verifier and name == "seed")]
        limits = {name: left.pop(name) for name in taken if name in left}
        if cosd:
            settings |= {"method": method, "verifier": _verifier(settings.get("verifier"), left)}
        else:
            settings["method"] = _method(method, left)
        settings = {name: value for name, value in settings.items() if value is not None}
        if config is None:
            fusion = Fusion(**roles, **settings)
        else:
            fusion = Fusion.load(config, **roles, **settings)
            limits = {**fusion.limits, **limits}
        own = {name: value for name, value in limits.items() if name not in _OF_THE_TASK}
        return cls(fusion, cast("AnswerOptions", own))


def _providers(role: str, left: dict[str, Any], needed: bool) -> list[Provider]:
    """Return the servers for a role, with their chosen models; empty if none are given and `needed` is False."""
    variable = f"COSD_{role.upper()}_URL"
    given = left.pop(role, None) or (os.environ.get(variable, "").split() if needed else [])
    servers: list[Any] = [given] if isinstance(given, str | Provider) else [*given]
    if not servers and needed:
        raise SettingError(f"there is no {role}: give {role}=URL, or set {variable}")
    named = left.pop(f"{role}_model", None)
    models: list[Any] = [*named] if isinstance(named, list | tuple) else [named] * len(servers)
    if len(models) != len(servers):
        words = f"{role}_model names {len(models)} models for {len(servers)} servers"
        raise SettingError(f"{words}: give one for each, in their order, or none")
    texts = [None if model is None else str(model) for model in models]  # tools turn names made of digits into numbers
    return [
        connect(one, model=model) if isinstance(one, str) else one for one, model in zip(servers, texts, strict=True)
    ]


def _method(method: object, options: Mapping[str, Any]) -> Method:
    if isinstance(method, str):
        return method_from_text(method, {name: _written(value) for name, value in options.items()})
    if options:
        raise SettingError(f"{', '.join(options)}: the given method has its own settings. Leave them out")
    return cast("Method", method)  # Fusion refuses an object that is not a method


def _written(value: object) -> str:
    several = isinstance(value, list | tuple)
    return ",".join(map(str, cast("Sequence[object]", value))) if several else str(value)


def _verifier(given: object, numbers: Mapping[str, Any]) -> Verifier | None:
    """Return the given verifier, or create one from its name and numbers."""
    if numbers and not (given is None or isinstance(given, str)):
        raise SettingError(f"{', '.join(numbers)}: the given verifier has its own settings. Leave them out")
    if given in (None, "tree") and list(numbers) == ["tree"]:
        return cast("Verifier", TRAINED["tree"].load(numbers["tree"]))
    if not isinstance(given, str):
        if given is not None or not numbers:
            return cast("Verifier | None", given)
        given = "rule"
    known = TypeAdapter[Any](Annotated[KnownVerifier, Field(discriminator="kind")])
    try:
        return cast("Verifier", known.validate_python({"kind": given, **numbers}))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][-1]) if first["loc"] else ""
        if first["type"] == "extra_forbidden":
            names = [*_SERVERS, *_NUMBERS, "method", *FusionOptions.__annotations__, *AnswerOptions.__annotations__]
            more = "" if name in names else suggestion(name, names)
            more = more or f": the verifier {given!r} does not take it"
            raise SettingError(f"there is no argument {name!r}{more}") from None
        about = f"{name}: " if name else ""
        words = first["msg"].removeprefix("Value error, ")
        raise SettingError(f"the verifier {given!r} is invalid: {about}{words}") from None
