"""What can be wrong with a fusion itself, as one tree. What is wrong with an endpoint: `cosd_providers.errors`.

::

    FusionError
    ├── SettingError             a setting that a fusion cannot take, with the reason (also a ValueError)
    ├── FusionClosedError        the fusion or the stream is used outside its `async with` block (also a RuntimeError)
    └── TraceError               a trace that is none, or does not hold together (also a ValueError)
"""

from __future__ import annotations

__all__ = ["FusionClosedError", "FusionError", "SettingError", "TraceError"]


class FusionError(Exception):
    """Something is wrong with how a fusion is used."""


class SettingError(FusionError, ValueError):
    """A setting that a fusion cannot take; the message says why and what to do."""


class FusionClosedError(FusionError, RuntimeError):
    """The fusion or the stream is not open."""


class TraceError(FusionError, ValueError):
    """A trace that cannot be read, or does not hold together; the message says where."""
