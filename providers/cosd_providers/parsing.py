"""What the answers of all servers have in common: they have a shape, and probabilities come as logarithms."""

from __future__ import annotations

import math
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from cosd_providers.errors import ResponseError

__all__ = ["parse", "prob"]

_ROUNDING = 1e-3  # of a logarithm

_M = TypeVar("_M", bound=BaseModel)


def parse(kind: type[_M], data: object, endpoint: str) -> _M:
    """`data` in the shape that it should have.

    Raises:
        ResponseError: it does not have it; says where, and repeats nothing of it.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        words = f"the answer is not as expected: {where}: {first['msg']}"
        raise ResponseError(words, endpoint=endpoint) from None


def prob(logprob: float | None) -> float | None:
    """The probability of a logarithm; None where there is none. Servers write -9999 and the like for zero.

    Raises:
        ResponseError: it is above 0 by more than rounding: a logit, say.
    """
    if logprob is None or math.isnan(logprob):
        return None
    if logprob > _ROUNDING:
        words = f"the logarithm of a probability is {logprob:g}, which is above 0"
        raise ResponseError(
            words, hint="vLLM shows logits where it is started with another --logprobs-mode than raw_logprobs."
        )
    return math.exp(min(logprob, 0.0))
