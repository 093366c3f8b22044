"""What llama.cpp's `/completion` is asked: lists of prompts, tokens that it hides, the probability of a given token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cosd_providers.concurrency import concurrently
from cosd_providers.errors import ContextLengthError
from cosd_providers.greedy import TIES, Continuation, Position, prob
from cosd_providers.http.transport import Transport
from cosd_providers.llama_cpp.reading import Server
from cosd_providers.llama_cpp.wire import FIELDS, GREEDY, Answer, Answers, Prefix, bill, sent
from cosd_providers.parsing import parse
from cosd_providers.usage import Usage

__all__ = ["Completions"]

_LIST = 64  # prompts in one request
_LIKELY = 50  # alternatives that are asked for where a given token's probability is sought
_ALL = 2**31 - 1  # the whole vocabulary
_FORCE = 1e4  # added to a logit, this decides


class Completions:
    """Requests to one server's `/completion`.

    Args:
        transport: the server.
        model: its id or alias, where it has several.
        extra: merged into every request.
    """

    def __init__(self, transport: Transport, model: str | None, extra: Mapping[str, object]) -> None:
        self._transport = transport
        self._model = model
        self._extra = {"cache_prompt": True, **extra}

    def body(self, prompt: object, **fields: object) -> dict[str, object]:
        """A request: greedy, with what every answer has to hold."""
        model = {"model": self._model} if self._model else {}
        return {**self._extra, **model, **GREEDY, "prompt": prompt, "response_fields": FIELDS, **fields}

    async def batch(
        self, server: Server, prefixes: Sequence[Prefix], usage: Usage, *, singly: bool = False, **fields: object
    ) -> list[Answer]:
        """The answers to several prompts, in order: as lists, or with `singly` one request for each, a few at once."""
        if singly and len(prefixes) > 1:
            jobs = [partial(self.batch, server, [prefix], usage, singly=False, **fields) for prefix in prefixes]
            return [answer for answers in await concurrently(jobs) for answer in answers]
        answers: list[Answer] = []
        for at in range(0, len(prefixes), _LIST):
            asked = prefixes[at : at + _LIST]
            body = self.body([*map(sent, asked)], **fields)
            found = await self._transport.post("/completion", body, usage=usage)
            listed = parse(Answers, found, self._transport.endpoint).root
            if sorted(item.index for item in listed) != [*range(len(asked))]:
                raise server.broken(f"{len(asked)} prompts were asked, {len(listed)} answered")
            for item in listed:
                bill(usage, item)
                server.check_read(item)
            answers += sorted(listed, key=lambda item: item.index)
        return answers

    def stream(self, prompt: object, limit: int, alternatives: int) -> dict[str, object]:
        """A request for a draft of at most `limit` raw tokens, each with so many `alternatives`."""
        return self.body(prompt, n_predict=limit, n_probs=1 + alternatives, stream=True, timings_per_token=True)

    async def greedy(
        self, server: Server, prefixes: Sequence[Prefix], wanted: int, usage: Usage, *, singly: bool = False
    ) -> list[list[Position]]:
        """About `wanted` positions after each prefix; none where the context is full."""
        answers = await self.batch(
            server, prefixes, usage, singly=singly, n_predict=wanted, n_probs=TIES, return_tokens=True
        )
        positions = [server.positions(item) for item in answers]
        hidden = [at for at, item in enumerate(answers) if not positions[at] and server.goes_on(item)]
        peeked = await self.peek(server, [prefixes[at] for at in hidden], usage)
        for at, position in zip(hidden, peeked, strict=True):
            positions[at] = [position]
        return positions

    async def go_on(
        self,
        server: Server,
        chains: list[Continuation],
        start: Callable[[bytes], Prefix],
        text: bytes,
        usage: Usage,
        *,
        singly: bool = False,
    ) -> list[list[Position]]:
        """What follows in each chain, from its ids; none where the context is full. `start` is prompt and a text."""
        prefixes: list[Prefix] = [[*start(text[: chain.question.start]), *chain.ids] for chain in chains]
        wanted = max(chain.wanted for chain in chains)
        try:
            return await self.greedy(server, prefixes, wanted, usage, singly=singly)
        except ContextLengthError:
            if len(chains) > 1:
                return [(await self.go_on(server, [chain], start, text, usage))[0] for chain in chains]
            if not chains[0].ids:  # the text itself is too long for this model
                raise
            return [[]]  # its answer has reached the end of the context: it cannot go on

    async def peek(
        self, server: Server, prefixes: Sequence[Prefix], usage: Usage, *, count: int = TIES
    ) -> list[Position]:
        """The `count` most probable tokens after each prefix, where the server hides its own pick.

        A token that always shows is forced; the list beside it is the raw distribution.
        """
        force = [[server.visible, _FORCE]]
        answers = await self.batch(server, prefixes, usage, n_predict=1, n_probs=count, logit_bias=force)
        return [server.hidden_position(item) for item in answers]

    async def probs(
        self, server: Server, prefixes: Sequence[Prefix], ids: Sequence[int], usage: Usage
    ) -> list[float | None]:
        """The probability of each id after its prefix."""
        likely = await self.peek(server, prefixes, usage, count=_LIKELY)
        found = [_listed(position, token_id) for position, token_id in zip(likely, ids, strict=True)]
        missing = [at for at, value in enumerate(found) if value is None]
        for wanted in sorted({ids[at] for at in missing}):
            places = [at for at in missing if ids[at] == wanted]
            asked = [prefixes[at] for at in places]
            force = [[wanted, _FORCE]]
            answers = await self.batch(server, asked, usage, n_predict=1, n_probs=1, logit_bias=force)
            if all(item.completion_probabilities for item in answers):
                values = [prob(item.completion_probabilities[0].logprob) for item in answers]
            else:  # a hidden token
                whole = await self.peek(server, asked, usage, count=_ALL)
                values = [_listed(position, wanted) for position in whole]
            for at, value in zip(places, values, strict=True):
                found[at] = value
        return found


def _listed(position: Position, token_id: int) -> float | None:
    """The probability of a token, if it is among the most probable ones."""
    return next((choice.token.prob for choice in position.top if choice.id == token_id), None)
