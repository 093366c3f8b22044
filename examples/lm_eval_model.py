r"""lm-evaluation-harness with a fusion as its model ``cosd``, for tasks that generate and tasks that score.

    pip install lm-eval
    python examples/lm_eval_model.py --model cosd --model_args draft=http://gpu1:8080,assistant=http://gpu2:8080 \
        --tasks gsm8k --output_path results

This is the command ``lm-eval`` with one more model. A settings file (docs/settings.md) chooses more than the servers:
the verifier, the models of a server that has several, and limits of each answer. Give it as
``--model_args config=pair.yaml``. Tasks that score need models with the same tokenizer (docs/methods.md, "The fusion
as a distribution"). With ``--use_cache answers``, an interrupted run continues where it stopped.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import lm_eval.models  # noqa: F401 - imported first: the harness registers its own models only if there are none yet
from lm_eval.__main__ import cli_evaluate
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from cosd_api import Fusion, SettingError
from cosd_providers import InvalidRequestError, ProviderError

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens")
SAMPLING = ("top_p", "top_k", "min_p", "typical_p")
LIMITS = ("timeout", "max_requests", "max_billed_tokens")


class Conversation(str):
    """Messages as JSON text, because the harness hashes, logs and caches prompts as text."""

    __slots__ = ()


def prompt_of(context: str) -> Any:
    """The messages of a conversation; a text unchanged."""
    return json.loads(context) if isinstance(context, Conversation) else context


@register_model("cosd")
class FusionLM(LM):
    """A fusion; `settings` are arguments of `Fusion`, such as ``unit=token`` or ``temperature=1``.

    Up to `concurrency` requests are in progress at a time. Every model reads the messages of a chat through its own
    template.
    """

    def __init__(
        self, *, config: str | None = None, concurrency: int = 8, max_gen_toks: int = 256, **settings: Any
    ) -> None:
        super().__init__()
        for name in ("batch_size", "max_batch_size", "device"):  # given by the harness; the servers form the batches
            settings.pop(name, None)
        self.fusion = Fusion(**settings) if config is None else Fusion.load(config, **settings)
        self.concurrency = concurrency
        self.max_gen_toks = max_gen_toks

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """The answers, each cut before the first text of the task's `until`."""

        async def answer(context: str, given: Mapping[str, Any]) -> str:
            return (await self.fusion.generate(prompt_of(context), **self.limits_of(given))).text

        return self.every("generate_until", requests, answer)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """The log-likelihood of each continuation, and whether the fusion would write exactly that text."""
        return self.every("loglikelihood", requests, self.score)

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """The log-likelihood of each text, which has to fit into every model's context."""

        async def score(text: str) -> float:
            try:
                return (await self.score("", text))[0]
            except InvalidRequestError:  # a model has no beginning of sequence, so the first word is not scored
                first, space, rest = text.partition(" ")
                return (await self.score(first, space + rest))[0]

        return self.every("loglikelihood_rolling", requests, score)

    async def score(self, context: str, continuation: str) -> tuple[float, bool]:
        if not isinstance(context, Conversation):  # tokens begin with white space, so it belongs to the continuation
            kept = context.rstrip()
            context, continuation = kept, context[len(kept) :] + continuation
        limits: Any = {name: value for name, value in self.fusion.limits.items() if name in LIMITS}
        found = await self.fusion.log_likelihood(prompt_of(context), continuation, **limits)
        return found.total, found.is_greedy

    def limits_of(self, given: Mapping[str, Any]) -> Any:
        """The limits of an answer, from a task's `generation_kwargs`; without `do_sample`, a temperature samples."""
        left = {name: value for name, value in given.items() if value is not None}
        until = left.pop("until", [])
        lengths = [left.pop(name) for name in LENGTHS if name in left]
        sampled, asked = left.pop("do_sample", "temperature" in left), left.pop("temperature", 1)
        temperature, own = float(asked if sampled else 0), self.fusion.settings.temperature
        if temperature != own:
            words = f"the task draws at temperature {temperature:g}" if temperature else "the task is greedy"
            here = f"this fusion draws at temperature {own:g}" if own else "this fusion is greedy"
            wanted = "do_sample=True,temperature=1" if own else "do_sample=False"
            raise SettingError(f"{words}, and {here}: give --gen_kwargs {wanted}")
        refused = [name for name, value in left.items() if value != 1 and (own or name not in SAMPLING)]
        if refused:
            raise SettingError(f"{', '.join(refused)}: a fusion has no such setting. Leave it out of generation_kwargs")
        stop = [until] if isinstance(until, str) else until
        return {
            "stop": [text for text in stop if text],
            "max_tokens": int(lengths[0] if lengths else self.max_gen_toks),
        }

    def every(self, kind: str, requests: Sequence[Any], ask: Callable[..., Awaitable[Any]]) -> list[Any]:
        """Ask about all requests, several at a time; each answer goes into the harness's cache at once."""
        room = asyncio.Semaphore(self.concurrency)

        async def one(request: Any) -> Any:
            async with room:
                try:
                    answer = await ask(*request.args)
                except (ProviderError, SettingError) as error:
                    error.add_note(f"in {kind}, task {request.task_name}, document {request.doc_id}")
                    raise
            self.cache_hook.add_partial(kind, request.args, answer)
            return answer

        async def everything() -> list[Any]:
            async with self.fusion, asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(request)) for request in requests]
            return [task.result() for task in tasks]

        try:
            return asyncio.run(everything())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    def apply_chat_template(self, chat_history: list[dict[str, str]], **_: bool) -> str:
        """Keep the messages; if the last one is the assistant's, the servers continue it."""
        return Conversation(json.dumps(chat_history, ensure_ascii=False))

    def chat_template(self, chat_template: bool | str = False) -> str:
        return "each model's own" if chat_template else ""

    @property
    def tokenizer_name(self) -> str:
        return "cosd-messages"  # a part of the harness's cache keys


if __name__ == "__main__":
    cli_evaluate()
