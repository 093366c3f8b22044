"""Cool-Fusion: the naive transcription under every order of answers, and what surrounds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import CoolFusion, Fusion, Rerank, SettingError, Trace, fuse
from cosd_api.decoding.word_ends import unicode_words
from cosd_api.extend import Method
from cosd_api.methods.base import method_named
from cosd_providers.contract import Context
from cosd_providers.errors import BudgetError, ConnectError, UnsupportedError
from cosd_providers.testing import Fault, ScriptedProvider, ScriptToken, TableModel, TextModel
from naive import cool as naive_cool
from support.drawn import costly
from toys import contests

pytestmark = pytest.mark.timeout(400)


@costly(40)
@given(contests.tasks(longest=24), contests.NORMALISATIONS, contests.delays())
async def test_the_answer_is_the_naive_one_whatever_the_order(
    task: contests.Task, normalisation: Any, delays: list[float]
) -> None:
    wanted = naive_cool.cool(
        task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, normalisation=normalisation
    )
    contests.check(await contests.fused(task, CoolFusion(normalisation=normalisation), delays=delays), wanted)


@costly(40)
@given(contests.tasks(longest=24), st.lists(st.sampled_from(contests.SPLITS), min_size=4, max_size=4), st.booleans())
async def test_segments_end_with_words_of_all_tokenizers_or_of_ones_own(
    task: contests.Task, splits: list[naive_cool.Split], align: bool
) -> None:
    wanted = naive_cool.cool(
        task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, align=align, splits=splits
    )
    contests.check(await contests.fused(task, CoolFusion(align=align), splits=splits), wanted)


@costly(40)
@given(contests.tasks(longest=24), st.data())
async def test_a_model_that_fails_is_left_out_from_there_on(task: contests.Task, data: st.DataObject) -> None:
    fails = data.draw(st.dictionaries(st.integers(1, len(task.models) - 1), st.integers(1, 12)))
    faults = {at: Fault(ConnectError("gone"), request=number) for at, number in fails.items()}
    result = await contests.fused(task, CoolFusion(), faults=faults, on_assistant_error="draft")
    wanted = naive_cool.cool(task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, fails=fails)
    contests.check(result, wanted)


@costly(40)
@given(contests.tasks(), contests.NORMALISATIONS)
async def test_its_answer_among_those_of_the_models(task: contests.Task, normalisation: Any) -> None:
    wanted = naive_cool.cool_and_rerank(
        task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop, normalisation=normalisation
    )
    contests.check(await contests.fused(task, CoolFusion(normalisation=normalisation, rerank=True)), wanted)


@costly(40)
@given(contests.tasks(longest=24), contests.delays(), st.booleans())
async def test_what_is_read_on_is_what_a_new_request_would_write(
    task: contests.Task, delays: list[float], rerank: bool
) -> None:
    task = contests.unique(task)
    naive: Any = naive_cool.cool_and_rerank if rerank else naive_cool.cool
    wanted = naive(task.prompt, task.models, max_tokens=task.max_tokens, stop=task.stop)
    contests.check(await contests.fused(task, CoolFusion(rerank=rerank), delays=delays, tokenizes=True), wanted)


async def test_a_character_of_several_tokens_is_not_taken_for_the_one_token_of_its_bytes() -> None:
    """The model writes 一 in two tokens, and reads it as one: what it writes behind depends on that."""
    tokens = [b"", *(bytes([n]) for n in range(256)), b"\xe4\xb8", "一".encode()]
    half, whole, rest, end = 257, 258, 1 + 0x80, 0

    def following(ids: Any) -> list[float]:
        probs = [0.0] * len(tokens)
        nexts = {half: rest, rest: 1 + ord("x"), whole: 1 + ord("y")}
        probs[nexts.get(ids[-1], half if tokens[ids[-1]] == b"Q" else end)] = 1.0
        return probs

    model = TableModel(tokens, following, end_ids=(end,))
    result = await fuse("Q", models=[ScriptedProvider(model), ScriptedProvider(model)], method="cool")
    assert result.text == "一y"


# By hand: two models that differ in one word.

ONE: dict[str, list[ScriptToken]] = {
    "Q": [(" not", 0.9), (" a", 0.5), (" cat", 0.8), "."],
    "Q not the": [(" dog", 0.9), "."],
    "Q not the dog.": [],
}
OTHER: dict[str, list[ScriptToken]] = {
    "Q": [(" not", 0.9), (" the", 0.6), (" dog", 0.7), "."],
    "Q not a": [(" mouse", 0.9), "."],
}


class Generous(TextModel):
    """Gives every text that it would not write itself a probability, too."""

    def __init__(self, scripts: Any, rest: float) -> None:
        super().__init__(scripts)
        self._rest = rest

    def _next(self, ids: Any) -> list[float]:
        probs = super()._next(ids)
        return [max(prob, self._rest) for prob in probs]


def one(rest: float = 0.001, **options: Any) -> ScriptedProvider:
    return ScriptedProvider(Generous(ONE, rest), name="one", **options)


def other(rest: float = 0.001, **options: Any) -> ScriptedProvider:
    return ScriptedProvider(Generous(OTHER, rest), name="other", **options)


async def test_the_least_perplexing_segment_stands_and_the_models_write_on_from_there() -> None:
    models = [one(rest=0.01), other(rest=0.002)]
    result = await fuse("Q", models=models, method="cool")
    assert result.text == " not the dog."
    agreed, differing, *_ = result.segments
    assert agreed.reason == "all models wrote the same"
    assert agreed.candidates[0].scores == {}
    assert [one.text for one in differing.candidates] == [" a", " the"]
    means = [one.mean for one in differing.candidates]
    assert means == pytest.approx([(1 / 0.5 + 1 / 0.002) / 2, (1 / 0.01 + 1 / 0.6) / 2])
    assert differing.reason == "least mean perplexity: 50.83 against 251"
    assert [token.source for token in result.tokens] == ["draft", "assistant", *["draft"] * 3]
    assert [token.unit for token in result.tokens] == [0, 1, 2, 3, 3]
    assert (result.tokens[1].draft_prob, result.tokens[1].assistant_prob) == (None, 0.6)
    assert result.tokens[1].reason == differing.reason
    assert (result.acceptance_rate, result.settings.verifier, result.settings.unit) == (None, None, None)
    assert result.settings.method_options == {"normalisation": "token", "align": False, "rerank": False}


@pytest.mark.parametrize("rerank", [False, True])
async def test_words_of_their_own_are_refused_where_none_are_known(rerank: bool) -> None:
    method = CoolFusion(align=True, rerank=rerank)
    models = [one(), other()]
    with pytest.raises(UnsupportedError) as refused:
        await fuse("Q", models=models, method=method)
    assert str(refused.value) == (
        "scripted:: align (Cool-align) ends segments at each model's own words, and no model's words are known. "
        "Give the models' own tokenizers, connect(url, tokenizer=...) or `tokenizer` in a settings file. "
        "Or leave out align: segments then end at Unicode's words."
    )
    assert [model.requests for model in models] == [0, 0]
    for known in range(2):
        models = [one(), other()]
        models[known].words = unicode_words
        assert (await fuse("Q", models=models, method=method)).warnings == ()


@pytest.mark.parametrize("method", [CoolFusion(), CoolFusion(align=True), CoolFusion(rerank=True)])
async def test_a_refusal_names_the_method(method: Method) -> None:
    with pytest.raises(UnsupportedError, match="probabilities of a given text, by which 'cool' compares"):
        await fuse("Q", models=[one(probs=False), other()], method=method)


async def test_it_streams_segment_by_segment() -> None:
    models = [one(token_delay=0.02), other(token_delay=0.02)]
    async with Fusion(models=models, method="cool") as fusion, fusion.stream("Q") as stream:
        first = await anext(stream)
        assert first.text == " not"
        assert sum(model.requests for model in models) < 6  # the second segment is not written yet


async def test_leaving_early_leaves_no_request_open() -> None:
    models = [one(token_delay=0.02), other(token_delay=0.02)]
    async with Fusion(models=models, method="cool") as fusion:
        with anyio.move_on_after(0.1):
            await fusion.generate("Q")
    assert [model.open_requests for model in models] == [0, 0]


async def test_messages_are_rendered_for_each_model() -> None:
    scripts = {"<chat>Q": [" yes", "."], "[chat]Q": [" yes", "."]}
    models = [
        ScriptedProvider(TextModel(scripts), template=lambda messages: f"<chat>{messages[-1].content}"),
        ScriptedProvider(TextModel(scripts), template=lambda messages: f"[chat]{messages[-1].content}"),
    ]
    result = await fuse([{"role": "user", "content": "Q"}], models=models, method="cool")
    assert result.text == " yes."


async def test_a_budget_ends_the_answer_after_whole_segments() -> None:
    with pytest.raises(BudgetError) as found:
        await fuse("Q", models=[one(), other()], method="cool", max_requests=3)
    assert found.value.partial.text == " not"
    result = await fuse("Q", models=[one(), other()], method="cool", max_requests=3, on_budget="end")
    assert (result.text, result.finish_reason) == (" not", "budget")
    assert result.trace.replay() == " not"
    # Text that a stop string might still need was not shown, but belongs to a segment that was won.
    result = await fuse("Q", models=[one(), other()], method="cool", max_requests=3, on_budget="end", stop=" not it")
    assert (result.text, len(result.segments)) == ("", 1)
    assert result.trace.replay() == ""


async def test_a_stop_string_over_several_segments() -> None:
    result = await fuse("Q", models=[one(), other()], method="cool", stop="t the d")
    assert (result.text, result.finish_reason, result.stop_reason) == (" no", "stop", "t the d")
    assert result.trace.replay() == " no"


async def test_where_an_end_is_not_reported_the_others_decide() -> None:
    ends = ScriptedProvider(Generous({"Q": [" a", " b"], "Q a b": []}, 0.001), end_prob=False)
    goes_on = ScriptedProvider(Generous({"Q": [" a", " b", " c"]}, 0.01), name="on")
    result = await fuse("Q", models=[ends, goes_on], method="cool")
    contest = next(segment for segment in result.segments if len(segment.candidates) > 1)
    assert [one.end for one in contest.candidates] == [True, False]
    assert contest.candidates[0].scores["draft"] is None
    assert contest.candidates[0].mean == contest.candidates[0].scores["assistant"]
    warning = (
        "draft does not report the probability of its end of sequence: where a text ends the answer, the mean is that "
        "of the other models"
    )
    assert warning in result.warnings


async def test_where_nobody_reports_an_end_the_first_listed_decides() -> None:
    def models() -> list[ScriptedProvider]:
        scripts: list[dict[str, list[ScriptToken]]] = [{"Q": [" a."], "Q a.": []}, {"Q": [" a.", " b"], "Q a.": [" b"]}]
        return [ScriptedProvider(Generous(script, 0.001), end_prob=False) for script in scripts]

    first, second = models()
    result = await fuse("Q", models=[first, second], method="cool", max_tokens=5)
    again = await fuse("Q", models=models()[::-1], method="cool", max_tokens=5)
    assert (result.text, again.text) == (" a.", " a. b")


async def test_an_endpoint_that_cannot_score_an_end_scores_the_text() -> None:
    class Old(ScriptedProvider):
        async def score(self, context: Context, **options: Any) -> Any:
            if options.pop("end", False):
                raise UnsupportedError("no end")
            return await super().score(context, **options)

    scripts: list[dict[str, list[ScriptToken]]] = [{"Q": [(" a", 0.5)]}, {"Q": [(" b", 0.5)]}]
    models = [Old(Generous(script, 0.01 * at)) for at, script in enumerate(scripts, 1)]
    result = await fuse("Q", models=models, method="cool")
    assert result.text == " a"
    assert sum("end of sequence" in warning for warning in result.warnings) == 2


async def test_a_full_context_ends_the_answer_of_the_one_that_wins() -> None:
    models = [one(context=3), one(context=3)]
    result = await fuse("Q", models=models, method="cool")
    assert (result.text, result.finish_reason, result.stop_reason) == (" not a", "length", "context")
    result = await fuse("Q", models=[one(context=3), other()], method="cool")
    assert result.finish_reason == "stop"


async def test_a_word_without_an_end_is_cut_after_some_tokens() -> None:
    scripts: dict[str, list[ScriptToken]] = {"Q": ["a"] * 50}
    model = ScriptedProvider.from_texts(scripts)
    result = await fuse("Q", models=[model, ScriptedProvider.from_texts(scripts)], method="cool")
    assert result.text == "a" * 50
    assert [len(segment.candidates[0].text) for segment in result.segments] == [32, 18]


async def test_a_request_is_read_on_while_the_answer_follows_it() -> None:
    scripts: dict[str, list[ScriptToken]] = {"Q": [" a"] * 50}
    models = [ScriptedProvider.from_texts(scripts) for _ in range(2)]
    result = await fuse("Q", models=models, method="cool")
    assert result.text == " a" * 50
    assert len(result.segments) == 50
    assert [model.requests for model in models] == [2, 2]  # 32 tokens, and the rest
    assert result.trace.replay() == result.text


async def test_what_was_read_ahead_may_fail() -> None:
    scripts: dict[str, list[ScriptToken]] = {"Q": [" a"] * 6}
    broken = ScriptedProvider.from_texts(scripts, faults=[Fault(ConnectError("gone"), tokens=4)])
    models = [broken, ScriptedProvider.from_texts(scripts)]
    result = await fuse("Q", models=models, method="cool")
    assert result.text == " a" * 6
    assert [model.requests for model in models] == [2, 1]
    broken.faults = [Fault(ConnectError("gone"), request=3, tokens=1)]
    with pytest.raises(ConnectError, match="gone") as found:
        await fuse("Q", models=models, method="cool")
    assert found.value.endpoint == "scripted"


async def test_a_model_that_is_down_from_the_start_is_left_out() -> None:
    class Down(ScriptedProvider):
        async def describe(self) -> Any:
            raise ConnectError("down")

        async def word_splitter(self) -> Any:
            raise ConnectError("down")

    class Mute(Down):
        async def describe(self) -> Any:
            return await ScriptedProvider.describe(self)

    late = await fuse("Q", models=[one(), Mute(TextModel(OTHER))], method="cool", on_assistant_error="draft")
    assert "assistant failed and was not asked any more from token 1 on" in " ".join(late.warnings)
    models = [one(), other(), Down(TextModel(OTHER))]
    result = await fuse("Q", models=models, method="cool", on_assistant_error="draft")
    assert result.text == (await fuse("Q", models=[one(), other()], method="cool")).text
    assert not any(token.verified for token in result.tokens)
    assert "assistant 2 failed before this answer began" in " ".join(result.warnings)


async def test_a_provider_of_its_own_error_is_not_hidden_in_a_group() -> None:
    class Broken(ScriptedProvider):
        async def score(self, context: Context, **options: Any) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fuse("Q", models=[one(), Broken(Generous(OTHER, 0.001))], method="cool")


async def test_the_first_model_is_never_left_out() -> None:
    broken = one(faults=[Fault(ConnectError("gone"), request=2)])
    with pytest.raises(ConnectError) as found:
        await fuse("Q", models=[broken, other()], method="cool", on_assistant_error="draft")
    assert found.value.partial is not None


def test_settings() -> None:
    assert method_named("cool", rerank=True, normalisation="byte") == CoolFusion(rerank=True, normalisation="byte")
    with pytest.raises(SettingError, match=r"the method 'cool' has no setting 'normalization'; did you mean"):
        method_named("cool", normalization="byte")
    with pytest.raises(SettingError, match="the method 'rerank' has no setting 'x'; it has normalisation"):
        method_named("rerank", x=1)
    with pytest.raises(SettingError, match="did you mean 'cool'"):
        Fusion(models=["http://a", "http://b"], method="col")
    with pytest.raises(SettingError, match="normalisation must be"):
        CoolFusion(normalisation="letters")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="unit means nothing to the method 'cool': it decides by the perplexity of"):
        Fusion(models=["http://a", "http://b"], method="cool", unit="word")


@pytest.mark.parametrize("method", [CoolFusion(), CoolFusion(rerank=True), Rerank()])
async def test_an_estimate_holds(method: Any) -> None:
    async with Fusion(models=[one(), other(), other()], method=method) as fusion:
        for _ in range(2):
            estimate = await fusion.estimate("Q", max_tokens=8)
            result = await fusion.generate("Q", max_tokens=8)
            for name, usage in result.usage.items():
                wanted = estimate.endpoints[name]
                assert wanted.requests.low <= usage.requests <= wanted.requests.high
                assert wanted.billed_tokens.low <= usage.billed_tokens <= wanted.billed_tokens.high


async def test_the_fused_answer_beside_those_of_the_models(tmp_path: Path) -> None:
    result = await fuse("Q", models=[one(rest=0.01), other(rest=0.002)], method=CoolFusion(rerank=True))
    (segment,) = result.segments
    assert [one.sources for one in segment.candidates] == [("draft",), ("assistant",)]  # it is the assistant's answer
    assert result.text == " not the dog."
    result.trace.save(tmp_path / "trace")
    assert Trace.load(tmp_path / "trace").replay() == result.text
