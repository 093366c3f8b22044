"""The options that several commands share, and the servers, verifiers and fusions that these options describe."""

from __future__ import annotations

import errno
import inspect
import math
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, cast

import typer
from pydantic import BaseModel, ValidationError

from cosd_api import Fusion, FusionConfig, SettingError, Tuning
from cosd_api.cli.console import say
from cosd_api.cli.verifier_options import DEFAULT, NUMBERS, VERIFIERS, verifier_parameters
from cosd_api.extend import (
    DEFAULT_MAX_TOKENS,
    DEFAULT_METHOD,
    DRAFT,
    KINDS,
    METHODS,
    TRAINED,
    AnswerLimits,
    Method,
    Unit,
    Verifier,
    method_from_text,
)
from cosd_providers import Provider, connect

__all__ = [
    "AssistantModels",
    "AssistantUrls",
    "ChosenTie",
    "ChosenUnit",
    "DraftModel",
    "DraftUrl",
    "MaxTokens",
    "SharedOptions",
    "StopTexts",
    "check_writable",
    "connect_assistants",
    "connect_server",
    "seconds",
    "with_options",
]

DraftUrl = Annotated[str, typer.Option(envvar="COSD_DRAFT_URL", metavar="URL", help="Server of the draft model.")]
AssistantUrls = Annotated[
    list[str],
    typer.Option(
        envvar="COSD_ASSISTANT_URL",
        metavar="URL",
        help="Server of an assistant model; may be repeated (in the variable: separated by spaces).",
    ),
]
DraftModel = Annotated[
    str | None, typer.Option(metavar="NAME", help="Model on the draft's server, if the server has several.")
]
AssistantModels = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Model on an assistant's server; repeat it for each assistant, in their order."),
]
ChosenUnit = Annotated[
    Unit | None,
    typer.Option(
        help="The unit that is judged; by default it depends on a comparison of the tokenizers. `literal` is equation "
        "3 of the paper as printed."
    ),
]
ChosenTie = Annotated[
    float | None,
    typer.Option(
        min=0, max=1, metavar="X", help="Log probabilities this close count as equal; `cosd probe` proposes a value."
    ),
]
StopTexts = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="An answer ends before this text; may be repeated.")
]
MethodName = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", help=f"The way to fuse: {', '.join(METHODS)}; cosd by default."),
]
MethodSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of the method, e.g. normalisation=byte; may be repeated."
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(metavar="0|1", help="1 draws every token, if the method can; 0 takes the most probable tokens."),
]
Agreement = Annotated[
    bool,
    typer.Option(
        "--agreement",
        help="Short for --verifier agreement: only alpha decides, for an assistant that reports no probabilities.",
    ),
]
Tree = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Decide by a trained decision tree (JSON) instead of alpha and beta."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Read servers, method, settings and limits from a settings file (YAML or JSON); options override it.",
    ),
]
SharedDraft = Annotated[
    str | None,
    typer.Option(envvar="COSD_DRAFT_URL", metavar="URL", help="Server of the draft model; required without --config."),
]
SharedAssistants = Annotated[
    list[str] | None,
    typer.Option(
        envvar="COSD_ASSISTANT_URL",
        metavar="URL",
        help="Server of an assistant model; may be repeated (in the variable: separated by spaces).",
    ),
]
DraftSystem = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="A system message for the draft alone; @FILE reads it from a file."),
]
AssistantSystems = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="A system message for one assistant alone; repeat it for each assistant, in their order."
    ),
]
MaxTokens = Annotated[int, typer.Option(min=1, metavar="N", help="Limit on the tokens of an answer.")]
Timeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Limit on the time of the whole answer; none by default.")
]

_NUMBERS = [name for name in NUMBERS if name != "seed"]
_OF_VERIFIER = ("verifier", *_NUMBERS, "agreement", "tree")
"""If any of these options is given, the verifier of a settings file is replaced."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """Marks a field that represents several options. In an instance, the field is a mapping with their values."""

    options: tuple[inspect.Parameter, ...]

    @classmethod
    def of(cls, field: inspect.Parameter) -> tuple[inspect.Parameter, ...]:
        """Return the options that a field represents, or the field itself if it has no mark."""
        marks = [one for one in getattr(field.annotation, "__metadata__", ()) if isinstance(one, cls)]
        return marks[0].options if marks else (field,)


VerifierOptions = Annotated[Mapping[str, Any], Spread(tuple(verifier_parameters()))]


def option_names(options: Callable[..., object]) -> list[str]:
    """Return the names of all options in a dataclass; see `with_options`."""
    known = inspect.signature(options, eval_str=True).parameters.values()
    return [one.name for field in known for one in Spread.of(field)]


def with_options(options: Callable[..., T]) -> Callable[[Callable[Concatenate[T, P], None]], Callable[..., None]]:
    """Add the fields of a dataclass to a command as options. The command receives an instance as its first argument.

    In the help, the command's arguments come first, then the shared options, then the command's own options.
    """

    def decorate(command: Callable[Concatenate[T, P], None]) -> Callable[..., None]:
        shared = {one.name: Spread.of(one) for one in inspect.signature(options, eval_str=True).parameters.values()}
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        arguments = [one for one in own if one.default is inspect.Parameter.empty]
        rest = [one for one in own if one.default is not inspect.Parameter.empty]
        everything = [*arguments, *(one for several in shared.values() for one in several), *rest]

        def run(**given: Any) -> None:
            call: Callable[..., None] = command
            fields: dict[str, Any] = {}
            for name, several in shared.items():
                found = {one.name: given.pop(one.name) for one in several}
                fields[name] = found.get(name, found)
            call(options(**fields), **given)

        signature = inspect.Signature([one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in everything])
        vars(run)["__signature__"] = signature  # typer reads the signature and the annotations
        run.__annotations__ = {one.name: one.annotation for one in everything}
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """The servers, the verifier and the limits of a fusion: the options of `cosd fuse`, `chat`, `batch` and `serve`."""

    context: typer.Context
    config: ConfigFile = None
    draft: SharedDraft = None
    assistant: SharedAssistants = None
    draft_model: DraftModel = None
    assistant_model: AssistantModels = None
    draft_system: DraftSystem = None
    assistant_system: AssistantSystems = None
    method: MethodName = None
    method_settings: MethodSettings = None
    of_verifier: VerifierOptions = field(default_factory=dict[str, Any])
    agreement: Agreement = False
    tree: Tree = None
    temperature: Temperature = None
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS
    timeout: Timeout = None

    @property
    def seed(self) -> int | None:
        """The seed for drawn tokens, or for a verifier that decides at random."""
        seed: int | None = self.of_verifier.get("seed")
        return seed

    def fusion(self, read_timeout: float | None = None, **settings: Any) -> Fusion:
        """Create the fusion that the options describe. No request is sent yet.

        Raises:
            typer.BadParameter: an option is invalid.
            SettingError: a setting is invalid.
        """
        if self.config is not None:
            return self._configured(self.config, read_timeout, settings)
        for name, urls in (("draft", self.draft), ("assistant", self.assistant)):
            if not urls:
                words = f"is required: the URL of a server, here or in COSD_{name.upper()}_URL; or --config FILE"
                raise typer.BadParameter(words, param_hint=f"--{name}")
        return Fusion(
            draft=connect_server(self.draft or "", self.draft_model, "--draft", read_timeout),
            assistant=connect_assistants(self.assistant or [], self.assistant_model, read_timeout),
            method=self._method(),
            verifier=self._verifier(),
            temperature=self.temperature,
            **settings,
        )

    def _configured(self, path: Path, read_timeout: float | None, settings: Mapping[str, Any]) -> Fusion:
        """Create the fusion that a settings file describes. Options on the command line override the file.

        Raises:
            typer.BadParameter: an option is invalid, or the file cannot be read.
            SettingError: the file or a setting is invalid.
        """
        for name in ("draft_model", "assistant_model"):
            if self.given(name) and not self.given(name.removesuffix("_model")):
                hint = f"--{name.replace('_', '-')}"
                raise typer.BadParameter("names the model of a URL: give the URL as an option, too", param_hint=hint)
        if read_timeout is not None:
            words = "cannot be combined with --config: set timeout of a server in the settings file"
            raise typer.BadParameter(words, param_hint="--read-timeout")
        overrides: dict[str, Any] = {name: one for name, one in settings.items() if self.given(name)}
        if self.given("draft"):
            overrides["draft"] = connect_server(self.draft or "", self.draft_model, "--draft")
        if self.given("assistant"):
            overrides["assistant"] = connect_assistants(self.assistant or [], self.assistant_model)
        if self.given("method") or self.given("method_settings"):
            overrides["method"] = self._method() or DEFAULT_METHOD
        if any(self.given(name) for name in _OF_VERIFIER):
            overrides["verifier"] = self._verifier(seeded=False)
        if self.given("temperature"):
            overrides["temperature"] = self.temperature
        try:
            config = FusionConfig.load(path)
            if tuning := {
                one.name: getattr(settings["tuning"], one.name) for one in fields(Tuning) if self.given(one.name)
            }:
                overrides["tuning"] = replace(config.tuning.tuning(), **tuning)
            fusion = Fusion.load(config, **overrides)
            if (verifier := self._with_seed(fusion.settings.method)) is not None:
                fusion = Fusion.load(config, **{**overrides, "verifier": verifier})
            return fusion
        except OSError as error:
            raise typer.BadParameter(f"{error.filename}: {error.strerror}", param_hint="--config") from error

    def _with_seed(self, method: Method) -> Verifier | None:
        """Return the verifier of a settings file with the seed of the command line; None if nothing has to be changed.

        Raises:
            typer.BadParameter: neither the verifier nor the method uses a seed.
        """
        if self.seed is None or not method.hoisted:
            return None
        if isinstance(method.judge, BaseModel) and "seed" in type(method.judge).model_fields:
            return method.judge.model_copy(update={"seed": self.seed})
        if not method.temperature:
            words = "has no effect with these settings: the verifier is not random, and no token is drawn"
            raise typer.BadParameter(words, param_hint="--seed")
        return None

    def given(self, option: str) -> bool:
        """Test whether an option is given on the command line, as opposed to the environment."""
        source = self.context.get_parameter_source(option)
        return source is not None and source.name == "COMMANDLINE"

    def limits(self, fusion: Fusion, **more: Any) -> AnswerLimits:
        """Return the limits for an answer of this fusion.

        Raises:
            typer.BadParameter: the timeout is invalid.
            SettingError: a limit other than the timeout is invalid.
        """
        method = fusion.settings.method
        # If CoSD writes its most probable tokens, `--seed` sets the verifier's seed, and the answer has no seed.
        seed = self.seed if method.temperature or not method.hoisted else None
        timeout = seconds(self.timeout, "--timeout")
        wanted: dict[str, Any] = {"max_tokens": self.max_tokens, "timeout": timeout, "seed": seed, **more}
        if self.config is not None:
            wanted = {**fusion.limits, **{name: one for name, one in wanted.items() if self.given(name)}}
        wanted["own"] = self.own(fusion)
        limits = AnswerLimits.checked(**wanted)
        limits.seeded(method)  # raises an error if the seed has no effect
        return limits

    def own(self, fusion: Fusion) -> dict[str, str]:
        """Return the system messages for single models, by the model's name.

        Raises:
            typer.BadParameter: there are more messages than assistants, or a file cannot be read.
        """
        names, several = fusion.endpoints.names, self.assistant_system or []
        if len(several) > len(names):
            known = "is 1 assistant" if len(names) == 1 else f"are {len(names)} assistants"
            words = f"is given {len(several)} times, but there {known}"
            raise typer.BadParameter(words, param_hint="--assistant-system")
        found = {name: _text(one, "--assistant-system") for name, one in zip(names, several, strict=False)}
        if self.draft_system is not None:
            found[DRAFT] = _text(self.draft_system, "--draft-system")
        return found

    def _method(self) -> Method | None:
        """Create the method; return None for CoSD, whose settings have separate options."""
        given = [one.partition("=") for one in self.method_settings or []]
        if wrong := [name for name, equals, _ in given if not (name and equals)]:
            raise typer.BadParameter(f"{wrong[0]!r} is not NAME=VALUE", param_hint="--set")
        if self.method in (None, DEFAULT_METHOD):
            if given:
                words = "--set is for other methods: " + ("give --method, too; " if self.method is None else "")
                words += "cosd has options of its own, such as --alpha and --unit"
                raise typer.BadParameter(words, param_hint="--set")
            return None
        try:
            return method_from_text(self.method, {name: value for name, _, value in given})
        except OSError as error:  # a file that a setting names cannot be read
            raise typer.BadParameter(f"{error.filename}: {error.strerror}", param_hint="--set") from error

    def _verifier(self, *, seeded: bool = True) -> Verifier:
        name: str | None = self.of_verifier.get("verifier")
        if self.agreement:
            if name not in (None, "agreement"):
                raise typer.BadParameter(f"is short for --verifier agreement, not {name}", param_hint="--agreement")
            name = "agreement"
        cosd = self.method in (None, DEFAULT_METHOD)
        own = seeded and ((name is not None and "seed" in VERIFIERS.get(name, ())) or (cosd and not self.temperature))
        options = [*_NUMBERS, "seed"] if own else _NUMBERS
        given: dict[str, object] = {one: value for one in options if (value := self.of_verifier.get(one)) is not None}
        if self.tree is not None and name is None:
            if given:
                words = f"a tree takes no {next(iter(given))}: give one or the other"
                raise typer.BadParameter(words, param_hint="--tree")
            return _load_tree(self.tree)
        if self.tree is not None:
            given["tree"] = self.tree
        taken = [*VERIFIERS[name or DEFAULT]]
        if wrong := [option for option in given if option not in taken]:
            only = f"only {' and '.join(taken)}, " if taken else ""
            words = f"{name or 'the rule'} takes {only}no {wrong[0]}"
            raise typer.BadParameter(words, param_hint=f"--{wrong[0]}")
        try:
            made: Any = KINDS[name or DEFAULT].model_validate(given)
            return cast("Verifier", made)
        except ValidationError as error:
            if missing := [one["loc"][0] for one in error.errors() if one["type"] == "missing"]:
                raise typer.BadParameter(f"--{missing[0]} is required with {name}", param_hint="--verifier") from error
            hint = "/".join(f"--{option}" for option in taken)
            raise typer.BadParameter(_first(error), param_hint=hint) from error


def _load_tree(path: Path) -> Verifier:
    try:
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            tree = cast("Verifier", TRAINED["tree"].load(path))
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint="--tree") from error
    except SettingError as error:
        raise typer.BadParameter(str(error), param_hint="--tree") from error
    for one in noted:
        say(f"note: {one.message}")
    return tree


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    words = first["msg"].removeprefix("Value error, ")
    return f"{where}: {words}" if where else words


def seconds(given: float | None, option: str) -> float | None:
    """Check a time in seconds, and return it.

    Raises:
        typer.BadParameter: the time is not a positive, finite number.
    """
    if given is not None and not 0 < given < math.inf:
        raise typer.BadParameter(f"{given:g} is not a positive number of seconds", param_hint=option)
    return given


def check_writable(path: Path, option: str, *read: Path | None) -> None:
    """Check that a file can be written, without writing to it, before long work begins.

    Raises:
        typer.BadParameter: the file cannot be written, or is one of the files in `read`.
    """
    if path.resolve() in {one.resolve() for one in read if one is not None}:
        raise typer.BadParameter(f"{path} is an input and would be overwritten: name another file", param_hint=option)
    code = 0
    if path.is_dir():
        code = errno.EISDIR
    elif not path.parent.is_dir():
        code = errno.ENOENT
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        code = errno.EACCES
    if code:
        raise typer.BadParameter(f"{path} cannot be written: {os.strerror(code)}", param_hint=option)


def connect_server(url: str, model: str | None, option: str, read_timeout: float | None = None) -> Provider:
    """Create the provider for a URL. No request is sent yet.

    Raises:
        typer.BadParameter: the URL is invalid.
    """
    try:
        if read_timeout is None:
            return connect(url, model=model)
        return connect(url, model=model, timeout=read_timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def connect_assistants(urls: list[str], models: list[str] | None, read_timeout: float | None = None) -> list[Provider]:
    """Create the providers of the assistants. No request is sent yet.

    Raises:
        typer.BadParameter: a URL is invalid, or only some assistants' models are named.
    """
    if models and len(models) != len(urls):
        words = f"{len(models)} given for {len(urls)} assistants: give one for each, in their order, or none"
        raise typer.BadParameter(words, param_hint="--assistant-model")
    return [connect_server(url, model, "--assistant", read_timeout) for url, model in zip_longest(urls, models or [])]


def _text(given: str, option: str) -> str:
    """Return the text of an option, or the content of the file if the text is `@` followed by a path.

    Raises:
        typer.BadParameter: the file cannot be read.
    """
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        words = f"{given[1:]} is not UTF-8 text at byte {error.start}"
        raise typer.BadParameter(words, param_hint=option) from None
    except OSError as error:
        raise typer.BadParameter(f"{given[1:]}: {error.strerror}", param_hint=option) from None
