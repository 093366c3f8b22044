"""The wire of vLLM: what is sent to it, and the shapes that only it answers with."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pydantic import BaseModel

from cosd_providers.contract import ServerInfo
from cosd_providers.engines.openai.wire import Completion
from cosd_providers.errors import ResponseError, UnsupportedError

__all__ = ["GREEDY", "OWNED", "Decoded", "Encoded", "Head", "Prompt", "Server", "Version", "checked", "special"]

Prompt = str | list[int]
"""A text, which the server encodes, or ids, which it takes as they are."""

GREEDY: dict[str, object] = {
    "temperature": 0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "n": 1,
    "stop": [],
    "ignore_eos": False,
    "min_tokens": 0,
    "skip_special_tokens": True,
    "echo": False,
    "return_tokens_as_token_ids": False,
    "return_token_ids": True,
}
"""The most probable token, always. What is left out falls back to the model's `generation_config.json`."""

OWNED = {
    *GREEDY,
    "add_special_tokens",
    "allowed_token_ids",
    "bad_words",
    "best_of",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "include_stop_str_in_output",
    "length_penalty",
    "logit_bias",
    "logprob_token_ids",
    "logprobs",
    "max_tokens",
    "model",
    "prompt",
    "prompt_embeds",
    "prompt_logprobs",
    "repetition_detection",
    "response_format",
    "stop_token_ids",
    "stream",
    "stream_options",
    "structured_outputs",
    "suffix",
    "thinking_token_budget",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_beam_search",
    "watermarking",
}
"""What a user's `extra_body` may not set."""

_SPECIAL = re.compile(r"<.*>|\[.*\]", re.DOTALL)


class Version(BaseModel):
    """The answer of `/version`."""

    version: str


class Encoded(BaseModel):
    """The answer of `/tokenize`."""

    tokens: list[int]
    token_strs: list[str] | None = None
    max_model_len: int | None = None


class Decoded(BaseModel):
    """The answer of `/detokenize`."""

    prompt: str


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a text, as it is given to the model.

    Attributes:
        text: its text.
        tokens: its ids.
        token_strs: the entries of the vocabulary; None where they are not told.
    """

    text: str
    tokens: list[int]
    token_strs: list[str] | None


@dataclass(frozen=True, slots=True)
class Server:
    """What was learned of a server.

    Attributes:
        info: its card.
        beginning: the special tokens that are put before a text.
        anchor: a plain token: what is decoded after it keeps the space before its word.
        exact: whether a token's string, where it is whole, is its bytes: no decoder takes a space from it.
        bare: whether a token's string has lost the space at its front; None where that is not known.
        ends: strings and ids of ends of sequence that were seen.
        spelt: what tokens were found to say: their bytes, None where they are no whole characters.
    """

    info: ServerInfo
    beginning: list[int]
    anchor: int
    exact: bool
    bare: bool | None
    ends: set[str | int] = field(default_factory=set[str | int])
    spelt: dict[int, bytes | None] = field(default_factory=dict[int, bytes | None])


def special(string: str) -> bool:
    """Whether it looks like a token that is no text, such as `"</s>"`."""
    return _SPECIAL.fullmatch(string) is not None


def checked(answer: Completion, endpoint: str) -> Completion:
    """An answer, or event, that ended as it should.

    Raises:
        UnsupportedError: there are no probabilities; or the server has a stop of its own.
        ResponseError: it was broken off.
    """
    if answer.logprobs is None and (answer.text or answer.token_ids):
        words = "the server gives no probabilities with its tokens, although asked (logprobs)"
        raise UnsupportedError(words, endpoint=endpoint)
    if isinstance(answer.stop_reason, str):
        words = "the server stops at a text of its own, which no request can undo"
        raise UnsupportedError(words, endpoint=endpoint, hint="Start it without stop strings.")
    if answer.finish_reason not in (None, "stop", "length"):
        words = f"the server broke the answer off ({answer.finish_reason})"
        raise ResponseError(words, endpoint=endpoint, retryable=True)
    return answer
