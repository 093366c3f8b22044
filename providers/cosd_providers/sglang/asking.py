"""What SGLang is asked: ids in lists, encoding, decoding, and what fits."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from cosd_providers.chat.templates import TemplateRefusal
from cosd_providers.concurrency import concurrently
from cosd_providers.engine import NO_TEMPLATE
from cosd_providers.engines.openai.logprobs import unspaced
from cosd_providers.errors import (
    ContextLengthError,
    InvalidRequestError,
    ResponseError,
    ServerError,
    StatusError,
    UnsupportedError,
)
from cosd_providers.greedy import TIES
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.sglang.reading import checked
from cosd_providers.sglang.wire import GREEDY, Answer, Decoded, Encoded, Rendered, Server
from cosd_providers.tokenizers import Tokenizer
from cosd_providers.usage import Usage

__all__ = ["Asking"]

_LIST = 64  # prompts in one request
_REMEMBERED = 32  # encodings that are kept: they are long
_MARKER = re.compile(r"<[^<>\s]{1,60}>|\[[^\[\]\s]{1,60}\]")  # what may be a special token
_STREAMED = 2  # most probable tokens in a draft, to see that it is greedy


class Asking:
    """Requests to one server.

    Args:
        transport: the server.
        extra: merged into every generation request.
        tokenizer: the model's own, where it was given: it is asked instead of the server.
        special_tokens: whether special tokens are put before a text, where the model has some.
        head: the beginning of texts that has these ids, whatever it looks like.
    """

    def __init__(
        self,
        transport: Transport,
        extra: Mapping[str, object],
        tokenizer: Tokenizer | None,
        special_tokens: bool,
        *,
        head: tuple[str, Sequence[int]] | None = None,
    ) -> None:
        self._transport = transport
        self._extra = extra
        self._special_tokens = special_tokens
        self._ids: OrderedDict[str, list[int]] = OrderedDict()
        self.tokenizer = tokenizer
        self.head = head

    def of_chat(self, head: tuple[str, Sequence[int]] | None = None) -> Asking:
        """The same requests for texts that a chat template has begun: it has written the beginning of sequence itself.

        With `head` texts that begin with it have its ids.
        """
        return Asking(self._transport, self._extra, self.tokenizer, special_tokens=False, head=head)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but texts."""
        return {**self.__dict__, "_ids": OrderedDict()}

    def body(self, server: Server | None, wanted: int, *, top: int = TIES, **fields: object) -> dict[str, object]:
        """A request: greedy, with what every answer has to hold."""
        sampling = {**GREEDY, "max_new_tokens": wanted, **cast("dict[str, object]", fields.pop("sampling", {}))}
        own = {"return_logprob": True, "return_text_in_logprobs": True, "top_logprobs_num": top}
        adapter = {"lora_path": server.adapter} if server is not None and server.adapter is not None else {}
        return {**self._extra, **own, **adapter, "sampling_params": sampling, **fields}

    def stream(self, server: Server, ids: list[int], wanted: int, alternatives: int) -> dict[str, object]:
        """A request for a draft of at most `wanted` raw tokens, each with so many `alternatives`."""
        top = max(_STREAMED, 1 + alternatives)
        return self.body(server, wanted, top=top, input_ids=ids, logprob_start_len=-1, stream=True)

    async def batch(
        self,
        server: Server,
        prompts: Sequence[list[int]],
        wanted: int,
        usage: Usage,
        *,
        singly: bool = False,
        **more: Any,
    ) -> list[Answer]:
        """The answers to several prompts, in order: in one request, or with `singly` one for each, a few at once."""
        size = 1 if singly else _LIST
        parts = [prompts[at : at + size] for at in range(0, len(prompts), size)]
        found = await concurrently([partial(self._list, server, part, wanted, usage, more) for part in parts])
        return [answer for part in found for answer in part]

    async def _list(
        self, server: Server, prompts: Sequence[list[int]], wanted: int, usage: Usage, more: Mapping[str, Any]
    ) -> list[Answer]:
        endpoint = self._transport.endpoint
        fields: dict[str, Any] = {"logprob_start_len": -1, **more}
        body = self.body(server, wanted, input_ids=prompts[0] if len(prompts) == 1 else [*prompts], **fields)
        data = await self._transport.post("/generate", body, usage=usage)
        listed = cast("list[object]", data) if isinstance(data, list) else [cast("object", data)]
        if len(listed) != len(prompts):
            words = f"{len(prompts)} prompts were asked, {len(listed)} answered"
            raise ResponseError(words, endpoint=endpoint, retryable=True)
        answers = [parse(Answer, one, endpoint) for one in listed]
        for answer in answers:
            meta = answer.meta_info
            usage.bill(meta.prompt_tokens, meta.completion_tokens, meta.cached_tokens)
        return [checked(answer, endpoint, len(ids)) for answer, ids in zip(answers, prompts, strict=True)]

    async def prompts(self, server: Server, texts: Sequence[str]) -> list[list[int]]:
        """The ids that the model reads of each text, special tokens too."""
        beginning = server.beginning if self._special_tokens else []
        return [[*beginning, *ids] for ids in await self.encode(server.info.model, texts)]

    async def encode(self, model: str, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens; those of the last texts are kept."""
        if self.head is not None:
            begun, ids = self.head
            rest = await self._encode(model, [text.removeprefix(begun) for text in texts])
            return [[*ids, *more] if text.startswith(begun) else more for text, more in zip(texts, rest, strict=True)]
        return await self._encode(model, texts)

    async def _encode(self, model: str, texts: Sequence[str]) -> list[list[int]]:
        if self.tokenizer is not None:
            return [[piece.id for piece in self.tokenizer.encode(text)] for text in texts]
        known = {text: self._ids[text] for text in texts if text in self._ids}
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            body = {"model": model, "prompt": new, "add_special_tokens": False}
            found = await self._transport.post("/v1/tokenize", body)
            listed = parse(Encoded, found, self._transport.endpoint).tokens
            if len(listed) != len(new):
                words = f"{len(new)} texts were given to be encoded, {len(listed)} were"
                raise ResponseError(words, endpoint=self._transport.endpoint)
            known |= zip(new, listed, strict=True)
        self._ids |= known
        while len(self._ids) > _REMEMBERED:
            self._ids.popitem(last=False)
        return [known[text] for text in texts]

    async def decode(self, model: str, runs: Sequence[Sequence[int]], *, specials: bool) -> list[str]:
        """The text of each run of ids; with `specials`, special tokens are shown."""
        body = {"model": model, "tokens": [list(run) for run in runs], "skip_special_tokens": not specials}
        found = parse(Decoded, await self._transport.post("/v1/detokenize", body), self._transport.endpoint).text
        if len(found) != len(runs):
            words = f"{len(runs)} runs of tokens were given to be decoded, {len(found)} were"
            raise ResponseError(words, endpoint=self._transport.endpoint)
        return found

    async def template(self, model: str, content: str) -> str | None:
        """One message of a user as the model's chat template writes it, up to the answer; None where not told."""
        if self.tokenizer is not None:
            return None
        try:
            ids = await self._templated(model, [{"role": "user", "content": content}])
            return (await self.decode(model, [ids], specials=True))[0]
        except (StatusError, ResponseError):  # older versions know no messages here
            return None

    async def rendered(self, model: str, messages: Sequence[Mapping[str, str]]) -> str:
        """A conversation as the model's chat template writes it, up to the answer; its ids are the server's own.

        Raises:
            TemplateRefusal: the template does not take it.
            UnsupportedError: the server does not render it; or its text is read as something else.
        """
        endpoint = self._transport.endpoint
        try:
            ids = await self._templated(model, messages)
            text = (await self.decode(model, [ids], specials=True))[0]
        except InvalidRequestError as error:
            said = str(error.args[0])
            if error.status == 404 or "prompt" in said.lower():  # an older version asks for that
                words = "this version of SGLang does not render messages (/v1/tokenize)"
                hint = f"Update it. Or: {NO_TEMPLATE}"
                raise UnsupportedError(words, endpoint=endpoint, hint=hint) from None
            raise TemplateRefusal(said) from None
        except ServerError as error:
            if error.status != 500:
                raise
            raise TemplateRefusal(str(error.args[0])) from None
        texts = [text, unspaced(text, _MARKER.findall(text))]
        for one, own in zip(texts, await self._encode(model, texts), strict=True):
            if own == ids:
                return one
        words = "the server does not give back the text of a rendered conversation: its tokenizer changes it"
        raise UnsupportedError(words, endpoint=endpoint, hint=NO_TEMPLATE)

    async def _templated(self, model: str, messages: Sequence[Mapping[str, str]]) -> list[int]:
        found = await self._transport.post("/v1/tokenize", {"model": model, "messages": list(messages)})
        return parse(Rendered, found, self._transport.endpoint).tokens

    async def headed(self, model: str, pieces: Sequence[str]) -> tuple[str, Sequence[int]] | None:
        """All of the pieces but the last one with their ids, each encoded by itself; None where that is another text.

        Some tokenizers put a space before whatever they encode.
        """
        found = await self._encode(model, pieces)
        if self.tokenizer is None:
            whole = (await self.decode(model, [[n for ids in found for n in ids]], specials=True))[0]
            if whole != "".join(pieces):
                return None
        return "".join(pieces[:-1]), [n for ids in found[:-1] for n in ids]

    async def ends(self, server: Server, token_id: int, usage: Usage) -> bool:
        """Whether an answer is over with this token: it is forced, to see.

        Two tokens are asked for: with the last one that was, an answer always ends for its length.
        """
        forced = {"logit_bias": {str(token_id): 100.0}}
        [answer] = await self.batch(server, [[server.anchor]], 2, usage, sampling=forced)
        finish = answer.meta_info.finish_reason
        return finish is not None and finish.type == "stop" and answer.meta_info.completion_tokens == 1

    def room(self, server: Server, ids: Sequence[int], wanted: int) -> int:
        """How many tokens fit behind a prompt, at most `wanted`; 0 or less where none does."""
        context, longest = server.info.context, server.info.longest_prompt
        if longest is not None and len(ids) > longest:
            return 0
        return wanted if context is None else min(wanted, context - len(ids))

    def too_long(self, server: Server, ids: Sequence[int]) -> ContextLengthError:
        """The error of a prompt behind which nothing fits."""
        longest = server.info.longest_prompt or server.info.context
        words = f"the text has {len(ids)} tokens, the server takes at most {longest}"
        return ContextLengthError(words, endpoint=self._transport.endpoint)
