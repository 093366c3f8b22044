"""The errors of the fusion itself; `cosd_providers.errors` has the errors of endpoints.

::

    FusionError
    ├── SettingError             an invalid setting, with the reason (also a ValueError)
    ├── FusionClosedError        the fusion or the stream is used outside its `async with` block (also a RuntimeError)
    ├── GradingError             an answer that cannot be graded
    └── TraceError               an invalid trace (also a ValueError)
"""

from __future__ import annotations

__all__ = ["FusionClosedError", "FusionError", "GradingError", "SettingError", "TraceError"]


class FusionError(Exception):
    """A mistake in the use of a fusion."""


class SettingError(FusionError, ValueError):
    """An invalid setting; the message has the reason and a remedy."""


class FusionClosedError(FusionError, RuntimeError):
    """A fusion or a stream that is used while it is not open."""


class GradingError(FusionError):
    """An answer that cannot be graded as right or wrong; the message has the reason and a remedy."""


class TraceError(FusionError, ValueError):
    """A trace that cannot be read, or that is inconsistent; the message says where."""
