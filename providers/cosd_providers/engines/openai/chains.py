"""Questions to a server that speaks OpenAI's protocol: each chain as a prompt, or along a text that was scored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cosd_providers.engines.openai.client import OpenAIClient, Prefix, is_too_long
from cosd_providers.engines.openai.echo import Scored
from cosd_providers.errors import ContextLengthError, InvalidRequestError
from cosd_providers.greedy import Continuation, Position, along
from cosd_providers.text import sendable
from cosd_providers.tokenizers import Tokenizer
from cosd_providers.usage import Usage

__all__ = ["Chains", "no_beginning"]

_MORE = 3  # raw tokens that may be needed to finish a character


class Chains:
    """Goes on with the chains of one call of `propose`.

    Args:
        client: requests to the server.
        prompt: the prompt.
        text: the response so far.
        usage: where requests are counted.
        scored: the whole text, scored, if chains may go along it.
        tokenizer: says where they may.
        singly: whether each prompt has its own request.

    Attributes:
        from_text: places whose chains went along the scored text.
    """

    def __init__(
        self,
        client: OpenAIClient,
        prompt: str,
        text: bytes,
        usage: Usage,
        scored: Scored | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        singly: bool = False,
    ) -> None:
        self._client = client
        self._prompt = prompt
        self._text = text
        self._usage = usage
        self._scored = scored
        self._tokenizer = tokenizer
        self._singly = singly
        self.from_text: set[int] = set()

    async def ask(self, chains: list[Continuation]) -> list[Iterable[Position]]:
        """About as many positions as each chain wants; none where the server cannot go on."""
        found: dict[int, Iterable[Position]] = {}
        for at, chain in enumerate(chains):
            positions = self._along(chain)
            if positions:  # the text's own tokens have id 0
                found[at] = along(chain, [0] * len(positions), positions)
                self.from_text.add(chain.question.start)
        left = [at for at in range(len(chains)) if at not in found]
        asked = await self._prompts([chains[at] for at in left])
        found.update(zip(left, asked, strict=True))
        return [found[at] for at in range(len(chains))]

    def _along(self, chain: Continuation) -> Sequence[Position]:
        """What the model would have said from the chain's place on; nothing where that cannot be known."""
        scored, start = self._scored, chain.question.start
        if scored is None or chain.ids:
            return []
        before, whole = self._prompt + sendable(self._text[:start]), self._prompt + sendable(self._text)
        if before == whole:
            return [scored.after] if scored.after else []
        if self._tokenizer is None:
            return []
        pieces, first = self._tokenizer.encode(whole), self._tokenizer.encode(before)
        same = [piece.id for piece in pieces[: len(first)]] == [piece.id for piece in first]
        if not same or len(pieces) != len(scored.positions) or not (first or scored.specials):
            return []
        return scored.along_from(len(first))

    async def _prompts(self, chains: list[Continuation]) -> list[list[Position]]:
        """What the server goes on with after each chain: the same text again, and what was known of it left out."""
        if not chains:
            return []
        prefixes = [Prefix(self._prompt, sendable(self._text[: c.question.start] + c.turned[1])) for c in chains]
        skipped = [len(chain.ids) - chain.turned[0] for chain in chains]
        wanted = max(skip + chain.wanted for skip, chain in zip(skipped, chains, strict=True))
        try:
            found = await self._many(prefixes, skipped, wanted)
        except (ContextLengthError, InvalidRequestError) as error:
            if not is_too_long(error):
                raise
            if len(chains) > 1:
                return [positions for chain in chains for positions in await self._prompts([chain])]
            found = await self._shorter(chains[0], prefixes[0], wanted, error)
        return [positions[skip:] for positions, skip in zip(found, skipped, strict=True)]

    async def _many(self, prefixes: list[Prefix], skipped: list[int], wanted: int) -> list[list[Position]]:
        """The positions after each prefix; a few more where the first ones are not shown."""
        ask = self._client.singles if self._singly else self._client.many
        choices = await ask(prefixes, wanted, self._usage)
        found = [self._client.positions(choice) for choice in choices]
        cut = [choice.finish_reason == "length" for choice in choices]
        short = [at for at, positions in enumerate(found) if cut[at] and len(positions) <= skipped[at]]
        if not short:
            return found
        again = await ask([prefixes[at] for at in short], wanted + _MORE, self._usage)
        for at, choice in zip(short, again, strict=True):
            found[at] = self._client.positions(choice)
            if not found[at] and not prefixes[at].whole:
                raise no_beginning(self._client.endpoint)
        return found

    async def _shorter(
        self, chain: Continuation, prefix: Prefix, wanted: int, error: ContextLengthError | InvalidRequestError
    ) -> list[list[Position]]:
        """As much as fits, where the server refuses more; nothing where the chain has reached the context's end.

        Raises:
            ContextLengthError: the text itself is too long.
        """
        least = len(chain.ids) - chain.turned[0] + 1
        while wanted > least:
            wanted = max(wanted // 2, least)
            try:
                [choice] = await self._client.many([prefix], wanted, self._usage)
            except (ContextLengthError, InvalidRequestError) as refusal:
                error = refusal
            else:
                return [self._client.positions(choice)]
        if not chain.ids:
            raise error
        return [[]]


def no_beginning(endpoint: str) -> InvalidRequestError:
    """Nothing was sent that a model could go on from."""
    words = "prompt and text are empty, and the model has no beginning-of-sequence token to go on from"
    return InvalidRequestError(words, endpoint=endpoint)
