"""Servers without log probabilities: found out once, asked as assistants word by word, and writing event by event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cosd_api import AgreementVerifier, Fusion, RuleVerifier
from cosd_providers import AuthenticationError, Question, UnsupportedError, Usage
from cosd_providers.contract import Context, Token
from cosd_providers.engines.openai import Dialect, OpenAICompatible
from cosd_providers.engines.openai.no_logprobs import EventReader, words
from cosd_providers.engines.openai.wire import Completion
from cosd_providers.messages import Message
from cosd_providers.testing import ScriptedProvider, TextModel
from fakes.openai import FakeOpenAI
from support.asked import draft
from support.method_files import Cascade, Nudging
from toys import toy_models as toys

URL = "http://gpu:8000"
TOY = Dialect("toy", known_text="Q", sample="Q")
ANSWER = [" The", " capi", "tal", " is", " Li", "ma", ".", " It", " is", " big"]


def over(**options: Any) -> tuple[FakeOpenAI, OpenAICompatible]:
    server = FakeOpenAI(TextModel({"Q": list(ANSWER)}), **options)
    return server, OpenAICompatible(URL, http_client=server.client(), dialect=TOY)


def said(text: str, finish: str | None) -> list[bytes]:
    answer = Completion(text=text, message=None, finish_reason=finish)
    return [b"<end>" if one.pick.token.end else one.pick.token.data for one in words(answer)]


@pytest.mark.parametrize(
    ("text", "finish", "found"),
    [
        (" The capital is", "length", [b" The", b" capital"]),
        (" The capital is ", "length", [b" The", b" capital", b" is"]),
        (" The capital is", "stop", [b" The", b" capital", b" is", b"<end>"]),
        (" is Lima.", "length", [b" is", b" Lima"]),
        (" is Lima.\n\n", "stop", [b" is", b" Lima", b".", b"\n\n", b"<end>"]),
        (" Lima", "length", []),
        ("", "length", []),
        ("", "stop", [b"<end>"]),
        (" caf\u00e9 \ufffd", "length", [b" caf\xc3\xa9"]),
        (" a_1, (b)", "content_filter", [b" a", b"_", b"1", b",", b" (", b"b"]),
    ],
)
def test_words(text: str, finish: str | None, found: list[bytes]) -> None:
    assert said(text, finish) == found


@pytest.mark.parametrize("probs", ["ignored", "refused"])
@pytest.mark.parametrize("lists", ["yes", "500"])
@pytest.mark.usefixtures("no_waiting")
async def test_an_assistant_without_probabilities(probs: Any, lists: Any) -> None:
    server, provider = over(probs=probs, lists=lists)
    able = (await provider.describe()).capabilities
    assert (able.probs, able.score, able.end_prob) == (False, False, False)
    server.requests.clear()
    text = b" The capital is Lima. It is"
    asked = [
        Question(0, (b" The", b" ca"), word=True),
        Question(12, (b" was",), word=True),
        Question(20, (b".",), True),
    ]
    usage = Usage()
    found = await provider.propose(Context("Q", text), asked, usage=usage)
    way = "list" if lists == "yes" else "singles"
    assert {one and one.strategy for one in found} == {way}
    assert usage.strategies == {way: 3}
    assert [one and [token.data for token in one.tokens] for one in found] == [
        [b" The", b" capital"],
        [b" is", b" Lima"],  # the next word shows that it has ended
        [b"."],
    ]
    assert {token.prob for one in found if one for token in one.tokens} == {None}
    assert not any({"logprobs", "top_logprobs"} & {*body} for body in server.bodies)


@pytest.mark.parametrize("lists", ["yes", "500"])
@pytest.mark.parametrize("strips", [True, False])
@pytest.mark.usefixtures("no_waiting")
async def test_a_space_that_the_server_takes_off_its_answers_is_put_back(strips: bool, lists: Any) -> None:
    """As mlx_lm.server does: "Peru is" + "Lima" is neither another word than " Lima" nor "Peru isLima"."""
    server, provider = over(probs="ignored", strips=strips, lists=lists)
    text = b" The capital is Rome. It is"
    asked = [Question(0, (b" The",), word=True), Question(15, (b" Rome",), word=True), Question(15, (b" Lima",), True)]
    found = await provider.propose(Context("Q", text), asked, usage=Usage())
    assert [one and one.tokens[0].data for one in found] == [b" The", b" Lima", b" Lima"]
    [sign] = await provider.propose(
        Context("Q", b" The capital is Lima"), [Question(20, (b" in",), word=True)], usage=Usage()
    )
    assert sign is not None
    assert sign.tokens[0].data == b"."
    before = len(server.requests)
    await provider.propose(Context("Q", text), [Question(15, (b" Rome",), word=True)], usage=Usage())
    assert len(server.requests) == before + 1  # found out once


async def test_a_space_is_put_back_behind_the_start_of_an_answer_in_a_conversation() -> None:
    server = FakeOpenAI(TextModel({"Q": list(ANSWER)}), probs="ignored", strips=True)
    dialect = replace(TOY, api="chat", continues={})
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect)
    asked = await provider.render_prompt([Message("user", "Q"), Message("assistant", " The capital is")])
    questions = [Question(0, (b" Rome",), word=True)]
    [found] = await asked.provider.propose(Context(asked.prompt, b""), questions, usage=Usage())
    assert found is not None
    assert found.tokens[0].data == b" Lima"


async def test_it_is_asked_again_until_a_word_is_whole() -> None:
    server = FakeOpenAI(TextModel({"Q": [*"abcdefghijklmnopqrstuvwxyz", ".", "x"]}), probs="ignored")
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY)
    await provider.describe()
    server.requests.clear()
    [found] = await provider.propose(Context("Q", b""), [Question(0, (b"a",), word=True)], usage=Usage())
    assert found is not None
    assert [token.data for token in found.tokens] == [b"abcdefghijklmnopqrstuvwxyz"]
    assert [body["max_tokens"] for body in server.bodies] == [8, 16, 32]


async def test_a_word_without_an_end_is_given_up() -> None:
    server = FakeOpenAI(TextModel({"Q": ["a"] * 999}), probs="ignored")
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY)
    assert await provider.propose(Context("Q", b""), [Question(0, (b"b",), word=True)], usage=Usage()) == [None]


async def test_the_end_is_agreed_on() -> None:
    _, provider = over(probs="ignored")
    text = "".join(ANSWER).encode()
    [found] = await provider.propose(Context("Q", text), [Question(len(text), (b"",), word=True)], usage=Usage())
    assert found is not None
    assert found.tokens == (Token(b"", None, end=True),)


@pytest.mark.parametrize("probs", ["ignored", "refused"])
async def test_its_own_choices_token_by_token_are_refused(probs: Any) -> None:
    server, provider = over(probs=probs)
    words = r"gives no probabilities with its tokens, although asked \(logprobs\).* cannot draft.*AgreementVerifier"
    for questions in ([Question(0, (b"a",))], None):
        with pytest.raises(UnsupportedError, match=words):
            await provider.propose(Context("Q", b""), questions, usage=Usage())
    # A model without an answer to a letter is asked something else; neither is ever asked again.
    assert [body["prompt"] for body in server.bodies] == (["a"] if probs == "refused" else ["a", "Q"])
    with pytest.raises(UnsupportedError, match="does not give the probabilities of a given text"):
        await provider.score(Context("Q", b" The"), usage=Usage())


@pytest.mark.parametrize("probs", ["ignored", "refused"])
@pytest.mark.parametrize("per_event", [(1,), (2, 3), (99,)])
@pytest.mark.parametrize("limit", [1, 4, 10, 11, 20])
async def test_it_writes_what_the_events_of_its_stream_hold(probs: Any, per_event: Any, limit: int) -> None:
    server, provider = over(probs=probs, per_event=per_event)
    usage = Usage()
    *tokens, end = await draft(provider, "Q", limit=limit, usage=usage)
    text = "".join(ANSWER).encode()
    written = b"".join(token.data for token in tokens)
    assert text.startswith(written)
    assert {token.prob for token in tokens} == {None}
    assert end.reason == ("end" if tokens[-1].end else "limit")
    assert len(tokens) == limit or (tokens[-1].end and written == text)
    if per_event == (1,):
        assert [token.data for token in tokens] == [*(one.encode() for one in ANSWER), b""][:limit]
        assert usage.requests == 1
    assert not any({"logprobs", "top_logprobs"} & {*body} for body in server.bodies[2:])


@pytest.mark.parametrize("probs", ["ignored", "refused"])
@pytest.mark.parametrize("per_event", [(1,), (2, 3), (99,)])
@pytest.mark.parametrize("limit", [1, 4, 10, 11, 20])
async def test_it_draws(probs: Any, per_event: Any, limit: int) -> None:
    """Where an event holds several tokens the text is continued: the same request might draw others."""
    server, provider = over(probs=probs, per_event=per_event)
    able = (await provider.describe()).capabilities
    assert (able.probs, able.sampling, able.draws) == (False, False, True)
    server.requests.clear()
    *tokens, end = await draft(provider, "Q", limit=limit, temperature=1, seed=5)
    written = b"".join(token.data for token in tokens)
    assert "".join(ANSWER).encode().startswith(written)
    assert end.reason == ("end" if tokens[-1].end else "limit")
    assert len(tokens) == limit or tokens[-1].end
    assert {body["temperature"] for body in server.bodies} == {1}
    assert server.bodies[0]["seed"] == 5
    prompts = [body["prompt"] for body in server.bodies]
    assert len({*prompts}) == len(prompts) == len({body["seed"] for body in server.bodies})


async def test_it_continues_a_text_and_an_answer() -> None:
    _, provider = over(probs="ignored")
    [token, _] = await draft(provider, "Q", b" The capital is", limit=1)
    assert token.data == b" Li"
    for repeats in (False, True):
        server = FakeOpenAI(TextModel({"Q": list(ANSWER)}), probs="ignored", chat_repeats=repeats)
        chat = OpenAICompatible(URL, http_client=server.client(), dialect=replace(TOY, api="chat", continues={}))
        asked = await chat.render_prompt([Message("user", "Q"), Message("assistant", " The capital")])
        tokens = await draft(asked.provider, asked.prompt, b" is", limit=2)
        assert [token.data for token in tokens[:-1]] == [b" Li", b"ma"]


def read(reader: EventReader, text: str, sizes: list[int]) -> str:
    found = b""
    for size in [*sizes, 99]:
        event = Completion(text=text[:size], message=None, finish_reason="length" if size == 99 else None)
        found, text = found + b"".join(one.pick.token.data for one in reader.feed(event)), text[size:]
    return found.decode()


@given(st.text("ab ", max_size=6), st.text("ab ", max_size=6), st.lists(st.integers(1, 4)))
def test_text_that_is_repeated_is_left_out(before: str, behind: str, sizes: list[int]) -> None:
    assert read(EventReader(URL, before), before + behind, sizes) == behind


@given(st.text("ab ", min_size=1, max_size=6), st.text("ab ", max_size=8), st.lists(st.integers(1, 4)))
def test_text_that_begins_as_what_was_before_is_not(before: str, written: str, sizes: list[int]) -> None:
    assert read(EventReader(URL, before), written, sizes) == written.removeprefix(before)


@given(st.text("ab\ufffd", max_size=8), st.lists(st.integers(1, 4)))
def test_a_character_that_was_cut_off_is_left_out(text: str, sizes: list[int]) -> None:
    assert read(EventReader(URL), text, sizes) == text.rstrip("\ufffd")


async def test_a_method_that_compares_no_probabilities_takes_it() -> None:
    _, provider = over(probs="ignored")
    for method in (Cascade(quantile=1, tau=0.1), Nudging(gamma=0.5, nudge_tokens=3)):
        async with Fusion(draft=drafting(), assistant=provider, method=method) as fusion:
            result = await fusion.generate("Q")
        assert result.text == "".join(ANSWER)


async def test_a_model_without_an_answer_to_a_letter_is_asked_something_else() -> None:
    server = FakeOpenAI(TextModel({"Q": ["a", "b"], "a": []}), end=False, probs="ignored")
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=TOY)
    assert not (await provider.describe()).capabilities.probs
    assert [body["prompt"] for body in server.bodies] == ["a", "Q"]


async def test_a_refused_key_shows_nothing_of_probabilities() -> None:
    class Closed(FakeOpenAI):
        def handle(self, request: Any) -> Any:
            response = super().handle(request)
            if request.url.path.endswith("completions"):
                response.status_code = 401
            return response

    server = Closed(TextModel({"Q": list(ANSWER)}))
    with pytest.raises(AuthenticationError):
        await OpenAICompatible(URL, http_client=server.client(), dialect=TOY).describe()


@given(toys.models(may_hide_end=False), toys.prompts(), toys.prompts(), st.integers(0, 6), st.booleans())
async def test_words_are_the_models_own(
    model: toys.ToyModel, prompt: bytes, text: bytes, at: int, ignored: bool
) -> None:
    """Proposals are the whole words that the model would write there."""
    start = len(text.decode()[:at].encode())
    expected = ScriptedProvider(toys.Plain(model), token_ids=False, end_prob=False)
    written = await draft(expected, prompt.decode(), text[:start], limit=300)
    whole = b"".join(token.data for token in written[:-1])
    try:
        whole.decode()
    except UnicodeDecodeError:
        assume(False)
    server = FakeOpenAI(toys.Plain(model), beginning=True, probs="ignored" if ignored else "refused")
    dialect = Dialect("toy", known_text="ab", sample="ab", probs=False)
    provider = OpenAICompatible(URL, http_client=server.client(), dialect=dialect)
    question = Question(start, (text[start:][:3],) if text[start:].isascii() else (b"a",), word=True)
    [found] = await provider.propose(Context(prompt.decode(), text), [question], usage=Usage())
    if found is None:
        assert not any(len(word.strip()) < 200 and word != whole.split()[-1] for word in whole.split()[:1])
        return
    ours = b"".join(token.data for token in found.tokens)
    # One word that is the draft's, but for the space before it: nothing shows whether the server took that space off.
    drafted = b"".join(question.tokens).strip()
    spaced = ours[:1].isspace() and whole.startswith(ours.lstrip())
    if spaced and ours.strip() != drafted:
        # Nor where the model, behind that space, leaves out the next one by itself.
        behind = await draft(expected, prompt.decode(), text[:start] + found.tokens[0].data, limit=300)
        spaced = not b"".join(token.data for token in behind[:-1])[:1].isspace()
    assert whole.startswith(ours) or spaced
    assert found.tokens[-1].end <= (ours == whole)


# A fusion with it.


def drafting() -> ScriptedProvider:
    """Unsure of a town that is wrong."""
    return ScriptedProvider(TextModel({"Q": [" The", " capital", " is", (" Quito", 0.4), ".", " It", " is", " big"]}))


@pytest.mark.parametrize("strips", [True, False])
async def test_a_fusion_by_agreement(strips: bool) -> None:
    _, assistant = over(probs="ignored", strips=strips)
    verifier = AgreementVerifier(alpha=0.5)
    async with Fusion(draft=drafting(), assistant=assistant, verifier=verifier, unit="word") as fusion:
        result = await fusion.generate("Q")
    assert (result.text, result.replacements) == (" The capital is Lima", 1)  # this draft knows nothing that follows it


async def test_a_fusion_that_needs_its_probabilities_is_refused_before_the_first_token() -> None:
    server, assistant = over(probs="refused")
    async with Fusion(draft=drafting(), assistant=assistant, verifier=RuleVerifier(), unit="word") as fusion:
        with pytest.raises(UnsupportedError, match="AgreementVerifier"):
            await fusion.generate("Q")
    assert all(body["prompt"] in ("a", "Q") and body["max_tokens"] == 1 for body in server.bodies)
