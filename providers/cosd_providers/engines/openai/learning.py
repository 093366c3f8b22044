"""What has to be known of a server before its first use: which model is asked, and that it gets the text as it is."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from cosd_providers.engines.openai.asking import Asking, Prefix
from cosd_providers.engines.openai.dialects import Dialect
from cosd_providers.engines.openai.wire import Completion, Listed, Models, steps
from cosd_providers.errors import (
    AuthenticationError,
    ContextLengthError,
    InvalidRequestError,
    ModelChoiceError,
    ResponseError,
    UnsupportedError,
)
from cosd_providers.http.transport import Transport
from cosd_providers.parsing import parse
from cosd_providers.tokenizers import Tokenizer, count
from cosd_providers.usage import Usage

__all__ = ["Known", "check_tokenizer", "choose", "learn", "no_probs", "unbegun"]

_NAMED = 8  # models that an error lists
_STARTED = "4711 and 0815"  # of several tokens: no single one says it
_SURE = 1 - 1e-6
_BARE = 4  # tokens, at most, of a letter with the special tokens before it
_BEGINNING = re.compile(r"<s>|<bos>|<\|(begin_of_text|startoftext)\|>|<｜begin▁of▁sentence｜>|<BOS_TOKEN>|\[BOS\]")
"""How the beginning of a sequence is written."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out.

    Attributes:
        model: the id of the model that is asked.
        context: tokens that fit, prompt and answer together, where the server tells.
        probs: whether it tells the probabilities of its tokens.
    """

    model: str
    context: int | None
    probs: bool = True


async def choose(transport: Transport, dialect: Dialect, model: str | None) -> Known:
    """Asks for the models of the server, where it lists them.

    Raises:
        ModelChoiceError: there are several models, and none was named; or the named one is not there.
    """
    listed = await _listed(transport, dialect, named=model is not None)
    found = next((one for one in listed if one.id == model), None)
    if model is None and len(listed) == 1:
        [found] = listed
    if found is None and (model is None or (listed and dialect.all_listed)):
        unnamed = "several models, and none was named" if listed else "no model was named"
        problem = f"no model {model!r}" if model else unnamed
        names = ", ".join(repr(one.id) for one in listed[:_NAMED])
        more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
        words = f"{problem}; the server has {names + more or 'told of none'}"
        raise ModelChoiceError(words, endpoint=transport.endpoint, hint="Give one as `model`.")
    return Known(found.id, found.max_model_len) if found else Known(model or "", None)


async def learn(
    asking: Asking,
    transport: Transport,
    dialect: Dialect,
    model: str | None,
    tokenizer: Tokenizer | None,
    context: int | None,
) -> Known:
    """Finds out which model is asked, and that the route which is used does as it is told.

    Args:
        asking: requests to the server; is given the model.
        transport: the server.
        dialect: its ways.
        model: which of its models, where one was named.
        tokenizer: the model's own, where it was given.
        context: tokens that fit, where that was given.

    Raises:
        UnsupportedError: it does not, or cannot be used.
    """
    known = await choose(transport, dialect, model)
    asking.model = known.model
    if asking.api == "chat":
        check_continued(asking, dialect)
    read = await check_probs(asking, dialect) if dialect.probs is None else None
    if asking.api == "completions" and dialect.templates:
        await check_raw(asking, read)
    if asking.api == "completions" and tokenizer is not None:
        await check_tokenizer(asking, dialect, tokenizer)
    if asking.api == "chat":
        await check_started(asking)
    return Known(known.model, known.context if context is None else context, asking.probs)


def no_probs(endpoint: str) -> UnsupportedError:
    """The error where a server is asked for what needs probabilities, and tells none."""
    words = "the server gives no probabilities with its tokens, although asked (logprobs)"
    hint = (
        "So it cannot draft. As an assistant it can be asked whether it agrees, word by word: give"
        " verifier=AgreementVerifier(alpha=0.5). Or is there another server for this model, such as vLLM or"
        " llama.cpp's?"
    )
    return UnsupportedError(words, endpoint=endpoint, hint=hint)


async def _listed(transport: Transport, dialect: Dialect, *, named: bool) -> list[Listed]:
    """The models that the server lists; none where it does not."""
    if dialect.models is None:
        return []
    try:
        return parse(Models, await transport.get(dialect.models), transport.endpoint).data
    except (InvalidRequestError, ResponseError):
        if not named:
            raise
        return []


def check_continued(asking: Asking, dialect: Dialect) -> None:
    """Sees whether a message can be continued at all.

    Raises:
        UnsupportedError: it cannot.
    """
    if dialect.continues is None:
        words = (
            f"the chat route of {dialect.engine} does not continue a partial answer,"
            " and a fusion continues after each word that it replaces"
        )
        raise UnsupportedError(words, endpoint=asking.endpoint, hint=dialect.no_reply)


async def check_probs(asking: Asking, dialect: Dialect) -> int | None:
    """Asks for one token after a letter, with its probability; if none is told, none is asked for ever again.

    Returns:
        How many tokens were read of the letter, where that is told.

    Raises:
        UnsupportedError: the model is refused, for a reason that is known; or what is told is 1 and 0 at temperature 0.
    """
    read: int | None = None
    for text in ("a", dialect.known_text):
        try:
            answer = await asking.one(Prefix(text, ""), 1, Usage(), check=False)
        except (InvalidRequestError, AuthenticationError) as error:
            said = str(error).lower()
            asking.probs = not any(part in said for part in dialect.no_probs)
            if asking.probs:
                _known_refusal(error, said, dialect)
            return read
        except (ContextLengthError, ResponseError):
            return read  # whoever asks next is told
        read = read or (answer.usage.prompt_tokens or None if answer.usage else None)
        [choice] = answer.choices
        if steps(choice) or (choice.logprobs and choice.logprobs.alone):
            await _check_unsure(asking, text, choice)
            return read
        if choice.written:
            asking.probs = False
            return read
    return read


async def _check_unsure(asking: Asking, text: str, choice: Completion) -> None:
    """Where a token is certain, and others are listed, sees whether the temperature alone has made it so.

    Raises:
        UnsupportedError: it has: all drafts would look certain, and be replaced nowhere.
    """
    if not _certain(choice):
        return
    answer = await asking.one(Prefix(text, ""), 1, Usage(), check=False, temperature=1)
    if steps(answer.choices[0]) and not _certain(answer.choices[0]):
        words = "at temperature 0 the server tells no probabilities but 1 and 0: the temperature has made them so"
        hint = "Is there a setting by which it shows the model's own, as vLLM's --logprobs-mode raw_logprobs?"
        raise UnsupportedError(words, endpoint=asking.endpoint, hint=hint)


def _certain(choice: Completion) -> bool:
    """Whether the first token has all of the probability, and others are listed with none."""
    told = [step.pick.prob for step in steps(choice)[:1]] + [one.prob for step in steps(choice)[:1] for one in step.top]
    probs = [prob for prob in told if prob is not None]
    return len(probs) > 1 and max(probs) >= _SURE and all(prob in (0.0, max(probs)) or prob < 1e-30 for prob in probs)


def _known_refusal(error: InvalidRequestError | AuthenticationError, said: str, dialect: Dialect) -> None:
    """Says in our words why a model is refused; a key that is refused is an error of its own."""
    for refusal in dialect.refusals:
        if refusal.says in said:
            raise UnsupportedError(refusal.words, endpoint=error.endpoint, hint=refusal.hint) from error
    if isinstance(error, AuthenticationError):
        raise error


async def unbegun(asking: Asking, prompt: str) -> str:
    """A prompt without the beginning of sequence in front of it, where the server puts one before every text.

    So it does where it reads more than one token of a letter. One that tells no usage is taken to.
    """
    found = _BEGINNING.match(prompt)
    if found is None or await _read(asking, Prefix("a", "")) == 1:
        return prompt
    return prompt[found.end() :]


async def check_raw(asking: Asking, read: int | None = None) -> None:
    """Asks for one token after a letter: if many tokens were read, a chat template stands around it.

    And after a letter with line breaks behind it: if no more were read, those are lost.

    A server that tells no usage cannot be checked.

    Args:
        asking: requests to the server.
        read: how many tokens were read of a letter, where that is known.

    Raises:
        UnsupportedError: no answer can be continued there, and nothing in the answers would tell.
    """
    read = read or await _read(asking, Prefix("a", ""))
    if read is not None and read > _BARE:
        words = f"the server puts a chat template around every prompt: of one letter it has read {read} tokens"
        hint = (
            "So it cannot go on with an answer. Is it Ollama? Then give engine='ollama': its own route takes raw text."
            " Else use a model whose template is the bare prompt."
        )
        raise UnsupportedError(words, endpoint=asking.endpoint, hint=hint)
    if read is not None and read == await _read(asking, Prefix("a\n\n", "")):
        words = "the server takes white space off the end of every prompt"
        hint = "So it cannot go on with every answer. Is it a gateway? Then give the URL of the server behind it."
        raise UnsupportedError(words, endpoint=asking.endpoint, hint=hint)


async def check_tokenizer(asking: Asking, dialect: Dialect, tokenizer: Tokenizer) -> None:
    """Has a test text read, and compares how many tokens it was: one may be a beginning that the tokenizer leaves out.

    A server that tells no usage cannot be checked.

    Raises:
        UnsupportedError: the tokenizer is another model's.
    """
    given, read = count(tokenizer, dialect.sample), await _read(asking, Prefix(dialect.sample, ""))
    if read is not None and not given <= read <= given + 1:
        words = f"{tokenizer.name!r} is not the tokenizer of this model"
        hint = f"Of a test text the server reads {read} tokens, and it makes {given}. Give the model's own, or none."
        raise UnsupportedError(words, endpoint=asking.endpoint, hint=hint)


async def check_started(asking: Asking) -> None:
    """Goes on with two answers that differ in the line breaks at their ends: if as much was read, those were lost.

    A server that tells no usage cannot be checked. One whose answer begins with the started one is said to repeat it.

    Raises:
        UnsupportedError: the chat template takes white space off an answer that is continued.
    """
    plain, broken = await _read(asking, Prefix("a", "a")), await _read(asking, Prefix("a", "a\n\n"))
    asking.repeats = False
    with suppress(InvalidRequestError, ResponseError):
        [choice] = (await asking.one(Prefix("a", _STARTED), 1, Usage(), check=False)).choices
        asking.repeats = choice.written.startswith(_STARTED)
    if plain is not None and plain == broken:
        words = "the chat template takes white space off the end of an answer that is to be continued"
        hint = 'The model would write it again for ever. Give api="completions", and the template as chat_template.'
        raise UnsupportedError(words, endpoint=asking.endpoint, hint=hint)


async def _read(asking: Asking, prefix: Prefix) -> int | None:
    """How many tokens the server reads of a prefix; None where it does not tell, or does not take it."""
    try:
        answer = await asking.one(prefix, 1, Usage(), check=False)
    except (ContextLengthError, InvalidRequestError, ResponseError):
        return None
    return answer.usage.prompt_tokens or None if answer.usage else None
