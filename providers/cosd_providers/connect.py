"""Connection to a server: `connect` chooses the adapter, the key and the options for a URL."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Never, Self, TypedDict, cast
from urllib.parse import SplitResult, urlsplit
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import from_json

from cosd_providers.chat.templates import Template, load_template
from cosd_providers.contract import Provider
from cosd_providers.detection import DetectedProvider
from cosd_providers.engines.openai.dialects import DIALECTS, Dialect, dialect_at
from cosd_providers.http.keys import only_keys
from cosd_providers.http.limits import Limits, checked_limits
from cosd_providers.http.transport import DEFAULT_TIMEOUT, HttpClient, Timeout, Transport
from cosd_providers.messages import Message, checked_own
from cosd_providers.strategies import Strategy
from cosd_providers.suggestions import suggestion
from cosd_providers.tokenizers import load_tokenizer

_ROUTES = re.compile(r"(/v1)?(/chat)?/completions?/*$|/v1/*$")
"""A route that users often include at the end of a server's URL."""

_HOST = re.compile(r"[\w.-]+(:\d+)?(/.*)?")
"""A URL without its scheme."""

_LONG = 60  # characters; a longer text is probably a key, and not a host name
_EXPECTED = "expected http://HOST:PORT or https://HOST"

ADAPTERS: Mapping[str, tuple[str, str]] = {
    "llama.cpp": ("cosd_providers.engines.llama_cpp", "LlamaCpp"),
    "ollama": ("cosd_providers.engines.ollama", "Ollama"),
    "sglang": ("cosd_providers.engines.sglang", "Sglang"),
    "tgi": ("cosd_providers.engines.tgi", "Tgi"),
    "vllm": ("cosd_providers.engines.vllm", "Vllm"),
}
"""The module and the class of each engine that has its own adapter; the module is imported when it is first needed.

All other engines speak a dialect of OpenAI's protocol.
"""

_PROBED = {"api", "dialect"}
"""Options of `connect` on which the facts in a probe report depend."""

_SCHEMA = 3  # version of the file format of a saved report

_SECRET = ("api_key", "headers", "http_client")


class Snapshot(BaseModel):
    """The facts that an adapter needs to use a server. It contains no key, header or prompt.

    Attributes:
        schema_version: version of the file format.
        endpoint: the server's URL.
        engine: the `engine` argument for `connect`; None for a user's own provider.
        options: further arguments for `connect`.
        model: the model's id.
        facts: the result of the adapter's `snapshot()`; None if the adapter could not use the server.
    """

    model_config = ConfigDict(frozen=True, defer_build=True)

    schema_version: Literal[3] = 3
    endpoint: str
    engine: str | None
    options: dict[str, str] = {}
    model: str
    facts: dict[str, Any] | None = None

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a file written by `ProbeReport.save`.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is not a probe report, or is in a different version of the format.
        """
        try:
            data = from_json(Path(path).read_bytes())
        except ValueError as error:
            raise ValueError(f"{path} is not a probe report: it is not JSON") from error
        version = data.get("schema_version") if isinstance(data, dict) else None  # pyright: ignore[reportUnknownVariableType]
        if version not in (None, _SCHEMA):
            hint = "probe the server again, e.g. cosd probe URL --save FILE"
            raise ValueError(f"{path} has a probe report of version {version}, not {_SCHEMA}: {hint}")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{path} is not a probe report: {where}: {first['msg']}") from None


@dataclass(frozen=True, slots=True)
class Connection:
    """The arguments of a `connect` call, without the key, the headers and the HTTP client.

    Attributes:
        url: the server's URL.
        options: the other arguments that differ from their defaults.
    """

    url: str
    options: Mapping[str, Any]


_CONNECTED: WeakKeyDictionary[Provider, Connection] = WeakKeyDictionary()


def connection_of(provider: Provider) -> Connection | None:
    """The `connect` arguments of a provider; None if the provider is a copy or was not created by `connect`."""
    try:
        return _CONNECTED.get(provider)
    except TypeError:  # a user's own provider may be unhashable
        return None


class ConnectOptions(TypedDict, total=False):
    """The keyword arguments of `connect`."""

    engine: str | None
    model: str | None
    api_key: str | None
    headers: Mapping[str, str] | None
    tokenizer: object
    chat_template: object
    extra_body: Mapping[str, object] | None
    timeout: Timeout
    http_client: HttpClient | None
    limits: Limits | None
    report: Snapshot | str | PathLike[str] | None
    strategy: Strategy | None
    api: Literal["completions", "chat", "messages"] | None
    dialect: str | Dialect | None
    context: int | None
    add_special_tokens: bool | None
    system: str | None
    messages: Sequence[Message | Mapping[str, object]] | None


def connect(
    url: str,
    *,
    engine: str | None = None,
    model: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    tokenizer: object = None,
    chat_template: object = None,
    extra_body: Mapping[str, object] | None = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    http_client: HttpClient | None = None,
    limits: Limits | None = None,
    report: Snapshot | str | PathLike[str] | None = None,
    strategy: Strategy | None = None,
    api: Literal["completions", "chat", "messages"] | None = None,
    dialect: str | Dialect | None = None,
    context: int | None = None,
    add_special_tokens: bool | None = None,
    system: str | None = None,
    messages: Sequence[Message | Mapping[str, object]] | None = None,
    **unknown: Never,
) -> Provider:
    """Create a provider for the server at `url`. No request is sent until the provider is first used.

    Args:
        url: the server's URL, e.g. `"http://gpu1:8080"`; a trailing `/v1` is ignored.
        engine: the kind of server: `"llama.cpp"`, `"vllm"`, `"tgi"`, `"sglang"`, `"ollama"`, `"openai"` for any
            OpenAI-compatible server, or the name of a dialect (`cosd_providers.engines.openai.dialects`). By default, a
            hosted service is recognised by its host, and the kind of any other server is detected at the first use.
        model: the model's name; required if the server has several models.
        api_key: the key, which is sent to this server only. By default it is read from the environment variable
            `COSD_API_KEY_<HOST>_<PORT>` or `COSD_API_KEY_<HOST>`, unless `headers` contains a key. The host is written
            in capitals, with `_` for every character other than a letter or digit, e.g. `COSD_API_KEY_API_EXAMPLE_COM`.
            An empty string means no key.
        headers: headers to send with every request. Copies of the provider, including pickled copies, contain neither
            the key nor the headers.
        tokenizer: the model's tokenizer, for servers that do not encode text, and for methods that split a text into
            the words of each model (`cosd_api.CoolFusion`): a Hugging Face folder or `tokenizer.json`,
            `"tiktoken:<encoding>"`, or an object of either library (`cosd_providers.tokenizers`). The library never
            downloads a tokenizer.
        chat_template: a chat template to use instead of the server's own: a `.jinja` file, a `tokenizer_config.json`, a
            folder that contains either file, the text of a template, or a function that receives the messages as
            dictionaries and returns the text to continue. All forms except a function require the extra `chat`.
        extra_body: fields to add to every generation request, for server features that this library does not cover.
        timeout: the number of seconds to wait between two bytes of an answer (600 by default), or an `httpx.Timeout`.
            If it is a number, connecting may take at most 5 seconds.
        http_client: an `httpx.AsyncClient` with your own proxies, certificates and limits. The provider never
            closes it.
        limits: limits on concurrent requests, requests per minute and tokens per minute. Requests that would exceed a
            limit wait.
        report: the result of `probe` for this server, or the path of a saved result. Discovery is then skipped, and the
            first use only checks that the server still serves the same model.
        strategy: if this model is an assistant, the kind of request that asks it about several places in a text. Only
            some engines offer a choice. By default each engine follows a fixed rule (`cosd_providers.strategies`).
        api: for OpenAI-compatible servers, the route to use. `"completions"` sends text. `"chat"` sends messages, with
            the answer so far as a partial reply. `"messages"` is for servers that cannot continue a partial reply; it
            works only with methods that never continue a partial reply (`Capabilities.continues`). The default depends
            on the dialect.
        dialect: for OpenAI-compatible servers, the variant of the protocol: a name or a `Dialect`.
        context: for OpenAI-compatible servers and Ollama, the size of the model's context in tokens.
        add_special_tokens: for vLLM and SGLang, whether the server adds the beginning-of-sequence token to prompts;
            true by default.
        system: a system message that only this model reads. It is put before every conversation. If the conversation
            has a system message of its own, both are joined into one message, this one first. The message is sent to
            this server only; the models share nothing but the answer.
        messages: further messages that only this model reads, such as a private document and a reply that acknowledges
            the document.
        unknown: any other argument, which is refused.

    Raises:
        ValueError: an argument has an invalid value, such as a malformed URL or an unknown engine; `extra_body` sets a
            field that the library sets itself; the tokenizer's file is missing; or the report is invalid or describes a
            different server.
        OSError: the report's file cannot be read.
        UnsupportedError: the `tokenizer` or the `chat_template` cannot be used.
        TypeError: an argument is unknown, has the wrong type, or does not apply to this engine.
    """
    refuse_unknown(unknown, ConnectOptions.__annotations__)
    _check_types(url, engine, http_client, report)
    mine = checked_own(system, messages)
    checked_limits(limits)
    given = {
        "strategy": strategy,
        "api": api,
        "dialect": dialect,
        "context": context,
        "add_special_tokens": add_special_tokens,
    }
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    more = {"engine": engine, "model": model, "tokenizer": tokenizer, "chat_template": chat_template}
    more |= {"extra_body": extra_body, "limits": limits, "report": report, "system": system, "messages": messages}
    more["timeout"] = None if timeout == DEFAULT_TIMEOUT else timeout
    connection = Connection(url.strip(), {name: one for name, one in (given | more).items() if one is not None})
    saved = Snapshot.load(report) if isinstance(report, str | PathLike) else report
    if saved is not None:
        engine, model, options = _as_saved(saved, engine, model, options)
    parts = _checked(url)
    path = _ROUTES.sub("", parts.path).rstrip("/")
    service = dialect_at(parts.hostname or "")
    if service is not None:
        path = path or service.base
        engine = engine or service.engine
    endpoint = f"{parts.scheme}://{parts.netloc}{path}"
    if api_key is None and not only_keys(headers or {}):
        api_key = _key_from_environment(parts)
    if engine is None and options:
        name = next(iter(options))
        raise TypeError(f"{name!r} is an option of some engines only; name the engine, too, e.g. engine='openai'")
    http: dict[str, Any] = {"api_key": api_key, "headers": headers, "timeout": timeout, "http_client": http_client}
    settings = {"model": model, "extra_body": extra_body, "limits": limits, **http}
    if tokenizer is not None:
        options = {**options, "tokenizer": load_tokenizer(tokenizer)}
    template = None if chat_template is None else load_template(chat_template)
    make = _AdapterFactory(endpoint, settings, options, template, saved, mine)
    made = DetectedProvider(Transport(endpoint, **http), make, model, mine) if engine is None else make(engine)
    _CONNECTED[made] = connection
    return made


def adapter_class(engine: str) -> Callable[..., Provider]:
    """Look up the class of an engine's adapter.

    Raises:
        ValueError: there is no engine of this name.
    """
    if engine not in ADAPTERS and engine not in DIALECTS:
        known = sorted({*ADAPTERS, *DIALECTS})
        advice = suggestion(engine.lower(), known, f"known are {', '.join(known)}")
        raise ValueError(f"there is no engine {engine!r}{advice}")
    module, name = ADAPTERS.get(engine, ("cosd_providers.engines.openai", "OpenAICompatible"))
    return cast("Callable[..., Provider]", getattr(import_module(module), name))


def refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    """Refuse arguments with unknown names.

    Raises:
        TypeError: a name in `given` is not in `known`; the message suggests a similar name.
    """
    for name in given:
        if name not in known:
            raise TypeError(f"unknown argument {name!r}{suggestion(name, known)}")


def _check_types(url: object, engine: object, http_client: object, report: object) -> None:
    """Check the types of arguments early; otherwise, a wrong type would cause an obscure error at the first use."""
    if not isinstance(url, str):
        raise TypeError(f"url must be a text such as 'http://gpu1:8080', not {type(url).__name__}")
    if not isinstance(engine, str | None):
        raise TypeError(f"engine must be a name such as 'vllm', not {type(engine).__name__}")
    if not isinstance(http_client, HttpClient | None):
        raise TypeError(f"http_client must be an httpx.AsyncClient, not {type(http_client).__name__}")
    if isinstance(report, str) and report.lstrip().startswith("{"):
        raise ValueError("report is JSON text; give its file, or ProbeReport.model_validate_json(text)")
    if not isinstance(report, Snapshot | str | PathLike | None):
        kind = type(report).__name__
        more = "; use ProbeReport.model_validate(report)" if isinstance(report, dict) else ""
        raise TypeError(f"report must be what probe returned, or its file, not {kind}{more}")


def _as_saved(
    saved: Snapshot, engine: str | None, model: str | None, options: Mapping[str, Any]
) -> tuple[str, str | None, dict[str, Any]]:
    """Check that the user's arguments agree with a report, and return the engine, the model and all options."""
    if saved.engine is None or saved.facts is None:
        raise ValueError("the report cannot be used to connect: the probe could not use this server")
    probed = [
        (name, getattr(given, "engine", given), saved.options[name])
        for name, given in options.items()
        if name in _PROBED & saved.options.keys()
    ]
    for name, given, theirs in (("engine", engine, saved.engine), ("model", model, saved.model), *probed):
        if given is not None and given != theirs:
            raise ValueError(f"the report is of the {name} {theirs!r}, not {given!r}: probe again")
    own = {**saved.options, **options}
    return saved.engine, own.pop("model", model), own


@dataclass
class _AdapterFactory:
    """A function that creates the adapter for an engine. Copies of it contain no key, headers or HTTP client."""

    endpoint: str
    settings: Mapping[str, Any] = field(repr=False)  # arguments that all adapters accept
    options: Mapping[str, Any]  # arguments that only some adapters accept
    template: Template | None
    saved: Snapshot | None
    own: tuple[Message, ...] = field(repr=False)

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "settings": {**self.settings, **dict.fromkeys(_SECRET)}}

    def __call__(self, engine: str, *, over_v1: bool = False) -> Provider:
        kind = adapter_class("openai" if over_v1 else engine)
        dialect = {} if engine in ADAPTERS and not over_v1 else {"dialect": engine if engine in DIALECTS else "openai"}
        options = {**dialect, **self.options}
        for name in options.keys() - inspect.signature(kind).parameters.keys():
            raise TypeError(f"{name!r} is not an option of the engine {engine!r}")
        provider: Any = kind(self.endpoint, **self.settings, **options)
        if self.template is not None:
            provider.use_template(self.template)
        if self.own:
            provider.use_messages(self.own)
        if self.saved is not None:
            provider.restore(self.saved.facts, self.saved.endpoint)
        return cast("Provider", provider)


def _checked(url: str) -> SplitResult:
    """Check a URL, and return its parts. Error messages never repeat a part that may be a secret."""
    text = url.strip()
    if "@" in text:
        raise ValueError("the URL holds credentials; give the key as api_key, or in COSD_API_KEY_<HOST>")
    if "?" in text or "#" in text:
        raise ValueError("the URL of a server has no '?' and no '#'; give keys as api_key or headers")
    if "://" not in text:
        if len(text) <= _LONG and _HOST.fullmatch(text) and not text.lower().startswith("sk-"):
            raise ValueError(f"{text!r} is not a URL; did you mean 'http://{text}'?")
        raise ValueError(f"the URL is not valid; {_EXPECTED}")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError(f"the URL cannot be read; {_EXPECTED}") from None
    try:
        parts.port  # noqa: B018
    except ValueError:
        raise ValueError(f"the URL of {parts.hostname!r} has an invalid port") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        origin = f"{parts.scheme}://{parts.netloc}"
        raise ValueError(f"{origin!r} is not the URL of a server; {_EXPECTED}")
    return parts


def _key_from_environment(parts: SplitResult) -> str | None:
    """Look up the key for this host in the environment; None if there is none."""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = re.sub("[^A-Z0-9]", "_", (parts.hostname or "").upper())
    for name in (f"COSD_API_KEY_{host}_{port}", f"COSD_API_KEY_{host}"):
        if os.environ.get(name):
            return os.environ[name].strip()
    return None
