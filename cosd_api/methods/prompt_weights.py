"""Weights of the models by the prompt of an answer: PackLLM-sim (arXiv 2404.11531).

::

    1   every model scores the prompt in one request; the score is the mean negative
        log-likelihood of the prompt's tokens in the model's own encoding                    `prompt_nlls`
    2   the weight of a model is the softmax, over the models, of -mean / tau                `prompt_weights`

All models score the same text. For a conversation, this is the text of its messages, separated by blank lines. The chat
templates are left out, because they differ between the models and are not part of the question. A model without a
beginning-of-sequence token reports no probability for the first token of a text. This token is therefore left out of
the model's mean. A model may be unable to score the prompt, for example because the prompt is a single token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cosd_api.decoding.model import Model
from cosd_api.decoding.program import Answer
from cosd_api.methods.perplexity import perplexity
from cosd_providers.contract import Token


async def prompt_nlls(answer: Answer) -> Mapping[int, float | None]:
    """Step 1: return the mean negative log-likelihood of the prompt, by model; None if it is unknown.

    If only one model is left, no model is asked, and the mapping is empty.
    """
    if len(answer.models) == 1:
        return {}
    found = await answer.all(Model.score_prompt)
    return {model.index: prompt_nll(tokens) for model, tokens in found.items()}


def prompt_nll(tokens: Sequence[Token]) -> float | None:
    """Compute the mean negative log-likelihood of `tokens`, ignoring the first token if it has no probability."""
    return perplexity(tokens[1:] if tokens and tokens[0].prob is None else tokens, "token")


def prompt_weights(means: Mapping[int, float | None], tau: float) -> Mapping[int, float | None]:
    """Step 2: compute softmax(-mean / tau) for each model with a known mean; the weights of other models are None.

    If all known means are infinite, the weights are equal.
    """
    known = {model: mean for model, mean in means.items() if mean is not None}
    least = min(known.values(), default=0.0)
    shares = {
        model: 1.0 if mean == least else 0.0 if math.isinf(mean) else math.exp((least - mean) / tau)
        for model, mean in known.items()
    }
    total = math.fsum(shares.values())
    return {model: shares[model] / total if model in shares else None for model in means}
