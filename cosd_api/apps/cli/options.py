"""The options that several commands share, and the servers, verifiers and fusions that these options describe."""

from __future__ import annotations

import errno
import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar, cast, get_origin

import typer
from pydantic import BaseModel, ValidationError

from cosd_api import Fusion, FusionConfig, SettingError
from cosd_api.apps.cli.console import files_of
from cosd_api.apps.cli.verifier_options import DEFAULT, NUMBERS, VERIFIERS, verifier_parameters
from cosd_api.extend import DRAFT, Method, Unit, Verifier
from cosd_api.methods import DEFAULT_METHOD, METHODS, method_from_text
from cosd_api.settings import AnswerLimits, AnswerOptions, FusionOptions, declared_setting
from cosd_api.verification import KINDS, TRAINED
from cosd_providers import Provider, connect

__all__ = [
    "AssistantModels",
    "AssistantUrls",
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

P = ParamSpec("P")
T = TypeVar("T")

_BY_METHOD = ("temperature", "tie")
"""Settings without an option's default, because not every method has them."""


def _shown(name: str) -> Any:
    """Create the option of a setting from the setting's declaration."""
    _, default, about = declared_setting(name)
    metavar = None if isinstance(default, str) or name == "unit" else about.value
    return typer.Option(min=about.least, max=about.most, metavar=metavar, help=about.help)


def _setting(name: str) -> inspect.Parameter:
    """Create the parameter of a command for a setting. A setting without a default is None unless it is given."""
    hint, default, _ = declared_setting(name)
    if get_origin(hint) is tuple:
        hint, default = list[str] | None, None
    if name in _BY_METHOD:
        hint, default = hint | None, None
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[hint, _shown(name)])


_DRAFT_URL = "COSD_DRAFT_URL"
_ASSISTANTS = typer.Option(
    envvar="COSD_ASSISTANT_URL",
    metavar="URL",
    help="Server of an assistant model; may be repeated (in the variable: separated by spaces).",
)
DraftUrl = Annotated[str, typer.Option(envvar=_DRAFT_URL, metavar="URL", help="Server of the draft model.")]
AssistantUrls = Annotated[list[str], _ASSISTANTS]
DraftModel = Annotated[
    str | None, typer.Option(metavar="NAME", help="Model on the draft's server, if the server has several.")
]
AssistantModels = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Model on an assistant's server; repeat it for each assistant, in their order."),
]
ChosenUnit = Annotated[Unit | None, _shown("unit")]
StopTexts = Annotated[list[str] | None, _shown("stop")]
MaxTokens = Annotated[int, _shown("max_tokens")]

_NUMBERS = [name for name in NUMBERS if name != "seed"]
_OF_VERIFIER = ("verifier", *_NUMBERS, "agreement", "tree")
"""If any of these options is given, the verifier of a settings file is replaced."""


_GROUPS: Mapping[str, tuple[inspect.Parameter, ...]] = {
    "of_verifier": tuple(verifier_parameters()),
    "settings": tuple(map(_setting, ("temperature", "max_tokens", "timeout"))),
}
"""Fields of `SharedOptions` that are mappings, with the options whose values they contain."""


def _options_of(field: inspect.Parameter) -> tuple[inspect.Parameter, ...]:
    """Return the options that a field of a dataclass represents: a group, or the field itself."""
    return _GROUPS.get(field.name, (field,))


def option_names(options: Callable[..., object]) -> list[str]:
    """Return the names of all options in a dataclass; see `with_options`."""
    known = inspect.signature(options, eval_str=True).parameters.values()
    return [one.name for field in known for one in _options_of(field)]


def with_options(
    options: Callable[..., T], *settings: str
) -> Callable[[Callable[Concatenate[T, P], None]], Callable[..., None]]:
    """Add the fields of a dataclass to a command as options. The command receives an instance as its first argument.

    In the help, the command's arguments come first, then the shared options, then the command's own options.

    Args:
        options: the dataclass.
        settings: names of settings that become options, too, and values of the dataclass's field `settings`.
    """

    def decorate(command: Callable[Concatenate[T, P], None]) -> Callable[..., None]:
        shared = {one.name: _options_of(one) for one in inspect.signature(options, eval_str=True).parameters.values()}
        if settings:
            shared["settings"] = (*shared["settings"], *map(_setting, settings))
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
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read servers, method, settings and limits from a settings file (YAML or JSON); options override it.",
        ),
    ] = None
    draft: Annotated[
        str | None,
        typer.Option(envvar=_DRAFT_URL, metavar="URL", help="Server of the draft model; required without --config."),
    ] = None
    assistant: Annotated[list[str] | None, _ASSISTANTS] = None
    draft_model: DraftModel = None
    assistant_model: AssistantModels = None
    draft_system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A system message for the draft alone; @FILE reads it from a file."),
    ] = None
    assistant_system: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="A system message for one assistant alone; repeat it for each assistant, in their order.",
        ),
    ] = None
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"The way to fuse: {', '.join(METHODS)}, or FILE.py:CLASS; cosd by default."),
    ] = None
    method_settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the method, e.g. normalisation=byte; may be repeated."
        ),
    ] = None
    of_verifier: Mapping[str, Any] = field(default_factory=dict[str, Any])
    agreement: Annotated[
        bool,
        typer.Option(
            "--agreement",
            help="Short for --verifier agreement: only alpha decides, for an assistant that reports no probabilities.",
        ),
    ] = False
    tree: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Decide by a trained decision tree (JSON) instead of alpha and beta."),
    ] = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def fusion(self, read_timeout: float | None = None) -> Fusion:
        """Create the fusion that the options describe. No request is sent yet.

        Raises:
            typer.BadParameter: an option is invalid, or the settings file cannot be read.
            SettingError: the settings file or a setting is invalid.
        """
        if self.config is not None:
            return self._configured(self.config, read_timeout)
        for name, urls in (("draft", self.draft), ("assistant", self.assistant)):
            if not urls:
                words = f"is required: the URL of a server, here or in COSD_{name.upper()}_URL; or --config FILE"
                raise typer.BadParameter(words, param_hint=f"--{name}")
        return Fusion(
            draft=connect_server(self.draft or "", self.draft_model, "--draft", read_timeout),
            assistant=connect_assistants(self.assistant or [], self.assistant_model, read_timeout),
            method=self._method(),
            verifier=self._verifier(),
            **self._chosen(FusionOptions),
        )

    def _configured(self, path: Path, read_timeout: float | None) -> Fusion:
        """Create the fusion that a settings file describes. Options on the command line override the file."""
        for name in ("draft_model", "assistant_model"):
            if self.given(name) and not self.given(name.removesuffix("_model")):
                hint = f"--{name.replace('_', '-')}"
                raise typer.BadParameter("names the model of a URL: give the URL as an option, too", param_hint=hint)
        if read_timeout is not None:
            words = "cannot be combined with --config: set timeout of a server in the settings file"
            raise typer.BadParameter(words, param_hint="--read-timeout")
        overrides = self._chosen(FusionOptions)
        if self.given("draft"):
            overrides["draft"] = connect_server(self.draft or "", self.draft_model, "--draft")
        if self.given("assistant"):
            overrides["assistant"] = connect_assistants(self.assistant or [], self.assistant_model)
        if self.given("method") or self.given("method_settings"):
            overrides["method"] = self._method() or DEFAULT_METHOD
        if any(map(self.given, _OF_VERIFIER)):
            overrides["verifier"] = self._verifier(seeded=False)
        with files_of("--config"):
            config = FusionConfig.load(path)
            fusion = Fusion.load(config, **overrides)
            if (verifier := self._with_seed(fusion.settings.method)) is not None:
                fusion = Fusion.load(config, **{**overrides, "verifier": verifier})
            return fusion

    def _chosen(self, kind: Any) -> dict[str, Any]:
        """Return the options that belong to one group of settings; with a settings file, only those that are given."""
        shown = {name: one for name, one in self.settings.items() if name in kind.__annotations__}
        return {name: one for name, one in shown.items() if self.config is None or self.given(name)}

    def _with_seed(self, method: Method) -> Verifier | None:
        """Return the verifier of a settings file with the seed of the command line; None if nothing has to be changed.

        Raises:
            typer.BadParameter: neither the verifier nor the method uses a seed.
        """
        seed = self.of_verifier.get("seed")
        if seed is None or not method.hoisted:
            return None
        if isinstance(method.judge, BaseModel) and "seed" in type(method.judge).model_fields:
            return method.judge.model_copy(update={"seed": seed})
        if not method.temperature:
            words = "has no effect with these settings: the verifier is not random, and no token is drawn"
            raise typer.BadParameter(words, param_hint="--seed")
        return None

    def given(self, option: str) -> bool:
        """Test whether an option is given on the command line, as opposed to the environment."""
        source = self.context.get_parameter_source(option)
        return source is not None and source.name == "COMMANDLINE"

    def limits(self, fusion: Fusion) -> AnswerLimits:
        """Return the limits for an answer of this fusion.

        Raises:
            typer.BadParameter: the timeout is invalid.
            SettingError: a limit other than the timeout is invalid.
        """
        method = fusion.settings.method
        seconds(self.settings.get("timeout"), "--timeout")
        wanted: dict[str, Any] = {**fusion.limits, **self._chosen(AnswerOptions), "own": self._own(fusion)}
        # If CoSD writes its most probable tokens, `--seed` sets the verifier's seed, and the answer has no seed.
        if self.given("seed") and (method.temperature or not method.hoisted):
            wanted["seed"] = self.of_verifier["seed"]
        limits = AnswerLimits.checked(**wanted)
        limits.seeded(method)  # raises an error if the seed has no effect
        return limits

    def fusion_of_many(self) -> Fusion:
        """Create the fusion, with the limits of the command line as defaults for each of many answers.

        Raises:
            typer.BadParameter: an option is invalid.
            SettingError: a setting is invalid.
        """
        fusion = self.fusion()
        limits = self.limits(fusion)
        shared: Any = {name: one for name, one in limits.options().items() if self.given(name) and one is not None}
        fusion.limits.update(shared)
        if limits.own:
            fusion.limits["own"] = limits.own
        return fusion

    def _own(self, fusion: Fusion) -> dict[str, str]:
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
        with files_of("--set"):
            return method_from_text(self.method, {name: value for name, _, value in given})

    def _verifier(self, *, seeded: bool = True) -> Verifier:
        name: str | None = self.of_verifier.get("verifier")
        if self.agreement:
            if name not in (None, "agreement"):
                raise typer.BadParameter(f"is short for --verifier agreement, not {name}", param_hint="--agreement")
            name = "agreement"
        cosd = self.method in (None, DEFAULT_METHOD)
        random = name is not None and "seed" in VERIFIERS[name]
        options = NUMBERS if seeded and (random or (cosd and not self.settings["temperature"])) else _NUMBERS
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
            return cast("Verifier", KINDS[name or DEFAULT].model_validate(given))
        except ValidationError as error:
            if missing := [one["loc"][0] for one in error.errors() if one["type"] == "missing"]:
                raise typer.BadParameter(f"--{missing[0]} is required with {name}", param_hint="--verifier") from error
            first = error.errors(include_url=False, include_input=False)[0]
            where = "".join(f"{one}: " for one in first["loc"])
            hint = "/".join(f"--{option}" for option in taken)
            raise typer.BadParameter(f"{where}{first['msg']}", param_hint=hint) from error


def _load_tree(path: Path) -> Verifier:
    try:
        with files_of("--tree"):
            return cast("Verifier", TRAINED["tree"].load(path))
    except SettingError as error:
        raise typer.BadParameter(str(error), param_hint="--tree") from error


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
        return connect(url, model=model) if read_timeout is None else connect(url, model=model, timeout=read_timeout)
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
        with files_of(option):
            return Path(given[1:]).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        words = f"{given[1:]} is not UTF-8 text at byte {error.start}"
        raise typer.BadParameter(words, param_hint=option) from None
