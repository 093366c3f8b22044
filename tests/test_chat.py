"""Fusions that answer conversations, over scripted models: each sees its own view, and only the answer is shared."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosd_api import Fusion, FusionResult, Message, RuleVerifier, SettingError, fuse, fuse_sync
from cosd_providers import (
    BudgetError,
    ConnectError,
    ContextLengthError,
    ProviderError,
    UnsupportedError,
)
from cosd_providers.chat.leading_space import WithoutLeadingSpace
from cosd_providers.messages import RenderedPrompt
from cosd_providers.testing import ScriptedProvider
from naive import reference
from support.drawn import costly, partly
from toys import toy_models as toys
from toys.lima import ASSISTANT, DRAFT, FUSED, assistant, draft

HELLO: list[Mapping[str, Any]] = [{"role": "user", "content": "Capital?"}]


def viewed(scripts: Mapping[str, Any], view: str) -> dict[str, Any]:
    """The scripts of a model that reads this in place of the question."""
    return {key.replace("Q:", view): script for key, script in scripts.items()}


def chats(scripts: Mapping[str, Any], before: str, after: str, **options: Any) -> ScriptedProvider:
    """A model whose template puts something before and after the last message."""

    def template(messages: Sequence[Message]) -> str:
        return f"{before}{messages[-1].content}{after}"

    return ScriptedProvider.from_texts(viewed(scripts, f"{before}Capital?{after}"), template=template, **options)


def pair(**options: Any) -> dict[str, Any]:
    return {"draft": chats(DRAFT, "<u>", "<a>"), "assistant": chats(ASSISTANT, "[I]", "[/I]"), **options}


# Every model has its own view of the conversation, and the answer is what the reference makes of those views.


@dataclass(frozen=True)
class View:
    """A toy model that reads its own prompt where the others read theirs: as `reference` takes it."""

    model: Any
    shared: bytes
    own: bytes

    @property
    def vocabulary(self) -> View:
        return self

    @property
    def hides_end(self) -> bool:
        return False

    @property
    def tokens(self) -> tuple[bytes, ...]:
        return self.model.vocabulary.tokens  # type: ignore[no-any-return]

    @property
    def end(self) -> int:
        return self.model.vocabulary.end  # type: ignore[no-any-return]

    def encode(self, text: bytes) -> tuple[int, ...]:
        assert text.startswith(self.shared)
        return self.model.vocabulary.encode(self.own + text[len(self.shared) :])  # type: ignore[no-any-return]

    def next(self, ids: Sequence[int]) -> Sequence[float]:
        return self.model.next(ids)  # type: ignore[no-any-return]


@costly(30)
@given(
    toys.model_sets(may_hide_end=False),
    st.lists(toys.prompts(), min_size=4, max_size=4),
    toys.thresholds(),
    st.integers(1, 14),
    st.none() | st.integers(1, 3),
    st.integers(0, 2**16),
)
async def test_it_is_the_reference_on_each_models_own_view(
    models: Any, prompts: list[bytes], bounds: Any, limit: int, ahead: int | None, seed: int
) -> None:
    """Token by token; words over text have a reference of their own (`test_text_paths`)."""
    writer, asked = models
    rng = random.Random(seed)

    def served(model: toys.ToyModel, prompt: bytes) -> ScriptedProvider:
        def template(messages: Sequence[Message]) -> str:
            return prompt.decode() + messages[-1].content

        delays: dict[str, Any] = {"request_delay": rng.choice((0, 0.001)), "token_delay": rng.choice((0, 0, 0.0005))}
        return ScriptedProvider(toys.Plain(model), template=template, **delays)

    providers = [served(model, prompt) for model, prompt in zip((writer, *asked), prompts, strict=False)]
    verifier = RuleVerifier(alpha=bounds[0], beta=bounds[1])
    result = await fuse(
        [Message("user", "ab")],
        draft=providers[0],
        assistant=providers[1:],
        verifier=verifier,
        unit="token",
        max_tokens=limit,
        max_ahead=ahead,
    )
    views = [View(model, b"one", prompt + b"ab") for model, prompt in zip((writer, *asked), prompts, strict=False)]
    wanted = reference.fuse(b"one", views[0], views[1:], verifier.replaces, unit="token", max_tokens=limit)
    assert [token.end for token in result.tokens] == [token.end for token in wanted.tokens]
    assert result.text == wanted.text.decode("utf-8", "backslashreplace")
    assert result.replacements == wanted.replacements


async def test_what_each_model_is_asked() -> None:
    given = pair()
    result = await fuse(HELLO, **given)
    assert result.text == FUSED
    assert {call.prompt for call in given["draft"].calls} == {"<u>Capital?<a>"}
    assert {call.prompt for call in given["assistant"].calls} == {"[I]Capital?[/I]"}
    assert FusionResult.model_validate_json(result.model_dump_json()) == result
    assert result.settings.on_special_tokens == "warn"
    assert result.warnings == ()
    assert given["draft"].open_requests == given["assistant"].open_requests == 0


class Leads(ScriptedProvider):
    """A model whose template writes white space before an answer."""

    async def render_prompt(self, messages: Sequence[Message], **options: Any) -> RenderedPrompt:
        found = await super().render_prompt(messages, **options)
        return RenderedPrompt(WithoutLeadingSpace(self, b"\n"), found.prompt, ("a word of warning",))


@pytest.mark.parametrize("unit", ["token", "word", "literal"])
@pytest.mark.parametrize("more", partly([{}, {"draft_length": 1}, {"draft_length": 3}, {"ask": "all"}], 2))
@pytest.mark.parametrize(("alone", "tells"), [(False, True), (True, True), (True, False)])
async def test_white_space_that_one_template_writes(unit: Any, more: Any, alone: bool, tells: bool) -> None:
    """The draft begins with it, in a token of its own or not; the assistant without it."""
    plain: dict[str, list[Any]] = {
        "<u>": ["The", " cap", ("ital", 0.9), " is", (" Rome", 0.3), "."],
        "<u>The capital is Li": ["ma", "!"],
    }
    first = ["\n", "The"] if alone else ["\nThe"]
    led: dict[str, list[Any]] = {"<u>": [*first, *plain["<u>"][1:]], "<u>\nThe capital is Li": ["ma", "!"]}
    knows: dict[str, list[Any]] = {
        "[I]": ["The"],
        "[I]The capital is": [(" Li", 0.9), ("ma", 0.8), "!"],
        "[I]The capital is Lima": ["!"],
    }
    texts = [
        (
            await fuse(
                HELLO,
                draft=kind.from_texts(scripts, template=lambda _: "<u>", token_ids=tells),
                assistant=ScriptedProvider.from_texts(knows, template=lambda _: "[I]"),
                unit=unit,
                **more,
            )
        )
        for kind, scripts in ((ScriptedProvider, plain), (Leads, led))
    ]
    assert [result.text for result in texts] == ["The capital is Lima!"] * 2
    assert [token.text for token in texts[0].tokens] == [token.text for token in texts[1].tokens]
    assert [token.draft_prob for token in texts[0].tokens] == [token.draft_prob for token in texts[1].tokens]
    assert texts[1].warnings == ("a word of warning",)


async def test_white_space_of_an_assistants_template() -> None:
    writes: dict[str, list[Any]] = {"<u>": [("A", 0.3), " dog"], "<u>The cat": [("!", 0.9)]}
    knows: dict[str, list[Any]] = {"[I]": [("\n", 0.9), ("The", 0.8), " cat"], "[I]\nThe": [" cat"]}
    writer = ScriptedProvider.from_texts(writes, template=lambda _: "<u>")
    result = await fuse(HELLO, draft=writer, assistant=Leads.from_texts(knows, template=lambda _: "[I]"), max_tokens=1)
    assert result.text == "The"
    assert (result.tokens[0].source, result.tokens[0].assistant_prob) == ("assistant", 0.8)


async def test_a_started_answer() -> None:
    """What the models go on from is its text; the result has what is new."""
    told: list[Any] = [*HELLO, Message("assistant", "The capital")]
    writer = ScriptedProvider.from_texts(viewed(DRAFT, "user: Capital?\nassistant:"))
    knower = ScriptedProvider.from_texts(viewed(ASSISTANT, "user: Capital?\nassistant:"))
    result = await fuse(told, draft=writer, assistant=knower)
    assert result.text == FUSED.removeprefix(" The capital")


# The other ways in.


async def test_streams_maps_and_estimates() -> None:
    async with Fusion(**pair()) as fusion:
        async with fusion.stream(tuple(HELLO), max_tokens=5) as stream:
            assert "".join([token.text async for token in stream]) == " The capital is Li"
        found = [one async for one in fusion.map([HELLO, [Message("user", "Capital?")], "Q:"])]
        assert [one.text for one in found] == [FUSED, FUSED, ""]
        more = [one async for one in fusion.map([HELLO, [{"role": "tool"}], HELLO], on_error="return")]
        assert [type(one) for one in more] == [FusionResult, SettingError, FusionResult]
        guess = await fusion.estimate(HELLO, max_tokens=5)
        counts = {name: one.prompt_tokens for name, one in guess.endpoints.items()}
        assert counts["draft"] == len(chats(DRAFT, "<u>", "<a>").model.encode(b"<u>Capital?<a>"))
        assert guess.endpoints["assistant"].counted


def test_without_a_loop() -> None:
    assert fuse_sync(HELLO, **pair()).text == FUSED


async def test_two_conversations_at_once() -> None:
    """Nothing of one is seen in the other."""

    def template(messages: Sequence[Message]) -> str:
        return f"<{messages[-1].content}>"

    scripts = {f"<{n}>": [f"{n}{n}"] for n in range(8)}
    given: dict[str, Any] = {
        name: ScriptedProvider.from_texts(scripts, template=template) for name in ("draft", "assistant")
    }
    async with Fusion(**given) as fusion:
        prompts = [[Message("user", str(n))] for n in range(8)]
        assert [one.text async for one in fusion.map(prompts)] == [f"{n}{n}" for n in range(8)]


async def test_limits_count_each_models_own_prompt() -> None:
    long = "x" * 40
    with pytest.raises(ContextLengthError, match="tokens, and the assistant takes at most 39"):
        await fuse(HELLO, **pair(assistant=chats(ASSISTANT, long, "[/I]", context=40)))
    with pytest.raises(BudgetError, match="the draft reads 10 tokens of prompt"):
        await fuse(HELLO, **pair(), max_billed_tokens=3)


# Errors.


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "the conversation is empty"),
        ([{"role": "function", "content": "a"}], r"messages\[0\] has the role 'function'"),
        ([Message("system", "a")], "the conversation has no user message"),
        (["Hello"], r"messages\[0\] must be a Message or .*, not str"),
        (Message("user", "a"), "a string or a list of messages, not Message; one message is a list, too"),
        (b"Hello", "prompt must be a string or a list of messages, not bytes"),
        (iter(HELLO), "prompt must be a string or a list of messages, not list_iterator"),
        ({"role": "user", "content": "a"}, "not dict; one message is a list, too"),
    ],
)
async def test_prompts_that_are_none(prompt: Any, words: str) -> None:
    async with Fusion(**pair()) as fusion:
        with pytest.raises(SettingError, match=words):
            fusion.stream(prompt)
        for ask in (fusion.generate, fusion.estimate):
            with pytest.raises(SettingError, match=words):
                await ask(prompt)


@pytest.mark.parametrize("given", ["Warn", True, None])
def test_on_special_tokens_is_one_of_two(given: Any) -> None:
    with pytest.raises(SettingError, match='on_special_tokens must be "warn" or "refuse", not'):
        Fusion(**pair(), on_special_tokens=given)
    with pytest.raises(TypeError, match=r"on_special_tokens is not accepted here: .* give it to Fusion"):
        Fusion(**pair()).stream(HELLO, on_special_tokens="warn")  # type: ignore[call-arg]


@pytest.mark.parametrize("choice", ["warn", "refuse"])
async def test_on_special_tokens_reaches_every_endpoint(choice: Any) -> None:
    class Told(ScriptedProvider):
        async def render_prompt(
            self, messages: Sequence[Message], *, on_special_tokens: str = "none"
        ) -> RenderedPrompt:
            heard.append(on_special_tokens)
            return RenderedPrompt(self, "Q:", (f"{self.name} holds it",))

    heard: list[str] = []
    given: dict[str, Any] = {
        name: Told.from_texts(said, name=name) for name, said in (("draft", DRAFT), ("assistant", ASSISTANT))
    }
    result = await fuse(HELLO, **given, on_special_tokens=choice)
    assert heard == [choice, choice]
    assert result.settings.on_special_tokens == choice
    assert result.warnings == ("draft holds it", "assistant holds it")


async def test_providers_that_take_no_messages() -> None:
    class Text:
        """Everything but `turn`."""

        def __init__(self, provider: ScriptedProvider) -> None:
            self._provider = provider

        def __getattr__(self, name: str) -> Any:
            if name == "render_prompt":
                raise AttributeError(name)
            return getattr(self._provider, name)

        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *exc: object) -> None:
            return None

    text: Any = Text(assistant(name="old"))
    with pytest.raises(UnsupportedError, match=r"old: Text takes no messages.*Give text as the prompt, or") as caught:
        await fuse(HELLO, **pair(assistant=text))
    assert "Capital?" not in str(caught.value)
    assert (await fuse("Q:", draft=draft(), assistant=text)).text == FUSED


class Fails(ScriptedProvider):
    """Its template cannot be reached, for the first `times`."""

    error: ProviderError
    times = 1

    async def render_prompt(self, messages: Sequence[Message], **options: Any) -> RenderedPrompt:
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return await super().render_prompt(messages, **options)


def fails(error: ProviderError) -> Fails:
    made = Fails.from_texts(viewed(ASSISTANT, "[I]"), template=lambda _: "[I]")
    assert isinstance(made, Fails)
    made.error = error
    return made


async def test_an_assistant_that_is_down_when_it_is_to_render() -> None:
    down = fails(ConnectError("gone", endpoint="http://gpu"))
    with pytest.raises(ConnectError, match="gone"):
        await fuse(HELLO, **pair(assistant=fails(down.error)))
    given = pair(assistant=[down, chats(ASSISTANT, "[I]", "[/I]")])
    async with Fusion(**given, on_assistant_error="draft") as fusion:
        result = await fusion.generate(HELLO)
        assert result.text == FUSED
        assert any("assistant 1" in warning and "gone" in warning for warning in result.warnings)
        assert not down.calls
        lima = next(token for token in result.tokens if token.text == " Li")
        assert (lima.source, lima.verified) == ("assistant 2", False)
        guess = await fusion.estimate(HELLO)  # it is left out for a while
        assert guess.endpoints["assistant 1"].prompt_tokens > 1
        assert not guess.endpoints["assistant 1"].counted


async def test_a_mistake_in_how_an_assistant_is_used_is_an_error_either_way() -> None:
    refused = fails(UnsupportedError("takes no system", endpoint="http://gpu"))
    with pytest.raises(UnsupportedError, match="takes no system"):
        await fuse(HELLO, **pair(assistant=refused), on_assistant_error="draft")


async def test_a_draft_that_is_down_when_it_is_to_render() -> None:
    down = fails(ConnectError("gone", endpoint="http://gpu"))
    with pytest.raises(ConnectError, match="gone") as caught:
        await fuse(HELLO, **pair(draft=down), on_assistant_error="draft")
    assert caught.value.partial is None
