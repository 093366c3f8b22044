"""Requests of lm-evaluation-harness over scripted models, and the model `cosd` over a stand-in for the harness."""

from __future__ import annotations

import importlib
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, RuleVerifier, SettingError
from cosd_api.integrations.harness import ConversationText, HarnessFusion, answer_options, windows
from cosd_providers import ContextLengthError, InvalidRequestError, UnsupportedError
from cosd_providers.contract import Context, Piece
from cosd_providers.testing import ScriptedProvider, TableModel
from stand_in_evaluators import Instance, installed, lm_eval_modules

VOCABULARY = (b"", b"a", b"b", b" ", b"\n")
"""The end of sequence, and characters: every text has one encoding."""
KEYWORDS: dict[str, Any] = {"until": ["\n\n", "bb"], "max_gen_toks": 12, "do_sample": False, "temperature": 0.0}
"""As a task's generation_kwargs reach a model of lm-eval 0.4.13."""


def model(seed: int) -> TableModel:
    """A model of next characters, after any text; it ends seldom."""

    def following(ids: Sequence[int]) -> list[float]:
        rng = random.Random(repr((seed, tuple(ids))))
        return [1 / 16, *rng.choice([(8 / 16, 4 / 16, 2 / 16, 1 / 16), (1 / 16, 2 / 16, 9 / 16, 3 / 16)])]

    return TableModel(VOCABULARY, following, end_ids=(0,))


def servers(**options: Any) -> dict[str, Any]:
    made = [ScriptedProvider(model(seed), name=name, **options) for seed, name in enumerate(("draft", "assistant"))]
    return dict(zip(("draft", "assistant"), made, strict=True))


def nothing(at: int, answer: Any) -> None:
    """Nobody hears of it."""


def fusion(**given: Any) -> HarnessFusion:
    return HarnessFusion({**servers(), "alpha": 1, "unit": "token", **given})


async def test_answers_keep_the_order_and_stop_where_the_task_says() -> None:
    texts = ["a", "b a", "\nb", "aa b", "b b"]
    heard: dict[int, str] = {}
    asked = fusion()
    found = asked.generate([(text, KEYWORDS) for text in texts], heard.__setitem__)
    async with Fusion(**servers(), verifier=RuleVerifier(alpha=1), unit="token") as direct:
        expected = [(await direct.generate(text, stop=["\n\n", "bb"], max_tokens=12)) for text in texts]
    assert found == [one.text for one in expected]
    assert heard == dict(enumerate(found))
    assert asked.used["draft"]["requests"] >= len(texts)
    assert asked.used["draft"]["completion_tokens"] > 0


def test_an_answer_is_heard_of_before_a_later_one_fails() -> None:
    heard: dict[int, str] = {}
    alone = HarnessFusion({**servers(), "unit": "token"}, concurrency=1)
    with pytest.raises(SettingError, match="prompt is empty"):
        alone.generate([("a", KEYWORDS), ("", KEYWORDS), ("b", KEYWORDS)], heard.__setitem__)
    assert list(heard) == [0]


def test_repeats_of_a_request_are_drawn_anew_by_the_next_seeds() -> None:
    drawn = {"do_sample": True, "temperature": 1, "max_gen_toks": 12}
    asked = [("a b", drawn)] * 6 + [("b a", drawn)]

    def texts(seed: int) -> list[str]:
        return HarnessFusion({**servers(), "unit": "token", "temperature": 1, "seed": seed}).generate(asked, nothing)

    assert texts(3) == texts(3)
    assert len({*texts(3)[:6]}) > 1
    assert texts(3)[1:6] == texts(4)[:5]


def test_an_error_names_its_request() -> None:
    full = HarnessFusion({**servers(context=4), "unit": "token"}, concurrency=1)
    with pytest.raises(ContextLengthError) as caught:
        full.generate([("a", {**KEYWORDS, "max_gen_toks": 2}), ("a b a b", KEYWORDS)], nothing)
    assert caught.value.__notes__ == ["in generate_until, request 2 of 2"]
    with pytest.raises(SettingError) as refused:
        full.log_likelihoods([("a", "")], nothing, "task capitals, document {}".format)
    assert refused.value.__notes__ == ["in loglikelihood, task capitals, document 0"]


async def test_log_likelihoods_are_those_of_the_gated_mixture() -> None:
    found = fusion().log_likelihoods([("a b", " a"), ("a \n", "b"), ("", "ab")], nothing)
    async with Fusion(**servers(), verifier=RuleVerifier(alpha=1), unit="token") as direct:
        expected = [await direct.log_likelihood(*one) for one in (("a b", " a"), ("a", " \nb"), ("", "ab"))]
    assert found == [(one.total, one.is_greedy) for one in expected]


async def test_conversations_are_messages_with_a_text_of_their_own() -> None:
    messages = [{"role": "user", "content": "a b"}]
    prompt = ConversationText.of(messages)
    assert json.loads(json.dumps([prompt])) == [str(prompt)]  # the harness's keys
    options: Any = {"template": lambda given: "".join(f"{one.content}\n" for one in given)}
    chat = HarnessFusion({**servers(**options), "alpha": 1, "unit": "token"})
    found = chat.generate([(prompt, KEYWORDS)], nothing), chat.log_likelihoods([(prompt, "a")], nothing)
    async with Fusion(**servers(**options), verifier=RuleVerifier(alpha=1), unit="token") as direct:
        answer = await direct.generate(messages, stop=["\n\n", "bb"], max_tokens=12)
        score = await direct.log_likelihood(messages, "a")
    assert found == ([answer.text], [(score.total, score.is_greedy)])


async def test_the_space_at_the_end_of_an_answer_begun_is_scored() -> None:
    """A prefix of the answer may end in a space where the tokenizer has it at the beginning of a token."""
    vocabulary = (b"", b"a", b"b", b" ", b"\n", b" b")

    def one(name: str) -> ScriptedProvider:
        even = TableModel(vocabulary, lambda ids: [1 / 6] * 6, end_ids=(0,))
        return ScriptedProvider(even, name=name, template=lambda given: "\n".join(one.content for one in given))

    asked = HarnessFusion({**{name: one(name) for name in ("draft", "assistant")}, "unit": "token"})

    def prompt(prefix: str) -> ConversationText:
        return ConversationText.of([{"role": "user", "content": "a"}, {"role": "assistant", "content": prefix}])

    spaced, plain = asked.log_likelihoods([(prompt("a "), "b"), (prompt("a"), " b")], nothing)
    assert spaced == plain
    assert math.isclose(spaced[0], math.log(1 / 6))


async def test_a_long_text_is_scored_in_turn_that_fit() -> None:
    text = " ".join(["ab", "b", "aab", "a"] * 6)
    asked = HarnessFusion({**servers(context=24), "alpha": 1, "unit": "token"})
    [found] = asked.rolling([text], nothing)
    async with Fusion(**servers(), verifier=RuleVerifier(alpha=1), unit="token") as direct:
        pieces = await direct.endpoints.draft.tokenize(text)
        totals = [(await direct.log_likelihood(*part)).total for part in windows(pieces, 20)]
        assert math.isclose(found, math.fsum(totals))
        [whole] = fusion(timeout=60).rolling([text], nothing)
        assert whole == (await direct.log_likelihood("", text)).total
    [told] = HarnessFusion({**servers(), "alpha": 1, "unit": "token"}, max_length=24).rolling([text], nothing)
    assert math.isclose(told, found)


@pytest.mark.parametrize("text", ["ab\n\nba b\n\n" * 6, " " * 30 + "ab  \n b" * 5, "ab" * 20 + "\n" * 30])
@pytest.mark.parametrize("length", [10, 14, 25])
def test_a_text_in_turn_counts_every_token_once(text: str, length: int) -> None:
    """Models without memory find a text as probable in parts as whole, whatever white space its words have."""
    numbers = {"draft": [1 / 16, 4 / 16, 3 / 16, 3 / 16, 5 / 16], "assistant": [1 / 16, 5 / 16, 4 / 16, 2 / 16, 4 / 16]}
    pair = {
        name: ScriptedProvider(TableModel(VOCABULARY, lambda ids, probs=probs: probs, end_ids=(0,)), name=name)
        for name, probs in numbers.items()
    }
    [whole] = HarnessFusion({**pair, "unit": "token"}).rolling([text], nothing)
    [cut] = HarnessFusion({**pair, "unit": "token"}, max_length=length).rolling([text], nothing)
    assert math.isclose(cut, whole)


class Beginless(ScriptedProvider):
    """A model without a beginning of sequence, as servers report it."""

    async def score(self, context: Context, **options: Any) -> Any:
        prompt = context.prompt
        if not prompt:
            raise InvalidRequestError("prompt and text are empty")
        return await super().score(context, **options)


async def test_without_a_beginning_of_sequence_the_first_word_is_read_and_not_scored() -> None:
    pair = {name: Beginless(model(at), name=name) for at, name in enumerate(("draft", "assistant"))}
    asked = HarnessFusion({**pair, "alpha": 1, "unit": "token"})
    assert asked.rolling([" ab b a"], nothing) == [asked.log_likelihoods([(" ab", " b a")], nothing)[0][0]]
    with pytest.raises(InvalidRequestError):
        asked.rolling(["ab"], nothing)
    with pytest.raises(InvalidRequestError):
        asked.log_likelihoods([("", "a b")], nothing)


@pytest.mark.parametrize("kind", [ScriptedProvider, Beginless])
def test_no_word_is_left_out_of_a_text_that_has_no_distribution(kind: type[ScriptedProvider]) -> None:
    """A character of several tokens is an error, and no sign that a model has no beginning of sequence."""
    vocabulary = (b"", b"a", b" ", *(bytes([byte]) for byte in "é".encode()))
    even = TableModel(vocabulary, lambda ids: [0.2] * 5, end_ids=(0,))
    asked = HarnessFusion({name: kind(even, name=name) for name in ("draft", "assistant")} | {"unit": "token"})
    if kind is ScriptedProvider:
        with pytest.raises(UnsupportedError, match="one character of several tokens"):
            asked.rolling(["éaaa aa", "éa a"], nothing)
        assert asked.used["draft"]["requests"] > 0  # the question about a letter is counted
    else:
        assert asked.rolling(["éaaa aa"], nothing) == [pytest.approx(3 * math.log(0.2))]


def test_a_server_that_encodes_another_text_cuts_nothing() -> None:
    class Spaced(ScriptedProvider):
        async def tokenize(self, text: str) -> list[Piece]:
            return await super().tokenize(" " + text)

    pair = {**servers(context=20), "draft": Spaced(model(0), name="draft", context=20)}
    with pytest.raises(UnsupportedError, match="encodes a different text than the one to cut"):
        HarnessFusion({**pair, "unit": "token"}).rolling(["a b " * 20], nothing)


@given(st.lists(st.sampled_from(["a", " b", " ", "\n", "ab", "é", "😀"]), min_size=1, max_size=40), st.integers(9, 30))
def test_parts_are_the_text_and_fit(tokens: list[str], size: int) -> None:
    pieces = [Piece(0, bytes([byte])) for token in tokens for byte in token.encode()]
    found = windows(pieces, size)
    assert "".join(part for _, part in found) == "".join(tokens)
    before = ""
    for context, part in found:
        assert part
        assert before.endswith(context)
        assert len((context + part).encode()) <= size
        before += part
    if len(found) > 1:  # the last part has as much before it as fits, but for the rest of a character
        assert len("".join(found[-1]).encode()) > size - 4


def test_a_part_holds_one_character_at_least() -> None:
    with pytest.raises(SettingError, match="max_length is too small: a character has more than 3 tokens"):
        windows([Piece(0, bytes([byte])) for byte in "😀".encode()], 3)


def test_keywords_of_a_task() -> None:
    def options(temperature: float = 0, /, **given: Any) -> Any:
        return answer_options(given, max_gen_toks=50, temperature=temperature)

    assert options(**KEYWORDS) == {"stop": ["\n\n", "bb"], "max_tokens": 12}
    assert options(until="\n", max_new_tokens=7) == {"stop": ["\n"], "max_tokens": 7}
    assert options(max_gen_toks="7")["max_tokens"] == options(max_tokens=7.0)["max_tokens"] == 7
    assert options(until=None) == options(until=[""]) == {"stop": [], "max_tokens": 50}
    assert options(do_sample=False, top_p=0.9, top_k=5, num_beams=1, seed=4) == options()
    assert options(1, do_sample=True, top_p=1, top_k=0) == options(1, temperature=1) == options()
    assert options(do_sample=True, temperature=0) == options(temperature=None) == options()


@pytest.mark.parametrize(
    ("temperature", "keywords", "words"),
    [
        (0, {"do_sample": True, "temperature": 0.7}, "the task draws at temperature 0.7, and this fusion is greedy"),
        (0, {"do_sample": True}, "give --gen_kwargs do_sample=False"),
        (1, {"do_sample": True, "temperature": 0.7}, "at temperature 0.7, and this fusion at 1"),
        (0, {"temperature": 0.7}, "the task draws at temperature 0.7, and this fusion is greedy"),
        (1, {"do_sample": False}, "the task is greedy, and this fusion draws at temperature 1: leave out the model"),
        (1, {"do_sample": False, "temperature": 1}, "or give --gen_kwargs do_sample=True,temperature=1"),
        (1, {}, "the task is greedy"),
        (1, {"do_sample": True, "top_p": 0.9}, "top_p is not accepted"),
        (0, {"max_gen_toks": "long"}, "max_gen_toks must be a whole number of at least 1, not 'long'"),
        (0, {"num_beams": 4}, "num_beams is not accepted: a fusion has one answer"),
        (0, {"repetition_penalty": 1.1}, "repetition_penalty is not accepted"),
    ],
)
def test_what_a_fusion_does_not_have_is_refused(temperature: float, keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError) as caught:
        answer_options(keywords, max_gen_toks=50, temperature=temperature)
    assert words in str(caught.value)


def test_without_the_harness_one_line_says_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("cosd_api.integrations.lm_eval")
    assert str(caught.value).endswith('needs lm-eval: pip install ".[lm-eval]" in a clone of the repository')


@pytest.fixture
def harness() -> Iterator[Any]:
    """Our module over the stand-in for the harness."""
    with installed(lm_eval_modules(), "cosd_api.integrations.lm_eval"):
        yield importlib.import_module("cosd_api.integrations.lm_eval")


def test_the_model_is_registered_and_answers(harness: Any) -> None:
    registry: Any = sys.modules["lm_eval.api.registry"]
    assert registry.known == {"cosd": harness.FusionLM}
    assert (harness.FusionLM.__module__, harness.FusionLM.__name__) == (
        "cosd_api.integrations.lm_eval.model",
        "FusionLM",
    )
    lm = harness.FusionLM(**servers(), unit="token", batch_size=1, max_batch_size=None, device=None, max_gen_toks=9)
    requests = [Instance(("a", KEYWORDS)), Instance(("b", KEYWORDS))]
    texts = lm.generate_until(requests)
    assert sorted(lm.kept) == sorted(
        ("generate_until", one.args, text) for one, text in zip(requests, texts, strict=True)
    )
    lm.kept.clear()
    [found] = lm.loglikelihood([Instance(("a", " b"))], disable_tqdm=True)
    [total] = lm.loglikelihood_rolling([Instance(("a b",))])
    assert lm.kept == [("loglikelihood", ("a", " b"), found), ("loglikelihood_rolling", ("a b",), total)]
    assert set(lm.get_model_info()["cosd_usage"]) == {"draft", "assistant"}
    with pytest.raises(SettingError) as caught:
        lm.generate_until([Instance(("", KEYWORDS), "capitals", 3)])
    assert caught.value.__notes__ == ["in generate_until, task capitals, document 3"]


def test_chat_templates_are_each_models_own(harness: Any) -> None:
    lm = harness.FusionLM(**servers())
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert lm.apply_chat_template(messages, add_generation_prompt=False).messages == messages
    assert (lm.tokenizer_name, lm.chat_template(True), lm.chat_template(False)) == (
        "cosd-messages",
        "each model's own",
        "",
    )
    with pytest.raises(SettingError, match="the chat template 'default' cannot be chosen: each model has its own"):
        lm.chat_template("default")
