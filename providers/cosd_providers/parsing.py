"""Validation of server answers: unknown fields are ignored, and missing fields are errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from cosd_providers.errors import ResponseError

RAW = "Is there a setting by which the server shows the model's own log probabilities?"
"""The hint of an error if the numbers that a server shows are not the model's log probabilities."""

_LOGIT = "logit"
_ROUNDING = 1e-3  # a "log probability" above this value is a logit

_M = TypeVar("_M", bound=BaseModel)
_T = TypeVar("_T")


def _log_prob(value: float) -> float:
    if value > _ROUNDING:
        words = "the logarithm of a probability is {value}, which is above 0"
        raise PydanticCustomError(_LOGIT, words, {"value": value})
    return value


LogProb = Annotated[float, AfterValidator(_log_prob)]
"""The logarithm of a probability, or NaN. It exceeds 0 at most by a rounding error; otherwise it is a logit."""


def parse(kind: type[_M], data: object, endpoint: str, *, raw: str = RAW) -> _M:
    """Parse an answer into a pydantic model. See `checked` for the arguments and errors."""
    return checked(kind.model_validate, data, endpoint, raw=raw)


def shape(kind: type[_T]) -> Callable[[object], _T]:
    """Create a check for `checked` from a type. Typed dictionaries take a third of the time of pydantic models."""
    return TypeAdapter(kind).validator.validate_python


def checked(check: Callable[[object], _T], data: object, endpoint: str, *, raw: str = RAW) -> _T:
    """Validate an answer with a pydantic function; `raw` is the hint if it shows logits in place of log probabilities.

    Raises:
        ResponseError: the answer is invalid. The message names the field, but quotes no part of the answer.
    """
    try:
        return check(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        words = f"the answer is not as expected: {where}: {first['msg']}"
        hint = raw if first["type"] == _LOGIT else ""
        raise ResponseError(words, endpoint=endpoint, hint=hint) from None


def unless_none(default: Any) -> BeforeValidator:
    """Return a validator that replaces null with a default: some servers send null instead of omitting a field."""

    def told(value: Any) -> Any:
        return default if value is None else value

    return BeforeValidator(told)
