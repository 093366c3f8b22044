"""A URL becomes a provider."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from cosd_providers.contract import Provider
from cosd_providers.errors import UnsupportedError
from cosd_providers.keys import sets_authorization
from cosd_providers.llama_cpp import LlamaCpp
from cosd_providers.transport import DEFAULT_TIMEOUT, HttpClient, Timeout

__all__ = ["connect"]

_ROUTES = re.compile(r"(/v1)?(/chat)?/completions?/*$|/v1/*$")
"""What people leave at the end of a server's URL."""

_HOST = re.compile(r"[\w.-]+(:\d+)?(/.*)?")
"""What people give who forget the scheme."""

_LONG = 60  # characters; what is longer is more likely a key


def connect(
    url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    tokenizer: object = None,
    extra_body: Mapping[str, object] | None = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    http_client: HttpClient | None = None,
) -> Provider:
    """Makes a provider for the server at `url`; asks it nothing yet.

    Args:
        url: where the server is, e.g. `"http://gpu1:8080"`; a trailing `/v1` does no harm.
        model: which of its models; needed where it has several.
        api_key: goes to this server alone. By default the environment variable `COSD_API_KEY_<HOST>_<PORT>`
            or `COSD_API_KEY_<HOST>`: in capitals, every other character than letters and digits as `_`, e.g.
            `COSD_API_KEY_API_EXAMPLE_COM`, unless `headers` sets `Authorization`. An empty one means no key.
        headers: sent with every request. Copies of the provider, pickled ones too, have neither key nor headers.
        tokenizer: reserved; only None works in this version.
        extra_body: merged into every generation request, for what a server offers beyond the contract.
        timeout: seconds to wait between two bytes of an answer, 600 by default; connecting takes at most 5.
            Or an `httpx.Timeout`.
        http_client: an `httpx.AsyncClient` with proxies, certificates and limits of your own; never closed.

    Raises:
        ValueError: the URL, the key or a header cannot be used, or `extra_body` sets what the fusion decides.
        UnsupportedError: a `tokenizer` was given.
    """
    parts = _checked(url)
    path = _ROUTES.sub("", parts.path).rstrip("/")
    endpoint = f"{parts.scheme}://{parts.netloc}{path}"
    if tokenizer is not None:
        words = "a local tokenizer cannot be given yet; llama.cpp's server encodes text itself"
        raise UnsupportedError(words, endpoint=endpoint)
    if api_key is None and not sets_authorization(headers):
        api_key = _key_from_environment(parts)
    return LlamaCpp(
        endpoint,
        model=model,
        api_key=api_key,
        headers=headers,
        extra_body=extra_body,
        timeout=timeout,
        http_client=http_client,
    )


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
