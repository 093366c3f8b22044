"""Models that take text only: the naive reference, null control, units, restarts, faults, and answers by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from cosd_api import FusionResult, MatchVerifier, fuse
from cosd_api.paths.cuts import look
from cosd_api.paths.encoding import DraftPath
from cosd_api.paths.text_only import next_text_unit, restart_text, resumed, spelled
from cosd_providers import ServerError
from cosd_providers.contract import Token, WordEnds
from cosd_providers.testing import Fault
from cosd_providers.text import sendable
from cosd_providers.tokenizers import load_tokenizer, word_ends
from naive import reference_paths as naive
from naive.reference_text import TextReference
from support import virtual_time
from support.drawn import costly, examples
from test_own_paths import DELAYS, NAMES, WAYS, Encodes, Task, check_record, fused, prompts, tasks
from toys import ngrams
from toys.lima import scripted
from toys.ngrams import learned

DRAFT = naive.DRAFT


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return virtual_time.BACKEND


PATTERNS = {"gpt2": ngrams.GPT2, "digits": ngrams.DIGITS, "llama3": ngrams.LLAMA3, "o200k": ngrams.O200K}
"""The patterns by which the tokenizers that have words split a text."""


def words_of(name: str) -> Callable[[str], Sequence[str]]:
    """The words of a tokenizer, by its pattern alone."""
    splitter = pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")
    return lambda text: [one for one, _ in splitter.pre_tokenize_str(text)]


def name_of(model: ngrams.NGram) -> str:
    """The name of a model's tokenizer."""
    return model.name.partition(",")[0]


def servers(
    task: Task,
    text: Sequence[int],
    places: int = 64,
    delays: Sequence[float] = (0, 0, 0, 0),
    known: Sequence[int] = (),
    **draft: Any,
) -> dict[str, Any]:
    """The models of a task; those in `text`, by index, take text only, and the tokenizers of those in `known` are."""
    request, token, question, encoding = delays
    options: dict[str, Any] = {"ids": DRAFT not in text, "request_delay": request, "token_delay": token, **draft}
    assistants = [
        Encodes(one, name=f"assistant {at}", ids=at not in text, places=places, request_delay=question * (1 + at))
        for at, one in enumerate(task.assistants)
    ]
    for at in known:
        assistants[at].words = word_ends(load_tokenizer(task.assistants[at].pieces.tokenizer))
    writer = Encodes(task.draft, name="draft", **options)
    for one in (writer, *assistants):
        one.encode_delay = encoding
    return {"draft": writer, "assistant": assistants}


def expected(task: Task, text: Sequence[int], known: Sequence[int] = ()) -> naive.Fused:
    """The answer of the naive reference."""
    return TextReference(
        task.prompt.encode(),
        task.draft,
        task.assistants,
        lambda _, p, q: task.verifier.replaces(p, q),
        text=text,
        words={at: words_of(name_of(task.assistants[at])) for at in known if name_of(task.assistants[at]) in PATTERNS},
        contestable=lambda _, p: task.verifier.contestable(p),
        max_tokens=task.max_tokens,
        stop=[one.encode() for one in task.stop],
        tie=task.tie,
    ).fuse()


@st.composite
def some_by_text(draw: st.DrawFn) -> tuple[Task, Sequence[int], Sequence[int]]:
    """A task, those of its models that take text only, and the assistants whose tokenizers are known."""
    task = draw(tasks())
    models = [DRAFT, *range(len(task.assistants))]
    text = draw(st.lists(st.sampled_from(models), min_size=1, unique=True))
    return task, text, [at for at in text if at != DRAFT and draw(st.booleans())]


def check_requests(models: dict[str, Any], text: Sequence[int]) -> None:
    """Those that take text only were sent no ids, and everything is closed."""
    for at, server in enumerate((models["draft"], *models["assistant"]), DRAFT):
        assert server.open_requests == 0
        for call in server.calls:
            assert (call.ids is None and call.contexts is None) or at not in text


@costly(60)
@given(some_by_text(), st.sampled_from(WAYS), st.sampled_from((1, 64)), DELAYS)
async def test_equal_to_the_reference(
    given: tuple[Task, Sequence[int], Sequence[int]], way: dict[str, Any], places: int, delays: Any
) -> None:
    task, text, known = given
    models = servers(task, text, places, delays, known)
    result = await fused(task, models, **way)
    check_requests(models, text)
    check_record(result, task.max_tokens)
    assert result.trace.replay() == result.text
    assert result.off_path is not None
    wanted = expected(task, text, known)
    if DRAFT in text and "ask" not in way and way and result.off_path > wanted.off_path:
        return  # a pause came where no safe cut is near
    assert result.text == sendable(wanted.text)
    assert result.finish_reason == wanted.finish_reason
    assert wanted.stop is None or result.stop_reason == wanted.stop.decode()


@examples(3)
@given(st.sampled_from(NAMES), prompts(), st.sampled_from(WAYS), st.booleans(), DELAYS)
async def test_a_model_fused_with_itself_as_text_replaces_nothing_where_its_words_are_plain(
    name: str, prompt: str, way: dict[str, Any], always: bool, delays: Any
) -> None:
    """Up to the first text that is not encoded as the model wrote it, or that holds no safe cut for a while."""
    model = learned(name, 0)
    task = Task(prompt, model, (model,), alpha=1.01, beta=0.0)
    verifier = MatchVerifier() if always else task.verifier
    result = await fused(task, servers(task, [DRAFT, 0], 64, delays), verifier=verifier, **way)
    ids = model.encode(prompt.encode())
    start, alone, shown = len(ids), list[int](), 0
    while shown < 40 and model.end not in alone:  # a draft by text shows whole characters
        alone.append(ngrams.best(model, [*ids, *alone]))
        shown += naive.is_whole(b"".join(model.tokens[one] for one in alone))
    whole = prompt.encode() + b"".join(model.tokens[one] for one in alone)
    plain = len(whole.decode("utf-8", "ignore").encode()) == len(whole)
    if plain and model.encode(whole) == [*ids, *[one for one in alone if one != model.end]]:
        cuts = naive.bounds(model, model.encode(whole))[start:]
        assert cuts[-1] == len(whole)
        assert result.replacements == 0
        assert prompt + result.text == whole.decode()


# ------------------------------------------------------------------------------------------------------------- units


def path(*tokens: str | bytes, end: bool = False, over: bool = False) -> DraftPath:
    """A draft's path of tokens, each as probable as it is long."""
    found = DraftPath()
    for one in tokens:
        found.add(Token(one.encode() if isinstance(one, str) else one, 0.5))
    if end:
        found.add(Token(b"", 0.5, end=True))
    found.over = over
    return found


def units(draft: DraftPath, words: WordEnds | None = None, *, own: int | None = None) -> list[tuple[bytes, bool]]:
    """The texts of all units that are known, each with whether it is judged."""
    found, first = list[tuple[bytes, bool]](), 0
    while first < len(draft.tokens) and (unit := next_text_unit(draft, first, words, own=first == own)) is not None:
        found.append((bytes(draft.text[unit.start : unit.end]), unit.judged))
        first = unit.last
    return found


def test_units_lie_between_safe_cuts() -> None:
    text = ("The", " end", ".\n\n", "It", " is", " ", "12", ".", " \n", " so")
    judged = [b"The", b" end.\n\nIt", b" is"]
    assert units(path(*text)) == [(one, True) for one in judged]
    assert units(path(*text, end=True)) == [(one, True) for one in (*judged, b" 12. \n so", b"")]


def test_a_unit_waits_for_what_follows_it() -> None:
    assert units(path("The")) == []
    assert units(path("The", " ")) == []
    assert units(path("The", " ", "1")) == [(b"The", True)]
    assert units(path("The", " ", "\n")) == []
    assert units(path("The", end=True)) == [(b"The", True), (b"", True)]
    assert units(path(end=True)) == [(b"", True)]


def test_what_holds_no_safe_cut_stands_unjudged() -> None:
    words = ["天気"] * 40
    found = units(path(*words, " and", " so", " on"))
    assert [judged for _, judged in found[:-2]] == [False] * (len(found) - 2)
    assert found[-2:] == [(b" and", True), (b" so", True)]
    assert units(path(*words[:32], end=True))[0] == ("天気".encode() * 32, True)
    assert not any(judged for _, judged in units(path(*words[:33], end=True))[:-1])


def known(name: str) -> WordEnds:
    """The words of a tokenizer, as its provider knows them."""
    found = word_ends(load_tokenizer(ngrams.pieces(name).tokenizer))
    assert found is not None
    return found


def test_white_space_of_all_scripts_is_no_safe_cut() -> None:
    for space in ("\u00a0", "\u0085", "\u1680", "\u2003", "\u2028", "\u202f", "\u205f", "\u3000"):
        assert units(path("It", space, " is", " so", end=True))[0] == (f"It{space} is".encode(), True)
        assert units(path("It", " ", space, " is", " so", end=True))[0] == (f"It {space} is".encode(), True)
    for visible in ("é", "ß", "—", "“", "\u2070", "አ", "。", "天", "🙂"):
        assert units(path("It", f" {visible}", " so", end=True))[0] == (b"It", True)
    assert units(path("It", b" \xe2", b"\x80")) == []  # it may become either
    assert units(path("It", b" \xe2", b"\x80", b"\x94"))[0] == (b"It", True)


def test_where_the_tokenizer_is_known_its_words_are_places() -> None:
    text = ("The", " end", ".\n\n", "It", " is", " so", ".")
    assert units(path(*text, end=True)) == [
        (b"The", True),
        (b" end.\n\nIt", True),
        (b" is", True),
        (b" so.", True),
        (b"", True),
    ]
    apart = [(b"The", True), (b" end.\n\n", True), (b"It", True), (b" is", True), (b" so.", True), (b"", True)]
    assert units(path(*text, end=True), known("llama3")) == apart  # whose ".\n\n" is one token
    # GPT-2's make two tokens of the new lines before a word, and one of those that a text ends in.
    assert units(path(*text, end=True), known("gpt2"))[1] == (b" end.\n\nIt", True)
    split = path("The", " end", ".", "\n", "\n", "It", " is", " so", ".", end=True)
    assert units(split, known("gpt2"))[1:4] == [(b" end.", True), (b"\n", True), (b"\nIt", True)]
    assert units(path("The", " end", ".", "\n", "\n", "It"), known("gpt2")) == [
        (b"The", True)
    ]  # who knows what follows?


def test_scripts_without_spaces_are_judged_between_the_words_of_a_known_tokenizer() -> None:
    text = path(*["天気", "です", "。"] * 20, end=True)
    assert units(text)[0] == ("天気です。".encode() * 13, False)
    assert units(text, known("gpt2")) == [("天気です。".encode(), True)] * 20 + [(b"", True)]


@examples(30)
@given(st.sampled_from(sorted(PATTERNS)), st.sampled_from(ngrams.passages()), st.data())
def test_a_text_cut_at_a_place_of_a_known_tokenizer_is_encoded_as_it_is_in_the_whole(
    name: str, passage: str, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, max(0, len(passage) - 200)))
    model = ngrams.pieces(name)
    text = passage[start : start + 200].encode()
    other = ngrams.pieces(data.draw(st.sampled_from(sorted(PATTERNS))))
    draft = path(*[other.tokens[one] for one in other.encode(text)], end=True)
    first = 0
    while first < len(draft.tokens) - 1:
        unit = next_text_unit(draft, first, known(name))
        assert unit is not None
        if unit.judged:
            seen = look(text, unit.start, ended=True)
            assert seen is not None
            before = model.encode(text[: unit.start])
            assert model.encode(text[:seen])[: len(before)] == before
        first = unit.last


def test_behind_its_own_word_an_assistant_is_asked_after_a_cut_text() -> None:
    draft = path("It", " is", " Lima", ".", " So", " what")
    assert units(draft)[2] == (b" Lima.", True)
    assert units(draft, own=3)[2] == (b" Lima.", True)
    unit = next_text_unit(draft, 3, own=True)
    assert unit is not None
    assert (unit.cut, unit.judged, unit.start, unit.end) == (True, True, 10, 11)
    assert not next_text_unit(draft, 3).judged  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([" War", " and"], 2),
        ([" W", "ar", ","], 3),  # it goes on otherwise: the next unit is about that
        ([" War", "riors"], 1),  # it goes on with the word
        ([" Warriors"], 0),
        ([" War and peace"], 1),  # a token that covers more words agrees as far as it goes
        ([" War\n"], 0),  # or not
        ([" War", ""], 2),
        ([" W", ""], 1),
        ([" Peace"], 0),
        ([" War"], 1),  # nothing more is known
    ],
)
def test_a_unit_is_compared_by_bytes(own: Sequence[str], expected: int) -> None:
    draft = path("It", " is", " W", "ar", " and", " peace", " here")
    unit = next_text_unit(draft, 2)
    assert unit is not None
    tokens = [Token(one.encode(), 0.5, end=not one) for one in own]
    assert spelled(draft, unit, tokens) == expected


def test_a_token_that_passes_the_text_waits_for_the_draft() -> None:
    own = [Token(b" War and peace", 0.5)]
    for draft, known in (
        (path(" War", " a"), None),
        (path(" War", " a", over=True), 1),
        (path(" War", " a", end=True), 0),
        (path(" War", " as"), 0),
    ):
        unit = next_text_unit(draft, 0)
        assert unit is not None
        assert unit.end == 4
        assert spelled(draft, unit, own) == known


def test_the_end_is_compared_by_itself() -> None:
    draft = path("It", " is", end=True)
    unit = next_text_unit(draft, 2)
    assert unit is not None
    assert spelled(draft, unit, [Token(b"", 0.5, end=True)]) == 1
    assert spelled(draft, unit, [Token(b".", 0.5)]) == 0


def test_a_word_is_put_into_a_draft_by_its_bytes() -> None:
    draft = path("It", " Li", "on", end=True)
    for behind, cut in ((" so", False), (".", True), (" ", True)):
        way = restart_text(draft, 5, [Token(b"ma", 0.5), Token(behind.encode(), 0.5)])
        assert way is not None
        assert (way.keep, way.text, way.ends, way.ids, way.cut) == (2, b"It Lima", (7,), (None,), cut)
    way = restart_text(draft, 4, [Token(b"im", 0.5), Token(b"a", 0.5), Token(b" so", 0.5)])
    assert way is not None
    assert (way.keep, way.text, way.ends) == (1, b"It Lima", (6, 7))
    at_end = restart_text(draft, 7, [Token(b" of", 0.5), Token(b" it", 0.5)])
    assert at_end is not None
    assert (at_end.keep, at_end.text, at_end.cut) == (3, b"It Lion of", False)
    assert restart_text(draft, 7, [Token("é".encode()[:1], 0.5)]) is None


def test_a_draft_goes_on_from_the_last_safe_cut() -> None:
    assert resumed(path("It", " is", " so", ".\n"), 0) == 5
    assert resumed(path("It", " is", " so", ".\n"), 3) == 8
    assert resumed(path("It"), 0) == 0
    assert resumed(path("It", " is", *["天気"] * 40), 0) is None


# --------------------------------------------------------------------------------------------------- faults, by hand


def example() -> Task:
    """An answer with several replacements."""
    models = (learned("gpt2", 1), learned("spaces", 1))
    return Task("The draft ", learned("llama3", 0), models, alpha=0.9, beta=0.2)


def down() -> ServerError:
    """An error that trying again does not mend."""
    return ServerError("down", status=500)


@pytest.mark.parametrize("request_", [1, 3])
@pytest.mark.parametrize("server", [0, 1, 2])
async def test_a_model_that_fails_ends_the_answer(server: int, request_: int) -> None:
    models = servers(example(), [DRAFT, 0, 1])
    one = [models["draft"], *models["assistant"]][server]
    one.faults = [Fault(down(), request=at) for at in range(request_, 200)]
    with pytest.raises(ServerError, match="down"):
        await fused(example(), models, on_assistant_error="raise")
    check_requests(models, [DRAFT, 0, 1])


async def test_an_answer_continues_without_an_assistant_that_failed() -> None:
    task, texts = example(), set[str]()
    for delay in (0.0, 0.3):
        models = servers(task, [DRAFT, 0, 1], token_delay=delay)
        models["assistant"][0].faults = [Fault(down(), request=at) for at in range(2, 200)]
        result = await fused(task, models, on_assistant_error="draft")
        check_record(result, task.max_tokens)
        assert any("down" in one for one in result.warnings)
        texts.add(result.text)
    assert len(texts) == 1


@pytest.mark.parametrize("seconds", [0.05, 0.5, 1.5, 4.0])
async def test_cancellation_leaves_no_request_open(seconds: float) -> None:
    models = servers(example(), [DRAFT, 0, 1], 64, (0.1, 0.1, 0.35, 0.1))
    with anyio.move_on_after(seconds) as scope:
        await fused(example(), models)
    assert scope.cancelled_caught
    check_requests(models, [DRAFT, 0, 1])


async def test_a_budget_ends_the_answer() -> None:
    task = example()
    whole = await fused(task, servers(task, [DRAFT, 0, 1]))
    for most in range(1, 6):
        models = servers(task, [DRAFT, 0, 1])
        result = await fused(task, models, max_requests=most, on_budget="end")
        assert result.finish_reason == "budget"
        assert whole.text.startswith(result.text)
        assert sum(one.requests for one in (models["draft"], *models["assistant"])) <= most


async def told(draft: dict[str, Any], assistant: dict[str, Any], **settings: Any) -> FusionResult:
    """A fusion of two scripts, the same however much is drafted at a time."""
    ways: tuple[dict[str, Any], ...] = ({}, {"ask": "all"}, {"draft_length": 1})
    models: dict[str, Any] = {"draft": scripted(draft, "Q:"), "assistant": scripted(assistant, "Q:")}
    found = [await fuse("Q:", **models, **{**way, **settings}) for way in ways]
    assert len({one.text for one in found}) == 1
    return found[0]


async def test_a_paragraph_that_is_one_token_with_its_stop() -> None:
    """The assistant would end the paragraph: its token covers the draft's, and more."""
    draft = {"Q:": [" One", (".", 0.3), " Two", "."], "Q: One.\n\n": ["Three"]}
    result = await told(draft, {"Q:": [" One", (".\n\n", 0.9), "Three"]})
    assert result.text == " One.\n\nThree"
    at_end = await told({"Q:": [" One", (".", 0.3)], "Q: One.\n\n": ["Three"]}, {"Q:": [" One", ".\n\n", "Three"]})
    assert at_end.text == " One.\n\nThree"


async def test_a_word_that_goes_on() -> None:
    draft = {"Q:": [" The", (" War", 0.3), " ends", "."], "Q: The Warriors": [" end", "."]}
    result = await told(draft, {"Q: The": [" War", "riors", " sleep"]})
    assert (result.text, result.replacements) == (" The Warriors end.", 1)
