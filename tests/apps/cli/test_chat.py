"""`cosd chat`: a conversation from a pipe, on a terminal, and over live servers."""

import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from cosd_api.apps.cli.console import MessageReader
from cosd_api.apps.demo.servers import Pair
from cosd_providers import ConnectError
from cosd_providers.testing import Fault, ScriptedProvider
from fakes.commands import Process, Scripted, cosd, start_scripted, words
from support.method_files import AT

posix = pytest.mark.skipif(os.name == "nt", reason="signals and terminals of POSIX")

FIRST = "user: Q\nassistant: "
SECOND = FIRST + " a c.\nuser: R\nassistant: "


@pytest.fixture(autouse=True)
def talking(scripted: Scripted) -> None:
    """Answers " a c." to Q, where " c" is the assistant's, and " e" to an R that follows it."""
    scripted.providers["http://draft"] = ScriptedProvider.from_texts(
        {FIRST: [" a", (" b", 0.2)], FIRST + " a c": ["."], SECOND: [" e"], "user: R\nassistant: ": [" f"]}
    )
    scripted.providers["http://one"] = ScriptedProvider.from_texts({FIRST: [" a", (" c", 0.8), "."]}, name="one")


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """MessageReader come from somebody who can react, though not from a terminal."""

    class Typed(MessageReader):
        def __init__(self) -> None:
            super().__init__()
            self.interactive = True

    monkeypatch.setattr("cosd_api.apps.cli.chat.MessageReader", Typed)


def chat(text: str | bytes, *options: str) -> Result:
    return cosd("chat", "--draft", "http://draft", "--assistant", "http://one", *options, input=text)


def prompts(scripted: Scripted) -> list[str]:
    """What the draft was given to go on from, each once."""
    return list(dict.fromkeys(call.prompt for call in scripted.providers["http://draft"].calls))


# From a pipe.


def test_answers_on_stdout_and_the_rest_on_stderr(scripted: Scripted) -> None:
    result = chat("Q\n\n  \nR")
    assert (result.exit_code, result.stdout) == (0, " a c.\n e\n")
    first, second = re.findall(r"\d.* kept.*", result.stderr)
    assert re.fullmatch(r"75% of the draft kept, 1 replacement, \d+\.\d\d s: \[-b-\] \{\+c\+\}", first)
    assert second.startswith("100% of the draft kept, 0 replacements, ")
    assert prompts(scripted) == [FIRST, SECOND]


def test_each_warning_is_told_once(scripted: Scripted) -> None:
    scripted.providers["http://one"].end_prob = False
    result = chat("Q\nR\n")
    assert result.stderr.count("note: assistant does not report the probability of its end") == 1


def test_a_backslash_goes_on_in_the_next_line(scripted: Scripted) -> None:
    assert chat("one\\\ntwo\\\n\nthree\\").exit_code == 0
    assert [line.split("user: ")[-1] for line in prompts(scripted)] == ["one\ntwo\n\nassistant: ", "three\nassistant: "]


def test_settings_reach_the_fusion(scripted: Scripted) -> None:
    result = chat("Q\n", "--system", "Be short.", "--alpha", "0.1", "--max-tokens", "2", "--timeout", "60")
    assert prompts(scripted) == ["system: Be short.\n" + FIRST]
    scripted.providers["http://draft"].template = lambda messages: FIRST
    result = chat("Q\n", "--alpha", "0.1", "--max-tokens", "2")
    assert result.stdout == " a b\n"
    assert "; cut: max_tokens" in result.stderr
    assert chat("Q\n", "--assistant", "http://two").exit_code == 0
    assert scripted.models == [None] * 7


def test_wrong_usage() -> None:
    for text, options, said in (
        ("Q", ["--beta", "-1"], "greater than"),
        (b"Q \xff", [], "not UTF-8 text at byte 2"),
    ):
        result = chat(text, *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in words(result)


def test_the_first_error_ends_what_comes_from_a_pipe(scripted: Scripted) -> None:
    error = ConnectError("no connection", endpoint="http://one", hint="Is it running?")
    scripted.providers["http://draft"].faults = [Fault(error, request=3)]
    result = chat("Q\nR\nQ\n")
    assert (result.exit_code, result.stdout) == (1, " a c.\n")
    assert result.stderr.endswith(f"> cosd: {error}\n")


def test_a_dear_method_is_announced_before_its_first_answer_and_bounded() -> None:
    dear = ("--method", AT["adafuse"])
    result = chat("Q\nQ\n", *dear)
    assert (result.exit_code, result.stderr.count("note: the method 'adafuse' is expensive")) == (0, 1)
    before, _, after = result.stderr.partition("cosd: note: the method 'adafuse' is expensive")
    assert before == "> " and "--max-billed-tokens N sets another limit\n" in after
    cut = chat("Q\n", *dear, "--max-billed-tokens", "1")
    assert cut.exit_code == 1 and "is expensive" not in cut.stderr and "max_billed_tokens=1 " in cut.stderr


# Commands.


def test_reset(scripted: Scripted) -> None:
    result = chat("R\n/reset\nQ\nR\n", "--system", "S")
    assert result.exit_code == 0
    assert [prompt.removeprefix("system: S\n").count("user: ") for prompt in prompts(scripted)] == [1, 1, 2]
    assert all(prompt.startswith("system: S\nuser: ") for prompt in prompts(scripted))
    assert "a new conversation" in result.stderr


def test_save(tmp_path: Path) -> None:
    document = tmp_path / "talk 1.json"
    assert chat(f"Q\n/save {document}\n", "--system", "é").exit_code == 0
    saved = [("system", "é"), ("user", "Q"), ("assistant", "")]
    expected = [{"role": role, "content": content} for role, content in saved]
    assert json.loads(document.read_text(encoding="utf-8")) == expected
    document.write_text("mine")
    result = chat(f"/save {document}\nQ\n")
    assert (result.exit_code, result.stdout, document.read_text()) == (1, "", "mine")
    assert "exists already; give another name" in result.stderr


def test_help_and_quit(scripted: Scripted) -> None:
    result = chat("/help\n/quit\nQ\n")
    assert (result.exit_code, result.stdout) == (0, "")
    assert all(name in result.stderr for name in ("/reset", "/save FILE", "/help", "/quit"))
    assert prompts(scripted) == []


REFUSED = [
    ("/save", "/save needs the name of a file"),
    ("/save {}/nowhere/x", "No such file or directory"),
    ("/rest", "unknown command /rest; /help lists the commands"),
    ("/reset now", "/reset takes no argument, not 'now'"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED)
def test_what_is_no_command(line: str, words: str, tmp_path: Path) -> None:
    result = chat(f"{line.format(tmp_path)}\nQ\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr


def test_what_only_looks_like_a_command(scripted: Scripted) -> None:
    assert chat("/etc/passwd is what?\n /quit\n").exit_code == 0
    assert [prompt.count("user: ") for prompt in prompts(scripted)] == [1, 2]


# With somebody who can react.


@pytest.mark.usefixtures("somebody")
def test_the_chat_goes_on_after_what_was_wrong(scripted: Scripted) -> None:
    error = ConnectError("no connection", endpoint="http://one", hint="Is it running?")
    scripted.providers["http://draft"].faults = [Fault(error, request=3)]
    result = chat("\n".join([*(line for line, _ in REFUSED[:2]), "Q", "R", "R"]))
    assert (result.exit_code, result.stdout) == (0, " a c.\n e\n")
    assert f"> cosd: {error}\n> " in result.stderr
    assert prompts(scripted) == [FIRST, SECOND]


@pytest.mark.usefixtures("somebody")
def test_servers_that_are_down_from_the_start_end_it(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    async def describe() -> None:
        raise ConnectError("no connection")

    monkeypatch.setattr(scripted.providers["http://draft"], "describe", describe)
    result = chat("Q\nR\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("> cosd: scripted: no connection\n")


@pytest.mark.usefixtures("somebody")
def test_a_full_context_is_told_with_what_helps(scripted: Scripted) -> None:
    scripted.providers["http://draft"].context = len(FIRST) + 10
    long = "a long question" * 9
    result = chat(f"{long}\nQ\n{long}\n/reset\nQ\n")
    assert (result.exit_code, result.stdout) == (0, " a c.\n a c.\n")
    first, second = (line for line in result.stderr.splitlines() if "the draft takes at most" in line)
    assert first.endswith("Shorten the prompt.")
    assert second.endswith("Shorten the prompt. (/reset begins a new conversation)")


def test_an_answer_that_the_context_cuts(scripted: Scripted) -> None:
    scripted.providers["http://draft"].context = len(FIRST) + 2
    result = chat("Q\n")
    assert result.stdout == " a b\n"  # nothing can follow the last word, so it is not judged
    assert "; cut: the context is full (/reset begins a new conversation)" in result.stderr


# On a terminal.

TEXTS: Mapping[str, Sequence[Any]] = {"Q": [" a", (" b", 0.2)], "Q a c": ["."], "slow\nly": [" x"] * 9}


class Terminal:
    """What is typed to a process, and what it shows."""

    def __init__(self, ours: int, process: Process) -> None:
        self.process = process
        self._ours = ours
        self._shown = ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def until(self, words: str) -> str:
        """All that was not read yet, up to and with these words; not what readline tells it about pasting."""
        while words not in self._shown:
            ready, _, _ = select.select([self._ours], [], [], 30)
            assert ready, f"{words!r} did not come after {self._shown!r}"
            self._shown += os.read(self._ours, 65536).decode()
            self._shown = re.sub(r"\x1b\[\?2004[hl]|\r", "", self._shown)
        before, _, self._shown = self._shown.partition(words)
        return before + words


@contextmanager
def terminal(*options: str, draft: Sequence[str] = (), **environment: str) -> Iterator[Terminal]:
    """`cosd chat` on a terminal, over models that see the last message alone."""
    import pty  # is not there on Windows

    ours, theirs = pty.openpty()
    template = "template=lambda messages: messages[-1].content"
    with start_scripted(
        *options,
        command=["chat"],
        draft=", ".join([template, *draft]),
        assistant=template,
        texts=TEXTS,
        environment={"TERM": "xterm-256color", **environment},
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
    ) as process:
        os.close(theirs)
        try:
            yield Terminal(ours, process)
            process.wait(30)
        finally:
            os.close(ours)


@posix
def test_on_a_terminal(tmp_path: Path) -> None:
    with terminal(draft=["faults=[Fault(None, request=3, tokens=2)]"]) as screen:
        assert "/help lists" in screen.until("\n> ")
        screen.type("Q\n")
        shown = screen.until("\n> ")
        assert "Q\n a\x1b[1;32m c\x1b[0m.\n\x1b[2m75% of the draft kept" in shown
        assert "\x1b[9;31mb\x1b[0m \x1b[1;32mc\x1b[0m\n" in shown
        screen.type("slow\\\n")
        screen.until("... ")
        screen.type("ly\n")
        screen.until("ly\n x")
        screen.process.send_signal(signal.SIGINT)  # the draft hangs
        assert "\n\x1b[2mstopped; question and answer are left out of the conversation" in screen.until("\n> ")
        screen.type("Q\n")
        screen.until("kept")
        screen.until("\n> ")
        screen.type(f"/save {tmp_path / 'talk.json'}\n")
        screen.until("\n> ")
        screen.process.send_signal(signal.SIGINT)
        screen.type("\n")  # readline misses a signal that comes between its prompt and its wait
    assert screen.process.returncode == 130
    assert [message["content"] for message in json.loads((tmp_path / "talk.json").read_text())] == ["Q", " a c."] * 2


@posix
def test_without_colour_what_was_replaced_is_in_words() -> None:
    with terminal(NO_COLOR="1") as screen:
        shown = screen.until("\n> ")
        screen.type("Q\n")
        shown += screen.until("\n> ")
        screen.type("\x04")  # Ctrl-D
    assert screen.process.returncode == 0
    assert "\n a c.\n75% of the draft kept" in shown
    assert "[-b-] {+c+}\n" in shown
    assert "\x1b" not in shown


@posix
def test_an_interrupt_ends_what_comes_from_a_pipe() -> None:
    template = "template=lambda messages: messages[-1].content"
    with start_scripted(
        command=["chat"], draft=f"{template}, faults=[Fault(None, tokens=2)]", assistant=template, stdin=subprocess.PIPE
    ) as process:
        process.stdin.write(b"Q\n")
        process.stdin.flush()
        assert process.stdout.read(2) == b" a"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == b"> "


# Live servers.


@pytest.mark.live
def test_live_conversation(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # real servers
    ask = "In {} a book costs {} and a pen costs {}. Name the capital and the total.\n"
    questions = ask.format("Peru", 17, 25) + ask.format("Japan", 11, 12)
    result = cosd("chat", "--draft", pair.sums, "--assistant", pair.facts, input=questions)
    assert result.exit_code == 0
    first, second = result.stdout.splitlines()
    assert "Lima" in first and "42" in first
    assert "Tokyo" in second and "23" in second
    assert result.stderr.count("of the draft kept") == 2
