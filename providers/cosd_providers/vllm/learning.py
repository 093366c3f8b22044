"""What a vLLM server is: asked once, before anything else."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from cosd_providers.contract import Capabilities, ServerInfo, Usage
from cosd_providers.errors import InvalidRequestError, ModelChoiceError, ResponseError, StatusError, UnsupportedError
from cosd_providers.http.transport import Transport
from cosd_providers.openai.wire import steps
from cosd_providers.parsing import parse
from cosd_providers.spelling import kind_of
from cosd_providers.vllm.asking import FORCE, Asking
from cosd_providers.vllm.wire import Served, Server, Version

__all__ = ["learn"]

_MARK = "5f0c9a"
_LETTERS = "a \u00e9 a"  # whose tokens tell the kind of the vocabulary

_M = TypeVar("_M", bound=BaseModel)


async def learn(transport: Transport, asking: Asking, model: str | None, with_tokenizer: bool) -> Server:
    """Asks for version, models, special tokens and template, and has one token written to see what an answer holds.

    Raises:
        UnsupportedError: this is another server.
        ModelChoiceError: there are several models, and none was named; or the named one is not there.
    """
    version = (await _ask(transport, Version, "/version")).version
    listed = await _ask(transport, Served, "/v1/models")
    name = _choose(listed, model, transport.endpoint)
    beginning = await asking.encode(name, "", strings=False)
    letters = await asking.encode(name, _LETTERS, plain=True)
    if not letters.tokens:
        raise ResponseError("/tokenize gave no token for a letter", endpoint=transport.endpoint)
    kind = kind_of(_LETTERS.encode(), letters.token_strs or ())
    [first] = await asking.batch(name, [letters.tokens[-1:]], 1, Usage())
    bytes_known = letters.token_strs is not None or with_tokenizer
    able = Capabilities(
        token_ids=first.token_ids is not None and first.prompt_token_ids is not None,
        end_prob=True,
        tokenize=bytes_known,
        score=bytes_known,
    )
    cue = await asking.template(name, _MARK)
    info = ServerInfo(
        endpoint=transport.endpoint,
        engine="vllm",
        model=name,
        build=version,
        context=next(one for one in listed.data if one.id == name).max_model_len or letters.max_model_len,
        capabilities=able,
        answer_cue=cue.rpartition(_MARK)[2] or None if cue and _MARK in cue else None,
    )
    bare = await _bare(asking, name, letters.tokens[-1]) if kind == "spaces" else None
    return Server(info, beginning.tokens, letters.tokens[-1], kind == "bytes", False if kind == "bytes" else bare)


async def _bare(asking: Asking, model: str, token_id: int) -> bool | None:
    """Whether the string of a token that begins with a space shows it: the token is forced, to see.

    With vocabularies of SentencePiece it was lost until the server put it back from the vocabulary's own entries.
    """
    try:
        [answer] = await asking.batch(model, [[token_id]], 1, Usage(), logit_bias={str(token_id): FORCE})
    except StatusError:
        return None
    found = [step.pick.text for step in steps(answer)]
    return {" a": False, "a": True}.get(found[0]) if found else None


async def _ask(transport: Transport, kind: type[_M], path: str) -> _M:
    """What only this engine answers."""
    try:
        return parse(kind, await transport.get(path), transport.endpoint)
    except (InvalidRequestError, ResponseError) as error:
        if error.retryable:  # a connection that broke says nothing about the server
            raise
        words = "this does not look like vLLM"
        hint = "Give the URL of `vllm serve`, without /v1; for another server leave out engine."
        raise UnsupportedError(words, endpoint=transport.endpoint, hint=hint) from error


def _choose(models: Served, wanted: str | None, endpoint: str) -> str:
    """The id of the model to use; of several names of one model the first, and no adapter unless it is named."""
    own = [one for one in models.data if one.parent is None]
    if wanted is None and own and len({one.root or one.id for one in own}) == 1:
        return own[0].id
    if wanted is not None and wanted in [one.id for one in models.data]:
        return wanted
    problem = f"no model {wanted!r}" if wanted else "several models, and none was named"
    words = f"{problem}; the server has {', '.join(repr(one.id) for one in models.data) or 'none'}"
    raise ModelChoiceError(words, endpoint=endpoint, hint="Give one as `model`.")
