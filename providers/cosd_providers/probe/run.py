"""Run of a probe, from the URL of a server to the report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from cosd_providers.connect import ADAPTERS, ConnectOptions, Snapshot, adapter_class, connect, refuse_unknown
from cosd_providers.contract import Provider
from cosd_providers.detection import DetectedProvider
from cosd_providers.engine import Engine
from cosd_providers.engines.openai import OpenAICompatible
from cosd_providers.engines.openai.probe_client import ProbeClient
from cosd_providers.errors import UnsupportedError
from cosd_providers.greedy import TIES
from cosd_providers.probe.contract_checks import CONTRACT, ways
from cosd_providers.probe.distribution_checks import DISTRIBUTIONS
from cosd_providers.probe.report import LINES, UNTRUSTED, UNUSABLE, Line, ProbeReport, Spent, Way
from cosd_providers.probe.state import DRAFTED, PROBE_PROMPT, ProbeRun, reason
from cosd_providers.probe.wire_checks import WIRE
from cosd_providers.tokenizers import fingerprint

_NO_WIRE = "a provider of this kind can only be checked through its contract"

_ADVICE: dict[str, Sequence[tuple[str, str]]] = {
    "": (("tokenizer", "give the model's tokenizer, connect(url, tokenizer=...): it encodes and counts on this side"),),
    "llama.cpp": (
        (
            "restart",
            "start it with --swa-full if its model has a sliding window: restarts are slow, its numbers unsteady",
        ),
    ),
    "vllm": (
        ("cached", "--enable-prompt-tokens-details: answers then report what came from the prefix cache"),
        ("cache", "--enable-prefix-caching: lists and singles then read only what is new"),
        ("echo", "for long prompts 'list' or 'singles': 'echo' reads all of a prompt each time, past the prefix cache"),
        ("raw", "--logprobs-mode raw_logprobs (version 0.10 or newer): it then shows the model's own probabilities"),
        ("depth", "--max-logprobs 20: it then lists more tokens at a place"),
    ),
    "tgi": (("scoring", "--enable-prefill-logprobs: it then scores a prompt"),),
}
"""Advice for each missing ability, by the kind of server; the key `""` applies to all kinds."""


async def run(server: str | Provider, prompt: str, options: Mapping[str, Any]) -> ProbeReport:
    """Probe a server; see `cosd_providers.probe.probe`."""
    refuse_unknown(options, ("prompt", *ConnectOptions.__annotations__))
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
        return await _examined(adapter, prompt if prompt.strip() else PROBE_PROMPT, began)


def _check_given(server: object, prompt: object) -> None:
    if isinstance(server, Snapshot):
        words = f"this is a probe report; to probe the server again give its URL, {server.endpoint!r}"
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
    look: Any = getattr(provider, "probe_client", None)
    client: ProbeClient | None = await look() if look is not None else None
    probe = ProbeRun(provider, info, client, prompt)
    probe.note("server", f"{info.engine} {info.build or ''}".strip(), "reported, not tested")
    for name, told in (("context", info.context), ("template", info.answer_cue)):
        if told is not None:
            probe.note(name, told, "reported, not tested")
    checks = {check.name: check for check in (*CONTRACT, *(WIRE if client is not None else ()), *DISTRIBUTIONS)}
    for name in LINES:
        if name in checks:
            await probe.examine(checks[name])
    if probe.fastest is not None:
        probe.note("round_trip", round(probe.fastest, 4), f"{probe.fastest * 1000:.0f} ms")
    _fill(probe)
    return await _reported(probe, began)


def _fill(probe: ProbeRun) -> None:
    """Add each missing line, with an unknown value and the reason for it."""
    reasons = {
        "context": "the server does not report it",
        "template": "the model has none of its own, or none can be seen",
        "end": f"no answer ended within {DRAFTED} tokens; give a prompt with a short answer",
        "score": probe.no_draft,
        "propose": probe.no_draft,
    }
    other = _NO_WIRE if probe.client is None else "there was no question to send"
    for name in LINES:
        if name not in probe.lines:
            probe.note(name, None, reasons.get(name, other))
    end = probe.lines["end"]
    if end.value and not probe.info.capabilities.end_prob:
        probe.note("end", True, f"{end.seen}{UNTRUSTED}", end.asked)


async def _reported(probe: ProbeRun, began: float) -> ProbeReport:
    found = await ways(probe)
    drafts, assists = _missing(probe, found)
    engine, options = _connected(probe.provider)
    right = next((way.name for way in found if way.proved), None)
    if right is not None and (any(way.wrong for way in found) or probe.value("propose") is False):
        options["strategy"] = right
    keep: Any = getattr(probe.provider, "snapshot", None)
    usage = probe.usage
    return ProbeReport(
        endpoint=probe.info.endpoint,
        engine=engine,
        options=options,
        model=probe.info.model,
        facts=await keep() if keep is not None and engine is not None else None,
        version=probe.info.build,
        lines=tuple(probe.lines[name] for name in LINES),
        can_draft=not drafts,
        can_assist=not assists,
        by_agreement=not assists and not probe.info.capabilities.probs,
        draft_lacks=tuple(drafts),
        assistant_lacks=tuple(assists),
        ways=tuple(found),
        advice=tuple(_advice(probe, found)),
        encoding=_digest(await fingerprint(probe.provider, probe.info)),
        vocabulary=_digest(probe.vocabulary),
        tie=tie if isinstance(tie := probe.value("tie"), float) else None,
        spent=Spent(
            requests=usage.requests,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            seconds=round(time.monotonic() - began, 3),
        ),
    )


def _digest(shown: object) -> str | None:
    """Compute a digest of the information that a server gives about its tokenizer; None if it gives none."""
    return sha256(repr(shown).encode()).hexdigest() if shown else None


def _refused(provider: Provider, error: UnsupportedError, began: float) -> ProbeReport:
    """Create the report on a server that its adapter refuses. Its cost is the cost of discovering the server."""
    engine, options = _connected(provider)
    line = Line(name="server", value=False, asked=LINES["server"].asked, seen=reason(error))
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


def _connected(provider: Provider) -> tuple[str | None, dict[str, str]]:
    """Return the engine and the options with which `connect` creates this provider.

    The engine is None if `connect` cannot create such a provider.
    """
    options = provider.connect_options() if isinstance(provider, Engine) else {}
    if isinstance(provider, OpenAICompatible):
        return "openai", options
    return next((name for name in ADAPTERS if type(provider) is adapter_class(name)), None), options


def _missing(probe: ProbeRun, found: Sequence[Way]) -> tuple[list[str], list[str]]:
    """Return the reasons why the server cannot be a draft, and the reasons why it cannot be an assistant."""
    value, lines = probe.value, probe.lines
    both = [words for (name, bad), words in UNUSABLE.items() if value(name) == bad]
    drafts, assists, proved = [*both], [*both], any(way.proved for way in found)
    if probe.short:
        if value("logprobs") is False:  # if all answers were short, there is no other evidence
            drafts.append(lines["logprobs"].seen)
        return drafts, assists
    if not value("draft"):
        drafts.append(lines["draft"].seen)
    if not value("propose") and not proved:
        assists.append(lines["propose"].seen)
    elif found and not proved:
        assists.append("no strategy gave the draft's own tokens back")
    return drafts, assists


def _advice(probe: ProbeRun, found: Sequence[Way]) -> list[str]:
    """Return the options and flags that would help with this kind of server."""
    value, depth = probe.value, probe.value("depth")
    lacks = {
        "cached": value("cache") is None,
        "cache": value("cache") is False,
        "raw": value("probabilities") in ("changed", "degenerate"),
        "depth": isinstance(depth, int) and depth < TIES,
        "scoring": not probe.info.capabilities.score,
        "tokenizer": value("tokenizer") is False,
        "echo": any(way.name == "echo" and way.proved and not way.cached for way in found),
        "restart": bool(value("restart")),
    }
    right = [way.name for way in found if way.proved]
    wrong = [way.name for way in found if way.wrong]
    words: list[str] = []
    rows = (*_ADVICE.get(probe.info.engine, ()), *_ADVICE[""])
    if right and wrong and not lacks["restart"]:  # otherwise the answers differ because the cache is read again
        words.append(f"strategy={right[0]!r}: asked by {' or '.join(wrong)} it answers differently")
    if value("after_ids") is False and probe.info.capabilities.ids and not lacks["restart"]:
        words.append('unit="word": asked after its own ids it answers differently')
    return [*words, *(row for lack, row in rows if lacks[lack])]
