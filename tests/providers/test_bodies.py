"""Bodies of requests, as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers.http.transport import encoded

TEXT = st.text(st.characters(codec="utf-8")) | st.sampled_from(["NaN", "-Infinity", "\u2028\x7f\x00</"])
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
BODIES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inside: st.lists(inside) | st.dictionaries(TEXT, inside),
    max_leaves=20,
)


@given(BODIES)
def test_a_server_reads_what_was_meant(body: Any) -> None:
    content = encoded(body)
    assert json.loads(content.decode()) == body


@given(st.dictionaries(TEXT, TEXT | st.integers() | st.booleans() | st.none()))
def test_texts_and_integers_are_written_as_httpx_writes_them(body: Any) -> None:
    """Byte for byte, so that a cache of a proxy knows them again."""
    assert encoded(body) == json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encoded({"prompt": "NaN", "bias": [number]})


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        encoded({"prompt": "a \udc00"})
    with pytest.raises(UnicodeEncodeError):
        encoded({"a \udc00": 1})


def test_objects_that_are_not_of_json_are_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        encoded({"prompt": object()})
