"""`collect`: decision samples of two models, gathered over their APIs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio

from cosd_api.endpoints import Endpoints, Learned
from cosd_api.errors import SettingError
from cosd_api.records import EndpointUsage
from cosd_api.settings import check_choice, check_count
from cosd_api.training.data import Appender, Lines
from cosd_api.training.examples import Example, ExampleSamples, checked_examples
from cosd_api.training.forcing import Forcing
from cosd_api.training.kept import Header, Kept, line_of
from cosd_api.training.samples import Failure, Samples
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Proposal, Provider
from cosd_providers.errors import ProviderError, UnsupportedError
from cosd_providers.messages import OnSpecialTokens, RenderedPrompt
from cosd_providers.usage import Usage

__all__ = ["OnError", "Progress", "collect"]

OnError = Literal["raise", "skip"]
"""What an example does that could not be asked about: end the run, or be left out and told of."""
Progress = Callable[[int, int], None]
"""Is told how many of how many examples are done."""


async def collect(
    examples: Iterable[Example | Mapping[str, Any]],
    *,
    draft: str | Provider,
    assistant: str | Provider | Sequence[str | Provider],
    path: str | Path | None = None,
    concurrency: int = 8,
    progress: Progress | None = None,
    on_error: OnError = "raise",
    on_special_tokens: OnSpecialTokens = "warn",
) -> Samples:
    """Holds both models to reference answers, and says where they differ and who was right (section 3.2).

    Each example takes one scoring request to each endpoint: what would it write at every boundary of its own encoding
    of the answer? Where the tokenizers differ, the assistant is asked a second time, about the places inside of its own
    tokens from which it would have to go on (`cosd_api.training.forcing`). A few things take more: a token that is part
    of a character, a chat template that writes the white space before an answer, and a server that neither scores a
    text nor takes several at once, such as Ollama: that is a request for each token of the answer. `Samples.usage`
    says what was sent.

    Args:
        examples: `Example`, or dictionaries with its fields. One that is there twice is asked about once.
        draft: URL of a server, or a provider (`cosd_api.connect`).
        assistant: the same; one alone, since a tree decides between two models.
        path: a file of JSON lines that keeps the samples. It gets each example's line as soon as it is done. What it
            holds already is not asked about again, so that a run that was interrupted goes on where it was. A last line
            that a crash has cut is taken away.
        concurrency: examples under way at once.
        progress: is told how many of how many examples are done: at first, and after each.
        on_error: an endpoint's error ends the run (`"raise"`), or only leaves its example out (`"skip"`; it is among
            `Samples.failed`, and is asked about again by the next run). Either way what was done is in the file.
        on_special_tokens: as of `Fusion`.

    Returns:
        The samples of the examples that were given, in their order.

    Raises:
        SettingError: there are no examples, or one is none; more than one assistant; a file that is of something else,
            of other models or broken, none of which is touched.
        UnsupportedError: an endpoint cannot be asked so; found before the first example.
        ProviderError: an endpoint failed; a note with it (`__notes__`) says at which example.
        OSError: the file cannot be read or written.
    """
    wanted = checked_examples(examples)
    check_count("concurrency", concurrency)
    check_choice("on_error", on_error, OnError)
    check_choice("on_special_tokens", on_special_tokens, OnSpecialTokens)
    several = assistant if isinstance(assistant, Sequence) and not isinstance(assistant, str) else [assistant]
    if len(several) > 1:
        words = f"samples are of two models, and there are {len(several)} assistants"
        raise SettingError(f"{words}: collect for each of them, in a file of its own")
    endpoints, file = Endpoints(draft, assistant), None if path is None else Path(path)
    kept = _read(file)
    async with endpoints:
        learned = await _learned(endpoints)
        header = Header(draft=learned.draft, assistant=learned.assistants[0], unit=learned.unit)
        run = _Run(endpoints, learned, on_special_tokens, skips=on_error == "skip")
        with ExitStack() as stack:
            if file is not None:
                run.write = _opened(stack, file, kept, header)
            await run.ask(wanted, kept.examples if isinstance(kept, Kept) else (), concurrency, progress)
    return run.samples([*wanted.values()], header)


def _read(file: Path | None) -> Kept | Lines:
    return Kept.read(file) if file is not None and file.exists() else Lines()


def _opened(stack: ExitStack, file: Path, kept: Kept | Lines, header: Header) -> Callable[[ExampleSamples], None]:
    """Opens the file for the rest; what is returned appends an example to it."""
    lines = kept
    if isinstance(kept, Kept):
        kept.header.check_pair(header, file)
        lines = kept.lines
    assert isinstance(lines, Lines)
    appender = stack.enter_context(Appender(file, lines))
    if lines is kept:
        appender.write(header.model_dump_json())
    return lambda one: appender.write(line_of(one))


async def _learned(endpoints: Endpoints) -> Learned:
    """What the servers are.

    Raises:
        UnsupportedError: one of them cannot be asked what samples are made of.
    """
    everybody = [("draft", endpoints.draft), ("assistant", endpoints.assistants[0])]
    for name, info in [(name, await provider.describe()) for name, provider in everybody]:
        able = info.capabilities
        if not able.probs:
            words = f"the {name} does not tell the probabilities of its tokens, and samples are made of them"
            hint = "Serve the model where they are told, by llama.cpp or vLLM for example."
            raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
        if not (able.tokenize or able.score):
            words = f"the {name}'s server neither encodes a text nor scores one: where its tokens end is not known"
            hint = "Give the model's own tokenizer: connect(url, tokenizer=...)."
            raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
    return await endpoints.learn()


class _Run:
    """One run of `collect`.

    Attributes:
        write: keeps an example that is done.
    """

    def __init__(
        self, endpoints: Endpoints, learned: Learned, on_special_tokens: OnSpecialTokens, *, skips: bool
    ) -> None:
        self.write: Callable[[ExampleSamples], None] = lambda _: None
        self._endpoints = endpoints
        self._learned = learned
        self._on_special_tokens: OnSpecialTokens = on_special_tokens
        self._skips = skips
        self._ledgers = Usage(), Usage()
        self._done: dict[str, ExampleSamples] = {}
        self._failed: dict[str, Failure] = {}
        self._warnings: dict[str, None] = {}
        self._there = 0

    async def ask(
        self, wanted: Mapping[int, Example], kept: Iterable[ExampleSamples], concurrency: int, progress: Progress | None
    ) -> None:
        """Asks about what is wanted, by number, and not among what is kept."""
        before = {one.example.key: one for one in kept}
        for example in wanted.values():
            if (one := before.get(example.key)) is not None:
                self._done[example.key] = one.model_copy(update={"example": example})  # its target may be another
        self._there = len(self._done)
        waiting = deque((number, example) for number, example in wanted.items() if example.key not in self._done)
        tell = progress or _silence
        tell(len(self._done), len(wanted))
        errors: list[Exception] = []

        async def work() -> None:
            while waiting:
                try:
                    await self._take(*waiting.popleft())
                    tell(len(self._done) + len(self._failed), len(wanted))
                except Exception as error:  # noqa: BLE001 - a full disk's, or the caller's own: raised below, as it is
                    errors.append(error)
                    group.cancel_scope.cancel()
                    return

        async with anyio.create_task_group() as group:
            for _ in range(min(concurrency, len(waiting))):
                group.start_soon(work)
        if errors:
            raise errors[0]

    async def _take(self, number: int, example: Example) -> None:
        try:
            one = await self._ask(example)
        except ProviderError as error:
            if not self._skips:
                error.add_note(f"at example {number} of those that were given")
                raise
            self._failed[example.key] = Failure(number=number, example=example, error=str(error))
            return
        self.write(one)
        self._done[example.key] = one

    async def _ask(self, example: Example) -> ExampleSamples:
        turns, learned = await self._endpoints.turns(example.prompt, self._on_special_tokens, self._learned)
        notes = (*learned.warnings_for(example.prompt), *(words for turn in turns for words in turn.warnings))
        self._warnings.update(dict.fromkeys(notes))
        text = example.answer.encode()
        asked = [partial(_proposals, turn, text, ledger) for turn, ledger in zip(turns, self._ledgers, strict=True)]
        mine, theirs = await concurrently(asked)
        forcing = Forcing(text, mine, theirs, unit=learned.unit, ends=example.ends)
        if forcing.missing:
            asks = turns[1]
            forcing.hear(await asks.provider.propose(asks.prompt, text, forcing.missing, usage=self._ledgers[1]))
        samples, skipped = forcing.samples()
        return ExampleSamples(example=example, samples=samples, skipped=skipped)

    def samples(self, wanted: Sequence[Example], header: Header) -> Samples:
        """What came of it."""
        names = (header.draft.name, header.assistant.name)
        found = Samples(
            examples=tuple(self._done[one.key] for one in wanted if one.key in self._done),
            draft=header.draft,
            assistant=header.assistant,
            unit=header.unit,
            failed=tuple(self._failed[one.key] for one in wanted if one.key in self._failed),
            usage={name: EndpointUsage.of(ledger) for name, ledger in zip(names, self._ledgers, strict=True)},
            warnings=tuple(self._warnings),
            there=self._there,
        )
        if not found.positions or found.agreeing < found.positions:
            return found
        same = f"the two models agree at all {found.positions} places: are they the same model?"
        return found.model_copy(update={"warnings": (*found.warnings, same)})


def _silence(_done: int, _all: int) -> None:
    pass


async def _proposals(turn: RenderedPrompt, text: bytes, ledger: Usage) -> list[Proposal | None]:
    return await turn.provider.propose(turn.prompt, text, None, usage=ledger)
