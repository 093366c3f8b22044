"""The probe: what a server can really do, found by questions whose answers are known."""

from cosd_providers.probe.lines import Line, Spent, Way
from cosd_providers.probe.report import ProbeReport, unit_of
from cosd_providers.probe.run import PROMPT, probe

__all__ = ["PROMPT", "Line", "ProbeReport", "Spent", "Way", "probe", "unit_of"]
