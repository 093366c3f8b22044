"""What the answers of all servers have in common: they have a shape, and probabilities come as logarithms."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from cosd_providers.errors import ResponseError

__all__ = ["check_own", "parse", "prob", "unless_none"]

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


def unless_none(default: Any) -> BeforeValidator:
    """For a field of a shape: some servers write null for what they leave out."""

    def told(value: Any) -> Any:
        return default if value is None else value

    return BeforeValidator(told)


def check_own(value: float | None, endpoint: str) -> None:
    """An error where the token that a server took has no probability, or one that the most probable token cannot have.

    A server writes null, NaN or -inf there whose model computes no numbers. A fusion would make silence of it:
    nothing is ever replaced.

    Raises:
        ResponseError: it is so.
    """
    if value:
        return
    says = "how probable it is is not told" if value is None else "it is said to be impossible"
    words = f"the server wrote a token with no usable probability: {says}"
    hint = "Does the model compute NaN there? Then another quantization or data type may help."
    raise ResponseError(words, endpoint=endpoint, hint=hint)


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
