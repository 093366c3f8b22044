"""Structured output of the LangChain chat model."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from pydantic import BaseModel
from typing_extensions import TypedDict

from cosd_api import SettingError
from cosd_api.apps.langchain import ChatCoSD
from cosd_providers.testing import ScriptedProvider


class Word(BaseModel):
    """A word in a language."""

    word: str
    language: str


class TypedWord(TypedDict):
    """A word in a language."""

    word: str
    language: str


ASKED = "user: Snow?\nassistant: "
WRITTEN = '{"word": "neige", "language": "French"}'


def model(text: str = WRITTEN, **settings: Any) -> ChatCoSD:
    """Two models that write a text, one token for each character."""
    draft, assistant = (ScriptedProvider.from_texts({ASKED: [*text]}, name=name) for name in ("one", "two"))
    return ChatCoSD(draft=draft, assistant=assistant, **settings)


@pytest.mark.parametrize("schema", [Word, TypedWord, Word.model_json_schema()], ids=["model", "typed", "schema"])
@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
async def test_values(schema: Any, method: Any) -> None:
    found = await model().with_structured_output(schema, method=method).ainvoke("Snow?")
    expected = Word(word="neige", language="French")
    assert found == (expected if schema is Word else expected.model_dump())


def test_without_an_event_loop() -> None:
    assert model().with_structured_output(Word).invoke("Snow?") == Word(word="neige", language="French")


async def test_raw_messages() -> None:
    found = await model().with_structured_output(Word, include_raw=True).ainvoke("Snow?")
    assert (found["raw"].content, found["parsed"].word, found["parsing_error"]) == (WRITTEN, "neige", None)
    cut = await model().with_structured_output(Word, include_raw=True, max_tokens=3).ainvoke("Snow?")
    assert cut["parsed"] is None
    assert "was it cut short by max_tokens?" in str(cut["parsing_error"])


async def test_a_cut_answer_has_no_value() -> None:
    with pytest.raises(ValueError, match=r"the text ends before the format allows it: was it cut short"):
        await model().with_structured_output(Word, max_tokens=3).ainvoke("Snow?")


def test_refused_in_words() -> None:
    with pytest.raises(SettingError, match="method must be"):
        model().with_structured_output(Word, method="words")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="schema is any text: leave with_structured_output out"):
        model().with_structured_output({"type": "text"})
    with pytest.raises(SettingError, match="not"):
        model().with_structured_output({"type": "object", "not": {"type": "object"}})


JOKE = '{"setup": "Who purrs?", "punchline": "Cats."}'
JSON_MODE = "Return the result as a JSON with 'setup' and 'punchline' keys. Return nothing other than JSON."
ASKS = (
    "Tell me a joke about cats.",
    "Give me the setup to a joke about cats, no punchline.",
    "Give me a joke about cats, include the punchline.",
    f"Tell me a joke about cats. {JSON_MODE}",
)


class TestStandard(ChatModelIntegrationTests):
    """LangChain's own tests of structured output, on two models that know one joke."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatCoSD

    @property
    def chat_model_params(self) -> dict[str, Any]:
        jokes = {f"user: {one}\nassistant: ": [*JOKE] for one in ASKS}
        models = [ScriptedProvider.from_texts(jokes, name=name) for name in ("one", "two")]
        return {"draft": models[0], "assistant": models[1]}

    @property
    def supports_json_mode(self) -> bool:
        return True


for _name in dir(ChatModelIntegrationTests):  # the others ask real models
    if _name.startswith("test_") and not _name.startswith(("test_structured_output", "test_json_mode")):
        setattr(TestStandard, _name, None)
