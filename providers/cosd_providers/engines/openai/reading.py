"""Names that the vLLM adapter still imports from here."""

from cosd_providers.engines.openai.logprobs import TokenAligner as Spelling

__all__ = ["Spelling"]
