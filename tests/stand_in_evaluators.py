"""Stand-ins for lm-eval 0.4.13 and inspect-ai 0.3.285: the few names that this library uses, in their shapes.

`make test-evaluators` runs the same over the real ones.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

__all__ = ["Bar", "Instance", "inspect_modules", "installed", "lm_eval_modules"]


@dataclass
class Instance:
    """A request of lm-eval; models read its arguments."""

    args: tuple[Any, ...]
    task_name: str | None = None
    doc_id: int | None = None


class Bar:
    """A progress bar."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def update(self) -> None: ...

    def close(self) -> None: ...


class LM:
    """A model's base class: `cache_hook` keeps answers while a run goes on."""

    def __init__(self) -> None:
        self.kept: list[tuple[Any, ...]] = []
        self.cache_hook = SimpleNamespace(add_partial=lambda *given: self.kept.append(given))


def lm_eval_modules() -> dict[str, dict[str, Any]]:
    """The modules of lm-eval, with the names in them."""
    known: dict[str, type] = {}

    def register_model(name: str) -> Any:
        return lambda kind: known.setdefault(name, kind)

    return {
        "lm_eval": {},
        "lm_eval.models": {},
        "lm_eval.api": {},
        "lm_eval.api.model": {"LM": LM},
        "lm_eval.api.registry": {"register_model": register_model, "known": known},
        "tqdm": {"tqdm": Bar},
    }


class ModelAPI:
    """A provider's base class."""

    def __init__(self, model_name: str, base_url: Any, api_key: Any, api_key_vars: Sequence[str]) -> None:
        self.model_name = model_name


@dataclass
class Output:
    """An answer."""

    model: str
    content: str
    stop_reason: str
    usage: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    @classmethod
    def from_content(cls, model: str, content: str, stop_reason: str, error: str | None = None) -> Output:
        return cls(model, content, stop_reason, error=error)


def inspect_modules() -> dict[str, dict[str, Any]]:
    """The modules of Inspect, with the names in them."""
    call = SimpleNamespace(create=lambda request, response: (request, response))
    names = {"ModelAPI": ModelAPI, "ModelOutput": Output, "ModelUsage": SimpleNamespace, "ModelCall": call}
    return {"inspect_ai": {}, "inspect_ai.model": {**names, "modelapi": lambda name: lambda function: function}}


@contextmanager
def installed(modules: Mapping[str, Mapping[str, Any]], ours: str) -> Iterator[None]:
    """These modules can be imported; what was imported of ours with them is forgotten afterwards."""
    before = dict(sys.modules)
    for name, names in modules.items():
        made = sys.modules[name] = ModuleType(name)
        vars(made).update(names)
    try:
        yield
    finally:
        for name in [one for one in sys.modules if one in modules or one.startswith(ours)]:
            del sys.modules[name]
        sys.modules.update({name: one for name, one in before.items() if name in modules})
