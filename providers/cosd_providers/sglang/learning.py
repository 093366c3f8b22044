"""What an SGLang server is: asked once, before anything else."""

from __future__ import annotations

from functools import partial

from cosd_providers.contract import Capabilities, ServerInfo
from cosd_providers.engine import Models, answer_cue, ask_only, choose
from cosd_providers.errors import InvalidRequestError, ResponseError, StatusError, UnsupportedError
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.sglang.asking import Asking
from cosd_providers.sglang.reading import checked, steps
from cosd_providers.sglang.wire import Answer, Card, Running, Server

__all__ = ["learn"]

_LETTERS = "a \u00e9 a"  # whose last token is a plain one

_IT = {"looks": "SGLang", "url": "`sglang serve`"}


async def learn(transport: Transport, asking: Asking, model: str | None) -> Server:
    """Asks for version, models, encoding and template, and has one token written to see what an answer holds.

    Raises:
        UnsupportedError: this is another server, or one that does not tell what is needed.
        ModelChoiceError: there are several models, and none was named; or the named one is not there.
    """
    if not (await _card(transport)).is_generation:
        words = "the server was started with a model that writes no text (--is-embedding)"
        raise UnsupportedError(words, endpoint=transport.endpoint)
    running = await _running(transport)
    listed = await ask_only(transport, Models, "/v1/models", **_IT)
    name = choose(listed.data, model, transport.endpoint)
    plain = await _encoded(transport, asking, name.id)
    if not plain:
        raise ResponseError("the encoding of a letter has no token", endpoint=transport.endpoint)
    read = await _read(transport, asking)
    before = next((at for at in range(len(read)) if read[at : at + len(plain)] == plain), None)
    if before is None:
        whose = "the server's /v1/tokenize" if asking.tokenizer is None else "the tokenizer that was given"
        words = f"{whose} encodes text differently from the model that is served: it is another one"
        raise UnsupportedError(words, endpoint=transport.endpoint)
    anchored = "" if asking.tokenizer else (await asking.decode(name.id, [plain[-1:]], specials=True))[0]
    info = ServerInfo(
        endpoint=transport.endpoint,
        engine="sglang",
        model=name.id,
        build=running.version,
        context=name.max_model_len or next((one.max_model_len for one in listed.data if one.max_model_len), None),
        capabilities=Capabilities(token_ids=True, end_prob=True, tokenize=True, score=True),
        longest_prompt=None if running.max_req_input_len is None else running.max_req_input_len - 1,
        answer_cue=await answer_cue(partial(asking.template, name.id)),
    )
    adapter = None if name.parent is None else name.id
    return Server(info, adapter, read[:before], plain[-1], anchored)


async def _card(transport: Transport) -> Card:
    """What only this engine answers; by its older name where the newer one is not known."""
    try:
        return parse(Card, await transport.get("/model_info"), transport.endpoint)
    except (InvalidRequestError, ResponseError):
        return await ask_only(transport, Card, "/get_model_info", **_IT)


async def _running(transport: Transport) -> Running:
    """Version and limits; nothing where they are kept from others."""
    for path in ("/server_info", "/get_server_info"):
        try:
            return parse(Running, await transport.get(path), transport.endpoint)
        except (StatusError, ResponseError):
            continue
    return Running()


async def _encoded(transport: Transport, asking: Asking, model: str) -> list[int]:
    try:
        return (await asking.encode(model, [_LETTERS]))[0]
    except InvalidRequestError as error:
        words = "the server does not encode text for others (/v1/tokenize), as SGLang does since late 2025"
        hint = "Update it, or give the model's own tokenizer as `tokenizer`."
        raise UnsupportedError(words, endpoint=transport.endpoint, hint=hint) from error


async def _read(transport: Transport, asking: Asking) -> list[int]:
    """The ids that the server makes of a text; their probabilities, and that of one token more, are looked at."""
    body = asking.body(None, 1, text=_LETTERS, logprob_start_len=0)
    answer = checked(parse(Answer, await transport.post("/generate", body), transport.endpoint), transport.endpoint, 0)
    steps(answer, transport.endpoint)
    entries = answer.meta_info.input_token_logprobs
    if not entries:
        words = "the server does not give the probabilities of a text, although asked (logprob_start_len)"
        raise UnsupportedError(words, endpoint=transport.endpoint)
    return [token_id for _, token_id, _ in entries]
