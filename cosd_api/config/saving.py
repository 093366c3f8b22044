"""Creation of settings files for fusions that were made in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cosd_api.config.document import Document
from cosd_api.config.faults import refuse_keys
from cosd_api.config.file import FusionConfig, placed, server_of
from cosd_api.config.shape import is_trained, method_hints
from cosd_api.errors import SettingError
from cosd_api.methods.base import Method, is_registered
from cosd_api.settings import DEFAULT_TIE, AnswerOptions, FusionSettings, describe_verifier
from cosd_api.verification import TRAINED, Verifier
from cosd_providers import Limits
from cosd_providers.chat.templates import is_template
from cosd_providers.connect import connection_of
from cosd_providers.contract import Provider
from cosd_providers.messages import checked_own

__all__ = ["config_of"]


def config_of(
    settings: FusionSettings, limits: AnswerOptions, draft: Provider, assistants: Sequence[Provider], path: Path
) -> tuple[FusionConfig, Mapping[Path, Any]]:
    """Create a fusion's settings file; return it with the trained parts that it names, keyed by their files' paths.

    Raises:
        SettingError: the fusion has a part that no file can contain: a secret key, or a custom provider, method or
            verifier.
    """
    trained: dict[Path, Any] = {}
    method = settings.method
    if not is_registered(method):
        words = f"the method is a {type(method).__name__} of your own, which a settings file cannot hold"
        raise SettingError(f"{words}: save the fusion without it, and give it to Fusion.load(path, method=...)")
    if limits.get("own"):
        words = "a settings file has no messages for single answers (own)"
        raise SettingError(f"{words}: give them to connect(url, system=..., messages=...)")
    found: dict[str, Any] = {
        "draft": _server("draft", draft),
        "assistants": [_server("an assistant", one) for one in assistants],
        "method": {"name": method.name, **_own(method, path, trained)},
        "tuning": asdict(settings.tuning),
        "limits": {name: value for name, value in limits.items() if value is not None},
        "tie": None if settings.tie == DEFAULT_TIE else settings.tie,
        "draft_length": settings.draft_length,
        "ask": settings.ask,
        "on_assistant_error": settings.on_assistant_error,
        "on_special_tokens": settings.on_special_tokens,
        "unit": settings.unit,
    }
    if method.hoisted:
        found["temperature"] = settings.temperature or None
        found["verifier"] = _verifier(settings.verifier, path, trained)
    if stop := found["limits"].get("stop"):
        found["limits"]["stop"] = stop if isinstance(stop, str) else [*stop]
    config = FusionConfig.model_validate(found)
    refuse_keys(path, Document(config.document()))  # before anything is written
    return config, trained


def _own(method: Method, path: Path, trained: dict[Path, Any]) -> dict[str, Any]:
    """Return a method's own settings; a trained part is added to `trained`, and replaced by the path of its file."""
    found: dict[str, Any] = {}
    for one in fields(method):
        value: Any = getattr(method, one.name)
        if one.name in method.hoisted:
            continue
        if is_trained(method_hints(type(method))[one.name]):
            file = path.with_name(f"{path.stem}.{one.name}.json")
            trained[file] = value
            found[one.name] = str(file)
        elif value is not None:
            found[one.name] = value
    return found


def _verifier(verifier: Verifier, path: Path, trained: dict[Path, Any]) -> BaseModel | dict[str, Any]:
    known = describe_verifier(verifier)
    if known is not verifier:
        words = f"the verifier is a {type(verifier).__name__} of your own, which a settings file cannot hold"
        raise SettingError(f"{words}: save the fusion without it, and give it to Fusion.load(path, verifier=...)")
    if known.kind in TRAINED:
        file = path.with_name(f"{path.stem}.{known.kind}.json")
        trained[file] = known
        return {"kind": known.kind, "file": str(file)}
    return known


def _server(role: str, provider: Provider) -> Any:
    """Convert a provider to the settings of a server in a file.

    Raises:
        SettingError: the provider was not created from a URL, or it was created with an object that no file can
            contain.
    """
    if (known := server_of(provider)) is not None:
        return known
    connection = connection_of(provider)
    if connection is None:
        words = f"{role} is a {type(provider).__name__}, which was not created from a URL by connect"
        raise SettingError(f"{words}: a settings file cannot hold it. Give it to Fusion.load(path, draft=...)")
    found: dict[str, Any] = {"url": connection.url}
    for name, value in connection.options.items():
        if isinstance(value, Limits):
            found[name] = asdict(value)
        elif isinstance(value, Path) or (isinstance(value, str) and name in ("tokenizer", "chat_template", "report")):
            text = isinstance(value, str) and name == "chat_template" and is_template(value)
            found[name] = value if text else _path(str(value))
        elif name == "messages":
            found[name] = [asdict(one) for one in checked_own(None, value)]
        elif isinstance(value, str | int | float | Mapping):
            found[name] = value
        else:
            words = f"{name} of {role} is a {type(value).__name__}, which a settings file cannot hold"
            raise SettingError(f"{words}: give its file, or its name, to connect")
    return found


def _path(value: str) -> str:
    """Make the path of an existing file absolute; return any other value unchanged."""
    path = Path(value)
    return str(placed(path)) if "\n" not in value and len(value) < 1000 and path.exists() else value
