"""The probe: what a server can really do, found by questions with known answers."""

from cosd_providers.probe.report import Line, ProbeReport, Spent, Way, unit_of
from cosd_providers.probe.run import PROMPT, probe

__all__ = ["PROMPT", "Line", "ProbeReport", "Spent", "Way", "probe", "unit_of"]
