"""Language models behind HTTP APIs, one contract for all: stream a draft, propose tokens, score a text."""

from __future__ import annotations

import logging

from cosd_providers.connect import connect
from cosd_providers.contract import (
    Capabilities,
    DraftEnd,
    Piece,
    Proposal,
    Provider,
    Question,
    ServerInfo,
    Token,
    Usage,
)
from cosd_providers.errors import (
    AuthenticationError,
    ConnectError,
    ContextLengthError,
    InvalidRequestError,
    ModelChoiceError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    ResponseError,
    ServerError,
    StatusError,
    UnsupportedError,
)

__all__ = [
    "AuthenticationError",
    "Capabilities",
    "ConnectError",
    "ContextLengthError",
    "DraftEnd",
    "InvalidRequestError",
    "ModelChoiceError",
    "Piece",
    "Proposal",
    "Provider",
    "ProviderError",
    "ProviderTimeoutError",
    "Question",
    "RateLimitError",
    "ResponseError",
    "ServerError",
    "ServerInfo",
    "StatusError",
    "Token",
    "UnsupportedError",
    "Usage",
    "connect",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
