"""A URL becomes a provider."""

from __future__ import annotations

import difflib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from typing import Any
from urllib.parse import SplitResult, urlsplit

from cosd_providers.chat.templates import Template, load_template
from cosd_providers.contract import Provider
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.engines.openai.dialects import DIALECTS, dialect_at
from cosd_providers.errors import UnsupportedError
from cosd_providers.http.adapter import Adapter
from cosd_providers.http.keys import only_keys
from cosd_providers.http.limits import Limits, checked_limits
from cosd_providers.http.transport import DEFAULT_TIMEOUT, HttpClient, Timeout, Transport
from cosd_providers.llama_cpp import LlamaCpp
from cosd_providers.ollama import Ollama
from cosd_providers.recognition import Recognized
from cosd_providers.sglang import Sglang
from cosd_providers.snapshot import Snapshot
from cosd_providers.tgi import Tgi
from cosd_providers.tokenizers import Tokenizer, load_tokenizer
from cosd_providers.vllm import Vllm

__all__ = ["ADAPTERS", "connect"]

_ROUTES = re.compile(r"(/v1)?(/chat)?/completions?/*$|/v1/*$")
"""What people leave at the end of a server's URL."""

_HOST = re.compile(r"[\w.-]+(:\d+)?(/.*)?")
"""What people give who forget the scheme."""

ADAPTERS: Mapping[str, Callable[..., Provider]] = {
    "llama.cpp": LlamaCpp,
    "ollama": Ollama,
    "sglang": Sglang,
    "tgi": Tgi,
    "vllm": Vllm,
}
"""The engines that have an adapter of their own; all others speak OpenAI's protocol in one of its dialects."""

_PROBED = {"api", "dialect"}
"""Options on which what a report holds depends."""

_LONG = 60  # characters; what is longer is more likely a key


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
    **options: Any,
) -> Provider:
    """Makes a provider for the server at `url`; asks it nothing yet.

    Args:
        url: where the server is, e.g. `"http://gpu1:8080"`; a trailing `/v1` does no harm.
        engine: what kind of server it is: `"llama.cpp"`, `"vllm"`, `"tgi"`, `"ollama"`, `"openai"` for any
            OpenAI-compatible one, or the name of one of its dialects (`cosd_providers.engines.openai.dialects`). By
            default a hosted service is known by its host, and any other server is asked, when first used.
        model: which of its models; needed where it has several.
        api_key: goes to this server alone. By default the environment variable `COSD_API_KEY_<HOST>_<PORT>`
            or `COSD_API_KEY_<HOST>`: in capitals, every other character than letters and digits as `_`, e.g.
            `COSD_API_KEY_API_EXAMPLE_COM`, unless `headers` hold one. An empty one means no key.
        headers: sent with every request. Copies of the provider, pickled ones too, have neither key nor headers.
        tokenizer: for servers that encode no text for us: a Hugging Face folder or `tokenizer.json`,
            `"tiktoken:<encoding>"`, or an object of one of the two libraries (`cosd_providers.tokenizers`). Nothing
            is ever downloaded.
        chat_template: renders conversations for this model, in place of the server's own template: a `.jinja` file, a
            `tokenizer_config.json`, a folder that holds one of them, a template's text, or a function of messages
            (dictionaries) that returns the text to go on from. Needs the extra `chat`, but for a function.
        extra_body: merged into every generation request, for what a server offers beyond the contract.
        timeout: seconds to wait between two bytes of an answer, 600 by default; connecting takes at most 5.
            Or an `httpx.Timeout`.
        http_client: an `httpx.AsyncClient` with proxies, certificates and limits of your own; never closed.
        limits: how many requests and tokens this server is sent at most; what is beyond waits its turn.
        report: what `probe` returned for this server, or the file it was saved in. The first use then only checks that
            the same model is still served.
        options: what only the adapter of this engine takes, e.g. `strategy` or `api`; see its class.

    Raises:
        ValueError: the URL, the key, the engine or a header cannot be used, or `extra_body` sets what the fusion
            decides, or the report is of another server, or invalid.
        OSError: the report's file cannot be read.
        UnsupportedError: the `tokenizer` or the `chat_template` cannot be used.
        TypeError: the engine's adapter does not take one of the options, or there are some and no engine is named; or
            something given is of another kind than it has to be.
    """
    _check_given(url, engine, http_client, report)
    checked_limits(limits)
    kept = Snapshot.load(report) if isinstance(report, str | PathLike) else report
    if kept is not None:
        engine, model, options = _as_kept(kept, engine, model, options)
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
        near = difflib.get_close_matches(name, [*inspect.signature(connect).parameters], 1, cutoff=0.75)
        advice = f"did you mean {near[0]!r}?" if near else "if only one kind of server takes it, name that as engine"
        raise TypeError(f"unknown argument {name!r}; {advice}")
    if tokenizer is not None:
        tokenizer = load_tokenizer(tokenizer)
    template = None if chat_template is None else load_template(chat_template)
    adapter = _Adapter(
        endpoint, model, api_key, headers, tokenizer, template, extra_body, timeout, http_client, limits, options
    )
    if engine is not None:
        provider = adapter(engine)
        if kept is not None and kept.facts is not None and isinstance(provider, Adapter):
            provider.restore(kept.facts, kept.endpoint)
        return provider
    transport = Transport(endpoint, api_key=api_key, headers=headers, timeout=timeout, http_client=http_client)
    return Recognized(transport, adapter, model)


def _check_given(url: object, engine: object, http_client: object, report: object) -> None:
    """Sees at once what would fail at the first use, in words that nobody understands there."""
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
        more = "; ProbeReport.model_validate(report) makes one of it" if isinstance(report, dict) else ""
        raise TypeError(f"report must be what probe returned, or its file, not {kind}{more}")


def _as_kept(
    kept: Snapshot, engine: str | None, model: str | None, options: Mapping[str, Any]
) -> tuple[str, str | None, dict[str, Any]]:
    """Engine, model and options as a report has them."""
    if kept.engine is None or kept.facts is None:
        raise ValueError("the report has nothing to connect with: the probe could not use this server")
    said = [
        (name, getattr(given, "engine", given), kept.options[name])
        for name, given in options.items()
        if name in _PROBED & kept.options.keys()
    ]
    for name, given, theirs in (("engine", engine, kept.engine), ("model", model, kept.model), *said):
        if given is not None and given != theirs:
            raise ValueError(f"the report is of the {name} {theirs!r}, not {given!r}: probe again")
    own = {**kept.options, **options}
    return kept.engine, own.pop("model", model), own


@dataclass
class _Adapter:
    """Makes the adapter for an engine. Copies have neither key nor headers nor client."""

    endpoint: str
    model: str | None
    api_key: str | None = field(repr=False)
    headers: Mapping[str, str] | None = field(repr=False)
    tokenizer: Tokenizer | None
    template: Template | None
    extra_body: Mapping[str, object] | None
    timeout: Timeout
    http_client: HttpClient | None
    limits: Limits | None
    options: Mapping[str, Any]

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "api_key": None, "headers": None, "http_client": None}

    def __call__(self, engine: str) -> Provider:
        more = dict(self.options)
        if engine in DIALECTS and engine not in ADAPTERS:
            more = {"dialect": engine, **more}
        elif engine not in ADAPTERS:
            known = sorted({*ADAPTERS, *DIALECTS})
            near = difflib.get_close_matches(engine.lower(), known, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ValueError(f"there is no engine {engine!r}; {advice}")
        if self.tokenizer is not None:
            if engine == "llama.cpp":
                words = "llama.cpp's server encodes text itself; leave out the tokenizer"
                raise UnsupportedError(words, endpoint=self.endpoint)
            more["tokenizer"] = self.tokenizer
        provider = ADAPTERS.get(engine, OpenAICompatible)(
            self.endpoint,
            model=self.model,
            api_key=self.api_key,
            headers=self.headers,
            extra_body=self.extra_body,
            timeout=self.timeout,
            http_client=self.http_client,
            limits=self.limits,
            **more,
        )
        if self.template is not None and isinstance(provider, Adapter):
            provider.use_template(self.template)
        return provider


def _checked(url: str) -> SplitResult:
    """The parts of a URL that can be used. No message repeats what may be a secret."""
    text = url.strip()
    if "@" in text:
        raise ValueError("the URL holds credentials; give the key as api_key, or in COSD_API_KEY_<HOST>")
    if "?" in text or "#" in text:
        raise ValueError("the URL of a server has no '?' and no '#'; give keys as api_key or headers")
    if "://" not in text:
        if len(text) <= _LONG and _HOST.fullmatch(text) and not text.lower().startswith("sk-"):
            raise ValueError(f"{text!r} is no URL; did you mean 'http://{text}'?")
        raise ValueError("what was given is no URL; expected http://HOST:PORT or https://HOST")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise ValueError("the URL cannot be read; expected http://HOST:PORT or https://HOST") from None
    try:
        parts.port  # noqa: B018
    except ValueError:
        raise ValueError(f"the URL of {parts.hostname!r} has an impossible port") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        origin = f"{parts.scheme}://{parts.netloc}"
        raise ValueError(f"{origin!r} is not the URL of a server; expected http://HOST:PORT or https://HOST")
    return parts


def _key_from_environment(parts: SplitResult) -> str | None:
    """The key that is meant for this host, and for no other."""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = re.sub("[^A-Z0-9]", "_", (parts.hostname or "").upper())
    for name in (f"COSD_API_KEY_{host}_{port}", f"COSD_API_KEY_{host}"):
        if os.environ.get(name):
            return os.environ[name].strip()
    return None
