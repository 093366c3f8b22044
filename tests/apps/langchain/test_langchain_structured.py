"""Structured output of the LangChain chat model."""

from __future__ import annotations

from typing import Any

import pytest
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
