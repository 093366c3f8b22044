"""Write the table of methods and engines into `docs/methods.md`: `python docs/generate_methods.py`.

For each method and engine, `Method.examine` determines whether the method accepts models with the capabilities that the
engine's adapter reports.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cosd_api import CoSD, Defer, SettingError
from cosd_api.alignment import Unit
from cosd_api.extend import Method
from cosd_api.methods.base import EXAMPLES, METHODS, method_named
from cosd_api.verification import KINDS, TRAINED, Verifier, needs_of
from cosd_api.verification.deferral import DEFERRAL_FEATURES
from cosd_providers.contract import Capabilities, ServerInfo
from cosd_providers.errors import UnsupportedError

PAGE = Path(__file__).parent / "methods.md"
BEGIN, END = "<!-- engines: `make docs` writes this table -->\n", "<!-- end of engines -->\n"

_WIDTH = 4
_TEXT = Capabilities(token_ids=False, end_prob=False, tokenize=False, score=False)
_WHOLE = Capabilities(True, True, True, True, top_k=999, score_top_k=999, sampling=True)
_EVERYTHING = replace(_WHOLE, hidden_states=_WIDTH)
_DRAWN = replace(_TEXT, draws=True)
_LISTED = replace(_DRAWN, end_prob=True, top_k=19, sampling=True)

ENGINES: Mapping[str, Mapping[str, Capabilities]] = {
    "llama.cpp": {
        "": replace(_WHOLE, scores_by_token=True, finds_allowed=True),
        "with `--embeddings`": replace(_EVERYTHING, scores_by_token=True, finds_allowed=True),
    },
    "vLLM": {"": replace(_WHOLE, top_k=19, score_top_k=19, finds_allowed=True)},
    "SGLang": {
        "": replace(_WHOLE, top_k=63, score_top_k=63, sampling=False, finds_allowed=True),
        "with `--enable-deterministic-inference`": replace(_WHOLE, top_k=63, score_top_k=63, finds_allowed=True),
    },
    "TGI": {
        "": replace(_TEXT, end_prob=True, tokenize=True),
        "with `--enable-prefill-logprobs`": replace(_TEXT, end_prob=True, tokenize=True, score=True),
    },
    "Ollama": {"": _TEXT},
    "OpenAI-compatible": {
        "": _DRAWN,
        "if `echo` is proved": replace(_DRAWN, score=True),
        "`/v1` of llama.cpp, vLLM": _LISTED,
        "`/v1` of vLLM": replace(_LISTED, score=True, score_top_k=19),
        "`/v1` of vLLM, with `tokenizer=`": replace(_LISTED, tokenize=True, score=True, score_top_k=19),
    },
    "messages only": {
        "": replace(_DRAWN, probs=False),
        "if it reports probabilities": _DRAWN,
        "of llama.cpp, vLLM": replace(_DRAWN, top_k=19, sampling=True),
    },
    "whole answers only": {"": replace(_DRAWN, probs=False, continues=False)},
}
"""The capabilities of each engine, by the condition under which it has them. Tests compare them with the adapters."""


_LISTED_GATE = {"listed": 5, "weights": dict.fromkeys(("bias", *DEFERRAL_FEATURES), 0.0), "eta": 0.5}
_STATES_GATE = {"width": _WIDTH, "bias": 0.0, "weights": [0.0] * _WIDTH, "eta": 0.5}
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "defer": {"gate": _LISTED_GATE},
}
"""The settings that have no default and must be given, by the name of the method."""
NEEDED_BY_VERIFIERS: Mapping[str, Mapping[str, Any]] = {
    "tree": {
        "nodes": [{"feature": "p", "threshold": 0.5, "left": 1, "right": 2}, {"value": 1}, {"value": 0}],
        "contexts": "ids",
    },
    "random": {"rate": 0.1},
    "deferral": _LISTED_GATE,
    "co-llm": _STATES_GATE,
}
"""The settings that have no default and must be given, by the kind of the verifier."""


def sample_method(name: str) -> Method:
    """Create a method, or a method of `examples/methods`, with default settings, and with the settings in `NEEDED`.

    Raises:
        SettingError: the method needs a setting that `NEEDED` does not contain.
    """
    try:
        known = f"{PAGE.parents[1]}/examples/methods/{EXAMPLES[name]}" if name in EXAMPLES else name
        return method_named(known, **NEEDED.get(name, {}))
    except (SettingError, TypeError) as error:
        words = f"the method {name!r} has no defaults: add the settings that it needs to NEEDED"
        raise SettingError(f"{words} in docs/generate_methods.py ({error})") from None


def sample_verifier(kind: str) -> Verifier:
    """Create a verifier with default settings, and with the settings in `NEEDED_BY_VERIFIERS`.

    Raises:
        SettingError: the verifier needs a setting that `NEEDED_BY_VERIFIERS` does not contain.
    """
    try:
        made: Any = KINDS[kind].model_validate(NEEDED_BY_VERIFIERS.get(kind, {}))
    except ValidationError as error:
        words = f"the verifier {kind!r} has no defaults: add the settings that it needs to NEEDED_BY_VERIFIERS"
        raise SettingError(f"{words} in docs/generate_methods.py ({error.errors()[0]['loc']})") from None
    found: Verifier = made
    return found


@dataclass(frozen=True)
class Cell:
    """A cell of the table, which says whether a method works with models on an engine.

    Attributes:
        words: the text of the cell.
        reason: the reason why the method does not work, or does not work in every role; None if it works.
        warned: whether answers carry a warning that they would not carry on an engine with all capabilities.
    """

    words: str
    reason: str | None = None
    warned: bool = False


def row(method: Method, unit: Unit | None = None) -> tuple[Cell, ...]:
    """Return the cells of a method, one for each engine."""
    return tuple(_cell(method, unit, variants) for variants in ENGINES.values())


def _cell(method: Method, unit: Unit | None, variants: Mapping[str, Capabilities]) -> Cell:
    """Return the cell for a method and an engine: "yes", or the roles and conditions for which the method works."""
    reason, _ = _asked(method, unit, variants[""], variants[""])
    whole = _first(method, unit, variants, "both")
    told = ', with `unit="token"`' if method.one_tokenizer and not variants[whole or ""].tokenize else ""
    if whole == "":
        return Cell(f"yes{told}", warned=_warned(method, unit, variants[""]))
    roles = {"as the draft": _first(method, unit, variants, "draft"), "as an assistant": _first(method, unit, variants)}
    alone = [words for words, condition in roles.items() if condition == ""]
    if whole is not None:
        words = [whole] if not alone else [*alone, f"{whole}: yes"]
        return Cell("; ".join(words) + told, reason if alone else None, _warned(method, unit, variants[whole]))
    some = alone or [f"{words}, {condition}" for words, condition in roles.items() if condition is not None]
    return Cell("; ".join(some) or "no", reason)


def _first(method: Method, unit: Unit | None, variants: Mapping[str, Capabilities], role: str = "") -> str | None:
    """Return the first condition under which a model on an engine can have a role; None if there is no such condition.

    The model in the other role has all capabilities.
    """
    for condition, can in variants.items():
        draft, assistant = (_EVERYTHING if role == "" else can), (_EVERYTHING if role == "draft" else can)
        if _asked(method, unit, draft, assistant)[0] is None:
            return condition
    return None


def _warned(method: Method, unit: Unit | None, can: Capabilities) -> bool:
    return bool({*_asked(method, unit, can, can)[1]} - {*_asked(method, unit, _EVERYTHING, _EVERYTHING)[1]})


def _asked(
    method: Method, unit: Unit | None, draft: Capabilities, assistant: Capabilities
) -> tuple[str | None, tuple[str, ...]]:
    """Return the reason why the method refuses two models with these capabilities (or None), and its warnings."""
    models = [
        (name, ServerInfo(f"http://{name}", "", "", None, None, can))
        for name, can in (("draft", draft), ("assistant", assistant))
    ]
    if not (method.accepts_messages_only or (draft.continues and assistant.continues)):
        return "does not continue a partial answer", ()
    try:
        warnings = method.examine(models, unit)
    except UnsupportedError as error:
        return _shortened(str(error.args[0])), ()
    return None, warnings


def _shortened(refusal: str) -> str:
    """Shorten a refusal to the capability that the model lacks."""
    parts = re.split(r", (?:and )?", re.sub(r"^the (draft|assistant) ", "", refusal))
    return next((part for part in parts if part.startswith("does not ")), parts[0])


def table() -> str:
    """Return the table, followed by its notes."""
    found: dict[str, tuple[Cell, ...]] = {}
    for name in (*METHODS, *EXAMPLES):
        method = sample_method(name)
        found[f"`{name}`"] = row(method)
        if name == "cosd":
            found |= _verifiers(found["`cosd`"])
        if name == "defer":
            found["`defer` with `CoLLMVerifier`"] = row(Defer(gate={"kind": "co-llm", **_STATES_GATE}))
        with suppress(SettingError):  # raised by methods that never draw tokens, or always draw them
            if not method.temperature:
                found[f"`{name}` with `temperature=1`"] = row(method.at_temperature(1), "token")
    reasons: list[str] = []
    lines = [f"| method | {' | '.join(ENGINES)} |", "| --- " * (1 + len(ENGINES)) + "|"]
    for label, cells in found.items():
        shown: list[str] = []
        for cell in cells:
            if cell.reason and cell.reason not in reasons:
                reasons.append(cell.reason)
            number = f" ({1 + reasons.index(cell.reason)})" if cell.reason else ""
            shown.append(cell.words + number + (" *" if cell.warned else ""))
        lines.append(f"| {label} | {' | '.join(shown)} |")
    numbered = [f"{at}. The endpoint {reason}." for at, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *numbered]) + "\n"


def _verifiers(rule: tuple[Cell, ...]) -> dict[str, tuple[Cell, ...]]:
    """Return the rows of `cosd` with verifiers whose cells differ from the rule's cells; equal rows are merged."""
    alike: dict[tuple[Cell, ...], list[str]] = {}
    for verifier in (sample_verifier(kind) for kind in KINDS if kind not in TRAINED):  # `defer` uses trained gates
        unit: Unit | None = "token" if needs_of(verifier).alternatives else None
        alike.setdefault(row(CoSD(verifier=verifier, unit=unit), unit), []).append(f"`{type(verifier).__name__}`")
    return {f"`cosd` with {', '.join(names)}": cells for cells, names in alike.items() if cells != rule}


def page(text: str) -> str:
    """Return the page with the current table."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
