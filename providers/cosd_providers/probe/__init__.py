"""The probe, which finds out what a server can really do by asking questions with known answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from cosd_providers.connect import ConnectOptions
from cosd_providers.contract import Provider
from cosd_providers.deferred import deferred

if TYPE_CHECKING:
    from cosd_providers.probe.report import Definition, Line, ProbeReport, Spent, Way, definition_of
    from cosd_providers.probe.state import PROBE_PROMPT

__all__ = ["PROBE_PROMPT", "Definition", "Line", "ProbeReport", "Spent", "Way", "definition_of", "probe"]

if not TYPE_CHECKING:
    _REPORT = ("Definition", "Line", "ProbeReport", "Spent", "Way", "definition_of")
    __getattr__ = deferred(
        __name__,
        {"PROBE_PROMPT": "cosd_providers.probe.state", **dict.fromkeys(_REPORT, "cosd_providers.probe.report")},
    )


async def probe(server: str | Provider, *, prompt: str = "", **options: Unpack[ConnectOptions]) -> ProbeReport:
    """Find out what a server can really do, at the cost of a few dozen short requests.

    A server's name proves nothing. So the probe asks questions whose answers are known or must be consistent. Each line
    of the report contains a question and its result. If there is no evidence, the line says that the result is unknown,
    and why.

    Args:
        server: a URL or a provider. A custom provider is checked only through its contract (`cosd_providers.contract`).
        prompt: the prompt for a short draft. If the model's answer is brief, the probe also sees how an answer ends. If
            the prompt is empty, or the answer is too short for a comparison, the probe uses a prompt of its own.
        options: keyword arguments of `connect`, if `server` is a URL.

    Raises:
        ProviderError: the server cannot be reached, refuses the key, or has several models of which none was chosen.
        ValueError: an option is invalid, as for `connect`.
        TypeError: the server is neither a URL nor a provider, the prompt is not a string, or an option is unknown.
    """
    from cosd_providers.probe.run import run  # noqa: PLC0415 - other uses need neither checks nor engines

    return await run(server, prompt, options)
