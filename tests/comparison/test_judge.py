"""A model as judge."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cosd_api import Example, GradingError, Message, SettingError
from cosd_api.comparison.judge import JUDGE_QUESTION, JudgeGrader
from cosd_providers.contract import ServerInfo
from cosd_providers.errors import ConnectError, UnsupportedError
from cosd_providers.testing import ScriptedProvider

PLAIN = "{question}|{reference}|{answer}"
EXAMPLE = Example(prompt="Capital of Peru?", answer=" Lima")


def no_template(messages: object) -> str:
    raise UnsupportedError("there is no chat template", endpoint="wise")


def judge(*said: str) -> JudgeGrader:
    asked = {"Capital of Peru?|Lima|Lima!\nVerdict:": list(said)}
    return JudgeGrader(ScriptedProvider.from_texts(asked, name="wise", template=no_template), question=PLAIN)


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ([" Yes"], True),
        (["yes", ", it", " does"], True),
        (["\n", "**Correct**"], True),
        (["No", "."], False),
        (["wrong"], False),
        (["Incorrect"], False),
    ],
)
async def test_the_first_word_is_the_verdict(said: list[str], verdict: bool) -> None:
    async with judge(*said) as grader:
        assert await grader(EXAMPLE, "Lima!") is verdict
        assert (grader.usage.requests, grader.usage.completion_tokens > 0) == (1, True)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["Maybe"], "the judge wise answered 'Maybe', which begins with neither Yes nor No: give another judge, or a"),
        (["Nobody"], "answered 'Nobody'"),
        ([], "the judge wise answered nothing, which begins"),
        (["42"], "answered '42'"),
    ],
)
async def test_what_cannot_be_read_is_refused(said: list[str], words: str) -> None:
    async with judge(*said) as grader:
        with pytest.raises(GradingError, match=words):
            await grader(EXAMPLE, "Lima!")


async def test_a_judge_with_a_chat_template_reads_a_message() -> None:
    chat = Example(prompt=(Message("system", "Be short."), Message("user", "Capital?")), answer="Lima", target="Lim")

    def template(messages: object) -> str:
        return f"<{messages[0].role}>{messages[0].content}<end>"  # type: ignore[index]

    asked = "<user>system: Be short.\n\nuser: Capital?|Lim|{question}<end>"
    provider = ScriptedProvider.from_texts({asked: ["Yes"]}, template=template)
    async with JudgeGrader(provider, question=PLAIN) as grader:
        assert await grader(chat, " {question} ")  # what a model wrote is never a place for another text


def test_names_tell_judges_and_questions_apart() -> None:
    provider = ScriptedProvider.from_texts({}, name="wise")
    plain, own = JudgeGrader(provider).name, JudgeGrader(provider, question=PLAIN).name
    assert plain == "judge wise" and own.startswith("judge wise ") and own != plain
    assert all(place in JUDGE_QUESTION for place in ("{question}", "{reference}", "{answer}"))


async def test_another_model_of_the_server_is_another_judge() -> None:
    served = "a"

    class Server(ScriptedProvider):
        async def describe(self) -> ServerInfo:
            return replace(await super().describe(), model=served)

    async def identity() -> str:
        async with JudgeGrader(Server.from_texts({}, name="wise")) as grader:
            return grader.identity

    first = [await identity(), await identity()]
    served = "b"
    assert first[0] == first[1] != await identity()


async def test_a_judge_that_is_down_is_noticed_before_the_first_answer() -> None:
    left: list[object] = []

    class Down(ScriptedProvider):
        async def describe(self) -> ServerInfo:
            raise ConnectError("it is down", endpoint="wise")

        async def __aexit__(self, *exc: object) -> None:
            left.append(self)

    with pytest.raises(ConnectError, match="it is down"):
        async with JudgeGrader(Down.from_texts({}, name="wise")):
            pass
    assert len(left) == 1


def test_refusals() -> None:
    provider = ScriptedProvider.from_texts({})
    with pytest.raises(SettingError, match=r"the judge's question must have \{answer\} where the answer goes"):
        JudgeGrader(provider, question="Is it right?")
    with pytest.raises(SettingError, match=r"judge must be a URL or a provider \(see cosd_api.connect\), not int"):
        JudgeGrader(3)  # type: ignore[arg-type]
