"""The errors of fusions; the errors of endpoints are in `cosd_providers.errors`.

::

    FusionError
    ├── SettingError             an invalid setting (also a ValueError)
    ├── FusionClosedError        the fusion or the stream is used outside its `async with` block (also a RuntimeError)
    ├── GradingError             an answer that cannot be graded
    └── TraceError               an invalid trace (also a ValueError)
"""

from __future__ import annotations

__all__ = ["FusionClosedError", "FusionError", "GradingError", "SettingError", "TraceError"]


class FusionError(Exception):
    """Base class of all errors that are caused by incorrect use of a fusion."""


class SettingError(FusionError, ValueError):
    """An invalid setting; the message gives the reason and a remedy."""


class FusionClosedError(FusionError, RuntimeError):
    """A fusion or stream was used while it was not open."""


class GradingError(FusionError):
    """An answer cannot be graded as right or wrong; the message gives the reason and a remedy."""


class TraceError(FusionError, ValueError):
    """A trace cannot be read or is inconsistent; the message says where."""
