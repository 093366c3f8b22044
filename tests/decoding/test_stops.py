"""Stop strings on a growing text, against a search over the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cosd_api.decoding.stops import StopFinder

TEXTS = st.text("ab", min_size=1, max_size=4).map(str.encode)


@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=8))
def test_found_as_in_the_whole_text(stops: list[bytes], pieces: list[bytes]) -> None:
    finder = StopFinder(stops)
    text = bytearray()
    for piece in pieces:
        text += piece
        found = finder.find(text, len(piece))
        ends = [(text.index(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
        if not ends:
            assert found is None
            continue
        end, length = min(ends)  # the one that ends first; of those the longest
        assert found is not None
        assert len(text) - found.distance == end + length
        assert found.text.encode() == text[end + length : end]
        break


@given(st.lists(TEXTS, max_size=4), TEXTS)
def test_what_is_held_back_is_exactly_what_could_become_a_stop(stops: list[bytes], text: bytes) -> None:
    finder = StopFinder(stops)
    held = finder.held_back(bytearray(text), len(text))
    assert held == max(
        (n for n in range(1, len(text) + 1) for s in stops if text[-n:] in (s[:m] for m in range(len(s)))), default=0
    )


def test_no_stops_cost_nothing() -> None:
    finder = StopFinder([])
    assert finder.find(bytearray(b"text"), 4) is None
    assert finder.held_back(bytearray(b"text"), 4) == 0
