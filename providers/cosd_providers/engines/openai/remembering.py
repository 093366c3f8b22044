"""What is kept of a server that speaks OpenAI's protocol, and how an adapter takes it up again."""

from __future__ import annotations

from dataclasses import dataclass

from cosd_providers.engines.openai.asking import Asking
from cosd_providers.engines.openai.echo import Echo, Proof
from cosd_providers.engines.openai.learning import Known
from cosd_providers.usage import Usage

__all__ = ["Kept", "kept", "taken_up"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What was found out.

    Attributes:
        known: model and context.
        lists: whether one request may hold a list of prompts; None where it was not tried.
        repeats: whether an answer that continues a message repeats it.
        ends: strings and ids of ends of sequence.
        proof: of the server's echo.
        tokenizer: the name of the local tokenizer that was held against the server; None for none.
    """

    known: Known
    lists: bool | None
    repeats: bool
    ends: list[str | int]
    proof: Proof
    tokenizer: str | None


async def kept(asking: Asking, echo: Echo, known: Known, tokenizer: str | None, *, scores: bool) -> Kept:
    """What there is to keep; the echo of a server that may score is looked into, if it was not yet."""
    proof = await echo.found(Usage()) if scores else Proof(None)
    return Kept(known, asking.lists, asking.repeats, sorted(asking.ends, key=str), proof, tokenizer)


def taken_up(one: Kept, asking: Asking, echo: Echo) -> Known:
    """Makes the same known here."""
    asking.model = one.known.model
    asking.probs = one.known.probs
    asking.lists = one.lists if asking.lists is None else asking.lists
    asking.repeats = one.repeats
    asking.ends |= {*one.ends}
    echo.recall(one.proof)
    return one.known
