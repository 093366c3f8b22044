"""The part of a test that an ordinary run takes: of drawn examples, and of parameters.

Properties draw 15 examples by default, those of the decoder 50. In every other profile they draw what the profile says.
`conftest.py` loads the profile before any test module is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

T = TypeVar("T")

DEFAULT = 15
"""Examples of the default profile."""

_PROFILE: int = settings.default.max_examples  # type: ignore[union-attr]  # None only while it is being set


def examples(number: int, *, most: int | None = None) -> settings:
    """Settings for a test that draws `number` examples by default, and as many as the profile says in another.

    `most`: at most so many there.
    """
    there = max(_PROFILE, number) if _PROFILE > DEFAULT else _PROFILE
    there = there if most is None else min(there, most)
    return settings(max_examples=number if _PROFILE == DEFAULT else there)


def costly(number: int) -> settings:
    """Settings for a test whose examples take long: as many as the profile says, and at most `number`."""
    return settings(max_examples=min(number, _PROFILE))


decoder_examples = examples(50)


def partly(values: Sequence[T], keep: int = 1) -> list[T | ParameterSet]:
    """Parameters of which an ordinary run takes the first `keep`; `make test-all` takes all."""
    return [*values[:keep], *(pytest.param(value, marks=pytest.mark.extended) for value in values[keep:])]
