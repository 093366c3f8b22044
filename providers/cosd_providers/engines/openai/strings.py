"""Names that the adapters of vLLM and SGLang still import from here."""

from cosd_providers.engines.openai.logprobs import unspaced

__all__ = ["unspaced"]
