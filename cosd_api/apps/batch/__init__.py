"""Batches: the prompts in one file are answered line by line, and the answers are written to another file.

A later run can continue an unfinished batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_providers.deferred import deferred

if TYPE_CHECKING:
    from cosd_api.apps.batch.actor import FusionActor

__all__ = ["FusionActor"]

if not TYPE_CHECKING:
    __getattr__ = deferred(__name__, {"FusionActor": "cosd_api.apps.batch.actor"})
