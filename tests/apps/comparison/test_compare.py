"""`compare` over scripted models: every number by hand, resuming, limits, failures and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cosd_api import CoSD, Example, Fusion, FusionResult, GradingError, RuleVerifier, SettingError, compare
from cosd_api.apps.comparison import Comparison, ComparisonEstimate, Price
from cosd_api.apps.comparison.contestants import Contestant, LeftOut
from cosd_api.apps.comparison.statistics import PairedCounts, wilson
from cosd_providers import ConnectError
from cosd_providers.testing import Fault, ScriptedProvider
from toys.compared import examples, pair

TEST = ("both", "draft", "fixed", "fixed", "spoilt", "sure", "neither", "fixed")
HELD = ("both", "fixed")
ASKED = examples(TEST, HELD)
REPEATED = "with others: if they ask for the same thing, give them one group, or the intervals are too narrow"
SMALL = examples(("fixed",), ("both",))


def outcomes(found: Comparison) -> dict[tuple[str, str], tuple[str, bool | None]]:
    return {(one.contestant, one.question): (one.text, one.right) for one in found.answers}


def sent(*providers: ScriptedProvider) -> int:
    return sum(provider.requests for provider in providers)


async def cosd_alone(
    asked: dict[str, Example], **options: Any
) -> tuple[Comparison, ScriptedProvider, ScriptedProvider]:
    draft, assistant = pair(asked, **options.pop("models", {}))
    options = {"methods": ["cosd"], "both_ways": False, "max_tokens": 4, **options}
    return await compare(asked.values(), draft=draft, assistant=assistant, **options), draft, assistant


async def test_every_number_by_hand() -> None:
    found, draft, assistant = await cosd_alone(ASKED, models={"sampling": False})
    assert (found.questions, len(found.development), found.better, found.grader) == (8, 2, "assistant", "exact")
    assert {one.name: (one.right, one.answered, one.failed) for one in found.standings} == {
        "draft": (3, 8, 0),
        "assistant": (5, 8, 0),
        "oracle": (7, 8, 0),
        "cosd": (5, 8, 0),
        "random gate": (found["random gate"].right, 8, 0),
    }
    assert found["draft"].accuracy == wilson([(1, 1)] * 3 + [(0, 1)] * 5)
    apart = {one.name: one.differences for one in found.standings}
    assert {name: [*of] for name, of in apart.items()} == {
        name: [model for model in ("draft", "assistant") if model != name] for name in apart
    }
    assert apart["draft"]["assistant"].counts == PairedCounts(both=1, won=2, lost=4, neither=1)
    assert apart["assistant"]["draft"].counts == PairedCounts(both=1, won=4, lost=2, neither=1)
    assert apart["draft"]["assistant"].p == apart["assistant"]["draft"].p
    assert apart["cosd"]["assistant"].counts == PairedCounts(both=4, won=1, lost=1, neither=2)
    assert (apart["cosd"]["assistant"].value, apart["cosd"]["assistant"].p) == (0, 1)
    assert apart["oracle"]["assistant"].counts == PairedCounts(both=5, won=2, lost=0, neither=1)
    assert apart["oracle"]["assistant"].p is None and apart["oracle"]["assistant"].interval is None
    # In the development questions the models differ at one place, and CoSD replaces the draft's word there.
    assert found["random gate"].settings["verifier"]["rate"] == 1
    assert [(one.name, one.reason.split(",")[0]) for one in found.left_out] == [
        ("self-consistency", "the better model does not draw tokens")
    ]
    assert sum(len(one.replaced) for one in found.answers_of("cosd").values()) == 4
    # Of two tokens one was replaced in four answers; the end was kept.
    assert found["cosd"].acceptance == pytest.approx((4 * 1 + 4 * 0.5) / 8)
    assert draft.open_requests == assistant.open_requests == 0
    assert found.stopped is None


async def test_cost_is_what_the_models_were_asked(tmp_path: Path) -> None:
    prices = {"draft": (1.0, 2.0), "large": Price(3, 4)}
    found, draft, assistant = await cosd_alone(ASKED, prices=prices)
    answered = [one for one in found.standings if one.kind != "derived"]
    assert sum(8 * sum(one.requests.values()) for one in answered) + sum(
        sum(usage.requests for usage in one.usage.values())
        for one in found.answers
        if one.question in found.development
    ) == pytest.approx(sent(draft, assistant))
    alone = found["assistant"]
    assert (alone.requests, alone.tokens) == ({"draft": 0, "assistant": 1}, 2)
    assert (alone.read, alone.written) == ({"draft": 0, "assistant": 3}, {"draft": 0, "assistant": 2})  # "Q1:" by bytes
    assert alone.money == pytest.approx((3 * 3 + 2 * 4) / 1e6)
    assert alone.billed == 5
    assert found["oracle"].billed == 10 and found["oracle"].money == pytest.approx((17 + 3 + 4) / 1e6)
    assert found.spent_tokens == found.billed_tokens == sum(one.billed for one in found.answers)


async def test_the_models_change_places() -> None:
    draft, assistant = pair(ASKED)
    methods: dict[str, str | CoSD] = {"cosd": CoSD(verifier=RuleVerifier.paper()), "average": "average"}
    found = await compare(ASKED.values(), draft=draft, assistant=assistant, methods={**methods}, max_tokens=4)
    assert [one.name for one in found.standings] == [
        *("draft", "assistant", "oracle", "cosd", "cosd, reversed", "average"),
        *("self-consistency", "random gate", "random gate, reversed"),
    ]
    turned = found["cosd, reversed"]
    assert turned.reverse and turned.right == 5  # the larger model is never unsure
    assert (turned.requests["assistant"], turned.requests["draft"]) == (1, 0)
    assert found["random gate, reversed"].settings["verifier"]["rate"] == 0
    assert all(set(one.usage) == {"draft", "assistant"} for one in found.answers)


async def test_self_consistency_has_as_many_samples_as_cosd_bills() -> None:
    found, _, assistant = await cosd_alone(ASKED)
    samples = found["self-consistency"].settings["options"]["samples"]
    held = {name: found.answers_of(name, development=True) for name in ("cosd", "assistant")}
    bills = {name: sum(one.billed for one in several.values()) for name, several in held.items()}
    assert samples == round(bills["cosd"] / bills["assistant"]) > 1
    assert found["self-consistency"].requests == {"draft": 0, "assistant": samples}
    assert sum(call.temperature == 1 for call in assistant.calls) == 8 * samples


async def test_a_comparison_goes_through_json_unchanged() -> None:
    found, *_ = await cosd_alone(SMALL)
    again = Comparison.model_validate_json(found.model_dump_json())
    assert again.model_dump_json() == found.model_dump_json()
    assert again["cosd"].right == found["cosd"].right == 1
    assert str(again) == str(found)
    with pytest.raises(KeyError, match="no contestant is named 'cosy'; there are draft, assistant"):
        _ = found["cosy"]


# ---------------------------------------------------------------------------------------------------------- resuming


async def test_the_same_call_asks_nothing_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    first, *_ = await cosd_alone(ASKED, path=path)
    before = path.read_bytes()
    again, *providers = await cosd_alone(ASKED, path=path)
    assert sent(*providers) == 0
    assert outcomes(again) == outcomes(first)
    assert (again.billed_tokens, again.spent_tokens) == (first.billed_tokens, 0)
    assert path.read_bytes() == before


async def test_a_kill_at_any_byte(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    whole, *providers = await cosd_alone(SMALL, path=path)
    data = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(data) if byte == 10]
    requests = {one.key: sum(usage.requests for usage in one.usage.values()) for one in whole.answers}
    everything = sum(requests.values())
    assert everything == sent(*providers)
    # Two bytes inside of a line, and the ends of some: the journal's own test reads files that were cut at any byte.
    places = {ends[1] + 1, ends[1] + 200, *(end + by for end in ends[:3] for by in (-1, 0)), 0, 5, len(data) - 1}
    for size in sorted(places):
        path.write_bytes(data[:size])
        kept = [line for line in data[:size].split(b"\n")[1:] if line.endswith(b"}") and line + b"\n" in data]
        texts = [line for line in kept if b'"text"' in line]
        known = sum(requests[one.key] for one in whole.answers if any(one.key.encode() in line for line in texts))
        again, *providers = await cosd_alone(SMALL, path=path)
        assert sent(*providers) == everything - known, size
        assert outcomes(again) == outcomes(whole), size
        assert again.billed_tokens == whole.billed_tokens, size
        assert len(path.read_bytes().splitlines()) == len(data.splitlines()), size


async def test_an_edited_function_never_keeps_its_old_grades(tmp_path: Path) -> None:
    """Not where the next run asks nothing, either; and a file whose grades stay does not grow."""
    path = tmp_path / "answers.jsonl"
    options: dict[str, Any] = {"path": path, "models": {"sampling": False}}

    def graded(wanted: str) -> Callable[[Example, str], bool]:
        return lambda example, text: wanted in text

    whole, *_ = await cosd_alone(ASKED, **options, grader=graded("r"))
    data = path.read_bytes()
    again, *providers = await cosd_alone(ASKED, **options, grader=graded("r"))
    assert path.read_bytes() == data and sent(*providers) == 0 and again.standings == whole.standings
    for confirm in (lambda estimate: False, None):
        edited, *providers = await cosd_alone(ASKED, **options, grader=graded("w"), confirm=confirm)
        assert sent(*providers) == 0 and edited.grader == whole.grader
        assert {one.name: one.right for one in edited.standings if one.kind == "alone"} == {"draft": 5, "assistant": 3}
    assert (await cosd_alone(ASKED, **options, grader=graded("r")))[0].standings == whole.standings


async def test_only_the_texts_of_this_run_are_graded_again_and_few_before_it_is_confirmed(tmp_path: Path) -> None:
    calls: list[str] = []
    shown: list[int] = []

    def right(example: Example, text: str) -> bool:
        calls.append(example.key)
        return text == " r"

    def confirm(estimate: ComparisonEstimate) -> bool:
        held = {one.key for name, one in ASKED.items() if "held" in name}
        assert len(calls) == 2 * len(held) and {*calls} == held and not shown  # both models, to choose the better one
        return False

    def progress(done: int, total: int) -> None:
        shown.append(done)

    path = tmp_path / "answers.jsonl"
    options: dict[str, Any] = {"path": path, "models": {"sampling": False}}
    await cosd_alone(ASKED, **options, methods=["cosd", "average"])
    await cosd_alone(ASKED, **options, max_tokens=3)
    for sure in (confirm, None):
        calls.clear()
        shown.clear()
        found, *_ = await cosd_alone(ASKED, **options, grader=right, confirm=sure, progress=progress)
        assert len(calls) == len(found.answers) == shown[-1] == 40 and shown[-2] == shown[-1] - 1


async def test_known_answers_are_graded_where_a_limit_has_ended_the_run(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    some = {name: one for name, one in ASKED.items() if name != "1 draft"}
    first, *_ = await cosd_alone(some, path=path, baselines=False)
    again, *_ = await cosd_alone(ASKED, path=path, baselines=False, max_billed_tokens=1, concurrency=1)
    assert again.stopped is not None and again.spent_tokens == 0
    assert {*outcomes(first).items()} <= {*outcomes(again).items()}


async def test_other_settings_are_other_answers(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    await cosd_alone(SMALL, path=path)
    _, *providers = await cosd_alone(SMALL, path=path, max_tokens=3)
    assert sent(*providers) > 0
    with pytest.raises(SettingError, match="holds answers of small and large, not of other and other: give another f"):
        await cosd_alone(SMALL, path=path, models={"name": "other"})
    draft, assistant = pair(SMALL)
    with pytest.raises(SettingError, match="not of large and small: give the models in the same order, or give"):
        await compare(SMALL.values(), draft=assistant, assistant=draft, methods=["cosd"], path=path)


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_questions_with_one_prompt_share_a_text_and_have_their_own_grades(
    tmp_path: Path, concurrency: int
) -> None:
    twins = {name: one.model_copy(update={"answer": " w"}) for name, one in ASKED.items()}
    asked = {**ASKED, **{f"{name}, other": one for name, one in twins.items()}}
    draft, assistant = pair(ASKED)
    options: dict[str, Any] = {"methods": ["cosd"], "both_ways": False, "baselines": False, "max_tokens": 4}
    options |= {"draft": draft, "assistant": assistant, "concurrency": concurrency, "path": tmp_path / "answers.jsonl"}
    found = await compare(asked.values(), **options)
    assert [(one.answered, one.failed) for one in found.standings] == [(20, 0)] * 4
    for name in ("draft", "assistant"):
        answers = found.answers_of(name) | found.answers_of(name, development=True)
        for which, example in ASKED.items():
            first, second = answers[example.key], answers[twins[which].key]
            assert (first.text, first.right, second.right) == (second.text, first.text == " r", first.text == " w")
    assert found.billed_tokens == sum({one.key: one.billed for one in found.answers}.values())  # nobody is asked twice
    again = await compare(asked.values(), **options)
    assert again.spent_tokens == 0 and outcomes(again) == outcomes(found)


# ------------------------------------------------------------------------------------------------ limits and failures


@pytest.mark.parametrize("most", [1, 12, 40, 90])
async def test_a_limit_of_tokens_ends_a_comparison(most: int, tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    whole, *_ = await cosd_alone(ASKED)
    found, *_ = await cosd_alone(ASKED, path=path, max_billed_tokens=most, concurrency=1)
    assert found.stopped is not None and found.stopped.startswith(f"max_billed_tokens={most} is reached")
    assert found.billed_tokens <= most
    assert "Not complete: max_billed_tokens" in str(found)
    assert outcomes(found).items() <= outcomes(whole).items()
    again, *_ = await cosd_alone(ASKED, path=path)
    assert (again.stopped, outcomes(again)) == (None, outcomes(whole))


@pytest.mark.parametrize("most", [12, 60, 150])
@pytest.mark.parametrize("concurrency", [4, 10])
async def test_a_limit_holds_for_answers_at_the_same_time(most: int, concurrency: int) -> None:
    found, *_ = await cosd_alone(
        ASKED, max_billed_tokens=most, concurrency=concurrency, models={"request_delay": 0.001}
    )
    assert found.billed_tokens <= most
    words = f"max_billed_tokens={most} is reached ({found.billed_tokens:,} were billed)"
    assert found.stopped is not None and found.stopped.startswith(words)


class Waiting:
    """A grader that waits until everybody waits for it; then it keeps what the journal has, and goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun, self._free = anyio.Event(), anyio.Event()
        self.lines: list[bytes] = []
        self.asked: list[str] = []

    async def __call__(self, example: Example, text: str) -> bool:
        self.asked.append(example.key)
        self._begun.set()
        await self._free.wait()
        return text == " r"

    async def let_go(self) -> None:
        await self._begun.wait()
        await anyio.wait_all_tasks_blocked()
        self.lines = self._path.read_bytes().splitlines(keepends=True)
        self._free.set()


async def test_an_answer_that_is_being_graded_is_kept_with_its_bill(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    grader = Waiting(path)
    async with anyio.create_task_group() as group:
        group.start_soon(grader.let_go)
        whole, *asked = await cosd_alone(ASKED, concurrency=4, grader=grader, path=path)
        assert len(grader.lines) == 1 + 4  # what a kill at that moment would have left
        path.write_bytes(b"".join(grader.lines))
        again, *asked_again = await cosd_alone(ASKED, concurrency=4, grader=grader, path=path)
        assert again.billed_tokens == whole.billed_tokens and outcomes(again) == outcomes(whole)
        assert again.spent_tokens < whole.billed_tokens and sent(*asked_again) < sent(*asked)


async def test_a_question_that_fails_is_neither_right_nor_wrong(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    draft, assistant = pair(ASKED)
    assistant.faults = [Fault(ConnectError("it is down", endpoint="http://large"), request=at) for at in (12, 13, 14)]
    options: dict[str, Any] = {"methods": ["cosd"], "both_ways": False, "max_tokens": 4, "path": path}
    found = await compare(ASKED.values(), draft=draft, assistant=assistant, concurrency=1, **options)
    assert found.stopped is None
    assert sum(one.failed for one in found.standings if one.kind != "derived") == 2
    for one in found.standings:
        assert one.answered + one.failed == 8
    assert "1 failed, " in str(found) and "Failed:\n  " in str(found)
    assert {one.error for one in found.failures} == {"http://large: it is down"} and len(found.failures) == 2
    again, *providers = await cosd_alone(ASKED, path=path)
    whole, *_ = await cosd_alone(ASKED)
    assert 0 < sent(*providers) <= 4
    assert outcomes(again) == outcomes(whole)
    assert all(one.failed == 0 for one in again.standings)


async def test_a_server_that_stays_down_ends_a_comparison() -> None:
    draft, assistant = pair(ASKED)
    assistant.faults = [Fault(ConnectError("it is down"), request=at) for at in range(1, 100)]
    found = await compare(ASKED.values(), draft=draft, assistant=assistant, methods=["cosd"], max_tokens=4)
    assert found.stopped == "8 answers in a row have failed, the last one with: large: it is down"


async def test_one_question_that_nobody_can_take_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    models, generate = pair(ASKED), Fusion.generate

    @functools.wraps(generate)  # its signature is read
    async def refusing(fusion: Fusion, prompt: Any, **limits: Any) -> FusionResult:
        if prompt == ASKED["1 draft"].prompt:
            raise ConnectError("its template refuses this")
        return await generate(fusion, prompt, **limits)

    monkeypatch.setattr(Fusion, "generate", refusing)
    methods = ["cosd", "cosd-1-1", "cosd-agreement", "cosd-match", "average"]
    found = await compare(
        ASKED.values(), draft=models[0], assistant=models[1], methods=methods, max_tokens=4, concurrency=1
    )
    assert found.stopped is None
    assert len(found.failures) > 8 and {one.question for one in found.failures} == {ASKED["1 draft"].key}
    assert all(one.answered == 7 for one in found.standings)


def refuse(monkeypatch: pytest.MonkeyPatch, refused: Callable[[Fusion, str], bool]) -> None:
    """Make a server fail at some questions of some fusions."""
    generate = Fusion.generate

    @functools.wraps(generate)  # its signature is read
    async def refusing(fusion: Fusion, prompt: Any, **limits: Any) -> FusionResult:
        if refused(fusion, prompt):
            raise ConnectError("it is down")
        return await generate(fusion, prompt, **limits)

    monkeypatch.setattr(Fusion, "generate", refusing)


async def asked_in_order(monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[tuple[str, str]]:
    """The questions with who answered them, in the order in which they were asked."""
    order: list[tuple[str, str]] = []

    def note(fusion: Fusion, prompt: str) -> bool:
        method = fusion.settings.method.name
        order.append((prompt, f"{method} {fusion.endpoints.draft.name}" if method == "alone" else method))
        return False

    refuse(monkeypatch, note)
    await cosd_alone(ASKED, concurrency=1, **options)
    monkeypatch.undo()
    return order


async def test_the_models_alone_are_not_always_the_first_to_read_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    order = await asked_in_order(monkeypatch)
    first = dict(reversed(order))
    assert [*dict.fromkeys(prompt for prompt, _ in order)] == [
        *(one.prompt for name, one in ASKED.items() if "held" in name),
        *(one.prompt for name, one in ASKED.items() if "held" not in name),
    ]
    assert {"cosd", "self-consistency"} <= {*first.values()} and len({*first.values()}) >= 3
    assert await asked_in_order(monkeypatch) == order
    assert await asked_in_order(monkeypatch, seed=1) != order


async def test_what_failed_comes_last_in_the_next_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, bad = tmp_path / "answers.jsonl", {ASKED["1 draft"].prompt, ASKED["2 fixed"].prompt, ASKED["3 fixed"].prompt}
    refuse(monkeypatch, lambda fusion, prompt: prompt in bad)
    found, *_ = await cosd_alone(ASKED, path=path, concurrency=1)
    assert found.stopped is not None and found.stopped.startswith("8 answers in a row have failed")
    again, *_ = await cosd_alone(ASKED, path=path, concurrency=1)
    whole = {one.question for one in again.answers if one.contestant == "cosd"}
    assert whole >= {one.key for one in ASKED.values() if one.prompt not in bad}  # it got beyond them
    monkeypatch.undo()
    order = await asked_in_order(monkeypatch, path=path)
    assert {prompt for prompt, _ in order} == bad


async def test_a_failure_at_a_question_that_sets_baselines_is_in_no_standing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = examples(TEST, ("both", "both"))
    draft, assistant = pair(asked)
    refuse(
        monkeypatch,
        lambda fusion, prompt: prompt == asked["held 0 both"].prompt and fusion.settings.method.name == "alone",
    )
    whole, *_ = await cosd_alone(asked)
    monkeypatch.undo()
    refuse(
        monkeypatch,
        lambda fusion, prompt: (
            prompt == asked["held 0 both"].prompt
            and fusion.settings.method.name == "alone"
            and fusion.endpoints.draft is draft
        ),
    )
    found = await compare(
        asked.values(), draft=draft, assistant=assistant, methods=["cosd"], both_ways=False, max_tokens=4
    )
    assert found.better == whole.better == "assistant"
    (failure,) = found.failures
    assert (failure.contestant, failure.development, failure.question) == ("draft", True, asked["held 0 both"].key)
    assert all(one.failed == 0 for one in found.standings)
    assert "  draft, 1 question that set baselines: it is down" in str(found)


async def test_a_control_whose_pilot_failed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, lambda fusion, prompt: fusion.settings.ask == "all")
    found, *_ = await cosd_alone(ASKED)
    assert LeftOut("random gate", "it is made after cosd asked everywhere, which has not answered") in found.left_out
    assert "random gate" not in [one.name for one in found.standings] and found["self-consistency"].answered == 8
    assert {one.contestant for one in found.failures} == {"cosd asked everywhere"}


def test_verifiers_of_ones_own_are_known_by_their_parameters() -> None:
    class Mine(RuleVerifier):
        """A rule that may differ."""

    class Plain:
        """A verifier that says nothing of itself."""

        def contestable(self, p: float) -> bool:
            return p < 0.5

        def replaces(self, p: float, q: float) -> bool:
            return q > p

        def explain(self, p: float, q: float) -> str:
            return f"{q} > {p}"

    def key(verifier: Any) -> str:
        return Contestant("mine", "method", CoSD(verifier=verifier)).key()

    assert key(Mine(alpha=0.1)) == key(Mine(alpha=0.1)) != key(Mine(alpha=0.9))
    assert key(RuleVerifier(alpha=0.1)) != key(Mine(alpha=0.1))
    mine = Plain()
    assert key(mine) == key(mine) != key(Plain())


def test_an_answer_is_known_by_the_numbers_of_its_rule_and_not_by_the_name_of_its_contestant() -> None:
    paper, default = CoSD(verifier=RuleVerifier.paper()), CoSD()
    assert Contestant("cosd", "method", paper).settings["verifier"] == {"kind": "rule", "alpha": 0.5, "beta": 0.5}
    assert Contestant("cosd", "method", paper).key() == Contestant("cosd-paper", "method", paper).key()
    assert Contestant("cosd", "method", paper).key() != Contestant("cosd", "method", default).key()
    assert Contestant("cosd-0.9-1", "method", default).key() == Contestant("cosd", "method", default).key()


async def test_a_grader_that_fails_costs_no_second_answer(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    calls: list[str] = []

    def graded(example: Example, text: str) -> Any:
        calls.append(text)
        return "?" if len(calls) == 9 else text == " r"

    found, *_ = await cosd_alone(ASKED, path=path, grader=graded, concurrency=1)
    assert [one.failed for one in found.standings if one.failed and one.kind != "derived"] == [1]
    again, *providers = await cosd_alone(ASKED, path=path, grader=graded)
    assert all(one.answered == 8 for one in again.standings)
    assert sent(*providers) == 0


async def test_a_grader_that_cannot_tell_says_why() -> None:
    def graded(example: Example, text: str) -> bool:
        raise GradingError("no idea")

    found, *_ = await cosd_alone(SMALL, grader=graded, baselines=False)
    assert {one.error for one in found.failures} == {"it was not graded: no idea"} and len(found.failures) == 6


async def test_answers_that_are_cut_prompts_that_repeat_and_groups_are_named() -> None:
    asked = [Example(prompt="Q1:", answer=answer) for answer in (" r", " w")]
    asked += [Example(prompt=f"Q{at}:", answer=" r", group="all") for at in (2, 3)]
    draft, assistant = pair(ASKED)
    given: dict[str, Any] = {"methods": ["cosd"], "baselines": False, "max_tokens": 1}
    found = await compare(asked, draft=draft, assistant=assistant, **given)
    assert found.warnings == (
        "4 answers of 4 of the draft alone ended at max_tokens",
        "4 answers of 4 of the assistant alone ended at max_tokens",
        f"2 questions share their prompts {REPEATED}",
    )
    assert "4 test questions in 3 groups; answers of at most 1 token, seed 0" in str(found)
    assert "The questions of a group count as one." in str(found)


async def test_an_error_in_a_users_function_ends_the_run() -> None:
    def graded(example: Example, text: str) -> bool:
        raise KeyError("oops")

    with pytest.raises(KeyError, match="oops") as caught:
        await cosd_alone(SMALL, grader=graded)
    assert "read the answer of 'draft'" in caught.value.__notes__[0]


async def test_methods_that_cannot_be_served_are_left_out() -> None:
    draft, assistant = pair(ASKED, probs=False)
    found = await compare(ASKED.values(), draft=draft, assistant=assistant, max_tokens=4)
    reasons = {one.name: one.reason for one in found.left_out}
    assert reasons["cosd"].startswith("the draft does not report the probabilities of its tokens")
    assert reasons["random gate"] == "it is made after cosd, which has not answered"
    assert reasons["defer"].startswith("the method 'defer' needs a gate, Defer(gate=...)")
    assert found["draft"].right == 4
    assert "steps" in [one.name for one in found.standings]


# ------------------------------------------------------------------------------------------- estimate and progress


async def test_the_estimate_comes_first_and_may_be_refused() -> None:
    seen: list[ComparisonEstimate] = []

    def refuse(estimate: ComparisonEstimate) -> bool:
        seen.append(estimate)
        return False

    found, *providers = await cosd_alone(ASKED, confirm=refuse, prices={"draft": (1, 1), "assistant": (1, 1)})
    (estimate,) = seen
    assert sent(*providers) == 0
    assert found.stopped == "it was not confirmed"
    # 3 x 10, 2 x 8, and 2 of CoSD asked everywhere
    assert (estimate.questions, estimate.known, estimate.answers) == (10, 0, 48)
    assert estimate.billed_tokens.low <= estimate.billed_tokens.expected <= estimate.billed_tokens.high
    assert estimate.money == pytest.approx(estimate.billed_tokens.expected / 1e6, rel=0.01)
    assert str(estimate).startswith("48 answers to 10 questions: about ")


async def test_a_dry_run_asks_and_keeps_nothing(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    seen: list[ComparisonEstimate] = []

    def confirm(estimate: ComparisonEstimate) -> bool:
        seen.append(estimate)
        return True

    found, *providers = await cosd_alone(ASKED, path=path, dry_run=True, confirm=confirm)
    assert (path.exists(), seen[0].answers, sent(*providers)) == (False, 48, 0)
    assert found.stopped == "no question was asked, in a dry run"


async def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    await cosd_alone(SMALL, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, 7)  # two questions for each model and cosd, and one of them for cosd asked everywhere
    assert seen[-1] == (9, 9)  # the other one for self-consistency and the random gate


# ---------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": "cosd"}, "methods must be \"all\", or several names or objects, not 'cosd'"),
        ({"methods": []}, 'methods is empty: give some, or "all"'),
        ({"methods": ["cosy"]}, "there is no method 'cosy'; did you mean 'cosd'?"),
        ({"methods": ["defer"]}, "'defer' has no defaults: the method 'defer' needs a gate"),
        ({"methods": [1]}, 'a method must be a name such as "cosd", or an object such as CoSD(), not 1'),
        ({"methods": ["cosd", CoSD()]}, "two contestants would be called 'cosd': give the methods names"),
        ({"methods": {"oracle": "cosd"}}, "two contestants would be called 'oracle'"),
        ({"grader": "exactly"}, "no grader is named 'exactly'; did you mean 'exact'?"),
        ({"concurrency": 0}, "concurrency must be a whole number of at least 1"),
        ({"max_billed_tokens": 0}, "max_billed_tokens must be a whole number of at least 1"),
        ({"prices": {"draft": (1, 2)}}, "the price of the assistant (large) is missing: the names are draft and assis"),
        ({"prices": {"dratf": (1, 2)}}, "there is no endpoint 'dratf' that could have a price"),
        ({"prices": {"draft": (1, -2), "large": (1, 2)}}, "a price must be a number of at least 0, not -2"),
        ({"prices": {"draft": 1, "large": (1, 2)}}, "a price is two numbers, of tokens read and written, not 1"),
    ],
)
async def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        await cosd_alone(SMALL, **options)
    assert words in str(caught.value)


async def test_one_question_is_not_enough() -> None:
    draft, assistant = pair(SMALL)
    with pytest.raises(SettingError, match="a comparison with baselines needs at least two questions"):
        await compare([Example(prompt="Q", answer=" r")], draft=draft, assistant=assistant)
    several = [Example(prompt="Q", answer=" 1"), Example(prompt="R", answer=" r")]
    with pytest.raises(SettingError, match="example 2: the grader last-number needs a reference with a number"):
        await compare(several, draft=draft, assistant=assistant, grader="last-number")
