"""The probe: the real abilities of a server, found by questions with known answers."""

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
    """Find out the real abilities of a server, at the cost of some dozens of short requests.

    A server's name proves nothing: each line of the report was found by a question with a known answer, or by answers
    that have to fit together, and the line says which. A line without evidence is unknown, with the reason.

    Args:
        server: a URL, or a provider; a provider of your own is checked by the contract alone.
        prompt: the prompt of a short draft; a prompt with a short answer shows how the answer ends. If it is empty or
            answered with nearly nothing, the probe uses its own.
        options: options of `connect`, for a URL.

    Raises:
        ProviderError: the server cannot be reached, refuses the key, or has several models and none was named.
        ValueError: as `connect`.
        TypeError: the server is neither a URL nor a provider, the prompt is not a text, or an option is unknown.
    """
    from cosd_providers.probe.run import run  # noqa: PLC0415 - only here the checks and the engines are needed

    return await run(server, prompt, options)
