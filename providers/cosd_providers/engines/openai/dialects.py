"""How servers that speak OpenAI's protocol differ, as data: adding a server is adding a row.

Nothing here is a branch: the adapter reads fields, never names. What a row does not know (None) is found out by asking.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from cosd_providers.engines.openai.fields import ENDS, GREEDY, NEUTRAL, Dialect
from cosd_providers.engines.openai.hosted import HOSTED

__all__ = ["DIALECTS", "ENDS", "GREEDY", "Dialect", "dialect_at", "dialect_of"]

_SERVERS: Mapping[str, Dialect] = {
    # Seen live: b0-unknown of xllamacpp 2026.10 (end hidden in streams of messages only; `echo` ignored).
    "llama.cpp": Dialect(
        "llama.cpp",
        all_listed=True,
        greedy={
            **GREEDY,
            **NEUTRAL,
            "samplers": ["temperature"],
            "repeat_penalty": 1.0,
            "logit_bias": [],
            "ignore_eos": False,
            "post_sampling_probs": False,
            "stop": ["\0 no text ends like this \0"],
            "grammar": "",
        },
        lists=True,
        list_bills_first=True,
        echo=False,
        continues={"continue_final_message": True, "add_generation_prompt": False},
        repeats=True,
        special={"reasoning_format": "none"},
        probs=True,
        end_prob=True,
        shows_parts=True,
        keep_alive=False,
    ),
    # Seen live: 0.32.0 on the CPU.
    "vllm": Dialect(
        "vllm",
        all_listed=True,
        greedy={**GREEDY, **NEUTRAL, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False},
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        lists=True,
        continues={"continue_final_message": True, "add_generation_prompt": False},
        special={"skip_special_tokens": False},
        probs=True,
        end_prob=True,
        chat_end_prob=True,
        shows_parts=True,
    ),
    # Seen live: 0.3.36 on the CPU. Lists fail with 500; `max_tokens` 0 is unlimited, and a character of several tokens
    # may go beyond it; the end of sequence has no entry. A stream never shows such a character and tells no usage; a
    # new request ends the streams of others, unless `interrupt_requests` is off. `echo` is shifted by one where the
    # model has no beginning-of-sequence token, and shows no entry then of what is written after it.
    "llama-cpp-python": Dialect(
        "llama-cpp-python",
        greedy={**GREEDY, **NEUTRAL, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0},
        stream_options={},
        lists=False,
        probs=True,
    ),
    # From documentation: `echo` with `logprobs` works; sampling defaults come from the model's own configuration. From
    # its source: a message is continued (since March 2025), its text encoded by itself behind the rendered rest.
    "sglang": Dialect(
        "sglang",
        greedy={**GREEDY, **NEUTRAL, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False},
        lists=True,
        continues={"continue_final_message": True},
        end_prob=True,
    ),
    # From documentation (0.4): no probabilities on either route (issue 60 of lmstudio-ai/lms is open since 2024), and
    # nothing that continues a message. It says nowhere what it is: name it. Unverified.
    "lm-studio": Dialect("lm-studio", greedy={**GREEDY, **NEUTRAL}, lists=False, echo=False, templates=True),
}

DIALECTS: Mapping[str, Dialect] = {**_SERVERS, **HOSTED}
"""The servers that are known, by name."""


def dialect_of(given: str | Dialect) -> Dialect:
    """The dialect of that name, or the one that was given.

    Raises:
        ValueError: there is none of that name.
    """
    if isinstance(given, Dialect):
        return given
    if given not in DIALECTS:
        near = difflib.get_close_matches(given, DIALECTS, 1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(map(repr, DIALECTS))}"
        raise ValueError(f"no dialect {given!r}; {advice}")
    return DIALECTS[given]


def dialect_at(host: str) -> Dialect | None:
    """The hosted service at that host, if it is a known one."""
    host = host.lower()
    known = (one for one in HOSTED.values() if any(host == h or (h[0] == "." and host.endswith(h)) for h in one.hosts))
    return next(known, None)
