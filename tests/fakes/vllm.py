"""A stand-in for vLLM's server in front of any model: what it does, seen from outside, is what a real one does.

Measured on vLLM 0.32 and copied here: strings of tokens (empty for an unfinished character; the whole character with
the token that completes it), alternatives keyed by string, so that equal ones hide each other, the server's own first;
prompt probabilities keyed by id; ids of prompt and answer; text of the prompt repeated behind ids that end inside a
character; `max_tokens` cut to the context; the words of refusals; special tokens
shown or not, the end never. The live tests hold it against a real server.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx

from cosd_providers.testing import LanguageModel
from fakes.chats import RefusedError, Template, parsed
from fakes.splits import split
from fakes.stand_in import StandIn, event_stream, rendered
from naive.plain_http import ALPHABET

_LOST = "\ufffd"
_SHOWN = {byte: letter for letter, byte in ALPHABET.items()}


class FakeVllm(StandIn):
    """Answers like the server; `client()` is an httpx client that talks to it. Its BOS has the id after the model's.

    Attributes:
        requests: path and body of each request, in order.
        change: called with every answer, or event, of `/v1/completions`; gives what is sent instead.
        per_event: how many tokens the events of a stream hold, in turn.
        most: how many prompts a list may hold.
        ids: whether it knows `return_token_ids`.
        strings: whether it knows `return_token_strs`.
        cuts: whether `max_tokens` is cut to what fits; old versions refuse it.
        template: what stands before and after a user's message, or what renders all; None without a chat template.
        specials: the names of special ids, beside the first end.
        pads: whether a space is put before a text, and behind each special token in it; the decoder leaves both.
        read: the ids of each prompt.
        spaces: whether the vocabulary is SentencePiece's: a space is put before a text, and taken away again.
        broken: whether rendering the template fails.
        cap: tokens that an answer may have by the server's own generation config; None for any number.
        listed: how many probabilities a place may have (`--max-logprobs`).
        drawn: the ids of each answer that was drawn, by the seed of its request.
    """

    def __init__(self, model: LanguageModel, *, context: int = 4096, beginning: bool = False) -> None:
        self.model = model
        self.context = context
        self.beginning = [len(model.tokens)] if beginning else []
        self.requests: list[tuple[str, Any]] = []
        self.change: Callable[[dict[str, Any]], dict[str, Any]] = lambda answer: answer
        self.per_event: Sequence[int] = (1,)
        self.most = 1024
        self.ids = True
        self.strings = True
        self.cuts = True
        self.template: tuple[str, str] | Template | None = None
        self.specials: Mapping[int, str] = {}
        self.pads = False
        self.read: list[list[int]] = []
        self.spaces = False
        self.broken = False
        self.cap: int | None = None
        self.listed = 20
        self.drawn: list[list[int]] = []
        self.models: list[dict[str, Any]] = [{"id": "toy", "root": "/toy", "parent": None}]

    def handle(self, request: httpx.Request) -> httpx.Response:
        """One request, answered."""
        body: Any = json.loads(request.content) if request.content else None
        self.requests.append((request.url.path, body))
        match request.url.path:
            case "/version":
                return httpx.Response(200, json={"version": "0.32.0"})
            case "/v1/models":
                return httpx.Response(200, json={"data": [{**m, "max_model_len": self.context} for m in self.models]})
            case "/tokenize":
                return self._tokenize(body)
            case "/detokenize":
                text = self._decode(body["tokens"], specials=True)
                return httpx.Response(200, json={"prompt": text.removeprefix(" ") if self.spaces else text})
            case "/v1/completions":
                return self._completions(body)
        return httpx.Response(404, json={"detail": "Not Found"})

    # Encoding and decoding.

    def _tokenize(self, body: dict[str, Any]) -> httpx.Response:
        if "messages" in body:
            if self.broken:
                return _refused("'NoneType' object is not iterable", 500)
            if self.template is None:
                return _refused("default chat template is no longer allowed, so you must provide a chat template")
            special = False
            try:
                text = rendered(self.template, body["messages"])
            except RefusedError as error:
                return _refused(str(error))
        else:
            text, special = body["prompt"], body.get("add_special_tokens", True)
        ids = self._encode(text, special=special)
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": self.context, "tokens": ids}
        if self.strings and body.get("return_token_strs"):
            answer["token_strs"] = [self._entry(n) for n in ids]
        return httpx.Response(200, json=answer)

    def _encode(self, text: str, *, special: bool) -> list[int]:
        names = {name: n for n, name in self.specials.items()} | dict(zip(["<s>"], self.beginning, strict=False))
        if text.startswith("</s>"):  # elsewhere scripts have the end as text
            names |= dict(zip(["</s>"], sorted(set(self.model.end_ids) - set(self.specials)), strict=False))
        if self.pads and text:
            text = re.sub(f"({'|'.join(map(re.escape, names))}|^)(?!$|{'|'.join(map(re.escape, names))})", r"\1 ", text)
        text = " " + text if self.spaces and text else text
        return [*(self.beginning if special else ()), *parsed(self.model, text, names, self._unknown)]

    @property
    def _unknown(self) -> int:
        return len(self.model.tokens) + 1

    def _special(self, n: int) -> str | None:
        if n in self.beginning:
            return "<s>"
        if n == self._unknown:
            return "<unk>"
        if n in self.specials:
            return self.specials[n]
        if n in self.model.end_ids:
            return "</s>"
        return None if self.model.tokens[n] else f"<unused{n}>"

    def _entry(self, n: int) -> str:
        """An id as an entry of its vocabulary."""
        if self.spaces:
            text = self._decode([n], specials=True)
            return f"<0x{self._bytes(n)[0]:02X}>" if _LOST in text else text.replace(" ", "\u2581")
        return self._special(n) or "".join(_SHOWN[byte] for byte in self._bytes(n))

    def _bytes(self, n: int) -> bytes:
        return b"" if n in self.beginning or n == self._unknown else self.model.tokens[n]

    def _decode(self, ids: Sequence[int], *, specials: bool) -> str:
        """What a byte-level decoder gives; invalid bytes become U+FFFD."""
        data, text = b"", ""
        for n in (one for one in ids if one < len(self.model.tokens) or one in (*self.beginning, self._unknown)):
            if (name := self._special(n)) is None:
                data += self._bytes(n)
            elif specials:
                text, data = text + data.decode("utf-8", "replace") + name, b""
        return text + data.decode("utf-8", "replace")

    def _string(self, n: int, context: Sequence[int]) -> str:
        """A token as logprobs show it: by itself, or behind up to four tokens if it is unfinished."""
        alone = self._decode([n], specials=True)
        if not alone.endswith(_LOST):
            return alone
        for count in range(1, min(len(context), 4) + 1):
            before = list(context[-count:])
            whole = self._decode([*before, n], specials=True)
            if whole.endswith(_LOST):
                continue
            clean = len(before)
            while clean and self._decode([before[clean - 1]], specials=True).endswith(_LOST):
                clean -= 1
            prefix = self._decode(before[:clean], specials=True)
            same = next((i for i, (a, b) in enumerate(zip(prefix, whole, strict=False)) if a != b), len(prefix))
            return whole[same:]
        return ""

    # Generating.

    def _completions(self, body: dict[str, Any]) -> httpx.Response:
        prompts = body["prompt"]
        if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
            prompts = [prompts]
        if len(prompts) > self.most:
            return _refused(
                f"prompt list length {len(prompts)} exceeds the maximum allowed count of {self.most}. To increase this "
                "limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable. (parameter=prompt)"
            )
        for name, kind in (("logprobs", "sample"), ("prompt_logprobs", "prompt")):
            if (wanted := body.get(name) or 0) > self.listed:
                words = f"Requested {kind} logprobs of {wanted}, which is greater than max allowed: {self.listed}"
                return _refused(f"{words} (parameter={name}, value={wanted})")
        allowed = body.get("allowed_token_ids")
        assert allowed is None or 0 < len(allowed) <= 1024, "a worker would stop"
        if max(allowed or [0]) >= len(self.model.tokens):
            return _refused("allowed_token_ids contains out-of-vocab token id!")
        special = body.get("add_special_tokens", True)
        asked = [self._encode(p, special=special) if isinstance(p, str) else p for p in prompts]
        self.read += asked
        for ids in asked:
            if (refusal := self._unfit(ids, body["max_tokens"])) is not None:
                return refusal
        runs = [list(self._run(ids, body, index)) for index, ids in enumerate(asked)]
        usage = _usage(sum(map(len, asked)), sum(len(step["token_ids"]) for run in runs for step in run))
        if body.get("stream"):
            return event_stream(self._events(runs, asked, body))
        choices = [self._joined(run, ids, body) for run, ids in zip(runs, asked, strict=True)]
        return httpx.Response(200, json=self.change({"choices": choices, "usage": usage}))

    def _unfit(self, ids: list[int], wanted: int) -> httpx.Response | None:
        if not ids:
            return _refused("The decoder prompt cannot be empty")
        if len(ids) > self.context:
            words = f"your prompt contains {len(ids)} input tokens, which exceeds this limit"
            return _refused(f"This model's maximum context length is {self.context} tokens. However, {words}")
        if len(ids) == self.context:
            return _refused("max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)")
        if len(ids) + wanted > self.context and not self.cuts:
            words = f"This model's maximum context length is {self.context} tokens. However, you requested {wanted}"
            return _refused(words)
        return None

    def _run(self, prompt: list[int], body: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
        """One answer, token by token."""
        bias = {int(n): value for n, value in (body.get("logit_bias") or {}).items()}
        chance = random.Random(f"{body['seed']} {index}") if body["temperature"] and "seed" in body else None
        if chance is not None:
            self.drawn.append([])
        ids, text = list(prompt), ""
        # The decoder is primed with the prompt, in vain where that ends inside a character: then it shows all of it.
        base = 0 if self._decode(prompt, specials=False).endswith(_LOST) else len(prompt)
        most = min(body["max_tokens"], self.context - len(prompt), self.cap or self.context)
        for count in range(1, most + 1):
            probs = self.model.next(tuple(n for n in ids if n not in self.beginning))
            own = max(body.get("allowed_token_ids") or range(len(probs)), key=lambda n: (bias.get(n, 0), probs[n], -n))
            if chance is not None:
                [own] = chance.choices(range(len(probs)), probs)
                self.drawn[-1].append(own)
            logprobs = self._logprobs(own, probs, ids[len(prompt) :], body)
            ids.append(own)
            end = own in self.model.end_ids
            specials = not body.get("skip_special_tokens", True)
            shown = self._decode(ids[base : -1 if end else None], specials=specials)
            shown = text if shown.endswith(_LOST) else shown
            last = end or count == most
            step = {"index": index, "text": shown[len(text) :], "logprobs": logprobs, "token_ids": [own]}
            text = shown
            finish = ("stop" if end else "length") if last else None
            yield {**step, "finish_reason": finish, "stop_reason": own if end and own in self.specials else None}
            if last:
                return

    def _logprobs(self, own: int, probs: Sequence[float], before: list[int], body: dict[str, Any]) -> dict[str, Any]:
        # Of equals, the server's own apart, any order: here in reverse.
        best = sorted(range(len(probs)), key=lambda n: (probs[n], n == own, n), reverse=True)[: body["logprobs"]]
        as_id = body.get("return_tokens_as_token_ids")
        names = {n: f"token_id:{n}" if as_id else self._string(n, before) for n in dict.fromkeys((own, *best))}
        top = {name: _log(probs[n]) for n, name in names.items()}
        return {"tokens": [names[own]], "token_logprobs": [_log(probs[own])], "top_logprobs": [top]}

    def _joined(self, steps: list[dict[str, Any]], prompt: list[int], body: dict[str, Any]) -> dict[str, Any]:
        """Several tokens as one answer, or event."""
        logprobs = {key: [v for step in steps for v in step["logprobs"][key]] for key in steps[0]["logprobs"]}
        ids = [n for step in steps for n in step["token_ids"]]
        answer = {**steps[-1], "text": "".join(step["text"] for step in steps), "logprobs": logprobs, "token_ids": ids}
        answer["prompt_token_ids"] = prompt
        if not self.ids or not body.get("return_token_ids"):
            answer |= {"token_ids": None, "prompt_token_ids": None}
        if body.get("prompt_logprobs") is not None:
            answer["prompt_logprobs"] = [None, *(self._ranked(prompt, at, body) for at in range(1, len(prompt)))]
        return answer

    def _ranked(self, prompt: list[int], at: int, body: dict[str, Any]) -> dict[str, Any]:
        probs = list(self.model.next(tuple(n for n in prompt[:at] if n not in self.beginning)))
        best = sorted(range(len(probs)), key=lambda n: (-probs[n], -n))[: body["prompt_logprobs"]]
        rank = {prompt[at]: sum(p >= probs[prompt[at]] for p in probs)} | {n: r for r, n in enumerate(best, 1)}
        before = prompt[1:at]
        return {
            str(n): {"logprob": _log(probs[n]), "rank": rank[n], "decoded_token": self._string(n, before)}
            for n in dict.fromkeys((prompt[at], *best))
        }

    def _events(
        self, runs: list[list[dict[str, Any]]], asked: list[list[int]], body: dict[str, Any]
    ) -> Iterator[dict[str, Any]]:
        for run, prompt in zip(runs, asked, strict=True):
            written = 0
            for part in split(run, self.per_event):
                event = self._joined(part, prompt, body)
                event["prompt_token_ids"] = None if written else event["prompt_token_ids"]
                written += len(part)
                yield self.change({"choices": [event], "usage": _usage(len(prompt), written)})
        yield self.change({"choices": [], "usage": _usage(sum(map(len, asked)), sum(map(len, runs)))})


def _log(prob: float) -> float:
    return math.log(prob) if prob > 0 else -9999.0


def _usage(prompt: int, answer: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "completion_tokens": answer, "prompt_tokens_details": None}


def _refused(words: str, status: int = 400) -> httpx.Response:
    kind = "BadRequestError" if status == 400 else "InternalServerError"
    return httpx.Response(status, json={"error": {"message": words, "type": kind, "param": None, "code": status}})
