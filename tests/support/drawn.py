"""The part of a test that an ordinary run takes: of drawn examples, and of parameters.

Properties draw `max_examples` of the profile, which `conftest.py` loads before any test module is imported: 5 in
`make test`, 10 in `make test-all`. Those of the decoder draw more in either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

T = TypeVar("T")

PLAIN = 15
"""Number of examples at which a test draws the number that it names."""
_MOST_SCALED = 100  # in larger profiles every test draws as many as the profile says

_PROFILE: int = settings.default.max_examples  # type: ignore[union-attr]  # None only while it is being set


def examples(number: int, *, most: int | None = None) -> settings:
    """Settings for a test that draws `number` examples where others draw 15, and in proportion in other profiles.

    `most`: at most so many in a profile that draws more.
    """
    found = max(_PROFILE, number) if _PROFILE > _MOST_SCALED else max(1, round(number * _PROFILE / PLAIN))
    return settings(max_examples=found if most is None or _PROFILE <= PLAIN else min(found, most))


def costly(number: int) -> settings:
    """Settings for a test whose examples take long: as many as the profile says, and at most `number`."""
    return settings(max_examples=min(number, _PROFILE))


decoder_examples = examples(50)


def partly(values: Sequence[T], keep: int = 1) -> list[T | ParameterSet]:
    """Parameters of which an ordinary run takes the first `keep`; `make test-all` takes all."""
    return [*values[:keep], *(pytest.param(value, marks=pytest.mark.extended) for value in values[keep:])]
