"""Access to language models over HTTP APIs, through one interface for all servers: generate, propose and score."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cosd_providers.connect import connect
from cosd_providers.contract import (
    Capabilities,
    Context,
    DraftEnd,
    Piece,
    Proposal,
    Provider,
    Question,
    ServerInfo,
    Token,
)
from cosd_providers.deferred import deferred
from cosd_providers.errors import (
    AuthenticationError,
    BudgetError,
    BudgetTimeoutError,
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
from cosd_providers.forwarding import ForwardingProvider
from cosd_providers.http.limits import Limits
from cosd_providers.messages import Message
from cosd_providers.probe import probe
from cosd_providers.usage import Usage

if TYPE_CHECKING:
    from cosd_providers.probe import ProbeReport

__all__ = [
    "AuthenticationError",
    "BudgetError",
    "BudgetTimeoutError",
    "Capabilities",
    "ConnectError",
    "Context",
    "ContextLengthError",
    "DraftEnd",
    "ForwardingProvider",
    "InvalidRequestError",
    "Limits",
    "Message",
    "ModelChoiceError",
    "Piece",
    "ProbeReport",
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
    "probe",
]

if not TYPE_CHECKING:
    __getattr__ = deferred(__name__, {"ProbeReport": "cosd_providers.probe.report"})

logging.getLogger(__name__).addHandler(logging.NullHandler())
