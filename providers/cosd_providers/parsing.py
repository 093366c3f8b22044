"""Shapes of server answers: unknown fields are ignored, missing ones refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from cosd_providers.errors import ResponseError

__all__ = ["checked", "parse", "shape", "unless_none"]

_M = TypeVar("_M", bound=BaseModel)
_T = TypeVar("_T")


def parse(kind: type[_M], data: object, endpoint: str) -> _M:
    """An answer in its shape; raises like `checked`."""
    return checked(kind.model_validate, data, endpoint)


def shape(kind: type[_T]) -> Callable[[object], _T]:
    """The check of a shape for `checked`: a typed dictionary takes a third of a model's time."""
    return TypeAdapter(kind).validator.validate_python


def checked(check: Callable[[object], _T], data: object, endpoint: str) -> _T:
    """An answer that passes a check of pydantic's.

    Raises:
        ResponseError: it has another shape; the message names the place, and repeats nothing of the answer.
    """
    try:
        return check(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        words = f"the answer is not as expected: {where}: {first['msg']}"
        raise ResponseError(words, endpoint=endpoint) from None


def unless_none(default: Any) -> BeforeValidator:
    """A validator for fields that some servers send as null instead of leaving them out."""

    def told(value: Any) -> Any:
        return default if value is None else value

    return BeforeValidator(told)
