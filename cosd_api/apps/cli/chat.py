"""`cosd chat`: a conversation in the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from cosd_api import Fusion, FusionResult, SettingError
from cosd_api.apps.cli.console import MessageReader, Writer, guarded, say
from cosd_api.apps.cli.options import SharedOptions, with_options
from cosd_api.apps.cli.spending import bounded
from cosd_api.apps.report.phrases import visible
from cosd_api.apps.report.terminal import has_colour, legend, outcome, replacements, unverified
from cosd_api.common.sync import iterate_sync, sync_portal
from cosd_api.common.wording import counted
from cosd_api.settings import AnswerLimits
from cosd_api.types import FusedToken
from cosd_providers import BudgetError, ContextLengthError, Message, ProviderError

__all__ = ["chat"]

_HELP = """\
/reset       begin a new conversation
/save FILE   write the messages as JSON
/help        show this list
/quit        end the session, like Ctrl-D
A \\ at the end of a line continues the message on the next line. Put a space before a message that begins with /.
Ctrl-C stops an answer; its exchange is then left out of the conversation."""

_COMMAND = re.compile(r"/\w*(?=\s|$)")


@with_options(SharedOptions, "max_billed_tokens")
def chat(
    options: SharedOptions,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message for all models.")] = None,
) -> None:
    """Hold a conversation: each model reads it through its own chat template, and together they write the answers.

    On a terminal, the assistants' words are green. After each answer, the replacements are listed on standard error. If
    standard input is a pipe, each line is a message, only the answers go to standard output, and the first error ends
    the command. Exit codes: 0 on success; 1 if a server failed before the first answer, or if anything failed while
    messages were read from a pipe; 2 for wrong usage; 130 when interrupted.
    """
    with guarded():
        fusion = options.fusion()
        limits = options.limits(fusion)
        # The event loop runs in a separate thread. Connections therefore stay open while this thread waits for a line,
        # and Ctrl-C works as usual.
        with sync_portal().wrap_async_context_manager(fusion):
            _Session(fusion, limits, system).run()


class _Session:
    """A chat session, which reads messages, prints answers and executes commands."""

    def __init__(self, fusion: Fusion, limits: AnswerLimits, system: str | None) -> None:
        self._fusion = fusion
        self._limits = limits
        self._system = [Message("system", system)] if system else []
        self._conversation = [*self._system]
        self._messages = MessageReader()
        self._screen = Console(stderr=True, highlight=False, soft_wrap=True)
        self._colour = sys.stderr.isatty() and has_colour(self._screen)
        self._answers = 0
        self._told = False
        self._warned: set[str] = set()

    def run(self) -> None:
        """Run the session until the end of the input or `/quit`."""
        if self._messages.interactive:
            self._print("/help lists the commands; marks: ", legend(colour=self._colour))
        while (line := self._messages.message()) is not None:
            command = _COMMAND.match(line)
            if command is None:
                if line.strip():
                    self._exchange(Message("user", line))
            elif command[0] == "/quit":
                return
            else:
                self._execute(command[0], line[command.end() :].strip())

    def _exchange(self, question: Message) -> None:
        try:
            result = self._answer([*self._conversation, question])
        except KeyboardInterrupt:
            if not self._messages.interactive:
                raise
            self._print("stopped; question and answer are left out of the conversation")
        except (ProviderError, SettingError) as error:
            if not self._survives(error):
                raise
            full = isinstance(error, ContextLengthError) and self._conversation != self._system
            say(f"{error}{' (/reset begins a new conversation)' if full else ''}")
        else:
            self._answers += 1
            self._conversation += [question, Message("assistant", result.text)]
            self._report(result)

    def _survives(self, error: Exception) -> bool:
        """Test whether the session continues after an error, because another message may succeed.

        It does not continue if a server failed and no answer has succeeded so far.
        """
        about_this_one = isinstance(error, ContextLengthError | BudgetError | SettingError)
        return self._messages.interactive and (self._answers > 0 or about_this_one)

    def _answer(self, messages: Sequence[Message]) -> FusionResult:
        """Print an answer while it is written. An interrupt also cancels the requests to the servers."""

        def announce(note: str) -> None:
            say(note)
            self._told = True

        async def work(emit: Callable[[FusedToken | FusionResult], None]) -> None:
            limits = await bounded(self._fusion, messages, self._limits, told=self._told, announce=announce)
            async with self._fusion.stream(messages, **limits.options()) as stream:
                async for token in stream:
                    emit(token)
            emit(stream.result)

        writer = Writer()
        result: FusionResult | None = None
        try:
            with closing(iterate_sync(work, "cosd chat")) as items:
                for item in items:
                    if isinstance(item, FusionResult):
                        result = item
                    else:
                        writer.write(item)
        finally:
            writer.end()
        assert result is not None
        return result

    def _report(self, result: FusionResult) -> None:
        words = outcome(result)
        if result.acceptance_rate is not None and result.replacements is not None:
            words = f"{result.acceptance_rate:.0%} of the draft kept, {counted(result.replacements, 'replacement')}"
            words += unverified(result)
        words += f", {result.timings.total:.2f} s"
        if not result.text.strip():
            words = f"an empty answer; {words}"
        if result.stop_reason == "context":
            words += "; cut: the context is full (/reset begins a new conversation)"
        elif result.finish_reason != "stop":
            words += f"; cut: {result.stop_reason}"
        if result.replacements:
            self._print(f"{words}: ", replacements(result.tokens, colour=self._colour))
        else:
            self._print(words)
        for warning in result.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                self._print(f"note: {warning}")

    def _execute(self, command: str, argument: str) -> None:
        if command == "/save" and argument:
            self._save(Path(os.path.expanduser(argument)))  # noqa: PTH111 - Path.expanduser raises for unknown users
        elif argument:
            self._refuse(f"{command} takes no argument, not {argument!r}; /help lists the commands")
        elif command == "/help":
            self._print(_HELP)
        elif command == "/reset":
            self._conversation = [*self._system]
            self._print("a new conversation")
        elif command == "/save":
            self._refuse("/save needs the name of a file")
        else:
            self._refuse(f"unknown command {command}; /help lists the commands")

    def _save(self, path: Path) -> None:
        messages = [{"role": one.role, "content": one.content} for one in self._conversation]
        text = json.dumps(messages, ensure_ascii=False, indent=2) + "\n"
        try:
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
        except FileExistsError:
            self._refuse(f"{path} exists already; give another name")
        except OSError as error:
            self._refuse(f"{path}: {error.strerror}")
        else:
            self._print(f"saved: {path}")

    def _print(self, words: str, marked: Text | None = None) -> None:
        """Print one line in dim style, followed by `marked`."""
        dim = "dim" if self._colour else ""
        self._screen.print(Text.assemble((visible(words), dim), marked or ""))

    def _refuse(self, words: str) -> None:
        """Report an invalid command, and end the session unless it is interactive."""
        say(words)
        if not self._messages.interactive:
            raise typer.Exit(1)
