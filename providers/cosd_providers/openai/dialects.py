"""How servers that speak OpenAI's protocol differ, as data: adding a server is adding a row.

Nothing here is a branch: the adapter reads fields, never names. What a row does not know (None) is found out by asking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["DIALECTS", "ENDS", "GREEDY", "Dialect", "dialect_of"]

GREEDY: Mapping[str, object] = {"temperature": 0, "top_p": 1, "n": 1}
"""What every server understands: hosted ones refuse a request with a field that they do not know."""

ENDS = frozenset(
    ("</s>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "<eos>")
)
"""How ends of sequence are written; a server's own is added when it is first seen."""

_NO_FIELDS: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one kind of server does its own way.

    Attributes:
        engine: the server's kind, for people.
        completions: the path of the route for raw text; None where there is none.
        chat: the path of the route for messages; None where there is none.
        models: the path of the list of models; None where there is none.
        all_listed: whether that list has every model, so that a name that is not in it is wrong.
        greedy: fields that make it take the most probable token, always.
        most: how many most probable tokens may be asked for at each position, as the number `logprobs`.
        chat_most: the same for messages, as `logprobs: true` and the number `top_logprobs`.
        stream_options: what asks for the usage in a stream; empty where it comes unasked or must not be asked.
        lists: whether one request may hold a list of prompts; None to find out.
        list_bills_first: whether the usage of a list is that of its first prompt alone.
        echo: whether `echo` with `logprobs` may give the probabilities of a prompt; it is used only once that is
            proved. None to find out; False saves the attempt.
        least: the smallest `max_tokens`; 0 is unlimited on some servers.
        continues: fields of a request with which the last message is continued; None where no message is.
        continued: fields of the last message with which it is continued.
        repeats: whether the answer that continues a message repeats what it started with, unless it is streamed.
        whole: fields that forbid to cut a prompt that is too long.
        truncates: whether it may cut a prompt that is too long and not say so.
        longer: what helps against that, for people.
        templates: whether the route for raw text may put a chat template around a prompt; if so, that is looked into
            before the first use.
        end_prob: whether the probability of the end of sequence is told.
        chat_end_prob: the same for a stream of messages.
        keep_alive: whether a connection may be used again after a stream.
        known_text: what the proof of `echo` is made with.
        sample: what a tokenizer and a server must make as many tokens of.
    """

    engine: str
    completions: str | None = "/v1/completions"
    chat: str | None = "/v1/chat/completions"
    models: str | None = "/v1/models"
    all_listed: bool = False
    greedy: Mapping[str, object] = field(default_factory=lambda: GREEDY)
    most: int = 5
    chat_most: int = 20
    stream_options: Mapping[str, object] = field(default_factory=lambda: {"include_usage": True})
    lists: bool | None = None
    list_bills_first: bool = False
    echo: bool | None = None
    least: int = 1
    continues: Mapping[str, object] | None = None
    continued: Mapping[str, object] = field(default_factory=lambda: _NO_FIELDS)
    repeats: bool = False
    whole: Mapping[str, object] = field(default_factory=lambda: _NO_FIELDS)
    truncates: bool = False
    templates: bool = False
    longer: str = "Shorten the prompt, or give the server a longer context."
    end_prob: bool = False
    chat_end_prob: bool = False
    keep_alive: bool = True
    known_text: str = "The capital of France is Paris, and the capital of Spain is Madrid."
    sample: str = "The quick fox, 1234567 + 89 = 42!\n\n\tdef f(x):  return x_1**2  # naïve Übergröße Привет 東京 🙂"


_NEUTRAL: Mapping[str, object] = {"presence_penalty": 0, "frequency_penalty": 0}

DIALECTS: Mapping[str, Dialect] = {
    # From documentation: the end of sequence has no entry; an assistant's last message is not continued. Whatever is
    # not known better is taken for it, Ollama behind a gateway too, so that it is asked about templates.
    "openai": Dialect("openai", templates=True),
    # Seen live: b0-unknown of xllamacpp 2026.10 (end hidden in streams of messages only; `echo` ignored).
    "llama.cpp": Dialect(
        "llama.cpp",
        all_listed=True,
        greedy={
            **GREEDY,
            **_NEUTRAL,
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
        end_prob=True,
        keep_alive=False,
    ),
    # Seen live: 0.32.0 on the CPU.
    "vllm": Dialect(
        "vllm",
        all_listed=True,
        greedy={**GREEDY, **_NEUTRAL, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False},
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        lists=True,
        continues={"continue_final_message": True, "add_generation_prompt": False},
        end_prob=True,
        chat_end_prob=True,
    ),
    # From documentation and source (0.12.11 and later): `prompt` is one string; no echo; a long prompt is cut without a
    # word. The prompt goes through the model's template, so that only models whose template is the bare prompt can be
    # continued here: its own route takes raw text, this one does not.
    "ollama": Dialect(
        "ollama",
        greedy={**GREEDY, **_NEUTRAL},
        lists=False,
        echo=False,
        truncates=True,
        templates=True,
        longer="Give the model a longer context: OLLAMA_CONTEXT_LENGTH, or num_ctx in its Modelfile.",
    ),
    # From documentation: at most 5 alternatives; a prompt that is too long is cut unless that is forbidden.
    "fireworks": Dialect(
        "fireworks",
        greedy={**GREEDY, **_NEUTRAL, "repetition_penalty": 1},
        whole={"context_length_exceeded_behavior": "error"},
    ),
    # From documentation (0.3.35): lists fail with 500; `max_tokens` 0 is unlimited; `echo` is shifted by one where
    # the model has no beginning-of-sequence token, which its proof finds.
    "llama-cpp-python": Dialect(
        "llama-cpp-python",
        greedy={**GREEDY, **_NEUTRAL, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0},
        stream_options={},
        lists=False,
    ),
    # From documentation: `echo` with `logprobs` works; sampling defaults come from the model's own configuration.
    "sglang": Dialect(
        "sglang",
        greedy={**GREEDY, **_NEUTRAL, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False},
        lists=True,
        end_prob=True,
    ),
}
"""The servers that are known, by name."""


def dialect_of(given: str | Dialect) -> Dialect:
    """The dialect of that name, or the one that was given.

    Raises:
        ValueError: there is none of that name.
    """
    if isinstance(given, Dialect):
        return given
    if given not in DIALECTS:
        raise ValueError(f"no dialect {given!r}; there are {', '.join(map(repr, DIALECTS))}")
    return DIALECTS[given]
