"""What the vLLM adapter relies on, held against real servers by plain HTTP, and what of vLLM would mislead it."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import pytest

from cosd_api.apps.demo.servers import Pair
from environments import RECIPES
from vllm_cpu.servers import CONTEXT, MODELS

MIXED = "Q: In Peru a book costs 17 and a pen costs 25. Name the capital and the total.\nA:"


def token_id(model: str, token: str) -> int:
    """The id of a special token, by the model's own file."""
    kept = json.loads((MODELS / model / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    return next(int(one["id"]) for one in kept if one["content"] == token)


END = {model: (name, token_id(model, name)) for model, name in (("sums", "<|endoftext|>"), ("facts", "</s>"))}
BEGINNING = {"sums": [], "facts": [token_id("facts", "<s>")]}
CLOSE = {"Connection": "close"}


class Server:
    """Plain requests to one server."""

    def __init__(self, pair: Pair, name: str) -> None:
        self.url, self.name = pair[name], name

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, headers=CLOSE).raise_for_status().json()

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json={"model": self.name, **body}, timeout=60, headers=CLOSE)

    def request(self, prompt: Any, **fields: Any) -> httpx.Response:
        defaults = {"temperature": 0, "max_tokens": 1, "logprobs": 5, "return_token_ids": True}
        return self.post("/v1/completions", prompt=prompt, **(defaults | fields))

    def complete(self, prompt: Any, **fields: Any) -> list[Any]:
        answer = self.request(prompt, **fields)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"])

    def stream(self, prompt: Any, **fields: Any) -> list[Any]:
        """The only choice of each chunk."""
        answer = self.request(prompt, stream=True, **fields)
        assert answer.status_code == 200, answer.text
        *events, done = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
        assert done == "[DONE]"
        return [choice for event in events for choice in json.loads(event)["choices"]]

    def refusal(self, prompt: Any, **fields: Any) -> str:
        answer = self.request(prompt, **fields)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["code"] == 400
        return str(answer.json()["error"]["message"])

    def ids(self, text: str, **fields: Any) -> list[int]:
        return list(self.post("/tokenize", prompt=text, **fields).raise_for_status().json()["tokens"])

    def pieces(self, text: str) -> list[int]:
        return self.ids(text, add_special_tokens=False)

    def text(self, ids: list[int]) -> str:
        return str(self.post("/detokenize", tokens=ids).raise_for_status().json()["prompt"])


@pytest.fixture
def server(vllm_pair: Pair, vllm_name: str) -> Server:
    """Each of the two real servers."""
    return Server(vllm_pair, vllm_name)


@pytest.fixture
def facts(vllm_pair: Pair) -> Server:
    """The server whose prompts begin with `<s>`."""
    return Server(vllm_pair, "facts")


def test_version_and_model(server: Server) -> None:
    assert server.get("/version")["version"] == RECIPES["vllm"].version
    [model] = server.get("/v1/models")["data"]
    assert (model["id"], model["max_model_len"], model["owned_by"]) == (server.name, CONTEXT, "vllm")
    answer = server.post("/v1/completions", model="gpt-9", prompt="Q")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith("The model `gpt-9` does not exist.")


def test_a_stream_tells_the_ids_of_the_prompt_once_and_of_every_token(server: Server) -> None:
    first, *others = chunks = server.stream(MIXED, max_tokens=6)
    assert first["prompt_token_ids"] == server.ids(MIXED) == BEGINNING[server.name] + server.pieces(MIXED)
    assert all(chunk["prompt_token_ids"] is None for chunk in others)
    [whole] = server.complete(MIXED, max_tokens=6)
    assert len(whole["token_ids"]) == 6
    assert [id for chunk in chunks for id in chunk["token_ids"]] == whole["token_ids"]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"] == server.text(whole["token_ids"])
    own = [value for chunk in chunks for value in chunk["logprobs"]["token_logprobs"]]
    assert own == pytest.approx(whole["logprobs"]["token_logprobs"], abs=1e-3)
    for chunk in chunks:  # of one token, or of all that came while the server was busy
        shown = chunk["logprobs"]
        assert len(shown["tokens"]) == len(chunk["token_ids"])
        for value, top in zip(shown["token_logprobs"], shown["top_logprobs"], strict=True):
            assert len(top) == 5
            assert value == max(top.values()) == next(iter(top.values()))


def test_an_unfinished_character_is_empty_until_its_last_token(facts: Server) -> None:
    ids = [*facts.pieces("ж😀!"), END["facts"][1]]
    said: Any = {"structured_outputs": {"choice": ["ж😀!"]}}
    strings = ["", "ж", "", "", "", "😀", "!", "</s>"]
    texts = [*strings[:-1], ""]
    for count in range(1, len(ids) + 1):
        [choice] = facts.complete("Q: P", max_tokens=count, **said)
        assert choice["token_ids"] == ids[:count]
        assert choice["logprobs"]["tokens"] == strings[:count]
        # What is still unfinished at the end is lost.
        assert choice["text"] == "".join(texts[:count])
        assert choice["finish_reason"] == ("stop" if count == len(ids) else "length")
    # The same in a stream, however many tokens a chunk has: a character comes with the last of its own.
    for limit in (4, 12):
        at = 0
        for chunk in facts.stream("Q: P", max_tokens=limit, **said):
            before, at = at, at + len(chunk["token_ids"])
            assert chunk["token_ids"] == ids[before:at]
            assert chunk["logprobs"]["tokens"] == strings[before:at]
            assert chunk["text"] == "".join(texts[before:at])
        assert at == min(limit, len(ids))


def test_a_prompt_that_ends_within_a_character_is_partly_repeated(facts: Server) -> None:
    *begun, last = facts.pieces("😀")
    prompt = [*facts.ids("Q:"), *begun]
    [choice] = facts.complete(prompt, allowed_token_ids=[last])
    assert choice["token_ids"] == [last]
    # The text is not what was generated; and the token alone shows nothing.
    assert choice["text"] == "Q:😀"
    assert choice["logprobs"]["tokens"] == [""]
    [broken] = facts.complete([*facts.ids("Q:"), begun[0]])
    assert broken["text"].startswith("Q:\N{REPLACEMENT CHARACTER}")


def test_the_end_of_sequence_has_a_probability(server: Server) -> None:
    [choice] = server.complete(MIXED, max_tokens=100)
    name, id = END[server.name]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
    assert choice["token_ids"][-1] == id
    assert choice["logprobs"]["tokens"][-1] == name
    assert choice["logprobs"]["token_logprobs"][-1] == pytest.approx(0, abs=0.1)
    assert not choice["text"].endswith(name)


@pytest.mark.parametrize("extra", [0, 1])
def test_echo_scores_the_prompt(server: Server, extra: int) -> None:
    [choice] = server.complete("Q: Peru", echo=True, max_tokens=extra)
    ids, scored = server.ids("Q: Peru"), choice["logprobs"]
    assert choice["prompt_token_ids"] == ids
    # One token is always generated; with 0 it is only not scored. With ids, the prompt is not in the text.
    assert len(choice["token_ids"]) == 1
    assert bool(choice["text"]) is bool(extra)
    assert len(scored["tokens"]) == len(ids) + extra
    assert scored["token_logprobs"][0] is scored["top_logprobs"][0] is None
    for own, name, top in list(zip(scored["token_logprobs"], scored["tokens"], scored["top_logprobs"], strict=True))[
        1:
    ]:
        # The token itself comes first, whatever its rank; the five most probable may be five more.
        assert next(iter(top)) == name
        assert top[name] == own
        assert 5 <= len(top) <= 6
    # Without a score, nothing is generated either.
    assert server.refusal("Q: Peru", max_tokens=0).startswith("max_tokens must be at least 1, got 0.")


def test_prompt_logprobs_are_keyed_by_id(server: Server) -> None:
    [choice] = server.complete("Q: Peru", prompt_logprobs=3)
    first, *entries = choice["prompt_logprobs"]
    ids = server.ids("Q: Peru")
    assert first is None
    assert len(entries) == len(ids) - 1
    for id, entry in zip(ids[1:], entries, strict=True):
        assert str(id) in entry
        assert sorted(item["rank"] for item in entry.values())[:3] == [1, 2, 3]
        best = min(entry.values(), key=lambda item: item["rank"])
        assert best["logprob"] == max(item["logprob"] for item in entry.values())
    # Not while streaming; but echo, which gives the same with strings for keys, is allowed there.
    assert "prompt_logprobs" in server.refusal("Q: Peru", prompt_logprobs=3, stream=True)
    assert server.stream("Q: Peru", echo=True)[0]["logprobs"]["tokens"]


def test_what_is_scored_agrees_with_what_is_generated(server: Server) -> None:
    ids = server.ids(MIXED)
    [scored] = server.complete(ids, prompt_logprobs=5)
    for end in (len(ids) - 1, len(ids) - 7, len(ids) - 12, 5):
        [generated] = server.complete(ids[:end])
        at_most = scored["prompt_logprobs"][end]
        best = min(at_most, key=lambda id: int(at_most[id]["rank"]))
        assert generated["token_ids"] == [int(best)]
        assert generated["logprobs"]["token_logprobs"] == [pytest.approx(at_most[best]["logprob"], abs=1e-3)]


def test_a_list_is_answered_like_its_members(server: Server) -> None:
    ids = server.ids(MIXED)
    prompts = [ids[:end] for end in range(5, len(ids), 4)]
    together = server.complete(prompts)
    assert [choice["index"] for choice in together] == list(range(len(prompts)))
    for choice, prompt in zip(together, prompts, strict=True):
        [alone] = server.complete(prompt)
        assert choice["prompt_token_ids"] == prompt
        assert choice["token_ids"] == alone["token_ids"]
        one, other = choice["logprobs"]["top_logprobs"][0], alone["logprobs"]["top_logprobs"][0]
        for name in one.keys() & other.keys():
            assert math.exp(one[name]) == pytest.approx(math.exp(other[name]), abs=1e-3)
    # Texts too; an empty list is refused.
    assert [choice["index"] for choice in server.complete(["Q: P", "Q"])] == [0, 1]
    assert server.refusal([]) == "You must pass at least one prompt"


def test_beginning_tokens_are_added_to_text_alone(facts: Server) -> None:
    bare = facts.pieces("Q: Peru")
    assert facts.complete("Q: Peru")[0]["prompt_token_ids"] == [*BEGINNING["facts"], *bare]
    assert facts.complete("Q: Peru", add_special_tokens=False)[0]["prompt_token_ids"] == bare
    assert facts.complete(bare)[0]["prompt_token_ids"] == bare


def test_an_empty_prompt_is_refused(server: Server) -> None:
    # Also where a beginning token would be added, and would be enough.
    assert server.refusal("").startswith("Either prompt or prompt_embeds must be provided and non-empty.")


def test_the_limit_of_the_context(server: Server) -> None:
    token = server.pieces("Q")
    # What does not fit is not generated, and nothing says so but the finish reason "length".
    [choice] = server.complete(token * (CONTEXT - 5), max_tokens=100, ignore_eos=True)
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (5, "length")
    assert server.refusal(token, max_tokens=CONTEXT + 1).startswith(
        f"max_tokens={CONTEXT + 1} cannot be greater than max_model_len={CONTEXT}."
    )
    # A prompt that fills the context leaves no room, which is told as if no room had been asked for.
    assert server.refusal(token * CONTEXT).startswith("max_tokens must be at least 1, got 0.")
    # The count is "at least" one too many where vLLM did not count on.
    for too_long in (token * (CONTEXT + 1), token * (CONTEXT + 88), "Q: " * CONTEXT):
        refusal = server.refusal(too_long)
        assert refusal.startswith(f"This model's maximum context length is {CONTEXT} tokens. However, your prompt ")
        assert "reduce the length of the input prompt" in refusal
    assert server.complete(token * (CONTEXT - 1), echo=True, max_tokens=0)
    assert server.refusal(token * CONTEXT, echo=True, max_tokens=0)


def test_more_alternatives_than_allowed_are_refused(server: Server) -> None:
    assert len(server.complete(MIXED, logprobs=20)[0]["logprobs"]["top_logprobs"][0]) == 20
    assert server.refusal(MIXED, logprobs=21).startswith("Requested sample logprobs of 21, which is greater than max")


def test_probabilities_are_raw(server: Server) -> None:
    [free] = server.complete(MIXED)
    [warm] = server.complete(MIXED, temperature=2.0, top_k=1)
    other = server.pieces(" is")[0]
    [forced] = server.complete(MIXED, logit_bias={str(other): 100}, logprobs=5)
    assert warm["logprobs"]["top_logprobs"] == [pytest.approx(free["logprobs"]["top_logprobs"][0], abs=1e-3)]
    assert forced["token_ids"] == [other]
    assert forced["logprobs"]["token_logprobs"][0] < -1
    # But a grammar's mask shows in them.
    [bound] = server.complete(MIXED, structured_outputs={"choice": [" is"]})
    assert min(bound["logprobs"]["top_logprobs"][0].values()) == -9999.0


def test_tokens_of_a_text(server: Server) -> None:
    name, end = END[server.name]
    answer = server.post("/tokenize", prompt=f"Zж 😀{name}", return_token_strs=True).json()
    assert answer["max_model_len"] == CONTEXT
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"])
    # As the vocabulary spells them, a byte a letter; an end token written out is one.
    strings = answer["token_strs"][len(BEGINNING[server.name]) :]
    assert strings == ["Z", "Ð", "¶", "Ġ", "ð", "Ł", "ĺ", "Ģ", name]
    assert answer["tokens"][-1] == end
    assert server.post("/tokenize", prompt="Z").json()["token_strs"] is None


def test_text_of_tokens(server: Server) -> None:
    ids = server.pieces("Zé 😀")
    assert server.text(ids) == "Zé 😀"
    assert server.text(ids[:-1]) == "Zé \N{REPLACEMENT CHARACTER}"
    name, end = END[server.name]
    assert server.text([*ids, end]) == f"Zé 😀{name}"


def test_the_chat_template_shows_in_tokens(server: Server) -> None:
    message = {"role": "user", "content": "X"}
    tokens = server.post("/tokenize", messages=[message]).raise_for_status().json()["tokens"]
    shown = {"sums": "<|im_start|>user\nX<|im_end|>\n<|im_start|>assistant\n", "facts": "<s>[INST] X[/INST]"}
    assert tokens == server.ids(shown[server.name], add_special_tokens=False)
