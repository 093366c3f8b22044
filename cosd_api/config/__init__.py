"""Settings files: how they are read, what they may contain, and errors that name the line."""

from __future__ import annotations

from cosd_api.config.document import Document, FieldPath, read_document
from cosd_api.config.faults import config_error, config_errors
from cosd_api.config.shape import ServerConfig, ServerLimitsConfig

__all__ = [
    "Document",
    "FieldPath",
    "ServerConfig",
    "ServerLimitsConfig",
    "config_error",
    "config_errors",
    "read_document",
]
