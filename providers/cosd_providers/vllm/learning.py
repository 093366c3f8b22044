"""What a vLLM server is: asked once, before anything else."""

from __future__ import annotations

from functools import partial

from cosd_providers.contract import Capabilities, ServerInfo
from cosd_providers.engine import Models, answer_cue, ask_only, choose
from cosd_providers.engines.openai.wire import steps
from cosd_providers.errors import ResponseError, StatusError
from cosd_providers.http.transport import Transport
from cosd_providers.usage import Usage
from cosd_providers.vllm.asking import FORCE, Asking
from cosd_providers.vllm.wire import Server, Version
from cosd_providers.vocabulary import kind_of

__all__ = ["learn"]

_LETTERS = "a \u00e9 a"  # whose tokens tell the kind of the vocabulary


async def learn(transport: Transport, asking: Asking, model: str | None, with_tokenizer: bool) -> Server:
    """Asks for version, models, special tokens and template, and has one token written to see what an answer holds.

    Raises:
        UnsupportedError: this is another server.
        ModelChoiceError: there are several models, and none was named; or the named one is not there.
    """
    ask = partial(ask_only, transport, looks="vLLM", url="`vllm serve`")
    version = (await ask(Version, "/version")).version
    chosen = choose((await ask(Models, "/v1/models")).data, model, transport.endpoint)
    name = chosen.id
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
    info = ServerInfo(
        endpoint=transport.endpoint,
        engine="vllm",
        model=name,
        build=version,
        context=chosen.max_model_len or letters.max_model_len,
        capabilities=able,
        answer_cue=await answer_cue(partial(asking.template, name)),
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
