"""Discovery: find the model, and check that the route in use does what a fusion needs.

Discovery runs once, and its requests are not billed.
"""

from __future__ import annotations

import re
from contextlib import suppress

from cosd_providers.engine import ListedModel, Models
from cosd_providers.engine import choose as chosen_of
from cosd_providers.engines.openai.client import OpenAIClient, OpenAIFacts, Prefix
from cosd_providers.engines.openai.dialects import Dialect
from cosd_providers.engines.openai.wire import Completion, steps
from cosd_providers.errors import (
    AuthenticationError,
    ContextLengthError,
    InvalidRequestError,
    ResponseError,
    UnsupportedError,
)
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.tokenizers import Tokenizer, count
from cosd_providers.usage import Usage

_STARTED = "4711 and 0815"  # several tokens, which no model repeats by chance
_SURE = 1 - 1e-6
_BARE = 4  # greatest plausible number of tokens for one letter, including special tokens
_BEGINNING = re.compile(r"<s>|<bos>|<\|(begin_of_text|startoftext)\|>|<｜begin▁of▁sentence｜>|<BOS_TOKEN>|\[BOS\]")
"""Common strings for the beginning-of-sequence token."""


async def discover(client: OpenAIClient, transport: Transport, model: str | None, context: int | None) -> OpenAIFacts:
    """Find out which model the server has, fill in the client's facts, and check that the route suits a fusion.

    `model` may be None if the server has only one; `context` is None for the size that the server reports, in tokens.

    Raises:
        UnsupportedError: the server cannot be used.
    """
    dialect, facts, tokenizer = client.dialect, client.facts, client.tokenizer
    facts.model, facts.context = await choose(transport, dialect, model)
    if context is not None:
        facts.context = context
    if client.api == "chat" and client.partial and dialect.continues is None:
        words = (
            f"the chat route of {dialect.engine} does not continue a partial answer,"
            " and a fusion continues after each word that it replaces"
        )
        hint = f"{dialect.no_reply} For a method that continues no answer: connect(url, api='messages')."
        raise UnsupportedError(words, endpoint=client.endpoint, hint=hint)
    if not client.partial:  # no method needs the probabilities of answers that cannot be continued
        facts.probs = False
        return facts
    size = await check_probs(client) if dialect.probs is None else None
    if client.api == "chat":
        await check_continuation(client)
    elif dialect.templates:
        await check_raw(client, size)
    if client.api == "completions" and tokenizer is not None:
        await check_tokenizer(client, tokenizer)
        facts.tokenizer = tokenizer.name
    return facts


async def choose(transport: Transport, dialect: Dialect, model: str | None) -> tuple[str, int | None]:
    """Return the model's id and the size of its context, from the server's list of models if there is one.

    Raises:
        ModelChoiceError: the named model is missing, or no model was named and the server lists several models or none.
    """
    listed = await _listed(transport, dialect, named=model is not None)
    if model is not None and not (listed and dialect.all_listed) and all(one.id != model for one in listed):
        return model, None
    found = chosen_of(listed, model, transport.endpoint)
    return found.id, found.max_model_len


async def _listed(transport: Transport, dialect: Dialect, *, named: bool) -> list[ListedModel]:
    if dialect.models is None:
        return []
    try:
        return parse(Models, await transport.get(dialect.models), transport.endpoint).data
    except (InvalidRequestError, ResponseError):
        if not named:
            raise
        return []


async def check_probs(client: OpenAIClient) -> int | None:
    """Request one token after a letter, with its probability. If no probability comes, later requests ask for none.

    Returns:
        The number of tokens that the server reads for the letter; None if the server does not report it.

    Raises:
        UnsupportedError: the model is refused for a known reason, or temperature 0 turns all probabilities into 1 and
            0.
        AuthenticationError: the server refuses the API key.
    """
    dialect, facts = client.dialect, client.facts
    size: int | None = None
    for text in ("a", dialect.known_text):
        try:
            answer = await client.one(Prefix(text, ""), 1, Usage(), check=False)
        except (InvalidRequestError, AuthenticationError) as error:
            refusal = str(error).lower()
            facts.probs = not any(part in refusal for part in dialect.no_probs)
            if facts.probs:
                _raise_known(error, refusal, dialect)
            return size
        except (ContextLengthError, ResponseError):
            return size  # the next request will raise the same error
        size = size or (answer.usage.prompt_tokens or None if answer.usage else None)
        [choice] = answer.choices
        if steps(choice) or (choice.logprobs and choice.logprobs.alone):
            await _check_unsure(client, text, choice)
            return size
        if choice.written:
            facts.probs = False
            return size
    return size


async def _check_unsure(client: OpenAIClient, text: str, choice: Completion) -> None:
    """If one token has probability 1 and all other listed tokens have 0, repeat the request at temperature 1.

    Raises:
        UnsupportedError: the token is certain only at temperature 0, so that no drafted token would ever be replaced.
    """
    if not _certain(choice):
        return
    answer = await client.one(Prefix(text, ""), 1, Usage(), {"temperature": 1}, check=False)
    if steps(answer.choices[0]) and not _certain(answer.choices[0]):
        words = "at temperature 0 the server reports no probabilities but 1 and 0"
        raise UnsupportedError(words, endpoint=client.endpoint, hint=client.dialect.raw)


def _certain(choice: Completion) -> bool:
    """True if several tokens are listed at the first position, and one of them has all of the probability."""
    listed = [one.prob for step in steps(choice)[:1] for one in (step.pick, *step.top)]
    probs = [prob for prob in listed if prob is not None]
    return len(probs) > 1 and max(probs) >= _SURE and all(prob in (0.0, max(probs)) or prob < 1e-30 for prob in probs)


def _raise_known(error: InvalidRequestError | AuthenticationError, refusal: str, dialect: Dialect) -> None:
    """Raise `UnsupportedError` for a known refusal of a model, and re-raise any other authentication error."""
    for known in dialect.refusals:
        if known.says in refusal:
            raise UnsupportedError(known.words, endpoint=error.endpoint, hint=known.hint) from error
    if isinstance(error, AuthenticationError):
        raise error


async def check_raw(client: OpenAIClient, size: int | None = None) -> None:
    """Check that a prompt reaches the model unchanged.

    The server must read a single letter as at most a few tokens, and two line breaks after the letter must change that
    number. A server that does not report its usage cannot be checked.
    `size` is the number of tokens that the server reads for the letter, if known.

    Raises:
        UnsupportedError: the server wraps every prompt in a template, or strips trailing white space from prompts.
    """
    size = size or await _size(client, Prefix("a", ""))
    if size is not None and size > _BARE:
        words = f"the server puts a chat template around every prompt: it has read {size} tokens for one letter"
        hint = "Use a model whose template is the bare prompt."
        if client.dialect.unknown:
            hint = f"Is it Ollama? Then give engine='ollama': its own route takes raw text. Else {hint.lower()}"
        hint = f"So it cannot continue an answer. {hint}"
        raise UnsupportedError(words, endpoint=client.endpoint, hint=hint)
    if size is not None and size == await _size(client, Prefix("a\n\n", "")):
        words = "the server takes white space off the end of every prompt"
        hint = "So it cannot continue every answer. Is it a gateway? Then give the URL of the server behind it."
        raise UnsupportedError(words, endpoint=client.endpoint, hint=hint)


async def check_tokenizer(client: OpenAIClient, tokenizer: Tokenizer) -> None:
    """Check that the tokenizer and the server report the same number of tokens for a test text.

    The server may add one token, for the beginning of the sequence. A server that does not report its usage cannot be
    checked.

    Raises:
        UnsupportedError: the tokenizer belongs to a different model.
    """
    sample = client.dialect.sample
    given, size = count(tokenizer, sample), await _size(client, Prefix(sample, ""))
    if size is not None and not given <= size <= given + 1:
        words = f"{tokenizer.name!r} is not the tokenizer of this model"
        hint = f"For a test text the server reads {size} tokens, and it makes {given}. Give the model's own, or none."
        raise UnsupportedError(words, endpoint=client.endpoint, hint=hint)


async def check_continuation(client: OpenAIClient) -> None:
    """Check that trailing white space of a partial answer is kept, and find out whether the answer is repeated.

    White space can only be checked if the server reports its usage.

    Raises:
        UnsupportedError: the chat template strips trailing white space from a partial answer.
    """
    plain, broken = await _size(client, Prefix("a", "a")), await _size(client, Prefix("a", "a\n\n"))
    client.facts.repeats = False
    with suppress(InvalidRequestError, ResponseError):
        [choice] = (await client.one(Prefix("a", _STARTED), 1, Usage(), check=False)).choices
        client.facts.repeats = choice.written.startswith(_STARTED)
    if plain is not None and plain == broken:
        words = "the chat template takes white space off the end of an answer that is to be continued"
        hint = 'The model would write it again and again. Give api="completions", and the template as chat_template.'
        raise UnsupportedError(words, endpoint=client.endpoint, hint=hint)


async def unbegun(client: OpenAIClient, prompt: str) -> str:
    """Strip the beginning of sequence from a prompt if the server adds one to every text.

    The server is assumed to add one unless it reports that it reads a single letter as one token.
    """
    found = _BEGINNING.match(prompt)
    if found is None or await _size(client, Prefix("a", "")) == 1:
        return prompt
    return prompt[found.end() :]


async def _size(client: OpenAIClient, prefix: Prefix) -> int | None:
    """Request the number of tokens that the server reads for a prefix; None if not reported or if refused."""
    try:
        answer = await client.one(prefix, 1, Usage(), check=False)
    except (ContextLengthError, InvalidRequestError, ResponseError):
        return None
    return answer.usage.prompt_tokens or None if answer.usage else None
