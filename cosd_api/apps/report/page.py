"""A self-contained HTML page about a fused answer: `page(result)`.

The template `page.html.jinja` holds the structure of the page; this module computes what it shows. The page loads no
external resources; its content security policy enforces this. The script only shows the hover cards. Without the
script, the answer, the timeline and the tables are still complete.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cosd_api import FusionResult
from cosd_api.apps.report.cards import Cards, request_key, standing
from cosd_api.apps.report.phrases import in_line, name_of, prob, seconds, visible
from cosd_api.apps.report.terminal import JudgedPlace, definition, judged, measure, unchanged
from cosd_api.apps.report.timeline_chart import timeline
from cosd_api.common.wording import counted
from cosd_api.types import CustomVerifier
from cosd_api.verification import TreeVerifier, condition_of

__all__ = ["page"]

_PACKAGE = "cosd_api.apps.report"
_LONGEST = 30  # longer outlines of a verifier are not shown; a full tree of depth 4 fits
_MOST_ROWS = 100  # keeps the page fast; `cosd explain` prints all rows
_VERDICTS = {"tied": "a tie", "kept": "kept", "replaced": "replaced", "outvoted": "another was surer"}
_COUNTS = ("requests", "retries", "prompt_tokens", "cached_tokens", "estimated_tokens", "completion_tokens")
_SHOWN = {"method", "method_options", "verifier", "unit", "max_tokens", "contexts", "routes", "tie"}


def page(result: FusionResult, *, title: str = "A fused answer") -> str:
    """Write the report of one answer as an HTML document.

    Args:
        result: the answer; `Trace.load(path).result` reads a saved one.
        title: the headline, such as the question; the result itself does not contain the prompt.
    """
    cards = Cards(result)
    found = list(judged(result.tokens))
    differing = [one for one in found if one.outcome != "agreed"]
    segments = [one for one in enumerate(result.segments, 1) if not unchanged(one[1], result)]
    style, script = (resources.files(_PACKAGE).joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    template = _environment().get_template("page.html.jinja")
    return template.render(
        result=result,
        title=title,
        style=style,
        script=script,
        style_hash=_fingerprint(style),
        script_hash=_fingerprint(script),
        cards=cards,
        rule=_rule(result),
        outline=_outline(result),
        figures=list(_figures(result)),
        standing=standing,
        standings={standing(token) for token in result.tokens},
        request_key=request_key,
        timeline=timeline(result),
        settings=list(_settings(result)),
        differing=differing,
        segments=segments,
        first={token.unit: at for at, token in reversed(list(enumerate(result.tokens)))},
        names=[result.draft.name, *(one.name for one in result.assistants)],
        totals=[sum(getattr(one, name) for one in result.usage.values()) for name in _COUNTS],
        data=_data(cards, differing),
        counts=_COUNTS,
        most=_MOST_ROWS,
        verdicts=_VERDICTS,
    )


@cache
def _environment() -> Environment:
    """The environment of the template, which escapes every text, hidden characters included."""
    environment = Environment(
        loader=PackageLoader(_PACKAGE, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_safe,
    )
    filters: dict[str, Any] = {"counted": counted, "in_line": in_line, "measure": measure, "name_of": name_of}
    filters |= {"prob": prob, "seconds": seconds, "address": _without_credentials}
    environment.filters.update(filters)
    return environment


def _safe(value: object) -> object:
    """Make hidden characters of a text visible, and shorten coordinates, which halves the size of the page."""
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _fingerprint(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(cards: Cards, differing: list[JudgedPlace]) -> dict[str, object]:
    """Collect the data for the script: the cards, and the tokens with disagreements."""
    result = cards.result
    return {
        "tokens": [asdict(cards.token(at)) for at in range(len(result.tokens))],
        "requests": {request_key(request): asdict(cards.request(request)) for request in result.requests},
        "decisive": sorted({one.at for one in differing}),
    }


def _rule(result: FusionResult) -> str:
    """Describe the verifier's condition, or the method and its settings."""
    verifier = result.settings.verifier
    if isinstance(verifier, CustomVerifier):
        return f"a custom verifier: {in_line(verifier.description)}"
    if verifier is not None:
        return condition_of(verifier)
    options = ", ".join(f"{name}={value}" for name, value in result.settings.method_options.items())
    return in_line(f"{result.settings.method} ({options})" if options else result.settings.method)


def _outline(result: FusionResult) -> str:
    """The outline of a tree; an empty text if another verifier decided, or if it is too long."""
    verifier = result.settings.verifier
    words = verifier.outline() if result.judged and isinstance(verifier, TreeVerifier) else ""
    return words if words.count("\n") < _LONGEST else ""


def _figures(result: FusionResult) -> Iterator[tuple[str, str]]:
    """Yield the header's figures: numbers, and their meanings."""
    if not result.judged:
        yield f"{len(result.tokens):,}", f"tokens in {counted(len(result.segments), 'segment')}"
    else:
        if result.acceptance_rate is not None:
            yield f"{result.acceptance_rate:.1%}".replace(".0%", "%"), "of the draft kept"
        if result.unverified_tokens:
            yield f"{result.unverified_tokens:,}", "unverified"
        replacements = result.replacements or 0
        yield f"{replacements:,}", "replacement" if replacements == 1 else "replacements"
        yield f"{len(result.tokens):,}", f"tokens in {counted(result.iterations or 0, 'round')}"
    asked = counted(result.assistant_requests, "question")
    yield f"{result.draft_requests + result.assistant_requests:,}", f"requests, {asked} among them"
    per_token = result.timings.per_token
    yield seconds(result.timings.total), "" if per_token is None else f"{seconds(per_token)} per token"


def _settings(result: FusionResult) -> Iterator[tuple[str, str]]:
    """Yield how the answer was made, why it ended, and the settings that differ from the defaults."""
    chosen = result.settings
    defaults = type(chosen).model_fields
    yield "method", _rule(result)
    if chosen.unit:
        yield "judged", definition(result)
    yield "ended", f"{result.finish_reason} ({in_line(result.stop_reason) or 'no reason given'})"
    yield "at most", counted(chosen.max_tokens, "token")
    for name, value in chosen.model_dump(mode="json").items():
        if name not in _SHOWN and value != defaults[name].default and value != []:
            yield name.replace("_", " "), in_line(str(value))


def _without_credentials(url: str) -> str:
    """Remove user, password, query and fragment from a URL, in case a result's file was edited by hand."""
    try:
        parts = urlsplit(url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    except ValueError:
        return "?"
