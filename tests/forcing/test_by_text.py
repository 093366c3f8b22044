"""Samples of models of which one takes text only, by hand: units between safe cuts, and what is asked about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pytest

from cosd_api import collect
from cosd_api.forcing.samples import Sample
from cosd_providers.testing import ScriptedProvider, ScriptToken
from toys.on_paths import PROMPT, TEXTS, Reciter

Script = Mapping[str, Sequence[ScriptToken]]
WAYS = ["draft and assistant", "draft", "assistant"]
"""Models that take text only."""


class Recited(Reciter):
    """A model that recites a text of which its server encodes prompt and answer together."""

    @cached_property
    def path(self) -> list[int]:
        """The ids that it writes."""
        return [*self.encode((PROMPT + self.text).encode()), *self.end_ids]


def pair(draft: Script, assistant: Script, way: str = WAYS[0]) -> tuple[ScriptedProvider, ScriptedProvider]:
    first, second = (
        ScriptedProvider.from_texts(script, name=name, ids=name not in way)
        for name, script in (("draft", draft), ("assistant", assistant))
    )
    return first, second


async def sampled(
    providers: tuple[ScriptedProvider, ScriptedProvider], answer: str, **fields: Any
) -> tuple[tuple[Sample, ...], int]:
    found = await collect(
        [{"prompt": "Q", "answer": answer, **fields}], draft=providers[0], assistant=providers[1], unit="word"
    )
    assert found.contexts == "text"
    return found.examples[0].samples, found.examples[0].skipped


def asked(provider: ScriptedProvider) -> list[list[tuple[int, tuple[bytes, ...]]] | str]:
    """The places that a model was asked about; of other calls the kind."""
    return [
        call.kind if call.kind != "propose" else [(one.start, one.tokens) for one in call.questions or ()]
        for call in provider.calls
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("text", TEXTS)
async def test_a_model_held_to_its_own_text_agrees_everywhere(text: str, way: str) -> None:
    """Asked after a text that is cut in white space, these models say nonsense."""
    models: dict[str, Any] = {
        name: (Recited if name in way else Reciter)(text, shuffled=at) for at, name in enumerate(("draft", "assistant"))
    }
    providers: dict[str, Any] = {name: ScriptedProvider(model, ids=name not in way) for name, model in models.items()}
    found = await collect([{"prompt": PROMPT, "answer": text}], **providers, unit="word")
    [example] = found.examples
    assert example.samples and example.samples[-1].reference == ""
    assert all(one.agreed and one.label == 0 for one in example.samples)
    assert {(one.p, one.q) for one in example.samples} == {(0.7, 0.7)}


SCRIPT: Script = {"Q": [" One", (".", 0.6), ("\n\n", 0.5), ("Two", 0.7), " more", (".", 0.8), ("", 0.9)]}


BY_TEXT = [WAYS[0], WAYS[2]]
"""Ways with an assistant whose units lie between safe cuts."""


@pytest.mark.parametrize("way", BY_TEXT)
async def test_all_that_lies_between_two_safe_cuts_is_one_sample(way: str) -> None:
    other: Script = {"Q": [" One", ".", ("\n\n", 0.4), (" Then", 0.3)], "Q One.\n\nTwo": [" more", ("!", 0.9)]}
    draft, assistant = pair(SCRIPT, other, way)
    samples, skipped = await sampled((draft, assistant), " One.\n\nTwo more.")
    assert samples == (
        Sample(0.5, 0.3, 0, False, 7, "Two", " Then", "Two"),
        Sample(0.8, 0.9, 0, False, 15, ".", "!", "."),
        Sample(0.9, 1.0, 0, True, 16, "", "", ""),
    )
    assert skipped == 0
    # Behind white space nobody is asked by himself: what is written from a place before it says it.
    assert asked(assistant)[1:] == [[(0, (b" One", b".", b"\n\n", b"Two", b" more"))]]
    assert asked(draft) == (["score_ids"] if way == "assistant" else [[], [(5, (b"\n\n", b"Two"))]])


@pytest.mark.parametrize("way", BY_TEXT)
async def test_the_kinds_of_a_place(way: str) -> None:
    draft: Script = {
        "Q": [" The", (" dog", 0.3)],
        "Q The cat": [" sat", (" ran", 0.2)],
        "Q The cat sat on": [".", " It"],
    }
    other: Script = {
        "Q": [" The", (" cat", 0.6), (" ran", 0.5)],
        "Q The cat sat": [(" by", 0.4)],
        "Q The cat sat on": ["."],
    }
    providers = pair(draft, other, way)
    samples, skipped = await sampled(providers, " The cat sat on.")
    assert samples == (
        Sample(1.0, 1.0, 0, True, 0, " The", " The", " The"),
        Sample(0.3, 0.6, 1, False, 4, " dog", " cat", " cat"),
        Sample(1.0, 0.5, 0, False, 8, " sat", " ran", " sat"),
        Sample(0.2, 0.4, None, False, 12, " ran", " by", " on"),
        Sample(1.0, 1.0, 1, False, 16, " It", "", ""),
    )
    assert skipped == 0
    assert asked(providers[1]) == [[]]  # its own encoding of the reference says all


@pytest.mark.parametrize("way", WAYS)
async def test_where_the_drafts_token_is_a_beginning_it_is_asked_how_it_goes_on(way: str) -> None:
    """ " ca" could become the reference's word, and becomes another."""
    draft: dict[str, Any] = {"tokens": [" cat"], "Q": [" The", (" ca", 0.5), ("p", 0.4), "."], "Q The cat": ["."]}
    other: Script = {"Q": [" The", (" cat", 0.8), "."]}
    providers = pair(draft, other, way)
    samples, skipped = await sampled(providers, " The cat.")
    assert (samples[1].start, samples[1].label, samples[1].q, samples[1].assistant) == (4, 1, 0.8, " cat")
    assert ("next_tokens" if way == "assistant" else "generate") in asked(providers[0])
    if way in BY_TEXT:
        assert samples[1] == Sample(0.4, 0.8, 1, False, 4, " cap", " cat", " cat")
    draft["Q"][2] = ("t", 0.4)  # the same word in other tokens
    samples, skipped = await sampled(pair(draft, other, way), " The cat.")
    assert {(one.label, one.agreed) for one in samples} == {(0, True)}
    assert (samples[-1].start, skipped) == (9, 0)


@pytest.mark.parametrize("way", BY_TEXT)
async def test_another_word_of_the_drafts_ends_the_unit(way: str) -> None:
    """The reference goes on with the word, and so would the assistant."""
    draft: dict[str, Any] = {"tokens": ["tasking"], "Q": [(" Multi", 0.9), (" of", 0.4)]}
    samples, skipped = await sampled(pair(draft, {"Q": [(" Multitasking", 0.7)]}, way), " Multitasking")
    assert samples == (
        Sample(0.9, 0.7, 1, False, 0, " Multi", " Multitasking", " Multitasking"),
        Sample(0.4, 0.7, 1, False, 6, " of", "tasking", "tasking"),
        Sample(1.0, 1.0, 0, True, 13, "", "", ""),
    )
    assert skipped == 0


@pytest.mark.parametrize("way", BY_TEXT)
async def test_a_draft_that_ends_within_a_word(way: str) -> None:
    draft: dict[str, Any] = {"tokens": ["t"], "Q": [(" c", 0.5), ("a", 0.7), ("", 0.6)]}
    samples, skipped = await sampled(pair(draft, {"Q": [(" cat", 0.8)]}, way), " cat")
    assert samples == (
        Sample(0.5, 0.8, 1, False, 0, " ca", " cat", " cat"),
        Sample(0.6, 0.8, 1, False, 3, "", "t", "t"),
        Sample(1.0, 1.0, 0, True, 4, "", "", ""),
    )
    assert skipped == 0


@pytest.mark.parametrize("way", WAYS)
async def test_behind_a_reference_that_goes_on_nobody_knows_what_follows(way: str) -> None:
    """ " Warriors" may be what it has."""
    draft, other = {"Q": [" The", " War"]}, {"Q": [" The", " Warriors"]}
    samples, skipped = await sampled(pair(draft, other, way), " The War", ends=False)
    assert [one.reference for one in samples] == [" The"]
    assert skipped == 1
