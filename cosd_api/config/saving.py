"""Creation of settings files for fusions that were made in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cosd_api.config.document import Document
from cosd_api.config.faults import refuse_keys
from cosd_api.config.file import PLAIN, FusionConfig, placed, server_of
from cosd_api.config.shape import is_trained, method_hints
from cosd_api.errors import SettingError
from cosd_api.methods.base import known_as
from cosd_api.settings import AnswerOptions, FusionSettings, describe_verifier
from cosd_api.verification import TRAINED
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

    def own_file(name: str, part: object) -> str:
        file = path.with_name(f"{path.stem}.{name}.json")
        trained[file] = part
        return str(file)

    method = settings.method
    if (known := known_as(method)) is None:
        words = f"the method is a {type(method).__name__} of your own, which a settings file cannot hold"
        raise SettingError(
            f"{words}: save the fusion without it, and give it to Fusion.load(path, method=...), or give the fusion "
            'method="FILE.py:CLASS"'
        )
    if limits.get("own"):
        words = "a settings file has no messages for single answers (own)"
        raise SettingError(f"{words}: give them to connect(url, system=..., messages=...)")
    if limits.get("response_format"):
        words = "a settings file has no format of answers (response_format)"
        raise SettingError(f"{words}: give it to generate, stream or fuse")
    own: dict[str, Any] = {"name": known}
    for name, hint in method_hints(type(method)).items():
        if (value := getattr(method, name)) is not None:
            own[name] = own_file(name, value) if is_trained(hint) else value
    defaults = FusionSettings()
    found: dict[str, Any] = {
        "draft": _server("draft", draft),
        "assistants": [_server("an assistant", one) for one in assistants],
        "method": own,
        "limits": {name: [*value] if isinstance(value, tuple) else value for name, value in limits.items()} or None,
    }
    of_method = {*method_hints(type(method)), *(() if method.hoisted else ("temperature",))}
    for name in PLAIN:
        value = getattr(settings, name)
        found[name] = None if name in of_method or value == getattr(defaults, name) else value
    if method.hoisted:
        verifier = describe_verifier(settings.verifier)
        if verifier is not settings.verifier:
            words = (
                f"the verifier is a {type(settings.verifier).__name__} of your own, which a settings file cannot hold"
            )
            raise SettingError(f"{words}: save the fusion without it, and give it to Fusion.load(path, verifier=...)")
        kind = verifier.kind
        found["verifier"] = {"kind": kind, "file": own_file(kind, verifier)} if kind in TRAINED else verifier
    config = FusionConfig.model_validate(found)
    refuse_keys(path, Document(config.document()))  # before anything is written
    return config, trained


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
            found[name] = [{"role": one.role, "content": one.content} for one in checked_own(None, value)]
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
