"""One table of the differences between servers that speak OpenAI's protocol: a new server is a new row.

The adapter reads fields and never names. A field of None is found out by a request. The rows of hosted services follow
their documentation of November 2026; none was seen live. An outdated row costs one request, or a refusal that names the
missing ability.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from cosd_providers.suggestions import suggestion

__all__ = ["DIALECTS", "Dialect", "Refusal", "dialect_at", "dialect_of"]

GREEDY: Mapping[str, object] = {"temperature": 0, "top_p": 1, "n": 1}
"""Fields that every server understands: hosted ones refuse a request with an unknown field."""

NEUTRAL: Mapping[str, object] = {"presence_penalty": 0, "frequency_penalty": 0}
"""Fields that most servers understand as well."""

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
    """A refusal of known reason.

    Attributes:
        says: a part of the server's own words, in lower case.
        words: the message of the error.
        hint: its hint.
    """

    says: str
    words: str
    hint: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """The properties of one kind of server.

    Attributes:
        engine: its name.
        completions: path of the route for raw text; None if there is no such route.
        chat: path of the route for messages; None if there is no such route.
        api: the default route.
        models: path of the list of models; None if there is no list.
        all_listed: the list is complete, so that a name missing from it is wrong.
        hosts: host names that identify it; a name that begins with a dot is a suffix.
        base: prefix of the paths, for a URL that is the host alone.
        key_header: header of the API key.
        extra: fields of every request, unless the user gives them.
        greedy: fields for greedy decoding.
        most: largest number of alternatives per token (`logprobs`).
        chat_most: the same for messages (`logprobs: true`, `top_logprobs`).
        ranked: these lists are known to be the most probable tokens, each with its text or without any.
        spaced: the strings in them are known to keep the space before a word; otherwise a string with such a space
            proves it.
        sampling: fields that draw from the model's full distribution, if the probabilities of drawn tokens are known to
            be raw; otherwise None.
        seed: field with the seed of the draws; None if no seed may be sent.
        stream_options: fields that request the usage in a stream; empty if it always comes, or must not be requested.
        lists: one request may hold a list of prompts.
        list_bills_first: the usage of a list covers its first prompt alone.
        echo: `echo` with `logprobs` may give the probabilities of a prompt; used only after a proof. False saves the
            attempt.
        least: the smallest `max_tokens`; 0 is unlimited on some servers.
        continues: fields of a request that continues its last message; None if no message can be continued.
        continued: fields of the message that is continued.
        no_reply: hint if no message can be continued.
        repeats: the answer to a continued message repeats it, unless it is streamed.
        whole: fields that forbid cutting a prompt that is too long.
        truncates: the server may cut a prompt that is too long silently.
        templates: the route for raw text may put a chat template around a prompt; checked before the first use.
        longer: hint against a cut prompt.
        probs: the server returns log probabilities.
        no_probs: parts of a refusal, in lower case, that mean that there are none.
        refusals: other refusals of known reason.
        end_prob: the probability of the end of sequence is known.
        chat_end_prob: the same for a stream of messages.
        special: fields that keep special tokens and thinking in a conversation's answer.
        shows_parts: a stream shows characters made of several tokens. Otherwise the answer is requested again without a
            stream at the first token without text.
        keep_alive: a connection may be used again after a stream.
        known_text: text for the proof of `echo`.
        sample: text that a tokenizer and its server must encode into equally many tokens.
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
    ranked: bool = False
    spaced: bool = False
    sampling: Mapping[str, object] | None = None
    seed: str | None = "seed"
    stream_options: Mapping[str, object] = field(default_factory=lambda: {"include_usage": True})
    lists: bool | None = None
    list_bills_first: bool = False
    echo: bool | None = None
    least: int = 1
    continues: Mapping[str, object] | None = None
    continued: Mapping[str, object] = field(default_factory=lambda: _NO_FIELDS)
    no_reply: str = _NO_REPLY
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


# 5 alternatives on `/v1/completions`, 20 over messages; the end of sequence has no entry; the first route refuses chat
# models with 404. `echo` with `logprobs` is refused for gpt-3.5-turbo-instruct; unverified for davinci-002. An
# assistant's last message is a closed turn. Also the default for unknown servers, such as Ollama behind a gateway: so
# only the plainest fields are sent, and templates are checked.
_OPENAI = Dialect(
    "openai",
    hosts=("api.openai.com",),
    templates=True,
    no_reply=_COMPLETES,
    refusals=tuple(
        Refusal(says, _CHAT_ONLY, _COMPLETES) for says in ("is a chat model", "does not work with the specified model")
    ),
)

DIALECTS: Mapping[str, Dialect] = {
    # Seen live: b0-unknown of xllamacpp 2026.10 (end hidden in streams of messages only; `echo` ignored; any number of
    # alternatives).
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
    # Seen live: 0.32.0 and 0.8.5 on the CPU. Up to 0.8.5 `top_k: 0` is refused; -1 is valid in every version. It
    # refuses more than 20 alternatives, or the number in --max-logprobs.
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
        probs=True,
        end_prob=True,
        chat_end_prob=True,
        shows_parts=True,
    ),
    # Seen live: 0.3.36 on the CPU. Lists fail with 500; `max_tokens` 0 is unlimited, and a character of several tokens
    # may exceed the limit; the end of sequence has no entry. A stream never shows such a character and has no usage; a
    # new request ends the streams of others, unless `interrupt_requests` is off. Without a beginning-of-sequence token
    # `echo` is shifted by one, and has no entry for the tokens generated after it.
    "llama-cpp-python": Dialect(
        "llama-cpp-python",
        greedy={**GREEDY, **NEUTRAL, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0},
        stream_options={},
        lists=False,
        probs=True,
    ),
    # From documentation: `echo` with `logprobs` works; sampling defaults come from the model's own configuration. From
    # its source: a message is continued (since March 2025); its text is encoded separately from the rendered rest.
    "sglang": Dialect(
        "sglang",
        greedy={**GREEDY, **NEUTRAL, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": False},
        lists=True,
        continues={"continue_final_message": True},
        end_prob=True,
    ),
    # From documentation (0.4): no probabilities on either route (issue 60 of lmstudio-ai/lms is open since 2024), and
    # no way to continue a message. It cannot be recognised: name it. Unverified.
    "lm-studio": Dialect("lm-studio", greedy={**GREEDY, **NEUTRAL}, lists=False, echo=False, templates=True),
    "openai": _OPENAI,
    # The route without versions in its URL (since August 2025); `model` is the deployment's name. Unverified: that it
    # has /completions, and that it refuses a chat model there with 400.
    "azure": replace(
        _OPENAI,
        engine="azure",
        hosts=(".openai.azure.com",),
        base="/openai",
        key_header="api-key",
    ),
    # `logprobs` up to 20 and `echo` are in its published schema. Unverified: that an echo lists alternatives, and that
    # `prompt` is one string. On some models a stream has a bare number for each token: such a draft is refused.
    "together": Dialect(
        "together",
        hosts=("api.together.xyz", "api.together.ai"),
        greedy={**GREEDY, **NEUTRAL, "repetition_penalty": 1},
        most=20,
        lists=False,
        templates=True,
    ),
    # At most 5 alternatives; a prompt that is too long is cut unless that is forbidden.
    "fireworks": Dialect(
        "fireworks",
        hosts=("api.fireworks.ai",),
        base="/inference",
        greedy={**GREEDY, **NEUTRAL, "repetition_penalty": 1},
        chat_most=5,
        whole={"context_length_exceeded_behavior": "error"},
    ),
    # Its documentation had probabilities on its own streamed route alone. Raw text is not templated (unverified).
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
    # An answer is continued on the beta route alone, by a field of the last message; the reasoning model has no
    # probabilities (400). Some users report 0 for the chosen token and -9999 for all others, like a model that is
    # always certain (unverified).
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
    # A field of the last message continues it; the answer repeats it (unverified). No probabilities in its schema, and
    # the seed has a name of its own; unknown fields are refused with 422.
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
    # Messages only; 400 on `logprobs`. An assistant's last message is continued ("prefilling"). Temperature 0 becomes
    # 1e-8.
    "groq": Dialect("groq", completions=None, api="chat", hosts=("api.groq.com",), base="/openai", continues={}),
    # The provider of a model changes between requests: so only providers that know every field are allowed, and cutting
    # the middle out of a long prompt is forbidden. A user's own `provider` setting is kept. A seed would rule out
    # providers that take none.
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
    """The dialect of that name, or the given dialect.

    Raises:
        ValueError: no dialect has that name.
    """
    if isinstance(given, Dialect):
        return given
    if given not in DIALECTS:
        there = f"there are {', '.join(map(repr, DIALECTS))}"
        raise ValueError(f"no dialect {given!r}{suggestion(given, DIALECTS, there)}")
    return DIALECTS[given]


def dialect_at(host: str) -> Dialect | None:
    """The hosted service at that host, if it is known."""
    host = host.lower()
    for dialect in DIALECTS.values():
        if any(host == one or (one.startswith(".") and host.endswith(one)) for one in dialect.hosts):
            return dialect
    return None
