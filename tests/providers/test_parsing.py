"""What the answers of all servers have in common."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from cosd_providers import ResponseError
from cosd_providers.parsing import parse


class Shape(BaseModel):
    number: int


def test_shapes() -> None:
    assert parse(Shape, {"number": 3, "more": 4}, "http://x").number == 3
    with pytest.raises(
        ResponseError, match="http://x: the answer is not as expected: number: Input should be"
    ) as caught:
        parse(Shape, {"number": "secret"}, "http://x")
    assert "secret" not in str(caught.value)
