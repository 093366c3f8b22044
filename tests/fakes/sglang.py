"""A stand-in for SGLang's server in front of any model: what it does, seen from outside, is what the source says.

Read in `srt/managers/{io_struct,tokenizer_manager,detokenizer_manager,schedule_batch,scheduler}.py`,
`srt/sampling/sampling_params.py`, `srt/entrypoints/http_server.py` and `openai/serving_tokenize.py` of late 2025 and
2026: ids everywhere; text decoded step by step behind the last five tokens of the prompt; an answer that has all that
was asked ended for its length, whatever its last token is; the first scored token of a prompt has no probability; a
stream repeats everything, or nothing; the words of refusals; two tokens less than the context holds.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cosd_providers.testing import LanguageModel
from fakes.chats import RefusedError, Template, parsed
from fakes.splits import split
from fakes.stand_in import Answer, StandIn, rendered

LOST = "\ufffd"
SAMPLING = {
    *("max_new_tokens", "stop", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "frequency_penalty"),
    *("presence_penalty", "repetition_penalty", "min_new_tokens", "n", "ignore_eos", "skip_special_tokens"),
    *("spaces_between_special_tokens", "no_stop_trim", "logit_bias", "sampling_seed"),
}
DONE: dict[str, Any] = {}


class RefusalError(ValueError):
    """What is answered with 400."""


@dataclass
class StandInSglang(StandIn):
    """Answers as SGLang does.

    Attributes:
        model: what is asked for tokens.
        context: tokens that fit, prompt and answer together; two less in fact.
        beginning: the id that stands before every text; None for none.
        specials: the text of special ids, beside the first end.
        space: whether it puts a space before a text and takes it away again, as SentencePiece's tokenizers do.
        preferred: `--preferred-sampling-params`.
        incremental: `--incremental-streaming-output`.
        truncates: `--allow-auto-truncate`.
        per_event: how many tokens the events of a stream hold, in turn.
        old: whether it has no encoding for others.
        template: what the chat template writes around a message, or what renders all; None where no messages are known.
        certain: gives 1 and 0 as the probabilities of greedy decoding.
        shifted: by how many places the entries of a prompt stand wrongly.
        whole: tells entries for the whole prompt, whatever was asked.
        clips: shows the vocabulary's last id as 0 in a scored prompt.
        silent: tells probabilities of an answer's first token alone.
        bias: added to what the model says, for its own choice alone.
        finish: what every answer is said to end with, e.g. that it was aborted.
        broken: after how many events a stream ends without its last one.
        pace: seconds between the events of a stream; it ends at once where the client leaves.
        deterministic: `--enable-deterministic-inference`, without which a seed is ignored.
        drawn: the ids of each prompt with an answer that was drawn.
        models: more names in `/v1/models`.
        read: the ids of each prompt.
        requests: path and body of each request, in order.
        gone: how many events were sent in each stream that the client left.
        finished: how many streams were sent to their end.
    """

    model: LanguageModel
    context: int = 4096
    beginning: int | None = None
    specials: Mapping[int, str] = field(default_factory=dict)
    space: bool = False
    preferred: Mapping[str, Any] = field(default_factory=dict)
    incremental: bool = False
    truncates: bool = False
    per_event: Sequence[int] = (1,)
    old: bool = False
    template: tuple[str, str] | Template | None = None
    certain: bool = False
    shifted: int = 0
    whole: bool = False
    silent: bool = False
    clips: bool = True
    bias: Mapping[int, float] = field(default_factory=dict)
    finish: Mapping[str, Any] | None = None
    broken: int | None = None
    pace: float = 0.0
    deterministic: bool = False
    drawn: list[list[int]] = field(default_factory=list)
    models: Sequence[Mapping[str, Any]] = ()
    read: list[list[int]] = field(default_factory=list)
    requests: list[tuple[str, Any]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    finished: int = 0

    def written(self, event: Mapping[str, Any]) -> str:
        return f"data: {json.dumps(event) if event else '[DONE]'}\n\n"

    def answer(self, method: str, path: str, body: Any) -> Answer:
        """One request, answered."""
        self.requests.append((path, body))
        try:
            match method, path.lstrip("/"):
                case "GET", "model_info":
                    return Answer(200, {"model_path": "toys/toy", "tokenizer_path": "toys/toy", "is_generation": True})
                case "GET", "server_info":
                    more = {"tp_size": 1, "enable_deterministic_inference": self.deterministic}
                    return Answer(200, {"version": "0.5.6", "max_req_input_len": self.context - 6, **more})
                case "GET", "v1/models":
                    own = {"id": "toy", "root": "toy", "owned_by": "sglang", "max_model_len": self.context}
                    return Answer(200, {"object": "list", "data": [own, *self.models]})
                case "POST", "v1/tokenize" if not self.old:
                    return self._tokenize(body)
                case "POST", "v1/detokenize" if not self.old:
                    texts = [self._decode(ids, skip=body["skip_special_tokens"]) for ids in body["tokens"]]
                    return Answer(200, {"text": texts})
                case "POST", "generate":
                    return self._generate(body)
        except RefusalError as refusal:
            return Answer(400, {"error": {"message": str(refusal)}})
        return Answer(404, {"detail": "Not Found"})

    # Tokens and text.

    def _tokenize(self, body: Mapping[str, Any]) -> Answer:
        if "messages" in body and self.template is not None:
            try:
                text = rendered(self.template, body["messages"])
            except RefusedError as error:
                return Answer(400, {"object": "error", "message": str(error), "type": "BadRequest", "code": 400})
            return Answer(200, {"tokens": self._encode(text, special=False)})
        if "prompt" not in body:
            return Answer(400, {"object": "error", "message": "Field required: prompt", "type": "Bad Request"})
        ids = [self._encode(text, special=body.get("add_special_tokens", True)) for text in body["prompt"]]
        return Answer(200, {"tokens": ids, "count": [*map(len, ids)], "max_model_len": -1})

    def _encode(self, text: str, *, special: bool) -> list[int]:
        text = " " + text if self.space and text else text
        return [
            *([self.beginning] if special and self.beginning is not None else []),
            *parsed(self.model, text, self._names(text), self._unknown),
        ]

    @property
    def _unknown(self) -> int:
        return len(self.model.tokens) + 1

    def _names(self, text: str) -> dict[str, int]:
        named = {name: n for n, name in self.specials.items() if n in getattr(self.model, "specials", ())}
        if text.strip() == "</s>":  # elsewhere scripts have the end as text
            named |= dict(zip(["</s>"], sorted(set(self.model.end_ids) - set(self.specials)), strict=False))
        return named if self.beginning is None else {**named, "<s>": self.beginning}

    def _special(self, n: int) -> str | None:
        if n == self.beginning:
            return "<s>"
        if n == self._unknown:
            return "<unk>"
        return self.specials.get(n, "</s>" if n in self.model.end_ids else None)

    def _decode(self, ids: Sequence[int], *, skip: bool) -> str:
        text, data = "", b""
        for n in (one for one in ids if one < len(self.model.tokens) or one in (self.beginning, self._unknown)):
            if (special := self._special(n)) is None:
                data += self.model.tokens[n]
            elif not skip:
                text, data = text + data.decode("utf-8", "replace") + special, b""
        text += data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.space else text

    def _next(self, ids: Sequence[int]) -> Sequence[float]:
        return self.model.next(tuple(n for n in ids if n != self.beginning))

    # Generating.

    def _generate(self, body: Mapping[str, Any]) -> Answer:
        prompt = body["input_ids"] if "input_ids" in body else body["text"]
        many = isinstance(prompt, list) and isinstance(prompt[0], list | str)
        asked = [
            self._encode(one, special=True) if isinstance(one, str) else one for one in (prompt if many else [prompt])
        ]
        sampling = {"max_new_tokens": 128, "temperature": 1.0, **self.preferred, **body["sampling_params"]}
        if unknown := set(sampling) - SAMPLING:
            raise RefusalError(f"Unexpected keyword argument {unknown}")
        assert not sampling["stop"] and sampling["repetition_penalty"] == 1, "this is left to the server"
        prompts = [self._checked(ids, sampling["max_new_tokens"], body) for ids in asked]
        self.read += prompts
        if body.get("stream"):
            return Answer(200, events=self._events(self._run(prompts[0], sampling, body)))
        runs = [list(self._run(ids, sampling, body)) for ids in prompts]
        for run in runs:
            finish = run[-1]["meta_info"]["finish_reason"]
            if finish["type"] == "abort" and finish.get("status_code") == 400:
                raise RefusalError(finish["message"])
        return Answer(200, [run[-1] for run in runs] if many else runs[0][-1])

    def _checked(self, ids: list[int], wanted: int, body: Mapping[str, Any]) -> list[int]:
        if not ids:
            raise RefusalError("input_ids should not be empty")
        if self.truncates:
            return ids[: self.context - 7]
        if len(ids) >= self.context:
            long = f"is longer than the model's context length ({self.context} tokens)"
            raise RefusalError(f"The input ({len(ids)} tokens) {long}.")
        if len(ids) + wanted > self.context:
            words = f"Requested token count exceeds the model's maximum context length of {self.context} tokens."
            raise RefusalError(f"{words} You requested a total of {len(ids) + wanted} tokens")
        if len(ids) >= self.context - 6:
            words = f"Input length ({len(ids)} tokens) exceeds the maximum allowed length ({self.context - 6} tokens)."
            raise RefusalError(f"{words} Use a shorter input or enable --allow-auto-truncate.")
        if body.get("logprob_start_len", -1) >= len(ids):
            raise RefusalError("logprob_start_len is higher than the number of input tokens")
        return ids

    def _run(self, prompt: list[int], sampling: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What is known after each token of one answer."""
        ids, text = list(prompt), ""
        surrounding, read = max(len(prompt) - 5, 0), len(prompt)
        shown, tops, told = list[Any](), list[Any](), list[Any]()
        meta: dict[str, Any] = {
            "id": "r",
            "prompt_tokens": len(prompt),
            "cached_tokens": 0,
            "weight_version": "default",
        }
        meta |= self._scored(prompt, body)
        most = min(sampling["max_new_tokens"], self.context - 2 - len(prompt))
        forced = {int(n): value for n, value in sampling.get("logit_bias", {}).items()}
        seed = sampling.get("sampling_seed")
        for count in range(1, most + 1):
            probs = _heated(self._next(ids), sampling["temperature"])
            n = max(range(len(probs)), key=lambda m: (forced.get(m, 0) + self.bias.get(m, 0), probs[m], -m))
            if sampling["temperature"] == 1 and seed is not None:  # it draws by the seed and the place
                chance = random.Random(f"{seed} at {len(ids)}" if self.deterministic else None)
                [n] = chance.choices(range(len(probs)), probs)
                self.drawn += [ids] if count == 1 else []
            told.append([self._entry(m, probs[m], body) for m in body.get("token_ids_logprob") or ()])
            ids.append(n)
            shown.append(self._entry(n, probs[n], body))
            tops.append(self._top(probs, body))
            if self.certain:
                shown[-1][0], tops[-1] = 0.0, [[0.0 if m == n else -3.4e38, m, t] for _, m, t in tops[-1]]
            end = n in self.model.end_ids and not sampling["ignore_eos"]
            finish: Mapping[str, Any] | None = {"type": "stop", "matched": n} if end else None
            finish = {"type": "length", "length": most} if count == most else finish
            finish = finish and (self.finish or finish)
            trimmed = ids[surrounding:-1] if finish and finish["type"] == "stop" and end else ids[surrounding:]
            new = self._decode(trimmed, skip=True)[len(self._decode(ids[surrounding:read], skip=True)) :]
            if new and not new.endswith(LOST) and not finish:
                text, surrounding, read, new = text + new, read, len(ids), ""
            elif not finish:
                new = new[: new.rfind(" ") + 1]
            yield {
                "text": text + new,
                "output_ids": ids[len(prompt) :],
                "meta_info": {
                    **meta,
                    "finish_reason": finish,
                    "completion_tokens": count,
                    "output_token_logprobs": shown[: 1 if self.silent else None],
                    "output_top_logprobs": tops[: 1 if self.silent else None],
                    **({"output_token_ids_logprobs": told} if body.get("token_ids_logprob") else {}),
                },
            }
            if finish:
                return

    def _scored(self, prompt: Sequence[int], body: Mapping[str, Any]) -> dict[str, Any]:
        start = body.get("logprob_start_len", -1)
        if start == -1:
            return {"input_token_logprobs": [], "input_top_logprobs": []}
        first = 0 if self.whole else start
        # The server clips the ids of a prompt below the vocabulary's last one, against padding values of images.
        last = len(self.model.tokens) - 1 if self.clips else None
        shown = [0 if n == last else n for n in prompt]
        entries: list[Any] = [[None, *self._entry(shown[first], 1.0, body)[1:]]]
        tops: list[Any] = [None]
        for at in range(first + 1, len(prompt)):
            probs = self._next(prompt[: at - self.shifted])
            entries.append(self._entry(shown[at], self._next(prompt[:at])[prompt[at]], body))
            tops.append(self._top(probs, body))
        return {"input_token_logprobs": entries, "input_top_logprobs": tops}

    def _entry(self, n: int, prob: float, body: Mapping[str, Any]) -> list[Any]:
        text = self._decode([n], skip=False) if body.get("return_text_in_logprobs") else None
        return [math.log(prob) if prob > 0 else -500.0, n, text]

    def _top(self, probs: Sequence[float], body: Mapping[str, Any]) -> list[Any]:
        """Of equals, any order: here in reverse."""
        ranked = sorted(range(len(probs)), key=lambda n: (probs[n], n), reverse=True)
        return [self._entry(n, probs[n], body) for n in ranked[: body["top_logprobs_num"]]]

    def _events(self, run: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        seen, text, sent = 0, "", 0
        for *_, event in split(run, self.per_event):
            meta = event["meta_info"]
            if sent == self.broken:
                return
            if self.incremental:
                cut = {key: meta[key][seen:] for key in ("output_token_logprobs", "output_top_logprobs")}
                yield {**event, "text": event["text"][len(text) :], "meta_info": {**meta, **cut}}
            else:
                yield event
            seen, text, sent = meta["completion_tokens"], event["text"], sent + 1
        yield DONE


def _heated(probs: Sequence[float], temperature: float) -> Sequence[float]:
    """Of a temperature above 0 what is told is scaled; what is taken is the most probable token all the same."""
    if temperature in (0, 1):
        return probs
    scaled = [prob ** (1 / temperature) for prob in probs]
    return [value / sum(scaled) for value in scaled]
