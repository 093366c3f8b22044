"""Shapes of server answers: unknown fields are ignored, missing ones refused."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from cosd_providers.errors import ResponseError

__all__ = ["parse", "unless_none"]

_M = TypeVar("_M", bound=BaseModel)


def parse(kind: type[_M], data: object, endpoint: str) -> _M:
    """An answer in its shape.

    Raises:
        ResponseError: it has another; the message says where, and repeats nothing of it.
    """
    try:
        return kind.model_validate(data)
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
