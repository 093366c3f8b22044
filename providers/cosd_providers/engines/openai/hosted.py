"""Hosted services that speak OpenAI's protocol, as data: all from documentation, dated 2026-11; none was seen live.

What cannot be known of a service is found out at first use, so a row that has grown old does no harm: it costs one
request, or refuses with words that name what is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cosd_providers.engines.openai.fields import GREEDY, NEUTRAL, Dialect, Refusal

__all__ = ["CHAT_ONLY", "HOSTED"]

_COMPLETES = (
    "A model with /v1/completions can be used (with OpenAI: gpt-3.5-turbo-instruct, davinci-002, babbage-002), or a"
    " service that continues an answer: DeepSeek, Fireworks, Together, or your own vLLM or llama.cpp."
)

CHAT_ONLY = (
    Refusal(
        "is a chat model",
        "this model takes messages only, and over its chat route an answer that was started is not continued",
        _COMPLETES,
    ),
    Refusal(
        "does not work with the specified model",
        "this model takes messages only, and over its chat route an answer that was started is not continued",
        _COMPLETES,
    ),
)
"""How OpenAI and Azure refuse a chat model on the route for raw text."""

_OPENAI = Dialect(
    "openai",
    hosts=("api.openai.com",),
    templates=True,
    no_reply=_COMPLETES,
    refusals=CHAT_ONLY,
)
"""5 alternatives on `/v1/completions`, 20 over messages; the end of sequence has no entry; a chat model is refused on
the first with 404. `echo` with `logprobs` is refused for gpt-3.5-turbo-instruct; whether davinci-002 still takes it is
unverified: it is found out. An assistant's last message is a turn that is over. Whatever is not known better is taken
for it, Ollama behind a gateway too: so only the plainest fields are sent, and templates are looked for."""

HOSTED: Mapping[str, Dialect] = {
    "openai": _OPENAI,
    # The route without versions in its URL, there since August 2025; `model` is the deployment's name. Unverified: that
    # it has /completions, and that it refuses a chat model there with 400.
    "azure": replace(
        _OPENAI,
        engine="azure",
        hosts=(".openai.azure.com",),
        base="/openai",
        key_header="api-key",
    ),
    # `logprobs` up to 20 and `echo` are in its published schema; whether an echo lists alternatives is unverified, as
    # is that `prompt` is one string. A stream has a bare number for each token on some models: such a draft is refused.
    "together": Dialect(
        "together",
        hosts=("api.together.xyz", "api.together.ai"),
        greedy={**GREEDY, **NEUTRAL, "repetition_penalty": 1},
        most=20,
        lists=False,
        templates=True,
    ),
    # At most 5 alternatives; a prompt that is too long is cut unless that is forbidden. `echo` and lists are found out.
    "fireworks": Dialect(
        "fireworks",
        hosts=("api.fireworks.ai",),
        base="/inference",
        greedy={**GREEDY, **NEUTRAL, "repetition_penalty": 1},
        chat_most=5,
        whole={"context_length_exceeded_behavior": "error"},
    ),
    # Its page said that probabilities are told by its own streamed route alone: found out. Raw text is not templated
    # (unverified: looked into).
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
    # An answer is continued on its beta route alone, where the last message says so; the reasoning model has no
    # probabilities (it answers 400). Some users were told 0 for its own token and -9999 for all others, which looks
    # like a model that is always sure (unverified).
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
    # The last message says that it is continued; the answer repeats it (unverified: looked into). No probabilities in
    # its schema. A field that is not in it is refused with 422.
    "mistral": Dialect(
        "mistral",
        completions=None,
        api="chat",
        hosts=("api.mistral.ai",),
        stream_options={},
        continues={},
        continued={"prefix": True},
        repeats=True,
        no_probs=("logprob", "extra_forbidden", "extra inputs"),
    ),
    # Messages only; 400 on `logprobs`. An assistant's last message is continued ("prefilling"). Temperature 0 becomes
    # 1e-8.
    "groq": Dialect("groq", completions=None, api="chat", hosts=("api.groq.com",), base="/openai", continues={}),
    # What stands behind a model changes from request to request: so only those providers are taken that know every
    # field, and nothing is cut out of the middle of a long prompt. Who sets `provider` to pin one keeps the field.
    "openrouter": Dialect(
        "openrouter",
        hosts=("openrouter.ai",),
        base="/api",
        extra={"provider": {"require_parameters": True}},
        whole={"transforms": []},
        lists=False,
        echo=False,
        templates=True,
        no_probs=("logprob", "no endpoints found", "requested parameters"),
    ),
}
"""The services that are known, by name."""
