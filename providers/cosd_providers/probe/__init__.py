"""The probe: what a server can really do, found by questions whose answers are known."""

from cosd_providers.probe.card import Card, unit_of
from cosd_providers.probe.lines import Line, Spent, Way
from cosd_providers.probe.run import PROMPT, probe

__all__ = ["PROMPT", "Card", "Line", "Spent", "Way", "probe", "unit_of"]
