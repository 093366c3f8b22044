"""The gateway's settings file: the fusions by name, the keys of clients, and the limits."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)

from cosd_api import FusionConfig, SettingError
from cosd_api.apps.gateway.fields import FIELDS, check_ignored, is_ignorable
from cosd_api.config import Document, FieldPath, config_error, config_errors, read_document
from cosd_api.tools import FORMATS, format_named

__all__ = ["ALONE", "KEYS_VARIABLE", "ClientKey", "GatewayConfig", "GatewayLimits", "keys_of"]

ALONE = "cosd"
"""Model name of a fusion that is served alone, from the settings file of a single fusion."""

KEYS_VARIABLE = "COSD_SERVE_KEYS"
"""Environment variable that contains the keys of clients."""

_STRICT = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:/-]{0,99}$"
_SHORTEST = 16  # minimum number of characters in a key
_Count = Annotated[int, Field(ge=1, strict=True)]
_Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Name = Annotated[str, StringConstraints(pattern=_NAME)]


def _ignorable(name: str) -> str:
    check_ignored((name,))
    return name


def _call_format(name: str) -> str:
    return format_named(name).name


_FORM = [name for name in FIELDS if not is_ignorable(name)]
_NAMES = [one.name for one in FORMATS]
_CallFormat = Annotated[str, AfterValidator(_call_format), WithJsonSchema({"type": "string", "enum": _NAMES})]
_Ignorable = Annotated[str, AfterValidator(_ignorable), WithJsonSchema({"type": "string", "not": {"enum": _FORM}})]


class GatewayLimits(BaseModel):
    """Limits on the requests that the gateway accepts.

    Attributes:
        body_bytes: maximum size of a request body. By default, it is 64 KiB plus 64 bytes for each token that fits into
            a request's prompts, but at most 4,000,000 bytes. Until the models' contexts are known, it is 4,000,000
            bytes.
        messages: maximum number of messages in one conversation, including messages for single models (`own`).
        prompts: maximum number of prompts in one request.
        max_tokens: maximum number of tokens in one answer. A request for more is refused.
        concurrency: number of places for requests in progress. A request takes one place, plus one for each full 64 KiB
            of its body, up to the total number of places. If too few places are free, the request is refused with
            status 429. Places limit the memory that bodies take.
        timeout: maximum number of seconds for a request, from its first byte to the last byte of its answer.
        first_token_timeout: maximum number of seconds from the first byte of a request to the first token of its
            answer. With None, only `timeout` applies.
        idle_timeout: maximum number of seconds between two tokens, while the client reads. With None, only `timeout`
            applies. The default is twice the time after which nginx, by default, closes a silent connection.
        heartbeat_seconds: seconds of silence after which a comment is sent in a stream, so that proxies do not close
            the connection. Before the first token, the headers are sent with the comment. None sends no comments.
        unread_tokens: maximum number of tokens that wait for a slow client. When it is reached, the models pause until
            the client has read some tokens.
        drain_seconds: seconds between the signal to stop and the refusal of new connections. Meanwhile, `/ready`
            returns 503, so that a load balancer sends no more requests.
        stop_seconds: maximum number of seconds that requests in progress may take to finish when the gateway stops.
    """

    model_config = _STRICT

    body_bytes: _Count | None = None
    messages: _Count = 1000
    prompts: _Count = 128
    max_tokens: _Count = 8192
    concurrency: _Count = 256
    timeout: _Seconds = 600.0
    first_token_timeout: _Seconds | None = None
    idle_timeout: _Seconds | None = 120.0
    heartbeat_seconds: _Seconds | None = 10.0
    unread_tokens: _Count = 64
    drain_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    stop_seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0


class ClientKey(BaseModel):
    """Settings of a key that clients may use. The key itself is in an environment variable or in a file.

    Attributes:
        name: name of the key in logs and metrics.
        env: environment variable that contains the key.
        file: file that contains only the key, as an alternative to a variable. A relative path is resolved against the
            settings file's folder. SIGHUP makes the gateway read the file again.
        concurrency: maximum number of requests in progress with this key.
        requests_per_minute: maximum number of requests for answers per minute, including requests that are refused for
            another reason. Further requests are refused with status 429.
        billed_tokens_per_minute: maximum number of tokens per minute that the models read and write for this key. When
            it is reached, requests are refused with status 429 until the tokens billed in the last minute are fewer
            than the maximum.
        cached_weight: weight of a prompt token that came from a model's cache, compared with other tokens. A fusion
            reads the same prompt many times, nearly always from the cache. Providers usually charge a tenth of the
            price for cached tokens.
    """

    model_config = _STRICT

    name: _Name
    env: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")] | None = None
    file: Annotated[str, Field(min_length=1)] | None = None
    concurrency: _Count | None = None
    requests_per_minute: _Count | None = None
    billed_tokens_per_minute: _Count | None = None
    cached_weight: Annotated[float, Field(ge=0, le=1)] = 0.1


class GatewayConfig(BaseModel):
    """The settings of a gateway, as in a settings file.

    Attributes:
        schema_version: version of the file format.
        fusions: the fusions, indexed by the model names under which clients request them. Each entry has the same
            fields as the settings file of a single fusion.
        keys: the keys of clients. Without keys, and without `COSD_SERVE_KEYS`, only clients on this machine are served.
        limits: limits on requests.
        cors: origins of web pages that may call the gateway, such as `https://app.example.com`; none by default.
        ignore: request fields to ignore, such as `temperature`; by default, a request with such a field is refused.
            Each answer names the ignored fields of its request.
        call_format: format in which answers call tools; by default, the format of the chat template of each fusion's
            draft.
    """

    model_config = _STRICT

    schema_version: Literal[1] = 1
    fusions: Annotated[dict[_Name, FusionConfig], Field(min_length=1)]
    keys: list[ClientKey] = []
    limits: GatewayLimits = GatewayLimits()
    cors: list[Annotated[str, StringConstraints(pattern=r"^https?://[^/\s*]+$")]] = []
    ignore: list[_Ignorable] = []
    call_format: _CallFormat | None = None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a gateway's settings file, or the settings file of a single fusion, whose model name is then `cosd`.

        This sends no request.

        Raises:
            OSError: the file, or a file to which it refers, cannot be read.
            SettingError: the file is invalid; the message names the file, the line, the field and a remedy.
        """
        path = Path(path)
        document = read_document(path)
        if isinstance(document.value, dict) and "fusions" not in document.value:
            if "draft" in document.value or "models" in document.value:
                return cls(fusions={ALONE: FusionConfig.read(path, document)})
            raise config_error(path, document, (), "it has no fusions:, and no draft: of a single one")
        if not isinstance(document.value, dict):
            raise SettingError(f"{path} holds no fields; a file for cosd serve begins with fusions:")
        return cls._validated(path, document)

    @classmethod
    def _validated(cls, path: Path, document: Document) -> Self:
        value: dict[str, Any] = {name: one for name, one in document.value.items() if one is not None}
        named = value.get("fusions")
        if not isinstance(named, dict) or not named:
            raise config_error(path, document, ("fusions",), "it must hold at least one fusion, by its model name")
        several: Mapping[str, Any] = cast("dict[str, Any]", named)
        fusions = {name: FusionConfig.read(path, document.within("fusions", name)) for name in several}
        for name in several:
            if not re.match(_NAME, name):
                words = "a model name has letters, digits and . _ : / - , and begins with one of the first two"
                raise config_error(path, document, ("fusions", name), words)
        try:
            found = cls.model_validate({**value, "fusions": fusions})
        except ValidationError as error:
            raise config_errors(path, document, error, cls) from None
        twice = [at for at, one in enumerate(found.keys) if one.name in {other.name for other in found.keys[:at]}]
        if twice:
            at: FieldPath = ("keys", twice[0], "name")
            raise config_error(path, document, at, "another key has this name; keep one of them")
        for number, one in enumerate(found.keys):
            if (one.env is None) == (one.file is None):
                words = "a key is in an environment variable (env:) or in a file (file:)"
                raise config_error(path, document, ("keys", number), words)
        return found.model_copy(update={"keys": [_beside(path, one) for one in found.keys]})

    @classmethod
    def fields_of(cls, name: str) -> Sequence[str]:
        """Return the names of the fields in `limits` or in an entry of `keys`; empty for other fields."""
        parts: Mapping[str, type[BaseModel]] = {"keys": ClientKey, "limits": GatewayLimits}
        return [*parts[name].model_fields] if name in parts else []


def keys_of(keys: Sequence[ClientKey]) -> dict[str, ClientKey]:
    """Collect the keys from a settings file and from `COSD_SERVE_KEYS`; return the settings of each key.

    The variable contains keys separated by commas. Each key may be followed by a name and limits, as in
    `KEY;name=team-a;concurrency=4;billed_tokens_per_minute=100000`.

    Raises:
        SettingError: a variable is not set, a file cannot be read, or a key is invalid; the message does not contain
            the key.
    """
    found: dict[str, ClientKey] = {}
    for one in keys:
        where, text = _text_of(one)
        _add(found, text, one, where)
    entries = [entry for entry in os.environ.get(KEYS_VARIABLE, "").split(",") if entry.strip()]
    for number, entry in enumerate(entries, 1):
        text, *options = (part.strip() for part in entry.split(";"))
        _add(found, text, _client(number, options), f"{KEYS_VARIABLE}, key {number}")
    return found


def _beside(path: Path, key: ClientKey) -> ClientKey:
    """Resolve the path of a key's file, if the key is in a file, against the folder of the settings file."""
    return key if key.file is None else key.model_copy(update={"file": str(path.parent / key.file)})


def _text_of(key: ClientKey) -> tuple[str, str]:
    """Return the name of the variable or file that contains a key, and the key's text."""
    if key.file is None:
        where = key.env or ""
        text = os.environ.get(where, "").strip()
        if not text:
            raise SettingError(f"keys: the environment variable {where}, which should contain a key, is not set")
        return where, text
    try:
        return key.file, Path(key.file).read_text("ascii").strip()
    except OSError as error:
        raise SettingError(f"keys: {key.file}, which should contain a key: {error.strerror}") from None
    except UnicodeDecodeError:
        return key.file, ""  # the caller refuses an empty key as too short


def _client(number: int, options: Sequence[str]) -> ClientKey:
    given: dict[str, Any] = {"name": f"key-{number}", "env": KEYS_VARIABLE}
    where = f"{KEYS_VARIABLE}, key {number}"
    for option in options:
        name, _, value = (part.strip() for part in option.partition("="))
        if name in ("env", "file") or name not in ClientKey.model_fields:
            known = "name, concurrency, requests_per_minute, billed_tokens_per_minute and cached_weight"
            raise SettingError(f"{where}: a key may be followed by {known}; write KEY;name=team-a;concurrency=4")
        given[name] = int(value) if value.isdecimal() else value
    try:
        return ClientKey.model_validate(given)
    except ValidationError as error:
        field = error.errors(include_input=False, include_url=False)[0]["loc"][0]
        raise SettingError(f"{where}: its {field!r} is invalid; write KEY;name=team-a;concurrency=4") from None


def _add(found: dict[str, ClientKey], text: str, client: ClientKey, where: str) -> None:
    if len(text) < _SHORTEST or not text.isascii() or not text.isprintable() or " " in text:
        words = f"a key has at least {_SHORTEST} characters of ASCII and no space"
        raise SettingError(f"{where}: {words}; make one by: openssl rand -hex 24")
    if text in found or client.name in {one.name for one in found.values()}:
        raise SettingError(f"{where}: another key is the same, or has the same name")
    found[text] = client
