"""`collect`: gather decision samples of two models over their APIs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import anyio

from cosd_api import Example, SettingError
from cosd_api.apps.json_lines import Appender
from cosd_api.apps.training.dataset import Contexts, Failure, Header, Samples, SamplesFile, check_examples, samples_line
from cosd_api.checks import check_choice, check_unit
from cosd_api.extend import Endpoints, Facts, Routes, Unit, check_count
from cosd_api.forcing import ExampleSamples, WantedSamples, teacher_force
from cosd_api.types import EndpointUsage
from cosd_api.verification import MOST_LISTED
from cosd_providers import Provider, ProviderError, UnsupportedError, Usage
from cosd_providers.messages import OnSpecialTokens

OnError = Literal["raise", "skip"]
"""Reaction to an endpoint's error: end the run (`"raise"`), or leave out the example (`"skip"`)."""
Progress = Callable[[int, int], None]
"""Function that is called with the number of finished examples and the total."""


_BY_TEXT = (
    "a chat template writes white space before an answer: single tokens of such a conversation are compared after "
    "texts, and p and q were measured so"
)


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
    unit: Unit | None = None,
    listed: int | None = None,
    hidden_states: bool = False,
) -> Samples:
    """Compare both models with reference answers; record where they differ, and which model is right (section 3.2).

    The samples are the decisions that a fusion would face if the draft had written the reference answer. The models are
    asked in the same way as in a fusion. A model that accepts ids scores its own encoding of the reference in a single
    request, or in one request per token if its server cannot score ids. A model that accepts only text is asked for its
    next token at every boundary of its own encoding. A single request usually covers all boundaries. If the server
    neither scores texts nor accepts several prompts per request, as with Ollama, each boundary needs its own request.

    Further requests are needed for units that the draft would have written differently, and for units that do not begin
    at a token boundary of the assistant's own encoding.

    Models that are sent text may nevertheless be compared token by token. In that case, both models are asked at the
    boundaries of the draft's tokens. With `hidden_states`, samples are always collected in this way; with `listed`,
    only if a model accepts only text or if a chat template writes white space before an answer.

    `Samples.usage` reports how many requests were sent.

    Args:
        examples: `Example` objects, or dictionaries with the same fields. Duplicates are processed only once.
        draft: URL of a server, or a provider (`cosd_api.connect`).
        assistant: URL or provider. Only one is allowed, because a verifier decides between two models.
        path: a JSON lines file for the samples. Each example is appended as soon as it is finished. Examples that are
            already in the file need no requests, so an interrupted run can be resumed. If a crash cut the last line,
            that line is removed.
        concurrency: number of examples processed at the same time.
        progress: function that is called with the number of finished examples and the total, at the start and after
            each example.
        on_error: `"raise"` ends the run at an endpoint's error. `"skip"` leaves out the example: `Samples.failed` lists
            it, and the next run tries it again. In both cases, the file keeps the finished examples.
        on_special_tokens: as in `Fusion`.
        unit: as in `Fusion`. If samples are collected for a gate, which hands over single tokens, models that accept
            only text are assumed to share a tokenizer if they encode a test text equally, as in a fusion with the gate.
        listed: number of alternative tokens that the draft lists at each place. If given, the data for `train_deferral`
            is collected, too: these lists of tokens, and both models' probabilities of the reference's tokens. This
            requires `unit="token"` and, for models that are sent text, one more scoring request to each endpoint.
        hidden_states: also collect the data for `train_deferral(hidden_states=True)`: both models' probabilities of the
            reference's tokens, and the draft's last hidden states. This requires one more request to the draft. If a
            hidden state has 4,096 numbers, each token of an answer adds 22 kB to the file.

    Returns:
        The samples of the given examples, in the order of the examples.

    Raises:
        SettingError: there are no examples; an example is invalid; there are several assistants; or the file is
            invalid, is not a samples file, or contains samples of different models. The file then remains unchanged.
        UnsupportedError: an endpoint lacks an ability that collecting samples requires; raised before the first
            example.
        ProviderError: an endpoint failed; a note on the error (`__notes__`) names the example.
        OSError: the file cannot be read or written.
    """
    wanted = check_examples(examples)
    check_count("concurrency", concurrency)
    check_choice("on_error", on_error, OnError)
    check_choice("on_special_tokens", on_special_tokens, OnSpecialTokens)
    if listed is not None and check_count("listed", listed) > MOST_LISTED:
        raise SettingError(f"listed must be at most {MOST_LISTED}, not {listed}")
    several = assistant if isinstance(assistant, Sequence) and not isinstance(assistant, str) else [assistant]
    if len(several) > 1:
        words = f"samples compare two models, but there are {len(several)} assistants"
        raise SettingError(f"{words}: collect samples for each assistant, in a file of its own")
    gate = listed is not None or hidden_states
    endpoints = Endpoints(draft, assistant, unit=check_unit(unit), tokens=gate)
    file = None if path is None else Path(path)
    kept = SamplesFile.read(file) if file is not None and file.exists() else SamplesFile()
    async with endpoints:
        facts, width = await _discover(endpoints, listed, states=hidden_states)
        contexts, end_ids = await _contexts(endpoints, facts, states=hidden_states)
        header = Header(
            draft=facts.draft,
            assistant=facts.assistants[0],
            unit=facts.unit,
            contexts=contexts,
            listed=listed,
            hidden_states=width,
        )
        sampled = WantedSamples(end_ids, listed, hidden_states)
        run = _Run(endpoints, facts, on_special_tokens, sampled, contexts, skips=on_error == "skip")
        with ExitStack() as stack:
            if file is not None:
                if kept.header is not None:
                    kept.header.check_same_pair(header, file)
                appender = stack.enter_context(Appender(file, kept.lines))
                if kept.header is None:
                    appender.write(header.line())
                run.write = lambda one: appender.write(samples_line(one))
            await run.ask(wanted, kept.examples, concurrency, progress)
    return run.samples([*wanted.values()], header)


async def _discover(endpoints: Endpoints, listed: int | None, *, states: bool) -> tuple[Facts, int | None]:
    """Return the facts about both servers and, if `states` is set, the width of the draft's hidden states.

    Raises:
        UnsupportedError: a server reports no probabilities or no token boundaries, or it lacks an ability that `listed`
            or `states` needs.
    """
    everybody = [("draft", endpoints.draft), ("assistant", endpoints.assistants[0])]
    for name, info in [(name, await provider.describe()) for name, provider in everybody]:
        able = info.capabilities
        if not able.probs:
            words = f"the {name} reports no probabilities of its tokens, which samples need"
            hint = "Serve the model with a server that does, such as llama.cpp or vLLM."
            raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
        if not (able.tokenize or able.score):
            words = f"the {name}'s server neither tokenizes nor scores texts, so token boundaries are unknown"
            hint = "Give the model's own tokenizer: connect(url, tokenizer=...)."
            raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
        if (listed is not None or states) and not able.score:
            words = f"the {name}'s server does not score texts, which training a gate requires"
            hint = "A tree does not: leave out listed, or hidden_states. llama.cpp, vLLM and SGLang score texts."
            raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
        if listed is not None and name == "draft" and able.top_k < listed:
            words = f"the draft lists {able.top_k or 'no'} other tokens at a place, and listed={listed} are wanted"
            raise UnsupportedError(words, endpoint=info.endpoint, hint=f"Collect with listed={able.top_k or None}.")
    width = (await endpoints.draft.describe()).capabilities.hidden_states
    if states and not width:
        words = "the draft does not report hidden states, which training a gate on them requires"
        hint = "llama.cpp's own server does, started with --embeddings --pooling none. Or collect with listed=10."
        raise UnsupportedError(words, endpoint=endpoints.draft.name, hint=hint)
    facts = await endpoints.discover()
    if (listed is not None or states) and facts.unit != "token":
        words = "a gate hands over single tokens, and the models are not known to have one tokenizer"
        more = "without listed or hidden_states, samples for a tree are collected."
        hint = f'If you know that they have, give unit="token"; {more}'
        raise UnsupportedError(words, endpoint=facts.draft.endpoint, hint=hint)
    return facts, width if states else None


async def _contexts(endpoints: Endpoints, facts: Facts, *, states: bool) -> tuple[Contexts, frozenset[int]]:
    """Return the kind of context that a fusion would send; if models share token ids, also the ids that end an answer.

    If hidden states are collected, the contexts are texts, as in the method that uses hidden states.
    """
    infos = [await provider.describe() for provider in (endpoints.draft, endpoints.assistants[0])]
    by_ids = all(info.capabilities.ids for info in infos) and (facts.ids or facts.unit == "word")
    ends = frozenset(one for info in infos for one in info.ends) if facts.ids else frozenset[int]()
    return ("ids", ends) if by_ids and not states else ("text", frozenset())


class _Run:
    """One run of `collect`.

    Attributes:
        write: function that stores a finished example.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        facts: Facts,
        on_special_tokens: OnSpecialTokens,
        wanted: WantedSamples,
        contexts: Contexts,
        *,
        skips: bool,
    ) -> None:
        self.write: Callable[[ExampleSamples], None] = lambda _: None
        self._endpoints = endpoints
        self._facts = facts
        self._on_special_tokens: OnSpecialTokens = on_special_tokens
        self._wanted = wanted
        self._contexts = contexts
        self._skips = skips
        self._ledgers = Usage(), Usage()
        self._done: dict[str, ExampleSamples] = {}
        self._failed: dict[str, Failure] = {}
        self._warnings: dict[str, None] = {}
        self._there = 0

    async def ask(
        self, wanted: Mapping[int, Example], kept: Iterable[ExampleSamples], concurrency: int, progress: Progress | None
    ) -> None:
        """Collect samples for the wanted examples, indexed by number, unless `kept` already contains their samples."""
        before = {one.example.key: one for one in kept}
        for example in wanted.values():
            if (one := before.get(example.key)) is not None:
                self._done[example.key] = one.model_copy(update={"example": example})  # the target may have changed
        self._there = len(self._done)
        waiting = deque((number, example) for number, example in wanted.items() if example.key not in self._done)
        errors: list[Exception] = []

        def report() -> None:
            if progress is not None:
                progress(len(self._done) + len(self._failed), len(wanted))

        async def work() -> None:
            while waiting:
                try:
                    await self._take(*waiting.popleft())
                    report()
                except Exception as error:  # noqa: BLE001 - raised below, outside of the task group
                    errors.append(error)
                    group.cancel_scope.cancel()
                    return

        report()
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
                error.add_note(f"at example {number} of the given examples")
                raise
            self._failed[example.key] = Failure(number=number, example=example, error=str(error))
            return
        self.write(one)
        self._done[example.key] = one

    async def _ask(self, example: Example) -> ExampleSamples:
        turns, facts = await self._endpoints.turns(example.prompt, self._on_special_tokens, self._facts)
        notes = (*facts.warnings_for(example.prompt), *(words for turn in turns for words in turn.warnings))
        self._warnings.update(dict.fromkeys(notes))
        takes_ids = [(await turn.on_path.describe()).capabilities.ids for turn in turns]
        routes = self._routes(facts, takes_ids, [turn.lead for turn in turns])
        return await teacher_force((turns[0], turns[1]), example, self._wanted, self._ledgers, routes)

    def _routes(self, facts: Facts, takes_ids: Sequence[bool], leads: Sequence[str]) -> Routes:
        """The way in which a fusion would decode these models after this prompt."""
        by_ids, alike = self._contexts == "ids" and all(takes_ids), leads[0] == leads[1]
        if facts.unit != "word" and any(leads):
            # As in a fusion, models are compared by words if their templates begin the answer differently.
            gate = self._wanted.listed is not None or self._wanted.states
            by_ids = by_ids and not gate and (alike or self._endpoints.unit is None)
        if facts.unit == "word" or by_ids:
            return Routes.of(takes_ids, [self._facts.ids and (alike or facts.unit == "word")], unit="word")
        if self._contexts == "ids":
            self._warnings[_BY_TEXT] = None
        return Routes("text", ("literal",))

    def samples(self, wanted: Sequence[Example], header: Header) -> Samples:
        """Return the samples of these examples, the failures and the usage of the run."""
        names = (header.draft.name, header.assistant.name)
        found = Samples(
            examples=tuple(self._done[one.key] for one in wanted if one.key in self._done),
            draft=header.draft,
            assistant=header.assistant,
            unit=header.unit,
            contexts=header.contexts,
            listed=header.listed,
            hidden_states=header.hidden_states,
            failed=tuple(self._failed[one.key] for one in wanted if one.key in self._failed),
            usage={name: EndpointUsage.of(ledger) for name, ledger in zip(names, self._ledgers, strict=True)},
            warnings=tuple(self._warnings),
            there=self._there,
        )
        if not found.positions or found.agreeing < found.positions:
            return found
        same = f"the two models agree at all {found.positions} places: are they the same model?"
        return found.model_copy(update={"warnings": (*found.warnings, same)})
