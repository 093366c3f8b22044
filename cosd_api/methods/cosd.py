"""Collaborative Speculative Decoding (Algorithm 1 of the paper) as a state machine that does no I/O.

::

     1-3   the draft model writes greedily: x~_1, x~_2, ...                               `drafted`, `_append`
     4-7   each assistant reports its own tokens at the same places: x^_1, x^_2, ...      `answered`, `watched`
     8     for each token in turn:
     9         if x~ != x^ and p < alpha and q > beta * p     (rule)                      `alignment.judge`
    10         or x~ != x^ and T(p, q) = 1                    (tree)                      `alignment.judge`
    11             keep the draft before x~, and replace x~ by x^                         `_replace`
    12-13          throw away the rest of the draft, and draft again after x^             `_discard_after`
    14     keep the text that no assistant contests                                       `_settle`

All steps overlap: the draft keeps streaming while questions are in progress, and answers may arrive in any order. A
replacement is put into the text as soon as its token is judged, even if an earlier token is still waiting for its
verdict. If the earlier token is replaced later, the text after it is thrown away. So the text depends only on the
models and the verifier. It does not depend on the order or timing of events, the length of drafts, or the grouping of
questions into requests, all of which the `Schedule` controls.

If the answer may continue without an assistant (`survives`), an assistant that fails permanently is lost at the first
place of the text about which it gave no answer. Its answers about later places are discarded. After the token at the
place of the loss, drafting restarts, as it does after a replacement. So the answer depends on the place of the failure,
not on its time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, ClassVar, Self

from cosd_api.alignment import Unit
from cosd_api.checks import check_temperature, check_unit, check_verifier
from cosd_api.decoding.commands import (
    DRAFT,
    Command,
    Decoder,
    Emit,
    Fail,
    Finish,
    Heard,
    Loss,
    Placed,
    Report,
    cut_short,
)
from cosd_api.decoding.decoder import Decoder as Decoding
from cosd_api.decoding.judged import JudgedWriter
from cosd_api.decoding.response import Response
from cosd_api.decoding.run import AnswerJob, Run
from cosd_api.decoding.schedule import Hedge, Pace, Schedule
from cosd_api.decoding.units import DraftUnit, Hearing, State, UnitVerifier, Verdict
from cosd_api.errors import SettingError
from cosd_api.methods.base import DEFAULT_IS_GREEDY, DraftFirst, Method, Models
from cosd_api.methods.cost import Assumptions, Cost, Plan, Reading, assistant_cost
from cosd_api.methods.gated import AHEAD, GatedDraws, check_gate
from cosd_api.verification import RuleVerifier, Verifier, decides_by_place, digest_of, needs_of
from cosd_providers.contract import DraftEnd, Proposal, ServerInfo, Token
from cosd_providers.errors import UnsupportedError

_DRAWN = 0.3  # the assumed share of drawn tokens about which an assistant is asked: they lead to less probable texts
_SURE = 0.99  # a verifier that contests a token with this probability contests nearly every token


class Phase(Enum):
    """The phase of an answer."""

    RUNNING = auto()
    FINISHED = auto()
    FAILED = auto()


@dataclass(frozen=True, kw_only=True)
class CoSD(DraftFirst):
    """Collaborative Speculative Decoding: Algorithm 1 of the paper (arXiv 2502.08020), with its rule or its tree.

    The draft writes greedily. If the verifier prefers an assistant's token or word, that token or word replaces the
    draft's, and the draft continues after it. With `unit="token"`, the result is the greedy decoding of a well-defined
    next-token distribution; see `log_likelihood`.

    Attributes:
        verifier: decides each disagreement between the draft and an assistant. The default is `RuleVerifier()`;
            `RuleVerifier.paper()` has the paper's thresholds.
        unit: the unit of text that is judged, `"token"`, `"word"` or `"literal"`. None chooses by comparing the
            tokenizers; see `Fusion`.
        temperature: 0 for Algorithm 1; 1 to draw every token at random from the next-token distribution that
            `log_likelihood` describes, which requires `unit="token"`.

    Raises:
        SettingError: a setting is invalid.
    """

    name: ClassVar[str] = "cosd"
    accepts: ClassVar[frozenset[str]] = DraftFirst.accepts | {"verifier", "unit", "tie"}
    hoisted: ClassVar[tuple[str, ...]] = ("verifier", "unit", "temperature")
    decides: ClassVar[str] = "the probability of one token of the draft and one of the assistant"
    compares_tokenizers: ClassVar[bool] = True
    why_greedy: ClassVar[str] = DEFAULT_IS_GREEDY

    verifier: Verifier = field(default_factory=RuleVerifier)
    unit: Unit | None = None
    temperature: float = 0.0  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        check_verifier(self.verifier)
        check_unit(self.unit)
        object.__setattr__(self, "temperature", check_temperature(self.temperature))
        if self.temperature and self.unit in ("word", "literal"):
            words = "words" if self.unit == "word" else "tokens of two vocabularies"
            raise SettingError(f'temperature=1 is for unit="token": {words} have no next-token distribution')
        if self.temperature and (looks := needs_of(self.verifier).looks_at):
            words = f"temperature=1 is not defined for a {type(self.verifier).__name__}"
            raise SettingError(f"{words}, which also looks at {looks} the draft's token: leave out temperature")

    def _at(self, temperature: float) -> Method:
        return replace(self, temperature=temperature)

    def with_unit(self, unit: Unit | None) -> Method:
        """Return the same method with this unit, unless it already has one; see `Method.with_unit`."""
        return self if self.unit is not None else replace(self, unit=unit)

    def start(self, job: AnswerJob) -> Run:
        """Create the `Run` that writes one answer.

        Raises:
            UnsupportedError: the method cannot judge by the unit of this answer; see `examine_unit`.
        """
        if not self.temperature:
            self.examine_unit(job.unit, job.turns[0].provider.name)
            return Decoding(job, self.verifier)
        prompt = job.turns[0]
        self.examine_unit(job.unit, prompt.provider.name)
        return JudgedWriter(job, lambda writer: GatedDraws(writer, self.verifier, prompt.prompt).write())

    def examine_unit(self, unit: Unit, endpoint: str) -> None:
        """Refuse `unit="word"` if tokens are drawn, or if the verifier needs data about single tokens.

        Raises:
            UnsupportedError: the unit is refused; see `Method.examine_unit`.
        """
        if unit != "word":
            return
        if self.temperature:
            words = "the models are not known to have one tokenizer, and a mixture of their tokens is not defined"
            hint = 'If you know that they have, give unit="token"; without a temperature any models can be fused.'
            raise UnsupportedError(words, endpoint=endpoint, hint=hint)
        if looks := needs_of(self.verifier).looks_at:
            words = f"the verifier looks at {looks} each draft token, and words are judged"
            hint = (
                'If you know that the models have one tokenizer, give unit="token"; unit="literal" compares the tokens '
            )
            hint += "of any models as text. RuleVerifier and DiffVerifier judge words."
            raise UnsupportedError(words, endpoint=endpoint, hint=hint)

    def options(self) -> dict[str, Any]:
        """Return no options, because a result records the verifier and the unit in separate fields."""
        return {}

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:
        """Refuse a model that does not report the probabilities that the verifier uses; see `Method.examine`."""
        if self.temperature:
            check_gate(models)
            return ()
        for name, info in models:
            if info.capabilities.probs:
                continue
            words = f"the {name} does not report the probabilities of its tokens"
            if name == "draft":
                words += ", which show where it is unsure"
                hint = "It can be an assistant, with verifier=AgreementVerifier(alpha=0.5): let the other model draft."
                raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
            if needs_of(self.verifier).q:
                words += ", which the verifier compares"
                hint = "verifier=AgreementVerifier(alpha=0.5) decides without them, by the draft's probability alone."
                raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
            if unit in ("token", "literal"):
                words += ', and can be asked in unit="word" only'
                raise UnsupportedError(words, endpoint=info.endpoint, hint=f'Leave out unit="{unit}".')
        warnings = [
            f"{name} does not report the probability of its end of sequence: no answer's end is ever contested by it"
            for name, info in models
            if info.capabilities.probs and not info.capabilities.end_prob
        ]
        if wanted := needs_of(self.verifier).alternatives:
            for name, info in models[1:]:
                _check_lists(name, info, wanted)
            warnings.append(
                "the assistants are asked about every token of the draft: Fusion.estimate predicts the cost"
            )
        check_draft(models[0][1], self.verifier)
        return tuple(warnings)

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """Forecast the cost of one answer at one model; see `Method.cost`."""
        plan = self._plan(plan)
        cost = super().cost(plan, model, prompt)
        if model or not self.temperature:
            return cost
        # Where the draft is unsure, its lists may not show its most probable token, for which it is asked.
        return cost + assistant_cost(plan, model, prompt, always=False)

    def assumptions(self, plan: Plan) -> Assumptions:
        """Describe in words what `cost` assumes."""
        found = super().assumptions(self._plan(plan))
        if not self.temperature:
            return found
        return replace(found, expected=f"{found.expected}; the draft is asked about the same places")

    def _plan(self, plan: Plan) -> Plan:
        if self.temperature and plan.pace.draft_length is None:
            plan = replace(plan, pace=replace(plan.pace, draft_length=AHEAD))
        needs = needs_of(self.verifier)
        if needs.alternatives:
            return replace(plan, skip=False)
        if needs.contested is not None:
            return replace(plan, contested=needs.contested)
        every = not decides_by_place(self.verifier) and self.verifier.contestable(_SURE)
        if every:
            return replace(plan, contested=1.0)
        return replace(plan, contested=_DRAWN) if self.temperature else plan

    @property
    def asks_by_ids(self) -> bool:
        """True unless tokens are drawn at random, or the verifier uses hidden states."""
        return not self.temperature and not needs_of(self.verifier).draft_states

    @property
    def judge(self) -> Verifier:
        """The verifier."""
        return self.verifier

    def decoder(self, job: AnswerJob) -> Decoder:
        """Create the decoder of one answer.

        Raises:
            UnsupportedError: the unit is a word, but the verifier needs data about single tokens.
        """
        self.examine_unit(job.unit, job.turns[0].provider.name)
        return CoSDDecoder.of(job, self.verifier)


def _check_lists(name: str, info: ServerInfo, wanted: int) -> None:
    """Refuse an assistant that lists fewer tokens at a place than the verifier needs.

    Raises:
        UnsupportedError: the assistant is refused; the message names a remedy.
    """
    most = info.capabilities.top_k
    if most < wanted:
        words = f"the {name} lists {most or 'no'} other tokens at a place, and the verifier needs {wanted}"
        hint = "RuleVerifier and DiffVerifier need none."
        if most:
            hint = f"SurpriseVerifier needs no more with a gamma above {1 / (most + 1):.3g}. {hint}"
        raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)


def check_draft(info: ServerInfo, verifier: Verifier) -> None:
    """Refuse a draft that does not report the lists of tokens or the hidden states that the verifier needs.

    Raises:
        UnsupportedError: the draft is refused; the message names a remedy.
    """
    needs, can = needs_of(verifier), info.capabilities
    wanted, most = needs.draft_alternatives, can.top_k
    if most < wanted:
        words = f"the draft lists {most or 'no'} other tokens at a place, and the gate looks at {wanted}"
        hint = 'method="cosd" needs no lists.'
        if most:
            hint = f"Train a gate with listed={most}. {hint}"
        raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
    wanted, width = needs.draft_states, can.hidden_states
    if width == wanted or not wanted:
        return
    if width:
        words = f"a hidden state of the draft has {width} numbers, and the gate was trained on {wanted}"
        hint = "Train a gate for this model: cosd train-deferral --hidden-states."
    else:
        words = "the draft does not report hidden states, which the gate looks at"
        server = "Start its server" if info.engine == "llama.cpp" else "llama.cpp's own server does, if it is started"
        hint = f"{server} with --embeddings --pooling none."
    hint = f"{hint} A gate that cosd train-deferral makes without --hidden-states looks at lists of tokens."
    raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)


class CoSDDecoder:
    """A `Decoder` for one fused answer in progress.

    Args:
        verifier: the verifier, such as the rule or the tree.
        assistants: the number of assistants.
        max_tokens: the greatest length of the answer, including its end of sequence.
        stop: stop strings, as UTF-8; the answer ends before the first of them.
        skip: whether to omit questions whose answers could not change the text.
        survives: a function that returns True if the answer may continue without an assistant that has failed with
            this error. By default, the answer may not continue.
        without: the assistants that were lost before the answer began, and the error of each.
        pace: the settings of the schedule.
        prompt: the draft model's prompt, for verifiers whose decisions depend on the place.
        tie: the greatest difference between log probabilities that counts as a tie; see `alignment.judge`.
        ends: the end-of-sequence ids of all models. Each of them ends the answer, whichever model writes it.

    Attributes:
        prompt: a digest of the draft model's prompt.
        judge: the verifier, with all settings that are needed to judge a unit.
        response: the answer so far.
        units: the units whose tokens are not final yet.
        schedule: decides when drafts and questions are started.
        lost: the assistants that have failed, and without which the answer continues.
        phase: the phase of the answer.
        now, late: see `Decoder`.
    """

    def __init__(
        self,
        verifier: Verifier,
        *,
        max_tokens: int,
        assistants: int = 1,
        stop: Sequence[bytes] = (),
        skip: bool = True,
        survives: Callable[[Exception], bool] = lambda _: False,
        without: Mapping[int, Exception] | None = None,
        pace: Pace | None = None,
        prompt: str = "",
        tie: float = 0.0,
        ends: Container[int | None] = (),
    ) -> None:
        self._ends = ends
        self.verifier = verifier
        self.prompt = digest_of(prompt)
        pace = replace(pace or Pace(), needs=needs_of(verifier))
        self.judge = UnitVerifier(
            verifier, self.prompt, skip=skip, tie=tie, listed=pace.judged_by if pace.shown else None
        )
        self.assistants = assistants
        self.response = Response(max_tokens, stop)
        self.units: deque[DraftUnit] = deque()
        self._ids = pace.ids
        self.schedule = Schedule(pace, assistants, self.judge.could_change)
        self.lost = {at: Loss(0, error, before=True) for at, error in (without or {}).items()}
        self.phase = Phase.RUNNING
        self.now, self.late = 0.0, False
        self._survives = survives
        self._failed = False  # True once any request has failed
        self._counts = Report()
        self._settled_units = 0

    @classmethod
    def of(cls, job: AnswerJob, verifier: Verifier) -> Self:
        """Create the decoder of one answer from the settings of its job."""
        return cls(
            verifier,
            max_tokens=job.max_tokens,
            assistants=len(job.turns) - 1,
            stop=job.stop,
            skip=job.skip,
            survives=job.survives,
            without=job.without,
            pace=replace(job.pace, ids=job.routes.same_ids),
            prompt=job.turns[0].prompt,
            tie=job.tie,
            ends=job.ends,
        )

    @property
    def finished(self) -> Finish | None:
        """The reason why the answer ended; None until the answer is complete."""
        return self.response.over if self.phase is Phase.FINISHED else None

    def report(self) -> Report:
        """Report the text so far, with counts such as the number of replacements."""
        hedges = self.schedule.hedges
        return replace(
            self._counts,
            text=bytes(self.response.text),
            hedged_drafts=hedges.count,
            hedge_hits=hedges.hits,
            hedged_tokens=hedges.written,
            lost=self.lost,
        )

    # --------------------------------------------------------------------------------------------------- the events

    def start(self) -> list[Command]:
        """Line 1: start the draft, and the requests to assistants that need no draft token."""
        early: list[Command] = []
        if self._ids and self.judge.ever:
            heard = [at for at in range(self.assistants) if at not in self.lost]
            watches = self.schedule.watches
            early.extend(watches.begin(heard, self.response))
            early.extend(self.schedule.questions.ask_early(at for at in heard if at not in watches.assistants))
        return self._proceed(early)

    def drafted(self, draft: int, token: Token) -> list[Command]:
        """Line 2: accept a token from the draft, or from a hedge (a request that may become the draft)."""
        if draft != self.schedule.drafts.under_way:
            return [*self.schedule.hedges.drafted(draft, token)]
        if self.response.over:
            return []
        return self._proceed(self._append(token, draft))

    def draft_ended(self, draft: int, end: DraftEnd) -> list[Command]:
        """Line 3: handle the end of the draft, or of a hedge."""
        if draft != self.schedule.drafts.under_way:
            self.schedule.hedges.ended(draft, end)
            return []
        self.schedule.drafts.ended(end.continuation)
        self._close(end)
        return self._proceed([])

    def draft_failed(self, draft: int, error: Exception) -> list[Command]:
        """Handle a failure of the draft. The answer fails if it is incomplete when all tokens so far are settled."""
        if draft != self.schedule.drafts.under_way:
            self.schedule.hedges.failed(draft)
            return []
        self.schedule.drafts.failed(error)
        self._failed = True
        return self._proceed([])

    def answered(self, ask: int, proposals: Sequence[Proposal | None]) -> list[Command]:
        """Lines 6 to 10: accept an assistant's own tokens at some places, and judge each place."""
        if self.schedule.questions.early(ask, proposals):
            return self._proceed([])
        assistant, asked = self.schedule.questions.take(ask)
        if not asked:  # the question was cancelled
            return []
        commands: list[Command] = []
        if assistant == DRAFT:
            [(unit, _)], [proposal] = asked, proposals
            unit.learn(proposal)
            self.response.tokens[unit.first].token = unit.token
            for other, verdict in enumerate(unit.verdicts):
                if verdict.hearing is Hearing.WITHOUT_P and unit.waiting:
                    self._hear(unit, other, verdict.pending, verdict.ask, commands)
            return self._proceed(commands)
        for (unit, verdict), proposal in zip(asked, proposals, strict=True):
            # A unit that is not waiting is already void, perhaps because of the proposal before this one.
            if unit.waiting and not verdict.done:
                self._hear(unit, assistant, proposal, ask, commands)
        return self._proceed(commands)

    def _hear(
        self, unit: DraftUnit, assistant: int, proposal: Proposal | None, ask: int, commands: list[Command]
    ) -> None:
        """Judge a unit by an assistant's proposal. If the draft's own probability is unknown, request it first.

        The draft stops writing during that request, because its server may accept only one request at a time.
        """
        asking = unit.lacks_p
        unit.hear(assistant, proposal, self.judge, ask)
        verdict = unit.verdicts[assistant]
        if verdict.hearing is Hearing.WITHOUT_P:
            if not asking:
                if not (self.response.over and self.units[-1] is unit):
                    self._discard_after(unit, commands)
                commands.append(self.schedule.questions.ask_draft(unit, verdict, self.response))
        elif unit.heard:
            self._decide(unit, commands)
        elif verdict.replacement is not None:
            self._discard_after(unit, commands)

    def ask_failed(self, ask: int, error: Exception) -> list[Command]:
        """Handle a failed request to an assistant. The answer fails only if it cannot continue without the verdict.

        The request may be about text that is thrown away later, and success should not depend on timing. Therefore, if
        a request about several places fails, the assistant is asked again about each place separately. A question about
        the start of the answer is also asked again if it was sent before the draft began.
        """
        early = self.schedule.questions.is_early(ask)
        assistant, asked = self.schedule.questions.take(ask)
        if not asked:  # the question was cancelled, or it was sent early and no unit waits for it
            return self._proceed([])
        self._failed = True
        if assistant == DRAFT:
            asked[0][0].p_error = error
            return self._proceed([])
        for _, verdict in asked:
            verdict.alone = True
            if len(asked) == 1 and not early and not verdict.done:
                verdict.hearing, verdict.error = Hearing.FAILED, error
        return self._proceed([])

    def watched(self, watch: int, token: Token) -> list[Command]:
        """Lines 6 to 10: accept the next token from an assistant's watch."""
        return self._proceed([]) if self.schedule.watches.wrote(watch, token) else []

    def watch_ended(self, watch: int, end: DraftEnd) -> list[Command]:
        """Handle the end of a watch. A single question then finds out whether the assistant can still answer."""
        self.schedule.watches.ended(watch, failed=end.reason in ("context", "filter"))
        return self._proceed([])

    def watch_failed(self, watch: int, error: Exception) -> list[Command]:  # noqa: ARG002 - the question will say why
        """Handle the failure of a watch. A single question then finds out whether the failure matters."""
        self.schedule.watches.ended(watch, failed=True)
        return self._proceed([])

    def stop_here(self, finish: Finish) -> None:
        """End the answer after its emitted tokens, and ignore later events.

        Text that is held back because a stop string may begin there is left out. So the result is always a prefix of
        the complete answer.
        """
        if self.phase is not Phase.FINISHED:
            self.units.clear()
            self.schedule.questions.under_way.clear()
            self.schedule.watches.leave()
            self.schedule.drafts.cancel()
            self.response.keep_emitted(finish)
            self._finish([])

    # -------------------------------------------------------------------------------------------------- generation

    def _append(self, token: Token, draft: int) -> list[Command]:
        """Append a draft token to the response, and ask the assistants about it if needed."""
        drafts, response, commands = self.schedule.drafts, self.response, list[Command]()
        drafts.left -= 1
        foreign = not token.end and token.id in self._ends
        token = replace(token, data=b"", end=True) if foreign else token
        unit = DraftUnit(len(response.text), len(response.tokens), token)
        self.units.append(unit)
        response.place(Placed(token, draft=draft, at=self.now))
        self._complete(unit, commands)
        # A draft may have requested more tokens than the answer still needs, for example if it is a hedge.
        too_long = response.over and drafts.left and (foreign or not token.end)
        if too_long or response.stopped:  # later tokens would never be judged
            commands.extend(drafts.cancel())
        return commands

    def _close(self, end: DraftEnd) -> None:
        """End the response if no draft can continue it: the context is full, or a filter intervened."""
        if not self.response.over and end.reason in ("context", "filter"):
            self.response.over = cut_short(end)

    def _complete(self, unit: DraftUnit, commands: list[Command]) -> None:
        """Prepare the questions to every assistant about the unit, if its token could be replaced."""
        unit.complete(self.assistants, self.judge.contestable, self.lost)
        if unit.waiting:
            self.schedule.questions.more = True
            self.schedule.watches.claim(unit)
            if unit.heard:  # all assistants are lost, so none can be asked
                self._decide(unit, commands)
            elif self._ids and not unit.first:
                self._hear_early(unit, commands)

    def _hear_early(self, unit: DraftUnit, commands: list[Command]) -> None:
        """Judge the first unit by answers that arrived before the unit itself, or wait for the early requests."""
        self.schedule.questions.join_early(unit)
        for assistant, verdict in enumerate(unit.verdicts):
            known = self.schedule.questions.first(assistant)
            if known is not None and unit.waiting and verdict.hearing is Hearing.OPEN:
                ask, proposal = known
                self._hear(unit, assistant, proposal, ask, commands)

    # ------------------------------------------------------------------------------------------------ verification

    def _decide(self, unit: DraftUnit, commands: list[Command]) -> None:
        """Lines 8 to 10: decide about a unit that all assistants have answered; the most confident replacement wins."""
        unit.state = State.JUDGED
        token = self.response.tokens[unit.first]
        token.asked, token.decisions, token.verified = (
            unit.asked,
            unit.decisions,
            unit.is_heard(self.judge.could_change),
        )
        winner = unit.winner
        if winner is not None:
            self._replace(unit, winner, commands)

    def _replace(self, unit: DraftUnit, winner: Verdict, commands: list[Command]) -> None:
        """Lines 11 to 13: keep the draft before the unit, write the assistant's word, and draft again after it."""
        self._discard_after(unit, commands)
        draft = self.response.tokens[unit.first].draft
        self.response.cut_back(unit.first)
        verified = unit.is_heard(self.judge.could_change)
        placed = unit.replacement(winner, verified=verified, draft=draft, at=self.now)
        if placed.token.id in self._ends:
            placed.token = replace(placed.token, data=b"", end=True)
        self.response.place(placed)
        self.schedule.drafts.restart(self.response)
        unit.replaced = True
        unit.drafted_on = self.response.over is None

    def _discard_after(self, unit: DraftUnit, commands: list[Command]) -> None:
        """Lines 12 and 13: throw away the draft after a unit, and the questions about it."""
        commands.extend(self.schedule.drafts.discard())
        while self.units[-1] is not unit:
            self.units.pop().state = State.VOID
        self.response.cut_back(unit.first + 1)
        self.schedule.watches.rewind(unit.first)
        commands.extend(self.schedule.questions.void())

    def _lose(self, commands: list[Command]) -> bool:
        """Try to continue without the failed assistants for which the first unit waits; return True on success."""
        unit = self.units[0] if self.units else None
        if unit is None or not unit.waiting or unit.p_error is not None:
            return False
        undone = [(at, verdict) for at, verdict in enumerate(unit.verdicts) if not verdict.done]
        failed = {at: verdict.error for at, verdict in undone if verdict.error is not None}
        if not failed or len(failed) < len(undone) or self._error() is not None:
            return False  # an assistant that has not answered yet may be certain; the failures then do not matter
        for assistant, error in failed.items():
            verdict = unit.verdicts[assistant]
            self.lost[assistant] = Loss(unit.first, error)
            self.schedule.watches.leave_out(assistant)
            verdict.hearing = Hearing.LOST
        self._decide(unit, commands)
        if unit.winner is None and not (self.response.over and self.units[-1] is unit):
            self._discard_after(unit, commands)
            self.schedule.drafts.restart(self.response)
            unit.drafted_on = True
        return True

    def _error(self) -> Exception | None:
        """Return the error at the first place without a verdict, if it makes the answer fail; otherwise None."""
        if not (self.units and self.units[0].waiting):
            return self.schedule.drafts.error
        if self.units[0].p_error is not None:
            return self.units[0].p_error
        for verdict in self.units[0].verdicts:
            if not verdict.done and (verdict.error is None or not self._survives(verdict.error)):
                return verdict.error  # None if this assistant may still answer; if it is certain, no later error counts
        return None

    def _settle(self, commands: list[Command]) -> None:
        """Line 14: make the text final up to the first unit that still waits for a verdict."""
        if not (self.units and self.units[0].state is State.JUDGED):
            return
        end, counts = 0, self._counts
        while self.units and self.units[0].state is State.JUDGED:
            unit = self.units.popleft()
            end = self.units[0].first if self.units else len(self.response.tokens)
            for token in self.response.tokens[unit.first : end]:
                token.unit, token.round = self._settled_units, counts.iterations
            self._settled_units += 1
            counts.replaced += unit.replaced
            counts.replacements += unit.replaced
            counts.iterations += unit.drafted_on
            for verdict in unit.verdicts:
                counts.unanswered += verdict.unanswered
            counts.ties += not unit.replaced and any(decision.tied for decision in unit.decisions)
        if not (self.response.over and not self.units):  # otherwise `_finish` emits all tokens together with the end
            tokens = self.response.settle(end)
            if tokens:
                commands.append(Emit(tokens))

    # ------------------------------------------------------------------------------------------------ after an event

    def _follow(self, commands: list[Command]) -> None:
        """Judge the units for which the watches have already written an answer."""
        while (answer := self.schedule.watches.answer(self.units, self.response)) is not None:
            commands.append(Heard(answer.watch, answer.assistant))
            self._hear(answer.unit, answer.assistant, answer.proposal, answer.watch, commands)

    def _proceed(self, commands: list[Command]) -> list[Command]:
        """Settle units, and end the answer if it is complete; otherwise let the schedule choose the next requests."""
        if self.phase is not Phase.RUNNING:
            return []
        self._follow(commands)
        self._settle(commands)
        while self._failed and self._lose(commands):
            self._settle(commands)
        if self.response.over and not self.units:
            commands.extend(self.schedule.hedges.tidy())
            commands.extend(self.schedule.questions.leave())
            commands.extend(self.schedule.watches.leave())
            self._finish(commands)
            return commands
        if self._failed and (error := self._error()) is not None:
            self.phase = Phase.FAILED
            commands.append(Fail(error))
            return commands
        hedge = self.schedule.next(self.units, self.response, commands, late=self.late)
        return commands if hedge is None else self._take_over(hedge, commands)

    def _take_over(self, hedge: Hedge, commands: list[Command]) -> list[Command]:
        """Make a hedge the new draft: append the tokens that it has written so far."""
        for token in hedge.tokens:
            if self.response.over is None:
                commands.extend(self._append(token, hedge.started.draft))
        if hedge.end is not None:
            self._close(hedge.end)
        return self._proceed(commands)

    def _finish(self, commands: list[Command]) -> None:
        finish = self.response.over
        assert finish is not None
        self.phase = Phase.FINISHED
        tokens = self.response.finish()
        self._counts.kept = sum(one.source == DRAFT for one in self.response.tokens)
        if tokens:
            commands.append(Emit(tokens))
        commands.append(finish)
