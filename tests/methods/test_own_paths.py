"""Every method asks each model after its own ids: a model fused with itself writes what it writes alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_api import CoolFusion, CoSD, FusionResult, MatchVerifier, fuse
from cosd_api.decoding.word_ends import unicode_words
from cosd_api.extend import Method
from cosd_api.methods.base import METHODS as REGISTERED
from cosd_api.methods.base import method_named
from cosd_providers.testing import ScriptedProvider
from cosd_providers.text import sendable
from support.drawn import examples
from support.method_files import AT
from toys import contests
from toys import toy_models as toys
from toys.on_paths import PROMPT, TEXTS, Reciter
from toys.samples import NEEDED

METHODS: dict[str, Method] = {
    name: made
    for name in (*REGISTERED, *AT)
    if name not in NEEDED and not (made := method_named(AT.get(name, name))).temperature
} | {
    "cool-align": CoolFusion(align=True),
    "cool-rerank": CoolFusion(rerank=True),
    "cosd-match": CoSD(verifier=MatchVerifier(), unit="token"),
}
"""Those that draw nothing, and need no gate that was trained."""
DRAWN: dict[str, Method] = {
    "average-drawn": method_named("average", temperature=1),
    "switch": method_named(AT["switch"], samples=2),
    "speculative-drawn": method_named("speculative", temperature=1),
    "speculative-half": method_named("speculative", temperature=1, sampled_draft=False),
    "speculative-cosd": method_named("speculative", temperature=1, test="cosd"),
    "cosd-drawn": method_named("cosd").at_temperature(1),
}
ONE_TOKENIZER = ("average", "speculative", "cosd")
SEVERAL = {name: method for name, method in (METHODS | DRAWN).items() if not name.startswith(ONE_TOKENIZER)}
EXACT = ("average", "cool", "cool-align", "cool-rerank", "rerank", "safe", "route", "cascade")
"""Methods by which a model fused with itself always writes what it writes alone. By the others it may choose another of
its own texts: by bytes, by other first tokens, or again from within a word."""
NAMES = ("paragraphs", "list", "code", "others")
WORDS = unicode_words, contests.ends(lambda text: re.findall(r"\s*\S+|\s+", text))
"""Words of their own: punctuation is one by itself, or a part of the word before it."""


async def fused(
    prompt: str, providers: Sequence[ScriptedProvider], method: Method, max_tokens: int = 120, **settings: Any
) -> FusionResult:
    """The answer, which every model was asked about by ids."""
    roles: Any = {"draft": providers[0], "assistant": [*providers[1:]]}
    roles |= {"seed": 1} if method.temperature else {}
    if isinstance(method, CoolFusion) and method.align:
        for provider, words in zip(providers, cycle(WORDS), strict=False):
            provider.words = words
    result = await fuse(prompt, method=method, max_tokens=max_tokens, **roles, **settings)
    for provider in providers:
        assert provider.open_requests == 0
        for call in provider.calls:
            if call.kind == "score":
                assert call.prompt == "", "what is scored as text is a prompt"
                continue
            assert call.kind != "propose"
            assert call.ids is not None or call.contexts or call.kind == "next_tokens" or _asks_for_a_grade(method)
            assert all(context.ids is not None for context in call.contexts or ())
    if method.own_paths:
        assert result.settings.contexts == "ids"
    assert "".join(token.text for token in result.tokens) == result.text
    assert sendable(b"".join(token.data for token in result.tokens)) == result.text
    assert result.trace.replay() == result.text
    assert type(result).model_validate_json(result.model_dump_json()) == result
    return result


def _asks_for_a_grade(method: Method) -> bool:
    return method.name == "steps"


def reciters(text: str, prob: float, *, same: bool, **options: Any) -> list[ScriptedProvider]:
    """The same model twice, or a copy with other ids."""
    models = [Reciter(text, prob), Reciter(text, prob, shuffled=None if same else 1)]
    return [ScriptedProvider(model, ids=True, name=f"model {at}", **options) for at, model in enumerate(models)]


@pytest.mark.parametrize("text", TEXTS, ids=NAMES)
@pytest.mark.parametrize("hides", [False, True], ids=["shown", "hidden"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
async def test_a_model_with_itself(method: Method, text: str, hides: bool) -> None:
    result = await fused(PROMPT, reciters(text, 0.7, same=True, hides_parts=hides), method)
    assert result.text == text


@pytest.mark.parametrize("text", TEXTS, ids=NAMES)
@pytest.mark.parametrize("method", DRAWN.values(), ids=DRAWN)
async def test_draws_of_a_model_with_itself(method: Method, text: str) -> None:
    result = await fused(PROMPT, reciters(text, 1.0, same=True), method)
    assert result.text == text


@pytest.mark.parametrize("text", TEXTS, ids=NAMES)
@pytest.mark.parametrize("method", SEVERAL.values(), ids=SEVERAL)
async def test_a_model_with_a_copy_that_has_other_ids(method: Method, text: str) -> None:
    prob = 1.0 if method.temperature else 0.7
    result = await fused(PROMPT, reciters(text, prob, same=False), method)
    assert result.text == text


class Plain(toys.Plain):
    """A toy that leaves out what it has no token for, as most of the text by which vocabularies are compared."""

    def encode(self, text: bytes) -> list[int]:
        known = [one.encode() for one in text.decode()]
        return super().encode(b"".join(one for one in known if {*one} <= {*b"".join(toys.SINGLE)}))


def served(models: Sequence[toys.ToyModel], delays: Sequence[float]) -> list[ScriptedProvider]:
    return [
        ScriptedProvider(
            Plain(model),
            name=f"model {at}",
            ids=True,
            request_delay=delays[2 * at],
            token_delay=delays[2 * at + 1],
        )
        for at, model in enumerate(models)
    ]


@examples(100)
@given(st.sampled_from([name for name in SEVERAL if name != "steps"]), contests.tasks(), contests.delays())
async def test_the_order_of_answers_changes_nothing(name: str, task: contests.Task, delays: list[float]) -> None:
    """Parts of characters, bytes that are none, texts of several encodings, tokens without bytes."""
    method = SEVERAL[name]
    assume(name != "chared" or all(len(model.vocabulary.tokens) > 20 for model in task.models))
    models = task.models[: method.most_models or len(task.models)]
    stop = [one.decode() for one in task.stop]
    found = [
        await fused(task.prompt.decode(), served(models, waits), method, task.max_tokens, stop=stop)
        for waits in ((0.0,) * 8, delays)
    ]
    first, second = ([(one.data, one.source, one.end) for one in result.tokens] for result in found)
    assert first == second


@examples(100)
@given(st.sampled_from(EXACT), contests.tasks(), contests.delays())
async def test_any_model_with_itself(name: str, task: contests.Task, delays: list[float]) -> None:
    """Its own greedy ids, without the library."""
    model = task.models[0]
    own, path = bytearray(), [*model.vocabulary.encode(task.prompt)]
    for _ in range(4 * task.max_tokens):
        probs = model.next(path)
        best = probs.index(max(probs))
        if best == model.vocabulary.end:
            break
        path.append(best)
        own += model.vocabulary.tokens[best]
    result = await fused(task.prompt.decode(), served([model, model], delays), METHODS[name], task.max_tokens)
    assert sendable(bytes(own)).startswith(result.text)
