"""A fused answer as LangChain tells it: what is in each chunk, and what in the last."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.outputs import ChatGenerationChunk, GenerationChunk

from cosd_api.records import FusedToken
from cosd_api.result import FusionResult

__all__ = ["chat_chunk", "text_chunk", "usage_of"]


def chat_chunk(item: FusedToken | FusionResult, model: str | None) -> ChatGenerationChunk:
    """A token; or, of the result, the last chunk: no text, and everything that is known of the answer."""
    if isinstance(item, FusedToken):
        return ChatGenerationChunk(message=AIMessageChunk(content=item.text))
    message = AIMessageChunk(
        content="",
        response_metadata=_details(item, model),
        usage_metadata=usage_of(item),
        chunk_position="last",
    )
    return ChatGenerationChunk(message=message)


def text_chunk(item: FusedToken | FusionResult, model: str | None) -> GenerationChunk:
    """The same for a text model, which has its details in `generation_info`."""
    if isinstance(item, FusedToken):
        return GenerationChunk(text=item.text)
    return GenerationChunk(text="", generation_info={**_details(item, model), "usage_metadata": usage_of(item)})


def usage_of(result: FusionResult) -> UsageMetadata:
    """What all endpoints together have read and written, as they bill it: drafts thrown away are in it."""
    used = result.usage.values()
    read, written = sum(one.prompt_tokens for one in used), sum(one.completion_tokens for one in used)
    cached = InputTokenDetails(cache_read=sum(one.cached_tokens for one in used))
    return UsageMetadata(
        input_tokens=read, output_tokens=written, total_tokens=read + written, input_token_details=cached
    )


def _details(result: FusionResult, model: str | None) -> dict[str, Any]:
    """Under `cosd` is the whole result but its text and tokens."""
    return {
        "model_name": model or "+".join(one.model for one in [result.draft, *result.assistants]),
        "model_provider": "cosd",
        "finish_reason": result.finish_reason,
        "cosd": result.model_dump(mode="json", exclude={"text", "tokens"}),
    }
