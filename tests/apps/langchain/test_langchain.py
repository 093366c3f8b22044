"""What LangChain's users expect of a model: fields, what is told of an answer, messages, saving, caches."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.load import dumps, loads
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
)
from pydantic import BaseModel, SecretStr, ValidationError

from cosd_api import (
    AgreementVerifier,
    CoLLMVerifier,
    CoolFusion,
    CoSD,
    Defer,
    Fusion,
    RuleVerifier,
    SettingError,
    Speculative,
)
from cosd_api.apps.langchain import ChatCoSD, CoSDLLM
from cosd_api.extend import Method
from cosd_api.methods import method_named
from naive.defer import gate
from support.method_files import AT
from toys.lima import FUSED, assistant, draft

TOKENS = [" The", " cap", "ital", " is", " Li", "ma", ".", " Really", "."]
URLS: dict[str, Any] = {"draft": "http://gpu1:8080", "assistant": "http://gpu2:8080"}
SECRET = "sk-never-shown"
BETA = pytest.mark.filterwarnings("ignore:The function `loads` is in beta")


def asked(messages: Sequence[Any]) -> str:
    return "Q:"


def chat(**fields: Any) -> ChatCoSD:
    return ChatCoSD(draft=draft(template=asked), assistant=assistant(template=asked), **fields)


def llm(**fields: Any) -> CoSDLLM:
    return CoSDLLM(draft=draft(), assistant=assistant(), **fields)


class Heard(BaseCallbackHandler):
    """What callbacks are told."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.ended: list[Any] = []

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.tokens.append(token)

    def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.ended.append(response)


# ------------------------------------------------------------------------------------------------------ an answer


async def test_an_answer_and_what_is_known_of_it() -> None:
    message = await chat().ainvoke("Where?")
    assert message.content == FUSED
    told = message.response_metadata
    assert (told["model_name"], told["finish_reason"], told["model_provider"]) == ("scripted+scripted", "stop", "cosd")
    assert (told["cosd"]["replacements"], told["cosd"]["stop_reason"]) == (1, "</s>")
    assert told["cosd"]["acceptance_rate"] == pytest.approx(8 / 9)
    assert not {"text", "tokens"} & told["cosd"].keys()
    usage = told["cosd"]["usage"].values()
    assert message.usage_metadata is not None
    assert message.usage_metadata["input_tokens"] == sum(one["prompt_tokens"] for one in usage) > 0
    assert message.usage_metadata["output_tokens"] == sum(one["completion_tokens"] for one in usage) > 0


async def test_a_stream_is_the_same_answer_and_its_last_chunk_has_all_that_is_known() -> None:
    model = chat()
    whole = await model.ainvoke("Where?")
    for chunks in ([chunk async for chunk in model.astream("Where?")], list(model.stream("Where?"))):
        assert [chunk.text for chunk in chunks] == [*TOKENS, ""]
        assert [chunk.chunk_position for chunk in chunks] == [None] * len(TOKENS) + ["last"]
        assert [chunk.usage_metadata is None for chunk in chunks] == [True] * len(TOKENS) + [False]
        full = sum(chunks[1:], chunks[0])
        assert isinstance(full, AIMessageChunk)
        assert (full.content, full.chunk_position) == (FUSED, "last")
        assert full.response_metadata.keys() == whole.response_metadata.keys()
        assert full.response_metadata["cosd"].keys() == whole.response_metadata["cosd"].keys()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("make", [chat, llm])
async def test_callbacks_see_each_token_once(make: Callable[..., Any], streaming: bool) -> None:
    model = make(streaming=streaming) if make is chat else make()
    heard = [Heard() for _ in range(4)]
    model.invoke("Q:", {"callbacks": [heard[0]]})
    list(model.stream("Q:", {"callbacks": [heard[1]]}))
    await model.ainvoke("Q:", {"callbacks": [heard[2]]})
    async for _ in model.astream("Q:", {"callbacks": [heard[3]]}):
        pass
    for one in heard:
        assert one.tokens == [*TOKENS, ""]
        assert len(one.ended) == 1


async def test_a_text_models_details_are_in_its_generation() -> None:
    for result in (await llm().agenerate(["Q:", "Q:"]), llm().generate(["Q:", "Q:"])):
        assert [[one.text for one in several] for several in result.generations] == [[FUSED], [FUSED]]
        info = result.generations[1][0].generation_info
        assert info is not None
        assert (info["finish_reason"], info["cosd"]["replacements"]) == ("stop", 1)
        assert result.llm_output is not None
        sums = [one[0].generation_info["usage_metadata"]["total_tokens"] for one in result.generations]  # type: ignore[index]
        assert result.llm_output["token_usage"]["total_tokens"] == sum(sums)
    assert llm().generate([]).generations == []


async def test_a_prompt_that_is_none_is_refused_as_it_is_alone() -> None:
    for prompts in ([""], ["Q:", ""]):
        with pytest.raises(SettingError, match="prompt is empty"):
            await llm().agenerate(prompts)


# ------------------------------------------------------------------------------------------------------ fields


@pytest.mark.parametrize("make", [chat, llm])
async def test_limits_are_the_models_unless_the_call_has_its_own(make: Callable[..., Any]) -> None:
    def text(answer: Any) -> str:
        return answer if isinstance(answer, str) else answer.text

    model = make(max_tokens=2)
    assert text(await model.ainvoke("Q:")) == " The cap"
    assert text(model.invoke("Q:", max_tokens=3)) == " The capital"
    assert text(model.bind(max_tokens=4).invoke("Q:")) == " The capital is"
    assert text(model.invoke("Q:", max_tokens=None)) == " The cap"
    model = make(stop=["Lima"])
    assert text(model.invoke("Q:")) == " The capital is "
    assert text(await model.ainvoke("Q:", stop=["capital"])) == " The "
    assert text(await model.ainvoke("Q:", stop=[])) == FUSED
    assert "".join(map(text, model.stream("Q:", stop=["is"]))) == " The capital "
    with pytest.raises(SettingError, match="stop must be strings of at least one character"):
        model.invoke("Q:", stop=[""])


async def test_a_limit_can_end_the_answer_and_says_so() -> None:
    message = await chat(max_requests=1, on_budget="end").ainvoke("Where?")
    told = message.response_metadata
    assert (told["finish_reason"], told["cosd"]["stop_reason"]) == ("budget", "max_requests")
    assert chat(max_tokens=1).invoke("Where?").response_metadata["finish_reason"] == "length"


def test_a_models_name_is_for_people() -> None:
    model = chat(model="ours")
    assert model.invoke("Where?").response_metadata["model_name"] == "ours"
    assert model.invoke("Where?", model="yours").response_metadata["model_name"] == "yours"
    assert model._get_ls_params(stop=["x"])["ls_model_name"] == "ours"
    params = CoSDLLM(**URLS, max_tokens=7, stop="x")._get_ls_params()
    assert params == {
        "ls_provider": "cosd",
        "ls_model_type": "llm",
        "ls_model_name": "gpu1:8080+gpu2:8080",
        "ls_max_tokens": 7,
        "ls_stop": ["x"],
    }


def test_a_temperature_is_refused_as_a_fusion_does() -> None:
    with pytest.raises(SettingError) as ours:
        Fusion(**URLS, temperature=0.7)
    with pytest.raises(ValidationError) as made:
        chat(temperature=0.7)
    assert str(ours.value) in str(made.value)
    with pytest.raises(SettingError) as theirs:
        Fusion(**URLS).stream("Q:", temperature=0.7)  # type: ignore[call-arg]
    with pytest.raises(SettingError) as called:
        chat().invoke("Where?", temperature=0.7)
    assert str(called.value) == str(theirs.value)
    assert chat(temperature=0).invoke("Where?", temperature=0.0).text == FUSED
    with pytest.raises(ValidationError, match="seed is not accepted: the method 'cosd' draws nothing"):
        chat(seed=3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"top_p": 0.5}, "top_p is not accepted: the draft of CoSD is greedy"),
        ({"n": 2}, "n is not accepted: a fusion has one answer"),
        ({"max_token": 5}, "unknown argument 'max_token'; did you mean 'max_tokens'?"),
        ({"tokenizer": "x"}, r"give a provider, draft=connect\(url, tokenizer=...\)"),
        ({"max_retries": -1}, "max_retries must be a whole number of at least 0"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
    ],
)
def test_what_a_fusion_cannot_take_is_refused_with_the_reason(given: dict[str, Any], words: str) -> None:
    for attempt in (lambda: chat(**given), lambda: chat().invoke("Where?", **given)):
        with pytest.raises((ValueError, TypeError), match=words):
            attempt()


@pytest.mark.parametrize("method", ["cosd", "average", "speculative"])
def test_answers_are_drawn(method: str) -> None:
    model = chat(temperature=1, unit="token", seed=3, method=method)
    given: list[dict[str, Any]] = [{}, {"seed": 4}]
    settings = [model.invoke("Where?", **more).response_metadata["cosd"]["settings"] for more in given]
    assert [(one["temperature"], one["seed"]) for one in settings] == [(1.0, 3), (1.0, 4)]


def test_where_the_servers_are() -> None:
    with pytest.raises(ValidationError, match="there is no draft: give its URL, or set COSD_DRAFT_URL"):
        ChatCoSD()
    with pytest.raises(ValidationError, match=r"there is no assistant: .* COSD_ASSISTANT_URL"):
        ChatCoSD(draft=URLS["draft"])
    with pytest.raises(ValidationError, match="did you mean 'http://gpu1:8080'"):
        ChatCoSD(draft="gpu1:8080", assistant=URLS["assistant"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COSD_DRAFT_URL", "http://one:1")
        patch.setenv("COSD_ASSISTANT_URL", "http://two:2 http://three:3")
        model = ChatCoSD()
        assert (model.draft, model.assistant) == ("http://one:1", ["http://two:2", "http://three:3"])
        assert ChatCoSD(**URLS).draft == URLS["draft"]
        ChatCoSD(fusion=Fusion(**URLS))


async def test_a_fusion_of_the_users_own() -> None:
    given = Fusion(draft=draft(template=asked), assistant=assistant(template=asked), verifier=RuleVerifier(alpha=0.1))
    model = ChatCoSD(fusion=given, max_tokens=5)
    assert (await model.ainvoke("Where?")).text == " The capital is Rome"  # its alpha is below the draft's 0.3
    async with given:  # which may be open, too
        assert (await model.ainvoke("Where?")).text == " The capital is Rome"
    with pytest.raises(ValidationError, match="draft, max_ahead: the given fusion has its own"):
        ChatCoSD(fusion=given, draft=URLS["draft"], max_ahead=1)
    with pytest.raises(ValidationError, match="fusion must be a Fusion, not str"):
        ChatCoSD(fusion="http://gpu1:8080")  # type: ignore[arg-type]  # which is what is tested


def test_settings_of_a_fusion_are_fields() -> None:
    model = chat(verifier=AgreementVerifier(alpha=0.2), on_assistant_error="draft", max_ahead=2, max_tokens=5)
    message = model.invoke("Where?")
    assert message.text == " The capital is Rome"
    settings = message.response_metadata["cosd"]["settings"]
    assert (settings["verifier"]["alpha"], settings["on_assistant_error"], settings["max_ahead"]) == (0.2, "draft", 2)


@pytest.mark.parametrize(
    "method", ["cool", CoolFusion(rerank=True), "rerank", "chared", "steps", "safe", *map(method_named, AT.values())]
)
def test_a_method_that_chooses_between_texts(method: str | Method) -> None:
    answer = chat(method=method).invoke("Where?")
    details = answer.response_metadata["cosd"]
    assert details["settings"]["method"] == (method if isinstance(method, str) else method.name)
    assert details["acceptance_rate"] is None
    assert "".join(one["candidates"][one["winner"]]["text"] for one in details["segments"]) == answer.text


def test_the_method_is_a_setting_of_the_fusion() -> None:
    method = CoSD(verifier=AgreementVerifier(alpha=0.2), unit="word")
    settings = chat(method=method).invoke("Where?").response_metadata["cosd"]["settings"]
    assert (settings["method"], settings["verifier"]["alpha"], settings["unit"]) == ("cosd", 0.2, "word")
    assert chat(method={"name": "cosd"}).method == CoSD()
    assert "CoSD(" in chat(method=method)._identifying_params["method"]
    with pytest.raises(ValidationError, match="there is no method 'csd'; did you mean 'cosd'"):
        chat(method="csd")


def test_a_gate_is_a_setting_of_its_method() -> None:
    method = Defer(gate=gate(bias=4.0, top=-8.0))
    model = chat(method=method, unit="token")
    assert model.invoke("Where?").response_metadata["cosd"]["settings"]["method"] == "defer"
    assert chat(method={"name": "defer", **method.options()}).method == method
    stated = Defer(gate=CoLLMVerifier(width=2, bias=0.0, weights=(1.0, 2.0), eta=0.5))
    assert chat(method={"name": "defer", **stated.options()}).method == stated


def test_a_method_that_drafts_and_has_no_verifier() -> None:
    method = Speculative(temperature=1, test="cosd")
    model = chat(method=method, unit="token")
    assert model.invoke("Where?").response_metadata["cosd"]["settings"]["verifier"] is None
    assert chat(method={"name": "speculative", **method.options()}).method == method


def test_every_setting_of_a_fusion_is_a_field() -> None:
    import inspect

    taken = {**inspect.signature(Fusion.stream).parameters, **inspect.signature(Fusion).parameters}
    assert (
        taken.keys() - {"self", "prompt", "models", "alternatives", "response_format"} <= ChatCoSD.model_fields.keys()
    )


# ------------------------------------------------------------------------------------------------------ messages


async def test_messages_are_the_conversation_that_each_model_renders() -> None:
    seen: list[list[tuple[str, str]]] = []

    def note(messages: Sequence[Any]) -> str:
        seen.append([(message.role, message.content) for message in messages])
        return "Q:"

    model = ChatCoSD(draft=draft(template=note), assistant=assistant(template=note))
    await model.ainvoke(
        [
            SystemMessage("Be brief."),
            HumanMessage([{"type": "text", "text": "Where"}, " is it?"], name="Ann"),
            AIMessage("In Europe."),
            ChatMessage(content="Sure?", role="user"),
            ("assistant", "It is"),
        ]
    )
    said = [("system", "Be brief."), ("user", "Where is it?"), ("assistant", "In Europe."), ("user", "Sure?")]
    assert seen == [[*said, ("assistant", "It is")]] * 2


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            FunctionMessage(content="42", name="f"),
            r"messages\[1\] is a FunctionMessage: a fusion takes no such message",
        ),
        (
            HumanMessage([{"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}]),
            r"messages\[1\] has a part of the type 'image_url': a fusion takes text only",
        ),
        (ChatMessage(content="?", role="critic"), r"messages\[1\] has the role 'critic'; known are"),
    ],
)
async def test_what_is_no_text_is_refused(message: BaseMessage, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        await chat().ainvoke([HumanMessage("Where?"), message])
    with pytest.raises(SettingError, match=words):
        chat().invoke([HumanMessage("Where?"), message])


# ------------------------------------------------------------------------------------------------------ tokens


async def test_tokens_are_counted_by_the_drafts_tokenizer() -> None:
    writer = draft(template=asked)
    model = ChatCoSD(draft=writer, assistant=assistant(template=asked))
    assert model.get_num_tokens(" The cap!") == 3
    ids = model.get_token_ids(" The cap!")
    assert [writer.model.tokens[at] for at in ids] == [b" The", b" cap", b"!"]
    assert model.get_num_tokens_from_messages([HumanMessage("Where?")]) == 2  # "Q:", as it is rendered here
    assert chat(custom_get_token_ids=lambda text: [7]).get_num_tokens("any") == 1


# ------------------------------------------------------------------------------------------------ saved, copied, cached


@BETA
def test_it_is_saved_without_its_key_and_loaded_again() -> None:
    kinds: list[type[ChatCoSD | CoSDLLM]] = [ChatCoSD, CoSDLLM]
    for kind in kinds:
        server: dict[str, Any] = {
            "draft": "https://one.example/a",
            "assistant": ["https://one.example/b", "https://one.example/c"],
        }
        model = kind(**server, api_key=SecretStr(SECRET), verifier=RuleVerifier(alpha=0.3), max_tokens=9)
        text = dumps(model)
        for shown in (text, repr(model), str(model), str(model._identifying_params)):
            assert SECRET not in shown
        loaded = loads(text, allowed_objects=[kind], valid_namespaces=["cosd_api"], secrets_map={"COSD_API_KEY": "k"})
        assert type(loaded) is kind
        assert (loaded.draft, loaded.assistant, loaded.verifier) == (*server.values(), RuleVerifier(alpha=0.3))
        assert loaded.api_key is not None
        assert loaded.api_key.get_secret_value() == "k"
        assert loaded.asdict() == model.asdict()


@BETA
def test_a_model_over_objects_is_not_loaded_from_their_names() -> None:
    with pytest.raises(NotImplementedError, match="doesn't implement serialization"):
        loads(dumps(chat()), allowed_objects=[ChatCoSD], valid_namespaces=["cosd_api"])


def test_a_copy_has_the_servers_that_it_was_given() -> None:
    model = llm()
    assert model.invoke("Q:") == FUSED
    other = model.model_copy(update={"assistant": draft()})
    assert other.invoke("Q:") == " The capital is Rome."
    for copied in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.invoke("Q:") == FUSED
    with pytest.raises(ValidationError, match="frozen"):
        model.draft = draft()  # what is open would not change


def test_it_can_be_a_field_of_another_model() -> None:
    class Holder(BaseModel):
        model: ChatCoSD

    model = chat()
    assert Holder(model=model).model is model


@pytest.mark.parametrize("make", [chat, llm])
async def test_an_answer_from_a_cache_is_that_of_the_same_model(make: Callable[..., Any]) -> None:
    cache = InMemoryCache()
    model = make(cache=cache)
    first, again = model.invoke("Q:"), await model.ainvoke("Q:")
    assert model.draft.requests == 2  # one of them a replacement's restart: the second answer is the cached one
    assert getattr(first, "content", first) == getattr(again, "content", again)
    if make is chat:  # LangChain's text models look answers up without what the call has of its own
        assert model.invoke("Q:", max_tokens=2).text == " The cap"
    other = make(cache=cache)  # like it by all names
    other.invoke("Q:")
    assert other.draft.requests == 2


@pytest.mark.parametrize("way", ["field", "call", "bound"])
async def test_traces_and_caches_hold_a_digest_of_own_messages(way: str) -> None:
    """Of several, each is another question to a cache."""
    traced: list[str] = []

    class Tracer(BaseCallbackHandler):
        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
            traced.append(repr((args, kwargs)))

    def same(messages: Sequence[Any]) -> str:
        return "Q:"

    config: Any = {"callbacks": [Tracer()]}
    cache, documents = InMemoryCache(), ("SECRET-1", "SECRET-2")
    servers = Fusion(draft=draft(template=same), assistant=assistant(template=same))
    models: list[Any] = []
    for document in documents:
        own: Any = {"assistant": document}
        model = ChatCoSD(fusion=servers, cache=cache, **({"own": own} if way == "field" else {}))
        models.append(model.bind(own=own) if way == "bound" else model)
        call: Any = {"own": own} if way == "call" else {}
        found = [models[-1].invoke("Hi", config, **call), await models[-1].ainvoke("Hi", config, **call)]
        found.append([chunk async for chunk in models[-1].astream("Hi", config, **call)])
        assert found[0].text == FUSED
        assert document not in repr(found)
    assert len(traced) == 6
    assert not any(document in one for document in documents for one in traced)
    assert len(cache._cache) == 2
    assert "SECRET" not in repr(cache._cache)
