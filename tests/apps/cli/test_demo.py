"""`cosd demo`: it says what it should, it fits, and it leaves nothing behind."""

import os
import re
import signal

import pytest

from fakes.commands import gone, start
from support.drawn import partly

pytestmark = pytest.mark.live


def urls(text: str) -> list[str]:
    return re.findall(r"http://127\.0\.0\.1:\d+", text)


@pytest.mark.parametrize("environment", partly([{"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "80"}, {}]))
def test_demo(environment: dict[str, str]) -> None:
    with start("demo", "--questions", "2", environment=environment) as process:
        out, errors = process.communicate(timeout=60)
    text = out.decode()
    assert (process.returncode, errors) == (0, b"")
    assert "made to complement each other" in text
    assert "In Peru a book costs 17 and a pen costs 25." in text
    assert "translate cheese into French." in text
    for label in ("sums alone", "facts alone", "sums, asking facts", "facts, asking sums", "and words"):
        assert text.count(label) >= 2  # in an example and in the table
    assert "words alone" in text
    assert "servers" in text.split("Next")[-1]
    assert len(urls(text)) == 3
    assert all(map(gone, urls(text)))

    assert ("\x1b[" in text) is bool(environment)
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", text)
    assert max(map(len, plain.splitlines())) <= 80
    assert "the draft's word" in plain
    if environment:
        assert "[-" not in plain
    else:
        assert "[-the draft's word-] {+the assistant's in its place+}" in plain


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_interrupted() -> None:
    with start("demo", "--questions", "2000") as process:
        seen = b""
        while seen.count(b"http://") < 3:
            seen += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == b""
    assert all(gone(url) for url in urls((seen + out).decode()))
