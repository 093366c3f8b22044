"""The probe: what a server can really do, found by questions with known answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from cosd_providers.connect import ConnectOptions
from cosd_providers.contract import Provider
from cosd_providers.deferred import deferred

if TYPE_CHECKING:
    from cosd_providers.probe.inquiry import PROBE_PROMPT
    from cosd_providers.probe.report import Definition, Line, ProbeReport, Spent, Way, definition_of, unit_of

__all__ = ["PROBE_PROMPT", "Definition", "Line", "ProbeReport", "Spent", "Way", "definition_of", "probe", "unit_of"]

if not TYPE_CHECKING:
    _REPORT = ("Definition", "Line", "ProbeReport", "Spent", "Way", "definition_of", "unit_of")
    __getattr__ = deferred(
        __name__,
        {"PROBE_PROMPT": "cosd_providers.probe.inquiry", **dict.fromkeys(_REPORT, "cosd_providers.probe.report")},
    )


async def probe(server: str | Provider, *, prompt: str = "", **options: Unpack[ConnectOptions]) -> ProbeReport:
    """Find out what a server can really do, at the cost of some dozens of short requests.

    Nothing is believed because of a server's name: each line of the report was found by a question with a known answer,
    or by answers that have to fit together, and says which. What cannot be found out is unknown, with the reason.

    Args:
        server: a URL, or a provider; one of your own is asked by the contract alone.
        prompt: the prompt of a short draft; one that the model answers in some words shows how it ends. Where it is
            empty or answered with nearly nothing, the probe uses its own.
        options: those of `connect`, for a URL.

    Raises:
        ProviderError: the server cannot be reached, refuses the key, or has several models and none was named.
        ValueError: as `connect`.
        TypeError: the server is neither a URL nor a provider, the prompt is not a text, or an option is unknown.
    """
    from cosd_providers.probe.run import run  # noqa: PLC0415 - its questions and the engines are needed here only

    return await run(server, prompt, options)
