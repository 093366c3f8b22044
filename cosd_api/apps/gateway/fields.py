"""The fields of a request: the values that are accepted, the reasons for refusing others, and what may be ignored.

This table is the check of every body, and the table in docs/gateway.md. It has the fields of OpenAI's routes, of
llama.cpp's server and web client, of vLLM and of Open WebUI. A field that is null counts as absent, whatever its name.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from cosd_api import SettingError
from cosd_api.settings import REFUSED_SETTINGS

__all__ = ["FIELDS", "GROUPS", "OF_METHOD", "FieldGroup", "Fitting", "changes_nothing", "check_ignored", "is_ignorable"]


@dataclass(frozen=True)
class Fitting:
    """A value that changes nothing for some bodies only.

    Attributes:
        words: a description of the value.
        of: function that returns the value for a body.
    """

    words: str
    of: Callable[[Mapping[str, object]], object]


@dataclass(frozen=True)
class FieldGroup:
    """Fields that are treated alike.

    Attributes:
        about: a description of the fields.
        reason: why other values are refused; empty for fields that a fusion uses, or of which it accepts every value.
        values: for each field, the values that change nothing; None means every value. A JSON object means each
            object that has some of its members.
        ignorable: whether the gateway can be set to ignore other values.
    """

    about: str
    reason: str
    values: Mapping[str, Collection[object] | None]
    ignorable: bool = True


def _continues(body: Mapping[str, object]) -> bool:
    """Test whether the answer continues the last message of a conversation."""
    messages = body.get("messages")
    last = cast("list[object]", messages)[-1] if messages and isinstance(messages, list) else None
    return isinstance(last, dict) and cast("dict[str, object]", last).get("role") == "assistant"


_FEATURES = dict.fromkeys(("web_search", "image_generation", "code_interpreter", "memory", "voice"), False)
_UNUSED = "it is not sent to the models of a fusion"

OF_METHOD: Mapping[str, Callable[[float], float | bool]] = {"temperature": float, "do_sample": bool}
"""Fields that must fit the fusion's method: each with the value that fits, given the method's temperature."""

GROUPS = (
    FieldGroup("used", "", {
        "model": [], "messages": [], "prompt": [], "own": [{}], "max_tokens": [-1], "max_completion_tokens": [-1],
        "stop": [[]], "stream": [], "stream_options": [], "seed": [], "logprobs": [False], "top_logprobs": [0],
        "input": [], "instructions": [], "max_output_tokens": [], "text": [], "include": [],
    }, ignorable=False),
    FieldGroup("used: they must fit the method; usually, 0 and false do", "", dict.fromkeys(OF_METHOD, ())),
    FieldGroup("information for a server: labels, hints, reports on its work", "", dict.fromkeys((
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "prediction", "cache_prompt", "id_slot", "n_cache_reuse", "timings_per_token",
        "return_progress", "verbose", "sse_ping_interval", "backend_sampling", "reasoning_control", "keep_alive",
        "priority", "request_id", "stream_interval", "return_mm_kwargs", "return_token_offsets", "chat_id",
        "session_id", "id", "parent_id", "parent_message", "user_message", "model_item", "background_tasks",
        "variables",
    ))),
    FieldGroup("details of another field, without effect of their own", "", dict.fromkeys((
        "parallel_tool_calls", "mirostat_tau", "mirostat_eta", "dynatemp_exponent", "dry_base", "dry_allowed_length",
        "dry_penalty_last_n", "dry_sequence_breakers", "xtc_threshold", "repeat_last_n", "penalize_nl",
        "adaptive_decay", "min_keep", "samplers", "post_sampling_probs", "n_keep", "n_discard", "length_penalty",
        "early_stopping", "truncation_side", "spaces_between_special_tokens", "routed_experts_prompt_start",
        "max_tool_calls", "background_options",
    ))),
    FieldGroup("sampling", REFUSED_SETTINGS["top_p"], {
        "top_p": [1], "top_k": [0, -1], "min_p": [0], "top_a": [0], "typical_p": [1], "typ_p": [1], "tfs_z": [1],
        "top_n_sigma": [-1], "mirostat": [0], "dynatemp_range": [0], "xtc_probability": [0],
        "adaptive_target": [-1], "use_beam_search": [False], "num_beams": [1], "watermarking": [False],
    }),
    FieldGroup("changes to probabilities", REFUSED_SETTINGS["logit_bias"], {
        "frequency_penalty": [0], "presence_penalty": [0], "repetition_penalty": [1], "repeat_penalty": [1],
        "no_repeat_ngram_size": [0], "dry_multiplier": [0], "logit_bias": [{}, []], "logits_processors": [[]],
        "bad_words": [[]], "allowed_token_ids": [], "lora": [],
    }),
    FieldGroup("the end of an answer", "an answer ends at a model's end, max_tokens or stop, without special tokens", {
        "ignore_eos": [False], "min_tokens": [0], "stop_token_ids": [[]], "include_stop_str_in_output": [False],
        "skip_special_tokens": [True], "n_indent": [0], "t_max_predict_ms": [-1, 0], "t_max_prompt_ms": [-1, 0],
        "repetition_detection": [],
    }),
    FieldGroup("the prompt", "each model reads the whole prompt, a conversation through its own chat template", {
        "continue_final_message": [Fitting("true after a message of the assistant, otherwise false", _continues)],
        "add_generation_prompt": [Fitting("the opposite", lambda body: not _continues(body))],
        "add_special_tokens": [Fitting("false; for a text, true", lambda body: body.get("messages") is None)],
        "chat_template": [], "chat_template_kwargs": [{}], "documents": [[]], "mm_processor_kwargs": [{}],
        "media_io_kwargs": [{}], "truncate_prompt_tokens": [], "prompt_embeds": [], "truncation": ["disabled"],
    }),
    FieldGroup("reasoning and style", _UNUSED, {
        "reasoning": [{}], "reasoning_effort": [], "reasoning_format": ["none", "auto"], "include_reasoning": [True],
        "thinking": [], "enable_thinking": [], "thinking_budget_tokens": [-1], "reasoning_budget_tokens": [-1],
        "thinking_token_budget": [-1], "verbosity": ["medium"],
    }),
    FieldGroup("services of other servers", _UNUSED, {
        "web_search_options": [], "moderation": [], "cache_salt": [], "features": [_FEATURES], "params": [{}],
        "files": [[]], "tool_ids": [[]], "tool_servers": [[]], "filter_ids": [[]], "skill_ids": [[]],
        "vllm_xargs": [{}], "kv_transfer_params": [{}], "ec_transfer_params": [{}],
        "context_management": [[]], "access_programs": [], "image": [],
    }),
    FieldGroup("tools", "a fusion writes text and calls no tools", {
        "tools": [[]], "tool_choice": ["none", "auto"], "functions": [[]], "function_call": ["none", "auto"],
    }, ignorable=False),
    FieldGroup("structured output", "structured output is not supported: only the type text is", {
        "response_format": [{"type": "text"}], "json_schema": [], "grammar": [""], "structured_outputs": [],
        "guided_json": [], "guided_regex": [], "guided_choice": [], "guided_grammar": [],
    }, ignorable=False),
    FieldGroup("earlier answers", "the gateway keeps no answers: send the whole conversation, and wait", {
        "previous_response_id": [], "conversation": [], "background": [False],
    }, ignorable=False),
    FieldGroup("sound and images", "a fusion reads and writes text only", {
        "modalities": [[], ["text"]], "audio": [],
    }, ignorable=False),
    FieldGroup("the number of answers", REFUSED_SETTINGS["n"], {
        "n": [1], "best_of": [1], "n_cmpl": [1], "num_return_sequences": [1],
    }, ignorable=False),
    FieldGroup("text around an answer", "a fusion writes what follows a text, not what comes before or between", {
        "echo": [False], "suffix": [""],
    }, ignorable=False),
    FieldGroup("other parts of an answer", "give max_tokens for its length, and logprobs for probabilities", {
        "n_predict": [-1], "n_probs": [0], "prompt_logprobs": [], "logprob_token_ids": [], "response_fields": [[]],
        "return_tokens": [False], "return_token_ids": [False], "return_tokens_as_token_ids": [False],
        "return_prompt_text": [False],
    }, ignorable=False),
)  # fmt: skip
"""All known fields."""

FIELDS: Mapping[str, FieldGroup] = {name: group for group in GROUPS for name in group.values}
"""The group of each known field."""


def changes_nothing(name: str, value: object, body: Mapping[str, object]) -> bool:
    """Test whether a body means the same without a field.

    Args:
        name: name of the field, which may be unknown.
        value: its value.
        body: the whole body.
    """
    values = FIELDS[name].values[name] if name in FIELDS else ()
    if value is None or values is None:
        return True
    return any(_same(value, one.of(body) if isinstance(one, Fitting) else one) for one in values)


def _same(value: object, known: object) -> bool:
    """Compare a value with a known value. Unlike in Python, `True` is not 1; an object may lack known members."""
    if isinstance(known, dict):
        members = cast("dict[str, Any]", known)
        return isinstance(value, dict) and all(
            one is None or (name in members and _same(one, members[name]))
            for name, one in cast("dict[str, object]", value).items()
        )
    return value == known and isinstance(value, bool) is isinstance(known, bool)


def is_ignorable(name: str) -> bool:
    """Test whether the gateway can be set to ignore a field. Unknown fields can be ignored."""
    return name not in FIELDS or FIELDS[name].ignorable


def check_ignored(names: Collection[str]) -> frozenset[str]:
    """Check the names of fields to ignore.

    Raises:
        SettingError: a name belongs to a field that decides the form of an answer.
    """
    for name in names:
        if not is_ignorable(name):
            raise SettingError(f"{name!r} cannot be ignored, only fields that leave the form of an answer alone")
    return frozenset(names)
