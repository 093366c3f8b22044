"""The model provider `cosd` for Inspect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from cosd_api import Fusion, FusionResult, SettingError
from cosd_api.extend import AnswerOptions, check_count, refuse_settings
from cosd_api.integrations.arguments import FusionArguments
from cosd_api.integrations.connections import LoopFusions
from cosd_providers import ContextLengthError, ProviderError

__all__ = ["FusionAPI"]

if TYPE_CHECKING:  # the type checker runs without Inspect, so its names are declared here
    ModelCall: Any
    ModelOutput: Any
    ModelUsage: Any

    class ModelAPI:
        """Inspect's base class for model providers."""

        model_name: str

        def __init__(
            self, model_name: str, base_url: str | None, api_key: str | None, api_key_vars: list[str], *config: Any
        ) -> None: ...
else:
    from inspect_ai.model import ModelAPI, ModelCall, ModelOutput, ModelUsage

_STOP = {"stop": "stop", "length": "max_tokens", "content_filter": "content_filter"}
_CHANGE_THE_TEXT = ("top_p", "top_k", "frequency_penalty", "presence_penalty", "logit_bias", "best_of")


class FusionAPI(ModelAPI):
    """A fusion as a model in Inspect: `inspect eval task.py --model cosd/pair -M draft=URL -M assistant=URL`.

    The name after `cosd/` is arbitrary, and appears in logs. Model arguments are the servers (`draft`, `assistant`,
    `draft_model`, `assistant_model`), the settings of a `Fusion` and of its method or verifier, and the limits on an
    answer. `max_tokens` applies if the task sets no limit. API keys are read from the environment. Tools, images and
    structured output are not supported.

    If an answer does not fit into a model's context, the part that was written is returned, with the error and the stop
    reason `model_length`.

    Raises:
        SettingError: an argument is invalid, or a task requires something that a fusion does not support.
        ProviderError: an answer failed. Inspect retries after errors that may be temporary.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: Any = None,
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], *([] if config is None else [config]))
        if base_url or api_key:
            raise SettingError(
                "a fusion has several servers: give -M draft=URL and -M assistant=URL, and keys as COSD_API_KEY_<HOST>"
            )
        length = model_args.pop("max_tokens", None)
        self._max_tokens = None if length is None else check_count("max_tokens", length)
        self._arguments = FusionArguments.read(model_args)
        self._fusions = LoopFusions()

    async def generate(
        self,
        input: Sequence[Any],  # noqa: A002 - Inspect's name
        tools: Sequence[Any],
        tool_choice: Any,  # noqa: ARG002
        config: Any,
    ) -> tuple[Any, Any]:
        """Write one answer. Return it and, for the transcript, the request with its result."""
        if tools:
            raise SettingError("tools are not supported: a fusion writes text and calls no tools. Leave them out")
        messages = [_message(one) for one in input]
        fusion = await self._fusions.opened(lambda: self._arguments.fusion)
        options = {**self._arguments.limits, **_options(config, fusion)}
        request = {"messages": messages, **options}
        try:
            result = await fusion.generate(messages, **cast("AnswerOptions", options))
        except ContextLengthError as error:
            output = self._output(error.partial, "model_length", str(error))
            return output, ModelCall.create(request, {"error": str(error)})
        shown = result.model_dump(mode="json", exclude={"text", "tokens"})
        output = self._output(result, _STOP.get(result.finish_reason, "unknown"))
        return output, ModelCall.create(request, {"text": result.text, **shown})

    def max_tokens(self) -> int | None:
        """Return the maximum number of tokens in an answer if the task sets no limit (model argument `max_tokens`)."""
        return self._max_tokens

    def _output(self, result: FusionResult | None, reason: str, error: str | None = None) -> Any:
        text = "" if result is None else result.text
        output = ModelOutput.from_content(self.model_name, text, stop_reason=reason, error=error)
        if result is None:
            return output
        used = result.usage.values()
        read, cached = sum(one.prompt_tokens for one in used), sum(one.cached_tokens for one in used)
        wrote = sum(one.completion_tokens for one in used)
        output.usage = ModelUsage(
            input_tokens=read - cached, input_tokens_cache_read=cached, output_tokens=wrote, total_tokens=read + wrote
        )
        output.metadata = {"acceptance_rate": result.acceptance_rate, "warnings": list(result.warnings)}
        return output

    def should_retry(self, ex: BaseException) -> bool:
        """Test whether an error may be temporary."""
        return isinstance(ex, ProviderError) and ex.retryable

    def connection_key(self) -> str:
        """Return the names of the servers as a key. Models with the same key share a limit on concurrent requests."""
        endpoints = self._arguments.fusion.endpoints
        return " ".join(one.name for one in (endpoints.draft, *endpoints.assistants))


def _message(one: Any) -> dict[str, Any]:
    """Convert a message to the format that a fusion accepts. Leave out reasoning, as Inspect does."""
    content = one.content
    if not isinstance(content, str):
        parts = [part for part in content if part.type != "reasoning"]
        content = [{"type": part.type, "text": getattr(part, "text", None)} for part in parts]
    return {"role": one.role, "content": content, "tool_calls": getattr(one, "tool_calls", None)}


def _options(config: Any, fusion: Fusion) -> Mapping[str, Any]:
    """Convert a task's configuration to the limits on an answer.

    Raises:
        SettingError: the configuration requires something that a fusion does not support.
    """
    own = fusion.settings.temperature
    if config.temperature not in (None, own):
        words = f"the task's temperature is {config.temperature:g}, and this fusion's {own:g}"
        raise SettingError(f"{words}: leave it out, or give -M temperature=1 with a method that draws")
    refuse_settings(
        {name: value for name in _CHANGE_THE_TEXT if (value := getattr(config, name)) is not None}, Fusion.generate
    )
    if config.num_choices not in (None, 1):
        refuse_settings({"n": config.num_choices}, Fusion.generate)
    if config.response_schema is not None:
        raise SettingError("response_schema is not supported: a fusion writes text. Leave it out")
    found = {"max_tokens": config.max_tokens, "stop": config.stop_seqs, "seed": config.seed if own else None}
    return {name: value for name, value in found.items() if value is not None}
