"""The bytes of a stream, split into events and lines: the cases of the HTML standard, cut at every byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_providers.http.streams import EventSplitter, LineSplitter

EVENTS: list[tuple[bytes, list[bytes]]] = [
    (b"data: 1\n\n", [b"1"]),
    (b"data: 1\r\n\r\n", [b"1"]),
    (b"data: 1\r\r", [b"1"]),
    (b"data: 1\r\n\ndata: 2\r\r\ndata: 3\n\r", [b"1", b"2", b"3"]),  # all ends of a line, mixed
    (b"data: 1\r\n\rdata: 2\n\n", [b"1", b"2"]),
    (b"data:1\n\n", [b"1"]),
    (b"data:  1 \n\n", [b" 1 "]),  # one space is left out, and only in front
    (b"data\n\n", [b""]),
    (b"data:\n\n", [b""]),
    (b"data\ndata:\ndata: \n\n", [b"\n\n"]),
    (b"data: a\ndata: b\n\n", [b"a\nb"]),
    (b"data: a\nid: 7\ndata: b\nevent: c\nretry: 300\n\n", [b"a\nb"]),
    (b"id: 7\n\nevent: ping\n\nretry: 1\n\n\n\n", []),
    (b": comment\n\n:\ndata: 1\n: data: 2\n\n", [b"1"]),
    (b"data : 1\n\nDATA: 2\n\ndatas: 3\n\n data: 4\n\nnone\n\n", []),  # other fields
    (b"\xef\xbb\xbfdata: 1\n\n", [b"1"]),
    (b"data: 1\n\n\xef\xbb\xbfdata: 2\n\ndata: \xef\xbb\xbf3\n\n", [b"1", b"\xef\xbb\xbf3"]),
    (b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\ndata: 2\n\n", [b"2"]),
    ("data: x\u2028y\x85z\x0b\x0c\x1c\n\n".encode(), ["x\u2028y\x85z\x0b\x0c\x1c".encode()]),  # no ends of a line
    (b"data: 1\n\ndata: 2\n", [b"1"]),  # without its empty line
    (b"data: 1\n\ndata: 2", [b"1"]),
    (b"\r\n\n\rdata: 1\n\n", [b"1"]),
    (b"data: \xff\x00\n\n", [b"\xff\x00"]),
    (b"", []),
]

LINES: list[tuple[bytes, list[bytes]]] = [
    (b'{"a": 1}\n{"b": 2}\n', [b'{"a": 1}', b'{"b": 2}']),
    (b"\n1\r\n\n2", [b"", b"1\r", b""]),
    ("x\u2028y\x85\rz\n".encode(), ["x\u2028y\x85\rz".encode()]),
    (b"", []),
]


def parts(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data, cut at these places."""
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize(("kind", "data", "found"), [(EventSplitter, *one) for one in EVENTS])
def test_events_cut_at_every_byte(kind: type[EventSplitter], data: bytes, found: list[bytes]) -> None:
    check(kind, data, found)


@pytest.mark.parametrize(("kind", "data", "found"), [(LineSplitter, *one) for one in LINES])
def test_lines_cut_at_every_byte(kind: type[LineSplitter], data: bytes, found: list[bytes]) -> None:
    check(kind, data, found)


def check(kind: type[EventSplitter | LineSplitter], data: bytes, found: list[bytes]) -> None:
    """The data gives the same whole, byte by byte, and in two parts at every place."""
    every = [*range(1, len(data))]
    for cuts in ([], every, *([cut] for cut in every)):
        splitter = kind()
        assert [event for part in parts(data, cuts) for event in splitter.feed(part)] == found


@given(st.lists(st.sampled_from([b"data", b":", b" ", b"x", b"\r", b"\n", b"\r\n\r\n", b"\xef\xbb\xbf"])), st.data())
def test_cuts_change_nothing(pieces: list[bytes], draw: st.DataObject) -> None:
    data = b"".join(pieces)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)))))
    for kind in (EventSplitter, LineSplitter):
        splitter = kind()
        assert [event for part in parts(data, cuts) for event in splitter.feed(part)] == kind().feed(data)


def test_an_event_is_complete_before_the_line_feed_that_may_follow() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\r\n\r") == [b"1"]
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"\ndata: 2\n\n") == [b"2"]


def test_the_size_of_what_is_not_complete() -> None:
    splitter = EventSplitter()
    sizes = []
    for part in (b"data: 1", b"23\n", b"data: 4", b"\n\n", b": sign of life\n\n", b"data: 5"):
        splitter.feed(part)
        sizes.append(splitter.size)
    assert sizes == [7, 10, 17, 0, 0, 7]
    lines = LineSplitter()
    sizes = []
    for part in (b"12", b"3", b"4\n5\n678", b"9\n"):
        lines.feed(part)
        sizes.append(lines.size)
    assert sizes == [2, 3, 3, 0]
