"""A stand-in for servers that speak OpenAI's protocol, in front of any model, with a switch for each of their ways.

Every switch was seen on a real server, or is in its documentation. The live tests hold the adapter against real ones.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx

from cosd_providers.testing import LanguageModel
from cosd_providers.text import whole
from fakes.chats import RefusedError, Template
from fakes.splits import split
from fakes.stand_in import StandIn, event_stream


@dataclass(frozen=True)
class Shown:
    """A token as the server shows it.

    Attributes:
        text: the text that it adds.
        entry: its entry, if it has one.
        end: whether it is the end of sequence.
        alone: its own string.
        offset: the number of characters before it.
        cut: the text of an unfinished character, and before it, that a whole answer ends with at this token.
    """

    text: str
    entry: dict[str, Any] | None
    end: bool = False
    alone: str = ""
    offset: int = 0
    cut: str = ""


@dataclass
class FakeOpenAI(StandIn):
    """Answers like a server; `client()` is an httpx client that talks to it.

    Attributes:
        model: gives the probabilities. With a seed, tokens are drawn from them.
        shape: the shape of logprobs on `/v1/completions`.
        end: the end of sequence has an entry.
        opened: the string of a token that leaves a character unfinished: empty (and the token that completes it has
            the whole character), U+FFFD (for every part of it), its bytes, or no entry at all. `hidden` is as in
            llama.cpp: a whole answer that is cut off there has its text nevertheless. `gone` is as in
            llama-cpp-python: no part of it has a string, and only whole answers have the character.
        noise: the probabilities of a position differ by this factor, times its number, from the model's own, unless
            they are certain: on real servers, no two positions have the same ones.
        per_event: how many tokens the events of a stream hold, in turn.
        echo: the effect of `echo`; `scaled` is as with another temperature.
        lists: a list of prompts works, fails with 500, or only the first is answered.
        cut: number of tokens of a prompt that are read, the last ones; None for all.
        spaces: the strings of tokens have their leading space.
        beginning: a beginning-of-sequence token is put before a prompt.
        shows_beginning: an echo has an entry for it.
        probs: `logprobs` works, is ignored, or fails with 400.
        context: tokens that fit.
        clamps: too large a `max_tokens` is lowered; else it is refused.
        chat_repeats: the answer that continues a message repeats it.
        listed: the models of `/v1/models`; None for no such route.
        most: the most probable tokens that it lists; None for any number.
        refuses: fields that are refused by name, also inside `stream_options`.
        late: a stream that is refused is refused by its first event, after a status of 200.
        changes: fields to overwrite in every choice that has text or entries, for faults.
        template: text before and after every prompt of `/v1/completions`.
        trims: white space at the end of a message is lost.
        strips: answers lack the white space at their start, as with mlx_lm.server.
        chat: renders messages; without it they are joined.
        lead: white space that it writes before an answer that is continued.
        drawn: the bytes that it has drawn for each prompt.
        requests: path and body of each request.
    """

    model: LanguageModel
    shape: Literal["legacy", "chat"] = "legacy"
    end: bool = True
    opened: Literal["empty", "lost", "bytes", "hidden", "gone"] = "empty"
    noise: float = 0
    per_event: Sequence[int] = (1,)
    echo: Literal["yes", "ignored", "shifted", "scaled", "refused"] = "yes"
    lists: Literal["yes", "500", "first"] = "yes"
    cut: int | None = None
    spaces: bool = True
    beginning: bool = False
    shows_beginning: bool = True
    probs: Literal["yes", "ignored", "refused"] = "yes"
    context: int = 4096
    clamps: bool = False
    chat_repeats: bool = False
    bills_first: bool = False
    listed: list[dict[str, Any]] | None = field(default_factory=lambda: [{"id": "toy"}])
    most: int | None = None
    refuses: Sequence[str] = ()
    late: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    template: tuple[str, str] = ("", "")
    trims: bool = False
    strips: bool = False
    chat: Template | None = None
    lead: str = ""
    drawn: list[bytes] = field(default_factory=list)
    requests: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def bodies(self) -> list[Any]:
        """The bodies of all generation requests."""
        return [body for _, body in self.requests if body is not None]

    def handle(self, request: httpx.Request) -> httpx.Response:
        """One request, answered."""
        body: Any = json.loads(request.content) if request.content else None
        self.requests.append((request.url.path, body))
        if body is not None and self.probs == "refused" and "logprobs" in body:
            return _error(400, "property 'logprobs' is unsupported")
        if body is not None and (refused := self._refusal(body)) is not None:
            if not (self.late and body.get("stream")):
                return refused
            return event_stream([refused.json()])
        match request.url.path.rsplit("/", 2):
            case [*_, "models"] if self.listed is not None:
                return httpx.Response(200, json={"data": self.listed})
            case [_, "chat", "completions"]:
                try:
                    return self._answer(body, [self._templated(body["messages"])], "message")
                except RefusedError as error:
                    return _error(400, str(error))
            case [*_, "completions"]:
                prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
                if len(prompts) > 1 and self.lists == "500":
                    return _error(500, "assertion failed")
                if body.get("echo") and self.echo == "refused":
                    return _error(400, "echo is not supported together with logprobs")
                before, after = self.template
                prompts = [before + prompt + after for prompt in prompts]
                return self._answer(body, prompts if self.lists == "yes" else prompts[:1], "")
        return _error(404, "Not Found")

    def _refusal(self, body: dict[str, Any]) -> httpx.Response | None:
        """The refusal of a field, or of the number of alternatives; None if everything is accepted."""
        for name in {*body, *body.get("stream_options", ())} & {*self.refuses}:
            return _error(400, f"Unrecognized request argument supplied: {name}")
        if self.most is None or self._count(body) <= self.most:
            return None
        asked = f"Requested sample logprobs of {self._count(body)}"
        return _error(400, f"{asked}, which is greater than max allowed: {self.most}")

    def _templated(self, messages: list[dict[str, Any]]) -> str:
        """The text of a conversation; a last message of the assistant is continued."""
        messages = [{**one, "content": one["content"].rstrip()} if self.trims else one for one in messages]
        if self.chat is None:
            return "".join(one["content"] for one in messages)
        if messages[-1]["role"] != "assistant":
            return self.chat(messages).removeprefix("<s>")
        return self.chat(messages[:-1]).removeprefix("<s>") + self.lead + str(messages[-1]["content"])

    def _answer(self, body: dict[str, Any], prompts: list[str], chat: str) -> httpx.Response:
        choices: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        for index, prompt in enumerate(prompts):
            ids = self.model.encode(prompt.encode())[-(self.cut or 10**9) :]
            read = len(ids) + self.beginning
            room = self.context - read
            if room < 1 or (room < body["max_tokens"] and not self.clamps):
                return _error(400, f"This model's maximum context length is {self.context} tokens.")
            drawn = body["temperature"] and "seed" in body
            chance = random.Random(f"{body['seed']} {index}") if drawn else None
            run = self._run(ids, min(body["max_tokens"], room), self._count(body), chance)
            ended = bool(run) and run[-1].end
            finish = "stop" if ended else "length"
            if not (self.bills_first and index):
                usage["prompt_tokens"] += read
                usage["completion_tokens"] += len(run)
            if body.get("echo") and self.echo in ("yes", "shifted", "scaled"):
                run = self._echoed(ids, self._count(body)) + run
            before = [len("".join(shown.text for shown in run[:at])) for at in range(len(run))]
            run = [replace(shown, offset=7 + size) for shown, size in zip(run, before, strict=True)]
            if self.strips and run:
                run[0] = replace(run[0], text=run[0].text.lstrip())
            parts = split(run, self.per_event)
            pieces = [self._choice(part, index, chat, None, stream=True) for part in parts]
            if chat and body.get("stream"):
                pieces.insert(0, {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
            events += [{"choices": [one]} for one in (*pieces, self._choice([], index, chat, finish, stream=True))]
            answer = self._choice(run, index, chat, finish, stream=False)
            if chat and self.chat_repeats and body["messages"][-1]["role"] == "assistant":
                answer["message"]["content"] = body["messages"][-1]["content"] + answer["message"]["content"]
            choices.append(answer)
        if not body.get("stream"):
            return httpx.Response(200, json={"choices": choices, "usage": usage})
        if body.get("stream_options", {}).get("include_usage"):
            events.append({"choices": [], "usage": usage})
        return event_stream(events)

    @staticmethod
    def _count(body: dict[str, Any]) -> int:
        return int(body.get("top_logprobs") or body.get("logprobs") or 0)

    def _run(self, ids: Sequence[int], limit: int, count: int, chance: random.Random | None = None) -> list[Shown]:
        """The tokens of one generation; drawn where there is a chance."""
        ids, held, run, given = list(ids), b"", list[Shown](), len(ids)
        if not ids and not self.beginning:
            return []
        while len(run) < limit:
            probs = self.model.next(tuple(ids))
            probs = [prob if prob == 1 else prob * (1 - self.noise * len(ids)) for prob in probs]
            pick = max(range(len(probs)), key=lambda n: (probs[n], -n))
            if chance is not None:
                [pick] = chance.choices(range(len(probs)), probs)
            ids.append(pick)
            if pick in self.model.end_ids:
                run.append(Shown("", self._entry(pick, "</s>", probs, count) if self.end else None, end=True))
                break
            held += self.model.tokens[pick]
            text = held.decode("utf-8", "replace") if whole(held) == len(held) else ""
            hidden = self.opened == "hidden" and not text
            held = b"" if text else held
            run.append(Shown(text, None if hidden else self._entry(pick, text, probs, count), alone=self._alone(pick)))
        if chance is not None:
            self.drawn.append(b"".join(self.model.tokens[n] for n in ids[given:]))
        if run and held and self.opened == "lost":  # what is left is shown as it is
            run[-1] = Shown("\ufffd", run[-1].entry)
        if run and held and self.opened == "hidden":
            run[-1] = replace(run[-1], cut=held.decode("utf-8", "replace"))
        return run

    def _echoed(self, ids: Sequence[int], count: int) -> list[Shown]:
        """The tokens of a prompt."""
        shown: list[Shown] = []
        if self.beginning and self.shows_beginning:
            shown.append(Shown("", {"token": "<s>", "logprob": None, "top_logprobs": None}))
        held = b""
        for at, token_id in enumerate(ids):
            held += self.model.tokens[token_id]
            text = held.decode("utf-8", "replace") if whole(held) == len(held) else ""
            held = b"" if text else held
            probs = self.model.next(ids[: at + (self.echo == "shifted")])
            if self.echo == "scaled":  # as with another temperature
                probs = [prob**2 / sum(other**2 for other in probs) for prob in probs]
            entry = self._entry(token_id, text, probs, count)
            if not at and not (self.beginning and self.shows_beginning):
                entry |= {"logprob": None, "top_logprobs": None}
            shown.append(Shown(text, entry, alone=self._alone(token_id)))
        return shown

    def _entry(self, pick: int, text: str, probs: Sequence[float], count: int) -> dict[str, Any]:
        count = max(count, list(probs).count(max(probs)))
        best = sorted(range(len(probs)), key=lambda n: (-probs[n], n))[:count]
        if not self.end:
            best = [n for n in best if n not in self.model.end_ids]
        top = [self._named(n, self._alone(n), probs) for n in best if n != pick]
        own = self._named(pick, text if self.opened in ("empty", "hidden") else self._alone(pick), probs)
        beside = pick in best or self.shape == "legacy"  # one that is less probable is listed by some servers
        return {**own, "top_logprobs": [own, *top] if beside else top}

    def _alone(self, n: int) -> str:
        """A token's string by itself."""
        if n in self.model.end_ids:
            return "</s>"
        text = self.model.tokens[n].decode("utf-8", "ignore" if self.opened == "gone" else "replace")
        return "" if "\ufffd" in text and self.opened == "empty" else text

    def _named(self, n: int, text: str, probs: Sequence[float]) -> dict[str, Any]:
        data = self.model.tokens[n]
        named: dict[str, Any] = {"token": text if self.spaces else text.removeprefix(" "), "logprob": _log(probs[n])}
        if self.opened == "bytes":
            named["bytes"] = list(text.encode() if n in self.model.end_ids else data)
            if self.shape == "legacy" and "\ufffd" in text:
                named["token"] = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        return named

    def _choice(
        self, part: Sequence[Shown], index: int, chat: str, finish: str | None, *, stream: bool
    ) -> dict[str, Any]:
        text = "".join(shown.alone if self.opened == "gone" and stream else shown.text for shown in part)
        if part and not stream:
            text += part[-1].cut.rstrip("\ufffd") if chat else part[-1].cut
        content: Any = {"delta" if stream else "message": {"content": text}} if chat else {"text": text}
        entries = [shown.entry for shown in part if shown.entry is not None and self.probs == "yes"]
        logprobs: Any = None
        if entries and (chat or self.shape == "chat"):
            logprobs = {"content": entries}
        elif entries:
            tops: list[dict[str, float] | None] = []
            for entry in entries:
                top: dict[str, float] = {}
                for other in entry["top_logprobs"] or ():
                    top.setdefault(other["token"], other["logprob"])
                tops.append(None if entry["top_logprobs"] is None else top)
            logprobs = {
                "tokens": [entry["token"] for entry in entries],
                "token_logprobs": [entry["logprob"] for entry in entries],
                "top_logprobs": tops,
            }
            if self.opened == "gone":
                logprobs["text_offset"] = [shown.offset for shown in part if shown.entry is not None]
        changes = self.changes if part or finish else {}
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish, **changes}


def _error(status: int, message: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"message": message, "type": "error", "code": status}})


def _log(prob: float) -> float:
    return math.log(prob) if prob > 0 else -9999.0
