"""How much of a test an ordinary run takes: of drawn examples, and of parameters.

Properties of adapters draw 15 examples by default, those of the decoder keep the profile's 50, and every other profile
sets the number for both. `conftest.py` loads the profile before any test module is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from _pytest.mark.structures import ParameterSet

T = TypeVar("T")

DEFAULT = 50
"""Examples of the default profile."""


def examples(number: int) -> settings:
    """Settings for a test that draws `number` examples by default, and as many as the profile says in another.

    A test of more than the default draws in proportion: `examples(100)` draws 200 where the profile has 100.
    """
    profile = settings.default.max_examples  # type: ignore[union-attr]  # None only while it is being set
    if number > DEFAULT:
        return settings(max_examples=max(1, number * profile // DEFAULT))
    return settings(max_examples=number if profile == DEFAULT else profile)


adapter_examples = examples(15)


def partly(values: Sequence[T], keep: int = 1) -> list[T | ParameterSet]:
    """Parameters of which an ordinary run takes the first `keep`; `make test-all` takes all."""
    return [*values[:keep], *(pytest.param(value, marks=pytest.mark.extended) for value in values[keep:])]
