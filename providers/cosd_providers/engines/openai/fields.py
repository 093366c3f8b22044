"""What may differ between servers that speak OpenAI's protocol: the fields of a row in `dialects` and `hosted`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["ENDS", "GREEDY", "NEUTRAL", "NO_REPLY", "Dialect", "Refusal"]

GREEDY: Mapping[str, object] = {"temperature": 0, "top_p": 1, "n": 1}
"""What every server understands: hosted ones refuse a request with a field that they do not know."""

NEUTRAL: Mapping[str, object] = {"presence_penalty": 0, "frequency_penalty": 0}
"""What most understand beside it."""

ENDS = frozenset(
    ("</s>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "<eos>")
)
"""How ends of sequence are written; a server's own is added when it is first seen."""

NO_REPLY = (
    "Use a model with /v1/completions, or a server that continues a message, such as vLLM or llama.cpp's: name it, as"
    " in connect(url, engine='vllm', api='chat')."
)
"""What helps where no answer can be continued, for people."""

_NO_FIELDS: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal whose reason is known.

    Attributes:
        says: a part of the server's own words, in small letters.
        words: what is missing, for people.
        hint: what helps, for people.
    """

    says: str
    words: str
    hint: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one kind of server does its own way.

    Attributes:
        engine: the server's kind, for people.
        completions: the path of the route for raw text; None where there is none.
        chat: the path of the route for messages; None where there is none.
        api: the route that is used where the user names none.
        models: the path of the list of models; None where there is none.
        all_listed: whether that list has every model, so that a name that is not in it is wrong.
        hosts: by which it is known without asking; one that begins with a dot is the end of a host's name.
        base: what stands before the paths, where a URL is the host alone.
        key_header: the header that holds the key.
        extra: fields of every request, unless the user gives them.
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
        no_reply: what helps where no answer can be continued, for people.
        repeats: whether the answer that continues a message repeats what it started with, unless it is streamed.
        whole: fields that forbid to cut a prompt that is too long.
        truncates: whether it may cut a prompt that is too long and not say so.
        longer: what helps against that, for people.
        templates: whether the route for raw text may put a chat template around a prompt; if so, that is looked into
            before the first use.
        probs: whether the probabilities of its tokens are told; None to find out.
        no_probs: how it says, in small letters, that they cannot be had.
        refusals: what else it may say, and what that means.
        end_prob: whether the probability of the end of sequence is told.
        chat_end_prob: the same for a stream of messages.
        special: fields with which an answer in a conversation holds all that the model writes but its end: special
            tokens too, and what it thinks.
        shows_parts: whether a stream is known to show the characters that are made of several tokens. Elsewhere an
            answer is asked again, as a whole, at the first token that shows nothing.
        keep_alive: whether a connection may be used again after a stream.
        known_text: what the proof of `echo` is made with.
        sample: what a tokenizer and a server must make as many tokens of.
    """

    engine: str
    completions: str | None = "/v1/completions"
    chat: str | None = "/v1/chat/completions"
    api: Literal["completions", "chat"] = "completions"
    models: str | None = "/v1/models"
    all_listed: bool = False
    hosts: tuple[str, ...] = ()
    base: str = ""
    key_header: str = "Authorization"
    extra: Mapping[str, object] = field(default_factory=lambda: _NO_FIELDS)
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
    no_reply: str = NO_REPLY
    repeats: bool = False
    whole: Mapping[str, object] = field(default_factory=lambda: _NO_FIELDS)
    truncates: bool = False
    templates: bool = False
    longer: str = "Shorten the prompt, or give the server a longer context."
    probs: bool | None = None
    no_probs: tuple[str, ...] = ("logprob",)
    refusals: tuple[Refusal, ...] = ()
    end_prob: bool = False
    chat_end_prob: bool = False
    special: Mapping[str, object] = field(default_factory=lambda: _NO_FIELDS)
    shows_parts: bool = False
    keep_alive: bool = True
    known_text: str = "The capital of France is Paris, and the capital of Spain is Madrid."
    sample: str = "The quick fox, 1234567 + 89 = 42!\n\n\tdef f(x):  return x_1**2  # naïve Übergröße Привет 東京 🙂"
