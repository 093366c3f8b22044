"""Names of spans and their attributes: OpenTelemetry's names for generative AI, and this library's own names.

OpenTelemetry's names come from its conventions for inference and workflows as of November 2026
(semantic-conventions-genai), which are still in development, and from the stable registry (`server.*`, `error.type`,
`http.*`). The library's own names begin with `cosd.`. All names are defined in this module, so it is the only one that
has to change if the conventions do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""Environment variable with which users request that spans contain prompts and answers."""

CAPTURES: Final = frozenset(("true", "span_only", "span_and_event"))
"""Values of `CAPTURE`, in lower case, with which spans contain prompts and answers."""

# ---------------------------------------------------------------------------------------------------- OpenTelemetry's

OPERATION: Final = "gen_ai.operation.name"
WORKFLOW: Final = "gen_ai.workflow.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
STREAM: Final = "gen_ai.request.stream"
TEMPERATURE: Final = "gen_ai.request.temperature"
SEED: Final = "gen_ai.request.seed"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
SERVER: Final = "server.address"
PORT: Final = "server.port"
ERROR: Final = "error.type"
STATUS: Final = "http.response.status_code"

FUSE: Final = "invoke_workflow"
CHAT: Final = "chat"
COMPLETE: Final = "text_completion"

PROVIDERS: Final[Mapping[str, str]] = {"azure": "azure.ai.openai", "mistral": "mistral_ai"}
"""OpenTelemetry's names for services, keyed by this library's engine names, for engines whose names differ."""

# ------------------------------------------------------------------------------------------------------------- our own

OUTCOME: Final = "cosd.outcome"
REQUEST_ID: Final = "cosd.request_id"
METHOD: Final = "cosd.method"
UNIT: Final = "cosd.unit"
ACCEPTANCE: Final = "cosd.acceptance_rate"
REPLACEMENTS: Final = "cosd.replacements"
ITERATIONS: Final = "cosd.iterations"
ANSWER_TOKENS: Final = "cosd.answer_tokens"
KEPT: Final = "cosd.kept_tokens"
UNVERIFIED: Final = "cosd.unverified_tokens"
REPLACED: Final = "cosd.replaced_tokens"
DRAFTED: Final = "cosd.drafted_tokens"
WASTED: Final = "cosd.wasted_draft_tokens"
DRAFTS: Final = "cosd.draft_requests"
ASKED: Final = "cosd.assistant_requests"
WARNINGS: Final = "cosd.warnings"
FIRST_TOKEN: Final = "cosd.first_token_seconds"

ROLE: Final = "cosd.request.role"
ENDPOINT: Final = "cosd.request.endpoint"
KIND: Final = "cosd.request.kind"
NUMBER: Final = "cosd.request.number"
AT: Final = "cosd.request.at_byte"
PLACES: Final = "cosd.request.places"
REQUEST_DRAFTED: Final = "cosd.request.drafted_tokens"
ESTIMATED: Final = "cosd.request.estimated_tokens"
REQUEST_OUTCOME: Final = "cosd.request.outcome"
HTTP_REQUESTS: Final = "cosd.request.http_requests"
RETRIES: Final = "cosd.request.retries"


def usage_of(endpoint: str, what: str) -> str:
    """Name of a fusion span's attribute for one endpoint's usage, such as `cosd.usage.assistant_1.input_tokens`."""
    return f"cosd.usage.{endpoint.replace(' ', '_')}.{what}"
