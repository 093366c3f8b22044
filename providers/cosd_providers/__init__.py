"""Language models behind HTTP APIs, one contract for all: stream a draft, propose tokens, score a text."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cosd_providers.connect import ADAPTERS as _ADAPTERS
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
from cosd_providers.engines.openai.dialects import Dialect
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
from cosd_providers.http.limits import Limits
from cosd_providers.messages import ChatProvider, Message, RenderedPrompt
from cosd_providers.probe import probe
from cosd_providers.tokenizers import Tokenizer, load_tokenizer
from cosd_providers.usage import Usage
from cosd_providers.wrapping import ForwardingProvider

if TYPE_CHECKING:
    from cosd_providers.engines.llama_cpp import LlamaCpp
    from cosd_providers.engines.ollama import Ollama
    from cosd_providers.engines.openai import OpenAICompatible
    from cosd_providers.engines.sglang import Sglang
    from cosd_providers.engines.tgi import Tgi
    from cosd_providers.engines.vllm import Vllm
    from cosd_providers.probe import ProbeReport

__all__ = [
    "AuthenticationError",
    "BudgetError",
    "BudgetTimeoutError",
    "Capabilities",
    "ChatProvider",
    "ConnectError",
    "Context",
    "ContextLengthError",
    "Dialect",
    "DraftEnd",
    "ForwardingProvider",
    "InvalidRequestError",
    "Limits",
    "LlamaCpp",
    "Message",
    "ModelChoiceError",
    "Ollama",
    "OpenAICompatible",
    "Piece",
    "ProbeReport",
    "Proposal",
    "Provider",
    "ProviderError",
    "ProviderTimeoutError",
    "Question",
    "RateLimitError",
    "RenderedPrompt",
    "ResponseError",
    "ServerError",
    "ServerInfo",
    "Sglang",
    "StatusError",
    "Tgi",
    "Token",
    "Tokenizer",
    "UnsupportedError",
    "Usage",
    "Vllm",
    "connect",
    "load_tokenizer",
    "probe",
]

if not TYPE_CHECKING:
    __getattr__ = deferred(
        __name__,
        {
            **{name: module for module, name in _ADAPTERS.values()},
            "OpenAICompatible": "cosd_providers.engines.openai.adapter",
            "ProbeReport": "cosd_providers.probe.report",
        },
    )

logging.getLogger(__name__).addHandler(logging.NullHandler())
