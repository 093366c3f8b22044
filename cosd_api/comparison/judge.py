"""A model as the judge: it reads the question, the reference and the answer, and its reply begins with the verdict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Self

import regex

from cosd_api import Example, GradingError, Message, SettingError, __version__
from cosd_api.comparison.grading import BaseGrader
from cosd_api.comparison.questions import prompt_text
from cosd_api.extend import ChatProvider, missing_members, readable
from cosd_providers import Context, Provider, Token, UnsupportedError, Usage, connect

JUDGE_QUESTION = """\
Question:
{question}

Reference answer:
{reference}

Answer to grade:
{answer}

Does the answer to grade say the same as the reference answer? Begin your reply with Yes or No.
"""

_VERDICTS: Mapping[str, bool] = {
    "yes": True,
    "right": True,
    "correct": True,
    "true": True,
    "no": False,
    "wrong": False,
    "incorrect": False,
    "false": False,
}
_CUE = "\nVerdict:"
_TOKENS = 8  # enough for white space, quotes and a word
_WORD = regex.compile(r"[^\p{L}\p{N}]*(\p{L}+)")
_PLACES = regex.compile(r"\{(question|reference|answer)\}")


class JudgeGrader(BaseGrader):
    """A grader that asks a model: the first word of its greedy reply is the verdict, Yes or No.

    The words right, correct and true, and their opposites, also count as verdicts. A model with a chat template gets
    the question as a user message. A model without a chat template continues the question as plain text, after
    `Verdict:`. Beware: the judge reads texts that other models wrote, and such a text could ask for a favourable
    verdict.

    Args:
        model: URL of a server, or a provider.
        question: the question to the judge, with the placeholders `{question}`, `{reference}` and `{answer}`;
            `{answer}` is required.

    Attributes:
        name: `judge`, the model's address and, if the question is not the default one, the question's fingerprint.
        identity: the library's version, the name, the server's URL and its model; known only inside the `async with`
            block.
        usage: requests and tokens of the judge for all answers graded so far.

    Raises:
        SettingError: the question has no `{answer}`, or the model is neither a URL nor a provider.
    """

    def __init__(self, model: str | Provider, *, question: str = JUDGE_QUESTION) -> None:
        if not isinstance(question, str) or "{answer}" not in question:
            raise SettingError("the judge's question must have {answer} where the answer goes")
        if not isinstance(model, str) and (isinstance(model, type) or missing_members(model)):
            raise SettingError(f"judge must be a URL or a provider (see cosd_api.connect), not {type(model).__name__}")
        self._model = connect(model) if isinstance(model, str) else model
        self._question = question
        self._described: tuple[str, ...] = ()
        self.usage = Usage()
        own = f" {hashlib.sha256(question.encode()).hexdigest()[:8]}" if question != JUDGE_QUESTION else ""
        self.name = f"judge {self._model.name}{own}"

    @property
    def identity(self) -> str:
        """See `BaseGrader.identity`."""
        return json.dumps([__version__, self.name, *self._described])

    async def __aenter__(self) -> Self:
        """Open the connection, and look up the server's model.

        Raises:
            ProviderError: the server does not answer.
        """
        await self._model.__aenter__()
        try:
            info = await self._model.describe()
        except BaseException:
            await self._model.__aexit__(None, None, None)
            raise
        self._described = (info.endpoint, info.model)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._model.__aexit__(kind, error, trace)

    async def __call__(self, example: Example, text: str) -> bool:
        """Ask the judge whether the answer is right.

        Raises:
            GradingError: the reply does not begin with a verdict.
            ProviderError: the judge failed.
        """
        reply = await self._reply(self._asked(example, text))
        word = _WORD.match(reply)
        verdict = _VERDICTS.get(word[1].lower()) if word is not None else None
        if verdict is None:
            said = repr(reply) if reply.strip() else "nothing"
            words = f"the judge {self._model.name} answered {said}, which begins with neither Yes nor No"
            raise GradingError(f"{words}: give another judge, or a question that it answers with Yes or No")
        return verdict

    def _asked(self, example: Example, text: str) -> str:
        texts = {"question": prompt_text(example), "reference": example.target or example.answer, "answer": text}
        asked: str = _PLACES.sub(lambda place: texts[place[1]].strip(), self._question)
        return asked

    async def _reply(self, asked: str) -> str:
        provider, prompt = self._model, asked.rstrip() + _CUE
        if isinstance(provider, ChatProvider):
            try:
                turn = await provider.render_prompt([Message("user", asked)])
                provider, prompt = turn.provider, turn.prompt
            except UnsupportedError:  # the model has no chat template
                if not (await provider.describe()).capabilities.continues:
                    raise
        items = provider.generate(Context(prompt, b""), max_tokens=_TOKENS, usage=self.usage)
        async with aclosing(items):
            tokens = [item async for item in items if isinstance(item, Token)]
        return readable(b"".join(token.data for token in tokens))
