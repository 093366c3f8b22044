"""Sampled speculative decoding: by its definition, word for word; as it is distributed; and what surrounds it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, FusionResult, MatchVerifier, SettingError, Speculative, fuse
from cosd_providers import ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, TableModel
from naive import enumerated
from support.drawn import examples, partly
from test_likelihood import LENGTH, LETTERS, letters
from toys import toy_models as toys

DRAFT, REPLACED, ADDED = "draft", "replaced", "added"


class Naive:
    """The definition: one place after the other, everything asked again.

    The draft writes up to `ahead` tokens in one go, drawn with the random numbers of the place where it begins, and
    goes on from its own tokens until another one stands; the assistant encodes the text.
    """

    def __init__(self, prompt: bytes, models: Sequence[toys.ToyModel], method: Speculative, seed: int) -> None:
        self.prompt, self.method, self.seed = prompt, method, seed
        self.draft, self.assistant = models
        self.vocabulary = self.draft.vocabulary
        self.text, self.sources = b"", list[str]()

    def answer(self, ahead: int, length: int) -> None:
        own = self.encoded()
        while True:
            written, ids = list[tuple[int, Sequence[float]]](), list(own)
            chance = enumerated.draws(self.seed, self.prompt, "draft", len(self.text))
            for _ in range(min(ahead, length - len(self.sources))):
                p = self.draft.next(ids)
                drawn = self.method.test == "ratio" and self.method.sampled_draft
                written.append((enumerated.drawn(chance, p) if drawn else p.index(max(p)), p))
                ids.append(written[-1][0])
                if ids[-1] == self.vocabulary.end:
                    break
            for token, p in written:
                chosen = self.chosen(token, p)
                self.put(chosen, DRAFT if chosen == token else REPLACED)
                own = [*own, token] if chosen == token else self.encoded()
                if chosen == self.vocabulary.end or len(self.sources) == length:
                    return
                if chosen != token:
                    break
            else:
                if self.method.test == "ratio":
                    chance = enumerated.draws(self.seed, self.prompt, "bonus", len(self.text))
                    more = enumerated.drawn(chance, self.assistant.next(self.encoded()))
                    self.put(more, ADDED)
                    own = self.encoded()
                    if more == self.vocabulary.end or len(self.sources) == length:
                        return

    def chosen(self, token: int, p: Sequence[float]) -> int:
        q, u = self.assistant.next(self.encoded()), self.number("keep")
        if self.method.test == "cosd":
            theirs = token if q[token] == max(q) else q.index(max(q))
            return theirs if p[token] / q[theirs] < u else token
        if not self.method.sampled_draft:
            p = [float(at == token) for at in range(len(p))]
        if u < q[token] / p[token]:
            return token
        rest = {at: q[at] - p[at] for at in range(len(q)) if q[at] > p[at]}
        point = self.number("draw") * math.fsum(rest.values())
        for at in sorted(rest, key=lambda one: (self.vocabulary.tokens[one], one == self.vocabulary.end)):
            point -= rest[at]
            if point < 0:
                return at
        raise AssertionError

    def encoded(self) -> list[int]:
        return list(self.vocabulary.encode(self.prompt + self.text))

    def number(self, name: str) -> float:
        return enumerated.number(self.seed, self.prompt, name, len(self.text))

    def put(self, token: int, source: str) -> None:
        self.text += self.vocabulary.tokens[token]
        self.sources.append(source)


METHODS = [
    Speculative(temperature=1),
    Speculative(temperature=1, sampled_draft=False),
    Speculative(temperature=1, test="cosd"),
]


def told(result: FusionResult) -> list[str]:
    return [
        DRAFT if token.source == "draft" else ADDED if token.replaced is None else REPLACED for token in result.tokens
    ]


@examples(40)
@given(
    enumerated.sets(most=2),
    st.text(st.sampled_from("ab1 "), min_size=1, max_size=5),
    st.sampled_from(METHODS),
    st.integers(0, 99),
    st.sampled_from((None, 1, 3)),
    st.integers(1, 20),
    st.lists(st.sampled_from((0.0, 0.001)), min_size=2, max_size=2),
)
async def test_the_answer_is_the_naive_one(
    models: tuple[toys.ToyModel, ...],
    prompt: str,
    method: Speculative,
    seed: int,
    ahead: int | None,
    length: int,
    delays: list[float],
) -> None:
    draft, assistant = (
        ScriptedProvider(toys.Plain(one), request_delay=delays[0], token_delay=delays[1]) for one in models
    )
    options: dict[str, Any] = {"method": method, "unit": "token", "draft_length": ahead}
    result = await fuse(prompt, draft=draft, assistant=assistant, seed=seed, max_tokens=length, **options)
    wanted = Naive(prompt.encode(), models, method, seed)
    wanted.answer(ahead or 16, length)
    assert b"".join(token.data for token in result.tokens) == wanted.text
    assert told(result) == wanted.sources
    assert result.kept_tokens == wanted.sources.count(DRAFT)
    assert result.replaced_tokens == result.replacements == wanted.sources.count(REPLACED)
    assert draft.open_requests == assistant.open_requests == 0
    assert result.trace.replay() == result.text
    assert FusionResult.model_validate_json(result.model_dump_json()) == result


@examples(20)
@given(
    toys.model_sets(same_tokenizer=True, max_assistants=1, may_hide_end=False),
    st.text(st.sampled_from(toys.CHARACTERS), min_size=1, max_size=6),
    st.sampled_from(METHODS),
    st.integers(0, 99),
    toys.stops(),
)
async def test_any_models_can_be_drawn_from(
    models: Any, prompt: str, method: Speculative, seed: int, stop: Sequence[bytes]
) -> None:
    """Characters of several tokens, texts of several encodings, stop strings."""
    toy, [other] = models
    providers: dict[str, Any] = {
        "draft": ScriptedProvider(toys.Plain(toy)),
        "assistant": ScriptedProvider(toys.Plain(other)),
    }
    options: dict[str, Any] = {"method": method, "unit": "token", "seed": seed, "max_tokens": 12}
    result = await fuse(prompt, stop=[one.decode() for one in stop], **providers, **options)
    whole = await fuse(prompt, **providers, **options)
    data = b"".join(token.data for token in result.tokens)
    assert b"".join(token.data for token in whole.tokens).startswith(data)
    assert not any(one in data for one in stop)
    assert result.trace.replay() == result.text


def pair(seeds: tuple[int, int], **options: Any) -> dict[str, Any]:
    draft, assistant = (ScriptedProvider(letters(seed), **options) for seed in seeds)
    return {"draft": draft, "assistant": assistant, "unit": "token"}


async def counted(method: Speculative, models: dict[str, Any], many: int) -> tuple[Counter[enumerated.Text], float]:
    """Answers, and what their warnings say of the total variation, in the mean."""
    counts: Counter[enumerated.Text] = Counter()
    left_out = 0.0
    async with Fusion(method=method, **models) as fusion:
        for seed in range(many):
            result = await fusion.generate("ab", max_tokens=LENGTH, seed=seed)
            counts[tuple(LETTERS.index(token.data) for token in result.tokens)] += 1
            for words in result.warnings:
                if "leave out probabilities" in words:
                    left_out += float(words.split(" sum to ")[1].split()[0]) / many
    return counts, left_out


@pytest.mark.parametrize(
    "case",
    partly([(METHODS[0], (7, 9), 400), (METHODS[1], (7, 9), 800), (METHODS[0], (2, 5), 800)]),
)
async def test_answers_are_distributed_as_the_assistants_own(case: tuple[Speculative, tuple[int, int], int]) -> None:
    method, seeds, many = case
    model = letters(seeds[1])
    wanted = enumerated.answers(model.next, model.encode(b"ab"), end=0, length=LENGTH)
    counts, left_out = await counted(method, pair(seeds), many)
    assert enumerated.follows(counts, wanted)
    assert left_out == 0


@pytest.mark.extended
@pytest.mark.parametrize("method", METHODS[:2])
async def test_what_the_lists_leave_out_bounds_the_total_variation(method: Speculative) -> None:
    many, model = 600, letters(9)
    wanted = enumerated.answers(model.next, model.encode(b"ab"), end=0, length=LENGTH)
    counts, left_out = await counted(method, pair((7, 9), top_k=1), many)
    apart = sum(max(0.0, prob - counts[text] / many) for text, prob in wanted.items())
    noise = sum(math.sqrt(prob / many) for prob in wanted.values()) / 2
    assert apart <= left_out + noise


async def test_a_greedy_draft_with_the_ratio_of_a_drawn_one_would_be_wrong() -> None:
    """For q = (.5, .3, .2) and p = (.6, .1, .3): not (.83, .17, 0), but q."""
    p, q = [0.0, 0.6, 0.1, 0.3], [0.0, 0.5, 0.3, 0.2]
    draft, assistant = (TableModel(LETTERS, enumerated.fixed(one), end_ids=(0,)) for one in (p, q))
    models = {"draft": ScriptedProvider(draft), "assistant": ScriptedProvider(assistant), "unit": "token"}
    async with Fusion(method=METHODS[1], **models) as fusion:  # type: ignore[arg-type]
        texts = [(await fusion.generate("a", max_tokens=1, seed=seed)).text for seed in range(500)]
    counts: Counter[enumerated.Text] = Counter((LETTERS.index(text.encode()),) for text in texts)
    assert enumerated.follows(counts, {(at,): prob for at, prob in enumerate(q) if prob})


# ------------------------------------------------------------------------------------------------------ around it


def table(probs: Sequence[float], **options: Any) -> ScriptedProvider:
    return ScriptedProvider(TableModel(LETTERS, enumerated.fixed(probs), end_ids=(0,)), **options)


def draft(**options: Any) -> ScriptedProvider:
    return table([0.0, 0.6, 0.1, 0.3], **options)


def assistant(**options: Any) -> ScriptedProvider:
    return table([0.0, 0.3, 0.4, 0.3], **options)


async def answer(**options: Any) -> FusionResult:
    given: dict[str, Any] = {"draft": draft(), "assistant": assistant(), "unit": "token", "max_tokens": 12}
    given |= {"method": METHODS[0], "seed": 1, **options}
    return await fuse("ab", **given)


async def test_a_record_says_who_drew_each_token_and_why() -> None:
    result = await answer(max_tokens=40)
    kept = [token for token in result.tokens if token.source == "draft"]
    replaced = [token for token in result.tokens if token.replaced is not None]
    assert kept and replaced
    assert all((token.reason or "").startswith("kept: ") for token in kept)
    reasons = [token.reason or "" for token in replaced]
    assert all(one.startswith("rejected: ") and one.endswith("the assistant finds more probable") for one in reasons)
    assert {token.text for token in replaced} == {"b"}  # where q > p
    assert result.acceptance_rate == len(kept) / (len(kept) + len(replaced))
    assert (result.settings.verifier, result.settings.seed, result.settings.temperature) == (None, 1, 1)
    assert result.settings.method_options == {"sampled_draft": True, "test": "ratio", "listed": 20, "temperature": 1}
    assert (await answer(max_tokens=40, method="speculative", temperature=1)).text == result.text


async def test_equal_models_keep_everything_and_gain_a_token_in_each_round() -> None:
    result = await answer(assistant=draft(), draft_length=3)
    assert result.acceptance_rate == 1
    assert [token.source for token in result.tokens] == (["draft"] * 3 + ["assistant"]) * 3


async def test_the_papers_test_takes_most_probable_tokens_by_chance() -> None:
    result = await answer(method=METHODS[2], max_tokens=60, assistant=table([0.0, 0.1, 0.9, 0.0]))
    assert set(result.text) == {"a", "b"}
    replaced = [token for token in result.tokens if token.source == "assistant"]
    assert {token.replaced for token in replaced} == {"a"}
    assert all((token.reason or "").startswith("0.6 / 0.9 < 0.") for token in replaced)
    unasked = await answer(method=METHODS[2], assistant=table([0.0, 0.3, 0.4, 0.3]))
    assert unasked.text == "a" * 12  # 0.6 / 0.4 is below no number


async def test_short_lists_are_warned_of() -> None:
    result = await answer(method=Speculative(temperature=1, listed=1))
    (words,) = [words for words in result.warnings if "leave out" in words]
    assert words.endswith("how far they are from the assistant's own distribution (in total variation)")


async def test_streaming_gives_the_same_tokens() -> None:
    fusion = Fusion(draft=draft(), assistant=assistant(), temperature=1, unit="token", method="speculative")
    async with fusion, fusion.stream("ab", seed=5, max_tokens=8) as stream:
        texts = [token.text async for token in stream]
    assert texts == [token.text for token in stream.result.tokens]


@pytest.mark.parametrize("method", METHODS)
async def test_an_assistant_that_fails(method: Speculative) -> None:
    fault = Fault(ConnectError("gone"), request=2)
    with pytest.raises(ConnectError, match="gone"):
        await answer(assistant=assistant(faults=[fault]), method=method, draft_length=2)
    given: dict[str, Any] = {"method": method, "draft_length": 2, "on_assistant_error": "draft"}
    alone = await answer(assistant=assistant(faults=[fault]), **given)
    assert len(alone.tokens) == 12
    assert {token.source for token in alone.tokens[-8:]} == {"draft"}
    assert not any(token.verified for token in alone.tokens[-8:])
    assert "was not asked any more" in alone.warnings[-1]
    assert alone.trace.replay() == alone.text


@pytest.mark.parametrize("limit", [{"max_requests": 2}, {"max_billed_tokens": 50}])
async def test_at_a_limit_the_answer_ends(limit: dict[str, int]) -> None:
    whole = await answer(draft_length=2)
    part = await answer(on_budget="end", draft_length=2, **limit)
    assert (part.finish_reason, part.stop_reason) == ("budget", next(iter(limit)))
    assert whole.text.startswith(part.text)


def rendered(_: object) -> str:
    return "ab"


async def test_messages_are_rendered_for_each_model() -> None:
    models = {"draft": draft(template=rendered), "assistant": assistant(template=rendered)}
    options: dict[str, Any] = {"method": METHODS[0], "unit": "token", "seed": 1, "max_tokens": 12, **models}
    result = await fuse([{"role": "user", "content": "Hello"}], **options)
    assert result.text == (await answer()).text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"assistant": assistant(sampling=False)}, "the assistant does not draw tokens"),
        ({"draft": draft(sampling=False)}, "the draft does not draw tokens"),
        ({"assistant": assistant(top_k=0)}, "the assistant does not list its most probable tokens"),
        ({"draft": draft(end_prob=False)}, "the draft does not report the probability of its end of sequence"),
        ({"unit": None, "assistant": ScriptedProvider.from_texts({})}, "not known to have one tokenizer"),
    ],
)
async def test_models_that_cannot_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        await answer(**options)
    if "draft" in options:  # a greedy draft shows its own tokens, and needs no more
        assert len((await answer(method=METHODS[1], **options)).tokens) == 12


async def test_tokenizers_that_are_the_same_are_found_out() -> None:
    draft, assistant = (ScriptedProvider.from_texts({"Q": [" a", " b", " c"]}) for _ in range(2))
    result = await fuse("Q", draft=draft, assistant=assistant, method=METHODS[2])
    assert (result.text, result.settings.unit, result.acceptance_rate) == (" a b c", "token", 1)


async def test_settings_are_refused_in_words() -> None:
    with pytest.raises(SettingError, match="temperature=0 is not accepted by the method 'speculative', which draws"):
        await answer(method=METHODS[2], temperature=0)
    assert Speculative(test="cosd") == METHODS[2]
    with pytest.raises(SettingError, match='test must be "ratio" or "cosd", not \'other\''):
        Speculative(temperature=1, test="other")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="temperature must be 0 or 1, not 2"):
        Speculative(temperature=2)
    for name in ("speculative", Speculative(temperature=1)):
        with pytest.raises(SettingError, match="verifier means nothing to the method 'speculative': it decides by"):
            await answer(method=name, temperature=1, verifier=MatchVerifier())
    with pytest.raises(SettingError, match="'speculative' accepts at most 2 models, not 3"):
        Fusion(draft="http://a", assistant=["http://b", "http://c"], method="speculative", temperature=1)
    with pytest.raises(SettingError, match="models is for methods in which all models are equal"):
        Fusion(models=["http://a", "http://b"], method="speculative", temperature=1)
    with pytest.raises(SettingError, match="max_ahead is for a draft that is verified while it streams"):
        await answer(max_ahead=1)


@pytest.mark.parametrize("method", METHODS)
async def test_an_estimate_holds(method: Speculative) -> None:
    async with Fusion(draft=draft(), assistant=assistant(), unit="token", method=method) as fusion:
        for seed in range(3):
            estimate = await fusion.estimate("ab", max_tokens=8)
            result = await fusion.generate("ab", max_tokens=8, seed=seed)
            for name, usage in result.usage.items():
                one = estimate.endpoints[name]
                assert one.requests.low <= usage.requests <= one.requests.high
                assert one.billed_tokens.low <= usage.billed_tokens <= one.billed_tokens.high


async def test_a_greedy_draft_beyond_ascii_is_kept_as_often_as_the_assistant_would_write_it() -> None:
    """A most probable token stands with probability q, whatever its bytes and though nothing is listed beside it."""
    tokens = [b"", b"a", "é".encode(), b"c", b"Q"]
    laws = ([0, 0.1, 0.6, 0.3, 0], [0, 0.3, 0.5, 0.2, 0])
    models = [TableModel(tokens, enumerated.fixed(law), end_ids=(0,)) for law in laws]
    draft, assistant = map(ScriptedProvider, models)
    method = Speculative(temperature=1, sampled_draft=False)
    async with Fusion(draft=draft, assistant=assistant, method=method, unit="token") as fusion:
        answers = [await fusion.generate("Q", max_tokens=1, seed=seed) for seed in range(200)]
    assert 70 < sum(answer.text == "é" for answer in answers) < 130
