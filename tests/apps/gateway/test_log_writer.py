"""The log is written whole, in order, and delays nobody whose reader stands still."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cosd_api.apps.gateway.exchange import ACCESS_LOG
from cosd_api.apps.gateway.log_writer import LogLineFormatter, LogWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):  # it was closed
            os.close(end)


def logger_to(writer: LogWriter) -> logging.Logger:
    logger = logging.Logger("lines")  # noqa: LOG001 - nobody else's
    logger.addHandler(writer)
    return logger


def test_lines_come_whole_and_in_order(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    logger = logger_to(writer)
    for number in range(3):
        logger.info("line %d, \u00e9 and \ud800", number)
    writer.close()
    os.close(pipe[1])
    with open(pipe[0], "rb", closefd=False) as reader:
        assert reader.read().decode().splitlines() == [f"line {at}, \u00e9 and \\ud800" for at in range(3)]


def test_a_reader_that_stands_still_delays_nobody_and_hears_what_it_missed(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1], most=2)
    logger = logger_to(writer)
    long = "x" * 1_000_000  # more than a pipe holds
    logger.info(long)
    while not writer._lines.empty():  # until the thread has it
        pass
    for number in range(5):
        logger.info("line %d", number)
    found: list[bytes] = []
    with open(pipe[0], "rb", closefd=False) as reader:
        reading = threading.Thread(target=lambda: found.append(reader.read()))
        reading.start()
        writer.close()
        os.close(pipe[1])
        reading.join()
    assert found[0].decode().splitlines() == [long, '{"log_lines_dropped": 3}', "line 0", "line 1"]


def test_a_pipe_that_does_not_block_loses_nothing(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    writer = LogWriter(pipe[1])
    long = "x" * 1_000_000
    logger_to(writer).info(long)
    found: list[bytes] = []
    with open(pipe[0], "rb", closefd=False) as reader:
        reading = threading.Thread(target=lambda: found.append(reader.read()))
        reading.start()
        writer._lines.put(None)
        writer._thread.join()
        os.close(pipe[1])
        reading.join()
    assert found[0].decode() == f"{long}\n"


def test_a_record_that_cannot_be_formatted_is_no_error(
    pipe: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    writer = LogWriter(pipe[1])
    logger_to(writer).info("%d", "x")
    writer.close()
    assert "TypeError" in capsys.readouterr().err


def test_every_line_is_json_and_names_no_words_of_an_exception() -> None:
    formatter = LogLineFormatter()
    access = logging.LogRecord(ACCESS_LOG, logging.INFO, "", 1, '{"a": 1}', (), None)
    assert formatter.format(access) == '{"a": 1}'
    try:
        raise ValueError("PRIVATE")
    except ValueError:
        failed = logging.LogRecord("uvicorn.error", logging.ERROR, "", 1, "it %s", ("broke",), sys.exc_info())
    line = json.loads(formatter.format(failed))
    assert (line["level"], line["message"], line["error"]) == ("error", "it broke", "ValueError")
    assert "test_every_line_is_json" in line["frames"] and line["time"].endswith("+00:00")
    assert line.keys() == {"time", "level", "message", "error", "frames"}


def test_what_a_full_disk_has_dropped_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, write = 25, os.write

    def limited(descriptor: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        data = data[:room]
        room -= len(data)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", limited)
    with (tmp_path / "log").open("w+b") as file:
        writer = LogWriter(file.fileno())
        logger = logger_to(writer)
        for number in range(12):
            logger.info("line %d", number)  # three fit, and a part of another one
        while not writer._lines.empty() or writer._dropped < 9:
            pass
        room = 10_000
        logger.info("room")
        writer.close()
        file.seek(0)
        *found, one, other = file.read().decode().splitlines()
        assert found == ["line 0", "line 1", "line 2", "line"]
        assert {one, other} == {"room", '{"log_lines_dropped": 9}'}  # the writer may have been trying again just then


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[int, int]) -> None:
    writer = LogWriter(pipe[1])
    os.close(pipe[0])
    logger_to(writer).info("a")
    writer.close()
