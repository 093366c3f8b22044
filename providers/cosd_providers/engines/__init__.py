"""The adapters, with one module or package for each kind of server; `connect` chooses among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cosd_providers.deferred import deferred

if TYPE_CHECKING:
    from cosd_providers.engines.llama_cpp import LlamaCpp
    from cosd_providers.engines.ollama import Ollama
    from cosd_providers.engines.openai import Dialect, OpenAICompatible
    from cosd_providers.engines.sglang import Sglang
    from cosd_providers.engines.tgi import Tgi
    from cosd_providers.engines.vllm import Vllm

__all__ = ["Dialect", "LlamaCpp", "Ollama", "OpenAICompatible", "Sglang", "Tgi", "Vllm"]

if not TYPE_CHECKING:
    __getattr__ = deferred(
        __name__,
        {
            "Dialect": "cosd_providers.engines.openai",
            "LlamaCpp": "cosd_providers.engines.llama_cpp",
            "Ollama": "cosd_providers.engines.ollama",
            "OpenAICompatible": "cosd_providers.engines.openai",
            "Sglang": "cosd_providers.engines.sglang",
            "Tgi": "cosd_providers.engines.tgi",
            "Vllm": "cosd_providers.engines.vllm",
        },
    )
