"""One probe, from a URL to its report."""

from __future__ import annotations

import time
from hashlib import sha256
from typing import Any

from cosd_providers.connect import ADAPTERS, connect
from cosd_providers.contract import Provider
from cosd_providers.detection import DetectedProvider
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.errors import ProviderError, UnsupportedError
from cosd_providers.findings import Wire
from cosd_providers.probe.asking import DRAFTED, OURS, PROMPT, TOO_SHORT, Inquiry, reason
from cosd_providers.probe.chat import CHAT
from cosd_providers.probe.generic import GENERIC
from cosd_providers.probe.lines import Line, Spent
from cosd_providers.probe.questions import WIRE
from cosd_providers.probe.report import ProbeReport
from cosd_providers.probe.verdict import advice, missing
from cosd_providers.probe.ways import ways
from cosd_providers.probe.words import UNTRUSTED
from cosd_providers.snapshot import Snapshot
from cosd_providers.tokenizers import fingerprint

__all__ = ["PROMPT", "probe"]

_ORDER = (
    *("server", "models", "context", "tokenizer", "logprobs", "depth", "probabilities", "scoring", "lists", "ids"),
    *("template", "prefill", "end", "bytes", "whole", "cache", "round_trip", "draft", "score", "propose"),
)
"""Of the lines on a report."""

_UNASKED = {
    "end": (
        "the end of a draft",
        f"no answer ended within {DRAFTED} tokens; give a prompt that is answered shortly",
    )
}

_OF_DRAFT = ("score", "propose")
"""Lines that nothing is asked for without a draft."""

_NO_WIRE = "a provider of this kind shows what the contract does, and no more"


async def probe(server: str | Provider, *, prompt: str = PROMPT, **options: Any) -> ProbeReport:
    """Finds out what a server can really do, at the cost of some dozens of short requests.

    Nothing is believed for what a server is called: each line of the report was found by a question whose answer is
    known, or whose answers have to fit together, and says which. What cannot be found out is unknown, with the reason.

    Args:
        server: its URL, or a provider; one of your own is asked by the contract alone.
        prompt: what a short draft goes on from: one that the model answers in some words shows how it ends. An empty
            one, or one that is answered with nearly nothing, gives way to the probe's own.
        options: for a URL, those of `connect`.

    Raises:
        ProviderError: the server cannot be reached, or does not let us in, or has several models and none was named.
        ValueError: as `connect`.
        TypeError: the server is neither a URL nor a provider, or the prompt is no text.
    """
    _check_given(server, prompt)
    if isinstance(server, str):
        provider = connect(server, **options)
    elif options:
        raise TypeError(f"{next(iter(options))!r} is for a URL; a provider has it already")
    else:
        provider = server
    began = time.monotonic()
    async with provider:
        adapter = await provider.adapter() if isinstance(provider, DetectedProvider) else provider
        return await _examined(adapter, prompt if prompt.strip() else PROMPT, began)


def _check_given(server: object, prompt: object) -> None:
    if isinstance(server, Snapshot):
        words = f"what was given is a probe report; to probe the server again give its URL, {server.endpoint!r}"
        raise TypeError(words)
    if isinstance(server, list | tuple):
        raise TypeError("one server is probed at a time: await probe(url) for each")
    if isinstance(server, type) or not isinstance(server, str | Provider):
        raise TypeError(f"server must be a URL or a provider, not {type(server).__name__}")
    if not isinstance(prompt, str):
        raise TypeError(f"prompt must be a text, not {type(prompt).__name__}")


async def _examined(provider: Provider, prompt: str, began: float) -> ProbeReport:
    try:
        info = await provider.describe()
    except UnsupportedError as error:
        return _refused(provider, error, began)
    look: Any = getattr(provider, "examine", None)
    wire: Wire | None = await look() if look is not None else None
    inquiry = Inquiry(provider, info, wire, prompt)
    if wire is not None:
        inquiry.settings = await _settings(wire)
    _told(inquiry)
    for name, asked, question in GENERIC[:1]:
        await inquiry.examine(name, asked, question)
    for name, asked, question in (*WIRE, *CHAT):
        if wire is None:
            inquiry.note(name, None, asked, _NO_WIRE)
        else:
            await inquiry.examine(name, asked, question)
    for name, asked, question in GENERIC[1:]:
        await inquiry.examine(name, asked, question)
    for name in _ORDER:
        if all(line.name != name for line in inquiry.lines):
            nothing = TOO_SHORT if inquiry.short and name in _OF_DRAFT else "there was nothing to ask it with"
            inquiry.note(name, None, *_UNASKED.get(name, ("nothing", nothing)))
    if inquiry.value("end") and not inquiry.info.capabilities.end_prob:
        one = next(line for line in inquiry.lines if line.name == "end")
        inquiry.note("end", True, one.asked, f"{one.seen}{UNTRUSTED}")
    return await _report(inquiry, began)


async def _report(inquiry: Inquiry, began: float) -> ProbeReport:
    found = await ways(inquiry)
    drafts, assists = missing(inquiry, found)
    ids = await fingerprint(inquiry.provider, inquiry.info)
    digest = sha256(repr(ids).encode()).hexdigest() if ids else None
    engine, options = _connected(inquiry.provider)
    right = next((way.name for way in found if way.proved), None)
    if right is not None and (any(way.wrong for way in found) or inquiry.value("propose") is False):
        options["strategy"] = right
    keep: Any = getattr(inquiry.provider, "snapshot", None)
    usage = inquiry.usage
    return ProbeReport(
        endpoint=inquiry.info.endpoint,
        engine=engine,
        options=options,
        model=inquiry.info.model,
        facts=await keep() if keep is not None and engine is not None else None,
        version=inquiry.info.build,
        lines=tuple(sorted(inquiry.lines, key=lambda line: _ORDER.index(line.name))),
        can_draft=not drafts,
        can_assist=not assists,
        by_agreement=not assists and not inquiry.info.capabilities.probs,
        draft_lacks=tuple(drafts),
        assistant_lacks=tuple(assists),
        ways=tuple(found),
        advice=tuple(advice(inquiry, found)),
        encoding=digest,
        spent=Spent(
            requests=usage.requests,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            seconds=round(time.monotonic() - began, 3),
        ),
    )


def _refused(provider: Provider, error: UnsupportedError, began: float) -> ProbeReport:
    """The report of a server that its adapter refuses; the requests of its proofs are all that it has cost."""
    engine, options = _connected(provider)
    line = Line(name="server", value=False, asked="what it is, and whether it can be used at all", seen=reason(error))
    return ProbeReport(
        endpoint=error.endpoint or provider.name,
        engine=engine,
        options=options,
        model=options.get("model", ""),
        lines=(line,),
        draft_lacks=(reason(error),),
        assistant_lacks=(reason(error),),
        advice=(error.hint,) if error.hint else (),
        spent=Spent(requests=getattr(provider, "sent", 0), seconds=round(time.monotonic() - began, 3)),
    )


async def _settings(wire: Wire) -> dict[str, int]:
    """How the server was started; empty where it does not say."""
    try:
        return await wire.settings()
    except OURS:
        raise
    except ProviderError:
        return {}


def _told(inquiry: Inquiry) -> None:
    """What the server says of itself."""
    info = inquiry.info
    asked = "what the server says of itself"
    inquiry.note("server", f"{info.engine} {info.build or ''}".strip(), asked, "told, not tested")
    known = "told, not tested" if info.context is not None else "the server does not tell"
    inquiry.note("context", info.context, asked, known)


def _connected(provider: Provider) -> tuple[str | None, dict[str, str]]:
    """What `connect` has to be told for such a provider; None for one that it does not make."""
    named = getattr(provider, "_model", None)
    options: dict[str, str] = {"model": named} if isinstance(named, str) else {}
    if isinstance(provider, OpenAICompatible):
        return "openai", {**options, "dialect": provider._dialect.engine, "api": provider._api}
    return next((name for name, kind in ADAPTERS.items() if type(provider) is kind), None), options
