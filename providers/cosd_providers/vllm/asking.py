"""What vLLM is asked: prompts in lists, encoding, decoding, what fits, and what a token says."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.concurrency import concurrently
from cosd_providers.engine import NO_TEMPLATE
from cosd_providers.engines.openai.logprobs import unspaced
from cosd_providers.engines.openai.wire import Answer, Completion, bill
from cosd_providers.errors import (
    ContextLengthError,
    InvalidRequestError,
    ResponseError,
    StatusError,
    UnsupportedError,
)
from cosd_providers.greedy import TIES
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.token_counts import Counts
from cosd_providers.usage import Usage
from cosd_providers.vllm.wire import GREEDY, Decoded, Encoded, Head, Prompt, Server, checked, special

__all__ = ["FORCE", "MOST", "Asking"]

FORCE = 100.0
"""Added to a logit, this decides; the most that is allowed."""

MOST = 20
"""Probabilities at one place: the most that a server gives by default."""

_REMEMBERED = 4  # encodings that are kept: they are long
_MOST = re.compile(r"maximum allowed count of (\d+)")


class Asking:
    """Requests to one server.

    Args:
        transport: the server.
        extra: merged into every generation request.
        special_tokens: whether special tokens are put before a text, where the model has some.
        shows: whether special tokens in an answer are text, all but its end.
        head: the beginning of texts that is sent as ids.

    Attributes:
        counts: how many tokens texts have, special ones too.
    """

    def __init__(
        self,
        transport: Transport,
        extra: Mapping[str, object],
        special_tokens: bool,
        *,
        shows: bool = False,
        head: Head | None = None,
    ) -> None:
        self._transport = transport
        self._extra = extra
        self._special_tokens = special_tokens
        self._shows = shows
        self._head = head
        self._most = 2**31  # prompts that the server takes in one request
        self._ids: OrderedDict[str, list[int]] = OrderedDict()  # of the last texts, without special tokens
        self.counts = Counts()

    def __getstate__(self) -> dict[str, Any]:
        """Everything but texts."""
        return {**self.__dict__, "_ids": OrderedDict()}

    def of_chat(self, head: Head | None = None) -> Asking:
        """The same requests for texts that a chat template has begun: it has written the beginning of sequence itself.

        Whatever the model answers is part of the text, special tokens such as `<think>` too. With `head` texts that
        begin with it are sent as ids.
        """
        return Asking(self._transport, self._extra, special_tokens=False, shows=True, head=head)

    def body(self, model: str, prompt: object, wanted: int, **fields: object) -> dict[str, object]:
        """A request: greedy, with what every answer has to hold."""
        own = {"model": model, "add_special_tokens": self._special_tokens, "logprobs": TIES}
        own["skip_special_tokens"] = not self._shows
        return {**self._extra, **GREEDY, **own, "prompt": prompt, "max_tokens": wanted, **fields}

    def stream(self, model: str, prompt: Prompt, wanted: int, alternatives: int) -> dict[str, object]:
        """A request for a draft of at most `wanted` raw tokens, billed as it goes, each with so many `alternatives`."""
        options = {"include_usage": True, "continuous_usage_stats": True}
        return self.body(
            model, [prompt], wanted, logprobs=min(1 + alternatives, MOST), stream=True, stream_options=options
        )

    async def batch(
        self, model: str, prompts: Sequence[Prompt], wanted: int, usage: Usage, *, singly: bool = False, **more: object
    ) -> list[Completion]:
        """The answers to several prompts, in order: in one request, or with `singly` one for each, a few at once."""
        prompts = await concurrently([partial(self.sent, model, prompt) for prompt in prompts])
        found: dict[int, Completion] = {}
        for kind in (str, list):  # a list holds texts, or ids
            at = [n for n, prompt in enumerate(prompts) if isinstance(prompt, kind)]
            asked = [prompts[n] for n in at]
            if singly:

                async def one(prompt: Prompt) -> Completion:
                    return (await self._list(model, [prompt], wanted, usage, more))[0]

                answers = await concurrently([partial(one, prompt) for prompt in asked])
            else:
                answers = await self._list(model, asked, wanted, usage, more)
            found |= zip(at, answers, strict=True)
        return [found[n] for n in range(len(prompts))]

    async def _list(
        self, model: str, prompts: Sequence[Prompt], wanted: int, usage: Usage, more: Mapping[str, object]
    ) -> list[Completion]:
        """The answers to prompts of one kind; as many at once as the server takes."""
        answers: list[Completion] = []
        while len(answers) < len(prompts):
            asked = prompts[len(answers) : len(answers) + self._most]
            body = self.body(model, asked, wanted, **more)
            try:
                data = await self._transport.post("/v1/completions", body, usage=usage)
            except InvalidRequestError as error:
                refused = _MOST.search(str(error))
                if refused is None or not 0 < int(refused[1]) < len(asked):
                    raise
                self._most = int(refused[1])
                continue
            answer = parse(Answer, data, self._transport.endpoint)
            bill(usage, answer.usage)
            if sorted(one.index for one in answer.choices) != [*range(len(asked))]:
                words = f"{len(asked)} prompts were sent, {len(answer.choices)} answered"
                raise ResponseError(words, endpoint=self._transport.endpoint, retryable=True)
            answers += sorted(answer.choices, key=lambda one: one.index)
        for prompt, one in zip(prompts, answers, strict=True):
            if isinstance(prompt, str) and one.prompt_token_ids is not None:
                self.counts.seen(prompt, len(one.prompt_token_ids))
        return [checked(one, self._transport.endpoint) for one in answers]

    async def encode(self, model: str, text: str, *, plain: bool = False, strings: bool = True) -> Encoded:
        """The ids of a text, and their `strings`; `plain` is without the special tokens that are put before it."""
        head = self._head
        if head is not None and text.startswith(head.text):
            rest = await self._encode(model, text[len(head.text) :], added=False, strings=strings)
            shown = None if head.token_strs is None or rest.token_strs is None else [*head.token_strs, *rest.token_strs]
            return Encoded(tokens=[*head.tokens, *rest.tokens], token_strs=shown)
        return await self._encode(model, text, added=self._special_tokens and not plain, strings=strings)

    async def _encode(self, model: str, text: str, *, added: bool, strings: bool) -> Encoded:
        body: dict[str, object] = {"model": model, "prompt": text, "add_special_tokens": added}
        if strings:
            body["return_token_strs"] = True
        return parse(Encoded, await self._transport.post("/tokenize", body), self._transport.endpoint)

    async def ids(self, model: str, text: str) -> list[int]:
        """The ids of a text, without special tokens; those of the last texts are kept."""
        if text not in self._ids:
            self._ids[text] = (await self.encode(model, text, plain=True, strings=False)).tokens
            if len(self._ids) > _REMEMBERED:
                self._ids.popitem(last=False)
        return self._ids[text]

    async def sent(self, model: str, prompt: Prompt) -> Prompt:
        """A prompt as it is sent: with a head as ids."""
        if self._head is None or isinstance(prompt, list):
            return prompt
        return [*(await self.ids(model, prompt))]

    async def headed(self, model: str, pieces: Sequence[str]) -> Head | None:
        """All of the pieces but the last one as ids, each encoded by itself; None where that is another text.

        Some tokenizers put a space before whatever they encode.
        """
        encode = partial(self._encode, model, added=False, strings=True)
        found = await concurrently([partial(encode, piece) for piece in pieces])
        if await self.decode(model, [n for one in found for n in one.tokens]) != "".join(pieces):
            return None
        *head, _ = found
        strings = [string for one in head for string in one.token_strs or ()]
        tokens = [n for one in head for n in one.tokens]
        return Head("".join(pieces[:-1]), tokens, strings if len(strings) == len(tokens) else None)

    async def decode(self, model: str, ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown."""
        data = await self._transport.post("/detokenize", {"model": model, "tokens": list(ids)})
        return parse(Decoded, data, self._transport.endpoint).prompt

    async def template(self, model: str, content: str) -> str | None:
        """One message of a user as the model's chat template writes it, up to the answer.

        None without a template, or where it fails: some refuse what is asked here, and nothing depends on it.
        """
        try:
            found = await self._templated(model, [{"role": "user", "content": content}])
            return await self.decode(model, found.tokens)
        except StatusError:
            return None

    async def rendered(self, model: str, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation as the model's chat template writes it, up to the answer.

        It is the text of what the server's own chat route reads, and is read as that again.

        Raises:
            TemplateRefusal: the template does not take it.
            UnsupportedError: there is none; or its text is read as something else.
        """
        endpoint = self._transport.endpoint
        try:
            templated = await self._templated(model, messages)
        except StatusError as error:
            said = str(error.args[0])
            if "chat template is no longer allowed" in said:
                raise UnsupportedError("the model has no chat template", endpoint=endpoint, hint=NO_TEMPLATE) from None
            if error.status not in (400, 500):
                raise
            raise TemplateRefusal(said) from None
        text = await self.decode(model, templated.tokens)
        for one in (text, unspaced(text, filter(special, templated.token_strs or ()))):
            if (await self._encode(model, one, added=False, strings=False)).tokens == templated.tokens:
                return one
        words = "the server does not give back the text of a rendered conversation: its tokenizer changes it"
        raise UnsupportedError(words, endpoint=endpoint, hint=NO_TEMPLATE)

    async def _templated(self, model: str, messages: Sequence[Mapping[str, str]]) -> Encoded:
        body = {"model": model, "messages": list(messages), "add_generation_prompt": True, "return_token_strs": True}
        return parse(Encoded, await self._transport.post("/tokenize", body), self._transport.endpoint)

    async def room(self, server: Server, prompt: Prompt, wanted: int) -> int:
        """How many tokens fit behind a prompt, or fewer, but `wanted` if they do; none where it is too long itself."""
        context = server.info.context
        if context is None:
            return wanted
        if isinstance(prompt, list):
            return context - len(prompt)
        if self.counts.fits(prompt, context - wanted):
            return wanted
        count = self.counts.exact(prompt)
        if count is None:
            count = len((await self.encode(server.info.model, prompt, strings=False)).tokens)
            self.counts.add(prompt, count)
        return context - count

    async def says(self, server: Server, token_id: int, usage: Usage) -> bytes | None:
        """The bytes of a token; None where they are no whole characters. An end of sequence is noted as one."""
        if token_id not in server.spelt:
            model = server.info.model
            before = await self.decode(model, [server.anchor])
            text = (await self.decode(model, [server.anchor, token_id])).removeprefix(before)
            if special(text.strip()) and await self._ends(server, token_id, usage):
                server.ends.update((text.strip(), token_id))
            server.spelt[token_id] = None if not text or "\ufffd" in text else text.encode()
        return server.spelt[token_id]

    async def _ends(self, server: Server, token_id: int, usage: Usage) -> bool:
        """Whether an answer is over with this token: it is forced, to see."""
        bias = {str(token_id): FORCE}
        [answer] = await self.batch(server.info.model, [[server.anchor]], 1, usage, logit_bias=bias)
        return answer.finish_reason == "stop"

    def too_long(self, server: Server, room: int) -> ContextLengthError:
        """The error of a prompt behind which nothing fits."""
        context = server.info.context or 0
        words = f"the text has {context - room} tokens, the model's context is {context}, and nothing more fits"
        return ContextLengthError(words, endpoint=self._transport.endpoint)
