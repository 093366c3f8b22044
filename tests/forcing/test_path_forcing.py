"""Samples by ids: the decisions of a fusion, place by place, and which model is right where the draft would err."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import test_leads
from cosd_api import FusionResult, Samples, SettingError, collect, fuse
from cosd_api.forcing.samples import Label, Sample
from cosd_api.settings import DEFAULT_TIE
from cosd_providers.chat.leading_space import WithoutLeadingSpace
from cosd_providers.messages import RenderedPrompt
from cosd_providers.testing import ScriptedProvider
from support.drawn import costly
from toys import ngrams
from toys.ngrams import NGram, learned
from toys.on_paths import PROMPT, TEXTS, Reciter

NAMES = ("gpt2", "digits", "llama3", "o200k", "spaces")


class Never:
    """A verifier that could replace anything, and never does; it notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []

    def replaces(self, p: float, q: float) -> bool:
        if (p, q) != (1.0, 0.0):  # a probe, if it replaces everything
            self.asked.append((p, q))
        return False

    def contestable(self, p: float) -> bool:
        return True

    def explain(self, p: float, q: float) -> str:
        return "never"


def served(model: Any, name: str = "model", **options: Any) -> ScriptedProvider:
    given: dict[str, Any] = {"name": name, "ids": True, **options}
    return ScriptedProvider(model, **given)


async def held(draft: Any, assistant: Any, prompt: str, answer: str, *, ends: bool = True, **options: Any) -> Samples:
    """The samples of one reference."""
    example = {"prompt": prompt, "answer": answer, "ends": ends}
    providers = [one if isinstance(one, ScriptedProvider) else served(one) for one in (draft, assistant)]
    return await collect([example], draft=providers[0], assistant=providers[1], **options)


def is_text(data: bytes) -> bool:
    """Test whether these bytes are whole characters."""
    return data.decode("utf-8", "ignore").encode() == data


def agreed_in(result: FusionResult) -> list[tuple[float, float, int]]:
    """p, q and the beginning of each unit on which both agree; each stands at every token of it."""
    found, at, stop = list[tuple[float, float, int]](), 0, -1
    for token in result.tokens:
        for one in token.decisions:
            if one.agreed and at >= stop and one.draft_prob is not None and one.prob is not None:
                found.append((one.draft_prob, one.prob, at))
                stop = at + len(one.draft_text.encode())
        at += len(token.data)
    return found


@costly(40)
@given(
    st.lists(st.sampled_from(NAMES), min_size=2, max_size=2),
    st.sampled_from((2, 3, 4)),
    st.sampled_from((2, 3)),
    st.integers(0, 10_000),
    st.sampled_from(("same", "others", "text")),
)
async def test_a_fusion_of_the_drafts_own_text_decides_what_is_sampled(
    names: list[str], order: int, other: int, start: int, ids_of_draft: str
) -> None:
    """The draft's ids are the assistant's, or others, or it takes text only."""
    same, by_text = ids_of_draft == "same", ids_of_draft == "text"
    text = ngrams.passages()[start % len(ngrams.passages())]
    at = start % max(1, len(text) - 40)
    prompt = text[at : at + 30] or "The"
    draft = learned(names[0], 0, order=order)
    assistant = learned(names[0 if same else 1], 1, order=other)
    ids = ngrams.alone(draft, prompt, 90)
    ended = ids[-1] == draft.end
    answer = b"".join(draft.tokens[one] for one in ids)
    assume(answer and is_text(answer))
    before = prompt.encode() if by_text else b""
    own = [*(draft.encode(before) if by_text else ()), *ids[: len(ids) - ended]]
    assume(draft.encode(before + answer) == own)  # else the reference is another path
    # In a draft by text a character of several tokens counts as one: its 90 tokens would be a longer answer.
    assume(ended or not by_text or all(is_text(draft.tokens[one]) for one in ids))
    never, unit = Never(), None if same else "word"
    drafts = served(draft, ids=not by_text)
    providers: dict[str, Any] = {"draft": drafts, "assistant": served(assistant), "unit": unit}
    result = await fuse(prompt, **providers, verifier=never, ask="all", max_tokens=90)
    assert result.text.encode() == answer
    found = await held(drafts, assistant, prompt, answer.decode(), ends=ended, unit=unit)
    [example] = found.examples
    assert (found.contexts, found.unit) == ("text" if by_text else "ids", "token" if same else "word")
    # Behind a reference that goes on nobody knows what follows, and its last places are encoded without it.
    bound = len(answer) + 1 if same or ended else len(answer) - 160
    places = [one for one in example.samples if one.start < bound]
    assert {one.label for one in places} <= {0}
    units = [(one.p, one.q, one.start) for one in places if one.agreed]
    differing = [(one.p, one.q) for one in places if not one.agreed]
    assert units == [one for one in agreed_in(result) if one[2] < bound]
    assert differing == never.asked[: len(differing)]
    if bound > len(answer):
        assert len(differing) == len(never.asked)


@costly(60)
@given(
    st.lists(st.sampled_from(test_leads.NAMES), min_size=2, max_size=2),
    st.lists(st.sampled_from(("", *test_leads.LEADS)), min_size=2, max_size=2).filter(any),
    st.integers(0, 10_000),
    st.booleans(),
)
async def test_white_space_of_a_template_is_the_beginning_of_a_path_here_too(
    names: Sequence[str], leads: Sequence[str], start: int, same: bool
) -> None:
    """Models with the same ids have one path only if their templates write the same."""
    text = ngrams.passages()[start % len(ngrams.passages())]
    prompt = text[:20] or "The"
    models = [learned(names[0], 0), learned(names[0 if same else 1], 1)]
    task = test_leads.Task(prompt, tuple(models), tuple(leads), (True, True), max_tokens=90, tie=DEFAULT_TIE)
    draft, assistant = task.servers()
    never = Never()
    result = await task.fused([draft, assistant], verifier=never, ask="all")
    answer, ended = result.text.encode(), result.tokens[-1].end
    assume(answer and b"".join(one.data for one in result.tokens) == answer)
    own = [one.id for one in result.tokens if not one.end]
    assume(models[0].encode(leads[0].encode() + answer) == own)
    example = {"prompt": [{"role": "user", "content": prompt}], "answer": result.text, "ends": ended}
    found = await collect([example], draft=draft, assistant=assistant)
    assert found.contexts == "ids"
    assert not found.warnings
    alike = result.settings.unit == "token"
    assert not alike or leads[0] == leads[1]
    assert alike or names[0] != names[1] or leads[0] != leads[1]
    bound = len(answer) + 1 if alike or ended else len(answer) - 160
    places = [one for one in found.examples[0].samples if one.start < bound]
    assert {one.label for one in places} <= {0}
    differing = [(one.p, one.q) for one in places if not one.agreed]
    assert differing == never.asked[: len(differing)]
    if bound > len(answer):
        assert len(differing) == len(never.asked)
    units = [(one.p, one.q, one.start) for one in places if one.agreed]
    assert units == [one for one in agreed_in(result) if one[2] < bound]


@costly(30)
@given(st.sampled_from(NAMES), st.lists(st.booleans(), min_size=1, max_size=4), st.integers(0, 10_000), st.booleans())
async def test_with_the_same_ids_it_is_section_3_2_to_the_letter(
    name: str, writers: list[bool], start: int, ends: bool
) -> None:
    """Each place of a reference that both have written parts of: the most probable ids after the reference's own."""
    draft, assistant = learned(name, 0), learned(name, 1)
    text = ngrams.passages()[start % len(ngrams.passages())]
    prompt, ids = text[:20], list[int]()
    for first in writers:
        model = draft if first else assistant
        ids += [one for one in ngrams.alone(model, prompt + spelled(draft, ids), 8) if one != model.end]
    answer = spelled(draft, ids)
    assume(answer)
    own: list[int] = draft.encode(answer.encode())
    expected = list[tuple[float, float, Label | None, bool, int]]()
    at, begin = 0, draft.encode(prompt.encode())
    rights: list[int] = [*own, draft.end] if ends else own
    for count, right in enumerate(rights):
        context = [*begin, *own[:count]]
        mine, theirs = ngrams.best(draft, context), ngrams.best(assistant, context)
        p, q = draft.next(context)[mine], assistant.next(context)[theirs]
        second = max(prob for one, prob in enumerate(assistant.next(context)) if one != theirs)
        tied = assistant.next(context)[mine] == second and math.log(q / second) <= DEFAULT_TIE
        agreed = mine == theirs or tied
        label: Label | None = 0 if mine == right else 1 if theirs == right and not agreed else None
        expected.append((p, q, label, agreed, at))
        at += len(draft.tokens[right])
    found = await held(draft, assistant, prompt, answer, ends=ends)
    [example] = found.examples
    assert (found.unit, example.skipped) == ("token", 0)
    assert [(one.p, one.q, one.label, one.agreed, one.start) for one in example.samples] == expected


def spelled(model: NGram, ids: Sequence[int]) -> str:
    """The text of ids, as far as it is whole characters."""
    return b"".join(model.tokens[one] for one in ids).decode("utf-8", "ignore")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ids", ["same", "others"])
async def test_a_model_held_to_its_own_text_agrees_everywhere(text: str, ids: str) -> None:
    """Asked after a text that is cut in it, these models say nonsense."""
    draft, assistant = Reciter(text), Reciter(text, shuffled=None if ids == "same" else 1)
    found = await held(draft, assistant, PROMPT, text)
    [example] = found.examples
    assert example.samples[0].start == 0 and example.samples[-1].reference == ""
    assert all(one.agreed and one.label == 0 for one in example.samples)
    assert {(one.p, one.q) for one in example.samples} == {(0.7, 0.7)}
    assert "".join(one.reference for one in example.samples) == text
    assert (found.unit, example.skipped) == ("token" if ids == "same" else "word", 0)


async def test_one_request_to_each_where_scoring_says_all() -> None:
    [text, *_] = TEXTS
    for shuffled in (None, 1):
        draft, assistant = served(Reciter(text)), served(Reciter(text, shuffled=shuffled))
        await held(draft, assistant, PROMPT, text)
        assert [[call.kind for call in one.calls] for one in (draft, assistant)] == [["score_ids"]] * 2


async def test_a_server_that_scores_no_ids_is_asked_for_its_next_tokens() -> None:
    [text, *_] = TEXTS
    models: list[Any] = [Reciter(text), Reciter(text, shuffled=1)]
    scored = await held(models[0], models[1], PROMPT, text)
    asked = [ScriptedProvider(model, ids=True, end_prob=False) for model in models]
    found = await held(asked[0], asked[1], PROMPT, text, ends=False)
    assert {call.kind for one in asked for call in one.calls} == {"next_tokens"}
    assert found.examples[0].samples == scored.examples[0].samples[:-1]


# By hand: models of which each next token is written down.


class Written:
    """A model that writes given tokens after given texts, each with its probability, and else its end.

    Its tokenizer takes the longest token that fits.
    """

    def __init__(self, tokens: Sequence[str], nexts: dict[str, tuple[str, float]]) -> None:
        self.tokens = [b"", *(one.encode() for one in tokens), *(bytes([byte]) for byte in range(256))]
        self.end_ids = frozenset({0})
        self.nexts = {text.encode(): (token.encode(), prob) for text, (token, prob) in nexts.items()}

    def encode(self, text: bytes) -> list[int]:
        ids: list[int] = []
        while text:
            found = max((one for one in self.tokens if one and text.startswith(one)), key=len)
            ids.append(self.tokens.index(found))
            text = text[len(found) :]
        return ids

    def next(self, ids: Sequence[int]) -> list[float]:
        token, prob = self.nexts.get(b"".join(self.tokens[one] for one in ids), (b"", 0.9))
        probs = [0.0] * (len(self.tokens) - 256) + [(1 - prob) / 256] * 256
        probs[self.tokens.index(token)] += prob
        return probs


WORDS = [" The", " cat", " sat", " ran", " ca", " c", ".", " ran fast"]


def writes(
    tokens: Sequence[str], text: str, *, prob: float = 0.8, instead: Mapping[str, tuple[str, float]] | None = None
) -> Written:
    """A model that writes a text, but for `instead`: by a token of the text the one in its place."""
    model, nexts, before, others = Written(tokens, {}), dict[str, tuple[str, float]](), "Q", instead or {}
    for one in model.encode(text.encode()):
        token = model.tokens[one].decode()
        nexts[before] = others.get(token.strip() or token, (token, prob))
        before += token
    nexts[before] = others.get("end", ("", 0.9))
    return Written(tokens, nexts)


async def sampled(draft: Written, assistant: Written, answer: str, **options: Any) -> tuple[tuple[Sample, ...], int]:
    found = await held(draft, assistant, "Q", answer, unit="word", **options)
    return found.examples[0].samples, found.examples[0].skipped


async def test_the_four_kinds_of_a_place() -> None:
    draft = writes(WORDS, " The cat sat.", instead={"cat": (" ran", 0.3), "sat": (" ran", 0.2), "end": (" The", 0.4)})
    assistant = writes(WORDS, " The cat sat.", prob=0.6, instead={"sat": (" cat", 0.5)})
    samples, skipped = await sampled(draft, assistant, " The cat sat.")
    assert samples == (
        Sample(0.8, 0.6, 0, True, 0, " The", " The", " The"),
        Sample(0.3, 0.6, 1, False, 4, " ran", " cat", " cat"),
        Sample(0.2, 0.5, None, False, 8, " ran", " cat", " sat"),
        Sample(0.8, 0.6, 0, True, 12, ".", ".", "."),
        Sample(0.4, 0.9, 1, False, 13, " The", "", ""),
    )
    assert skipped == 0


async def test_p_and_q_are_the_least_of_the_unit_up_to_the_difference() -> None:
    """The draft writes the word in three tokens; its last one is wrong, where the assistant has one token."""
    letters = [" c", "a", "t", "n", " sat", "."]
    draft = writes(letters, " cat sat.", instead={"c": (" c", 0.5), "a": ("a", 0.7), "t": ("n", 0.6)})
    samples, skipped = await sampled(draft, writes(WORDS, " cat sat.", instead={"cat": (" cat", 0.65)}), " cat sat.")
    assert samples[0] == Sample(0.5, 0.65, 1, False, 0, " ca", " cat", " cat")
    assert (samples[1].start, skipped) == (3, 0)  # after " ca" it is asked again, as in a fusion


async def test_a_draft_that_is_right_is_judged_as_the_fusion_judges_it() -> None:
    """Only the draft's tokens that begin before the differing token's end count."""
    letters = [" ", "1", "2", "3", "."]
    draft = writes(letters, " 123.", instead={"1": ("1", 0.7), "2": ("2", 0.6), "3": ("3", 0.2)})
    assistant = writes([" 1", "23", " 9", "."], " 123.", instead={"1": (" 9", 0.4)})
    samples, _ = await sampled(draft, assistant, " 123.")
    assert samples[0] == Sample(0.7, 0.4, 0, False, 0, " 1", " 9", " 1")
    assert samples[1] == Sample(0.2, 0.8, 0, True, 2, "23.", "23.", "23.")  # behind it the unit goes on


async def test_where_the_drafts_token_is_a_beginning_it_is_asked_how_it_goes_on() -> None:
    """ " ca" could become the reference's word, and becomes another."""
    tokens = [*WORDS, "p", "t"]
    draft = writes(tokens, " The cat.", instead={"cat": (" ca", 0.5)})
    draft.nexts |= {b"Q The ca": (b"p", 0.4), b"Q The cap": (b".", 0.9)}
    samples, skipped = await sampled(draft, writes(WORDS, " The cat."), " The cat.")
    assert samples[1] == Sample(0.5, 0.8, 1, False, 4, " ca", " cat", " cat")
    draft.nexts |= {b"Q The ca": (b"t", 0.4), b"Q The cat": (b".", 0.9)}  # the same word in other tokens
    samples, skipped = await sampled(draft, writes(WORDS, " The cat."), " The cat.")
    assert [one.label for one in samples] == [0, 0, 0, 0] and skipped == 0


async def test_a_draft_that_ends_within_a_word() -> None:
    """Its tokens so far are the reference's, and what the assistant would write is, too, and more."""
    letters = [" c", "a", "t", "."]
    draft = writes(letters, " cat.", instead={"c": (" c", 0.5), "t": ("", 0.6)})
    samples, _ = await sampled(draft, writes([" c", "at", "."], " cat."), " cat.")
    assert samples[0] == Sample(0.5, 0.8, 1, False, 2, "a", "at", "at")


async def test_samples_by_ids_are_not_added_to_those_of_another_way(tmp_path: Path) -> None:
    text, path = TEXTS[0], tmp_path / "samples.jsonl"
    await held(Reciter(text), Reciter(text), PROMPT, text, path=path)
    assert '"unit":"token","contexts":"ids"' in path.read_text()
    by_text = served(Reciter(text), ids=False)
    with pytest.raises(SettingError, match="holds samples taken after ids, not after texts: give collect another file"):
        await held(by_text, Reciter(text), PROMPT, text, path=path)


async def test_a_template_that_writes_white_space_is_asked_after_texts_if_it_must() -> None:
    """A view by texts alone; the reader is told."""
    text = "It rained."
    servers = [served(Reciter(text), template=prompted) for _ in range(2)]
    model: Any = Reciter(text)
    servers[1] = Spaced(model, name="model", ids=True)
    example = {"prompt": [{"role": "user", "content": "Say it"}], "answer": text}
    found = await collect([example], draft=servers[0], assistant=servers[1])
    assert found.contexts == "ids" and found.positions
    assert {call.kind for one in servers for call in one.calls} == {"propose"}
    [warning] = [one for one in found.warnings if "white space" in one]
    assert "single tokens of such a conversation are compared after texts" in warning


def prompted(messages: Sequence[Any]) -> str:
    """A chat template."""
    return PROMPT


class Spaced(ScriptedProvider):
    """A provider whose template writes white space before an answer."""

    async def render_prompt(self, messages: Any, *, on_special_tokens: Any = "warn") -> RenderedPrompt:
        return RenderedPrompt(WithoutLeadingSpace(self, b" ", PROMPT), PROMPT)


async def test_lists_come_with_the_same_request() -> None:
    """The samples of a gate: of the reference's ids, whatever the bytes."""
    text, (draft, assistant) = "It rained. 😀", [served(Reciter("It rained. 😀")) for _ in range(2)]
    found = await held(draft, assistant, PROMPT, text, listed=1)
    assert [[call.kind for call in one.calls] for one in (draft, assistant)] == [["score_ids"]] * 2
    [example] = found.examples
    assert example.deferral is not None
    assert len(example.deferral) == len(draft.model.encode(text.encode())) + 1
    assert {(one.p, one.q, one.handed) for one in example.deferral} == {(0.7, 0.7, False)}
    assert all(len(one.listed) == 2 for one in example.deferral)


async def test_a_text_that_a_tokenizer_changes_is_skipped() -> None:
    draft, assistant = (learned("nfkc", part, permuted=bool(part)) for part in (0, 1))
    found = await held(draft, assistant, "The", " ﬁne", unit="word")
    assert (found.positions, found.skipped) == (0, 1)
