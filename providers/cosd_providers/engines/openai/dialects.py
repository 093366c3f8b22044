"""A table of the differences between servers that speak OpenAI's protocol. Supporting a new server means adding a row.

The adapter never branches on a server's name, but only on the fields of the server's row. If a field is None, a request
finds out the value. The rows of hosted services follow their documentation as of November 2026; none was tested live.
An outdated row costs one request, or leads to an error that names the missing ability.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cosd_providers.parsing import RAW
from cosd_providers.suggestions import suggestion

GREEDY: Mapping[str, object] = {"temperature": 0, "top_p": 1, "n": 1}
"""Fields for greedy decoding that every server understands. (Hosted services refuse unknown fields.)"""

NEUTRAL: Mapping[str, object] = {"presence_penalty": 0, "frequency_penalty": 0}
"""Further fields for greedy decoding, which most servers understand."""

_NO_REPLY = (
    "Use a model with /v1/completions, or a server that continues a message, such as vLLM or llama.cpp's: name it, as"
    " in connect(url, engine='openai', dialect='vllm', api='chat')."
)
_COMPLETES = (
    "Use a model with /v1/completions (with OpenAI: gpt-3.5-turbo-instruct, davinci-002, babbage-002), a service that"
    " continues an answer (DeepSeek, Fireworks, Together), or your own vLLM or llama.cpp."
)
_CHAT_ONLY = "this model takes messages only, and its chat route does not continue a partial answer"
_NO_FIELDS: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal that can be recognised by the server's message.

    Attributes:
        says: a part of the server's message, in lower case, which identifies the refusal.
        words: the message of the error to raise.
        hint: the hint of the error to raise.
    """

    says: str
    words: str
    hint: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """The properties of one kind of server.

    Attributes:
        engine: the name of this kind of server.
        unknown: the row is also used for servers of an unknown kind, so that hints may ask what the server is.
        completions: path of the route for raw text; None if there is no such route.
        chat: path of the route for messages; None if there is no such route.
        api: the default route.
        models: path of the list of models; None if there is no list.
        all_listed: the list is complete, so that a name missing from it is an error.
        hosts: host names that identify the service; a name that begins with a dot matches all hosts that end with it.
        base: the prefix of all paths, used if the user's URL consists only of a host.
        key_header: the header that contains the API key.
        extra: fields to send with every request; the user's own values override them.
        greedy: fields for greedy decoding.
        most: the largest number of most probable tokens to request at each position (`logprobs`).
        chat_most: like `most`, but for the route for messages (`logprobs: true`, `top_logprobs`).
        ranked: the lists are known to contain the most probable tokens, each with its full text or with no text.
        spaced: the listed strings are known to keep the space before a word. If this is not known in advance, the first
            listed string with such a space proves it.
        sampling: fields for drawing from the model's full distribution, if the server is known to report raw
            probabilities for drawn tokens; otherwise None.
        seed: the field for the random seed; None if no seed may be sent.
        stream_options: fields that request the usage in a stream; empty if the server always sends the usage, or if the
            fields must not be sent.
        lists: a request may contain a list of prompts.
        list_bills_first: the usage of a list covers only its first prompt.
        echo: `echo` with `logprobs` may return the probabilities of a prompt. A test must confirm this before use;
            False skips the test, and the echo is not used.
        continues: fields of a request that continues its last message; None if no message can be continued.
        continued: fields of the message that is continued.
        no_reply: the hint of the error if no message can be continued.
        repeats: unless it is streamed, the answer to a continued message repeats that message.
        whole: fields that forbid the server to truncate a long prompt.
        templates: the route for raw text may wrap prompts in a chat template, which is checked before the first use.
        longer: the hint of the error for a truncated prompt.
        raw: the hint of the error if the server does not show the model's own log probabilities.
        probs: the server returns log probabilities.
        no_probs: parts of a refusal message, in lower case, that mean that the server has no log probabilities.
        refusals: other refusals whose reason is known.
        end_prob: the server reports the probability of the end of sequence.
        chat_end_prob: like `end_prob`, for a stream of messages.
        special: fields that keep special tokens and the model's thinking in the answer to a conversation.
        shows_parts: a stream shows characters that consist of several tokens. If not, the first token without text
            leads to a second request for the whole answer, without a stream.
        keep_alive: a connection can be reused after a stream.
        known_text: the text with which `echo` is tested.
        sample: a text that a local tokenizer and the server must encode into the same number of tokens.
    """

    engine: str
    unknown: bool = False
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
    ranked: bool = False
    spaced: bool = False
    sampling: Mapping[str, object] | None = None
    seed: str | None = "seed"
    stream_options: Mapping[str, object] = field(default_factory=lambda: {"include_usage": True})
    lists: bool | None = None
    list_bills_first: bool = False
    echo: bool | None = None
    continues: Mapping[str, object] | None = None
    continued: Mapping[str, object] = field(default_factory=lambda: _NO_FIELDS)
    no_reply: str = _NO_REPLY
    repeats: bool = False
    whole: Mapping[str, object] = field(default_factory=lambda: _NO_FIELDS)
    templates: bool = False
    longer: str = "Shorten the prompt, or give the server a longer context."
    raw: str = RAW
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


# `/v1/completions` lists 5 alternatives and refuses chat models with 404; the route for messages lists 20. The end of
# sequence has no entry. `echo` with `logprobs` is refused for gpt-3.5-turbo-instruct; this is unverified for
# davinci-002. A final assistant message cannot be continued. This row is also the default for unknown servers, such as
# Ollama behind a gateway. So only the most common fields are sent, and templates are checked.
_OPENAI = Dialect(
    "openai",
    unknown=True,
    hosts=("api.openai.com",),
    templates=True,
    no_reply=_COMPLETES,
    refusals=tuple(
        Refusal(says, _CHAT_ONLY, _COMPLETES) for says in ("is a chat model", "does not work with the specified model")
    ),
)

DIALECTS: Mapping[str, Dialect] = {
    # Tested live: b0-unknown of xllamacpp 2026.10. The end of sequence is hidden only in streams of messages, `echo` is
    # ignored, and any number of alternatives is allowed.
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
        most=100,
        chat_most=100,
        ranked=True,
        spaced=True,
        sampling={"temperature": 1, "dynatemp_range": 0, "mirostat": 0},
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
    # Tested live: 0.32.0 and 0.8.5 on the CPU. Up to 0.8.5, `top_k: 0` is refused; -1 is valid in every version. vLLM
    # refuses more than 20 alternatives, or more than --max-logprobs if that is set.
    "vllm": Dialect(
        "vllm",
        all_listed=True,
        greedy={**GREEDY, **NEUTRAL, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False},
        most=20,
        ranked=True,
        sampling={"temperature": 1},
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        lists=True,
        continues={"continue_final_message": True, "add_generation_prompt": False},
        special={"skip_special_tokens": False},
        raw="Start it with --logprobs-mode raw_logprobs.",
        probs=True,
        end_prob=True,
        chat_end_prob=True,
        shows_parts=True,
    ),
    # Tested live: 0.3.36 on the CPU. Lists fail with 500. `max_tokens: 0` means no limit, and an answer may exceed its
    # limit to finish a character of several tokens. The end of sequence has no entry. A stream never shows a character
    # of several tokens, and reports no usage. A new request ends the streams of other clients, unless
    # `interrupt_requests` is off. If the model has no beginning-of-sequence token, `echo` is shifted by one token, and
    # not used.
    "llama-cpp-python": Dialect(
        "llama-cpp-python",
        greedy={**GREEDY, **NEUTRAL, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0},
        stream_options={},
        lists=False,
        probs=True,
    ),
    # According to its documentation, `echo` with `logprobs` works, and sampling defaults come from the model's own
    # configuration. According to its source (since March 2025), a message can be continued, and its text is encoded
    # separately from the rest of the rendered conversation.
    "sglang": Dialect(
        "sglang",
        greedy={**GREEDY, **NEUTRAL, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False},
        lists=True,
        continues={"continue_final_message": True},
        raw="Update SGLang, or start it with SGLANG_RETURN_ORIGINAL_LOGPROB=1 (older: RETURN_ORIGINAL_LOGPROB=1).",
        end_prob=True,
    ),
    # According to its documentation (0.4), neither route has probabilities (issue 60 of lmstudio-ai/lms has been open
    # since 2024), and no message can be continued. Unverified. The server cannot be detected, so users must name it.
    "lm-studio": Dialect("lm-studio", greedy={**GREEDY, **NEUTRAL}, lists=False, echo=False, templates=True),
    "openai": _OPENAI,
    # This row uses the API without a version in its URL (since August 2025); `model` is the name of the deployment.
    # Unverified: the API has /completions, which refuses a chat model with 400.
    "azure": replace(
        _OPENAI, engine="azure", unknown=False, hosts=(".openai.azure.com",), base="/openai", key_header="api-key"
    ),
    # `logprobs` up to 20 and `echo` are in its published schema. Unverified: an echo lists alternatives, and `prompt`
    # must be a single string. With some models, `logprobs` in a stream is a bare number for each token; a draft from
    # such a stream is refused.
    "together": Dialect(
        "together",
        hosts=("api.together.xyz", "api.together.ai"),
        greedy={**GREEDY, **NEUTRAL, "repetition_penalty": 1},
        most=20,
        lists=False,
        templates=True,
    ),
    # At most 5 alternatives. A prompt that is too long is truncated unless a field forbids it.
    "fireworks": Dialect(
        "fireworks",
        hosts=("api.fireworks.ai",),
        base="/inference",
        greedy={**GREEDY, **NEUTRAL, "repetition_penalty": 1},
        chat_most=5,
        whole={"context_length_exceeded_behavior": "error"},
    ),
    # Its documentation showed probabilities only for the service's own streamed route. Unverified: raw text is sent to
    # the model without a template.
    "deepinfra": Dialect(
        "deepinfra",
        completions="/completions",
        chat="/chat/completions",
        models="/models",
        hosts=("api.deepinfra.com",),
        base="/v1/openai",
        greedy={**GREEDY, **NEUTRAL},
        lists=False,
        echo=False,
        templates=True,
    ),
    # Only the beta route continues an answer, if the last message has the field `prefix`. For the reasoning model,
    # probabilities are refused with 400. Some users report log probabilities of 0 for the chosen token and -9999 for
    # all other tokens, as if the model were always certain (unverified).
    "deepseek": Dialect(
        "deepseek",
        completions=None,
        chat="/chat/completions",
        models=None,
        api="chat",
        hosts=("api.deepseek.com",),
        base="/beta",
        greedy={**GREEDY, **NEUTRAL},
        continues={},
        continued={"prefix": True},
    ),
    # The last message is continued if it has the field `prefix`; the answer repeats the message (unverified). The
    # schema has no probabilities, and a different name for the seed. Unknown fields are refused with 422.
    "mistral": Dialect(
        "mistral",
        completions=None,
        api="chat",
        hosts=("api.mistral.ai",),
        stream_options={},
        continues={},
        continued={"prefix": True},
        seed="random_seed",
        repeats=True,
        no_probs=("logprob", "extra_forbidden", "extra inputs"),
    ),
    # The service has only the route for messages, and refuses `logprobs` with 400. It continues a final assistant
    # message ("prefilling"). Temperature 0 becomes 1e-8.
    "groq": Dialect("groq", completions=None, api="chat", hosts=("api.groq.com",), base="/openai", continues={}),
    # The provider of a model may change between requests, so only providers that support every field are allowed. The
    # service is forbidden to remove the middle of a long prompt. A user's own `provider` setting is kept. No seed is
    # sent, because it would rule out providers that do not support seeds.
    "openrouter": Dialect(
        "openrouter",
        hosts=("openrouter.ai",),
        base="/api",
        extra={"provider": {"require_parameters": True}},
        seed=None,
        whole={"transforms": []},
        lists=False,
        echo=False,
        templates=True,
        no_probs=("logprob", "no endpoints found", "requested parameters"),
    ),
}
"""The known servers, by name."""


def dialect_of(given: str | Dialect) -> Dialect:
    """Look up a dialect by its name; a `Dialect` is returned unchanged.

    Raises:
        ValueError: no dialect has this name.
    """
    if isinstance(given, Dialect):
        return given
    if given not in DIALECTS:
        there = f"there are {', '.join(map(repr, DIALECTS))}"
        raise ValueError(f"no dialect {given!r}{suggestion(given, DIALECTS, there)}")
    return DIALECTS[given]


def dialect_at(host: str) -> Dialect | None:
    """Look up the dialect of the hosted service at this host; None if the host is unknown."""
    host = host.lower()
    for dialect in DIALECTS.values():
        if any(host == one or (one.startswith(".") and host.endswith(one)) for one in dialect.hosts):
            return dialect
    return None
