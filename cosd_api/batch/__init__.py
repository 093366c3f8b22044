"""Batches: a file of prompts, answered line by line into another file, which a later run can continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_api.extend import deferred

if TYPE_CHECKING:
    from cosd_api.batch.actor import FusionActor

__all__ = ["FusionActor"]

if not TYPE_CHECKING:
    __getattr__ = deferred(__name__, {"FusionActor": "cosd_api.batch.actor"})
