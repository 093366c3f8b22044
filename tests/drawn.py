"""How many examples property tests draw: `@examples(15)` by default, and the profile's number in every other one.

A few properties of the decoder's keep the default profile's 50 (see `conftest.py`, which loads the profile first).
"""

from __future__ import annotations

from hypothesis import settings

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
