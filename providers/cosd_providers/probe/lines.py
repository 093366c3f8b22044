"""What a report is made of: what was asked and seen, the strategies with their price, and what it all has cost."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Line", "Spent", "Value", "Way"]

Value = bool | int | float | str | tuple[str, ...] | None
"""What a line says; None is unknown."""


class Line(BaseModel):
    """One thing that was asked of a server.

    Attributes:
        name: what, e.g. `"lists"`.
        value: the answer; None where it could not be found out.
        asked: the question.
        seen: what came, or why nothing did.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    value: Value
    asked: str
    seen: str


class Way(BaseModel):
    """One strategy by which an assistant may be asked, and what it costs.

    Attributes:
        name: of the strategy.
        proved: whether its answers were those of the others, and of a draft.
        wrong: whether it was answered, and not with those.
        seen: what was compared, or what is wrong.
        requests: of one verification of K places, in which d differ, or o are left open by a filter.
        tokens: of the prompts that it is billed for, behind C tokens of prompt and text.
        cached: the part of the prompts' tokens that came from the server's cache here, from 0 to 1; None if untold.
        example: requests and billed prompt tokens of 100 verifications of 4 places each, behind 4,000 tokens.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    proved: bool
    wrong: bool = False
    seen: str
    requests: str
    tokens: str
    cached: float | None
    example: tuple[int, int]


class Spent(BaseModel):
    """What the probe itself has cost.

    Attributes:
        requests: that generate or score.
        prompt_tokens: read by the model.
        completion_tokens: written by it.
        seconds: in all.
    """

    model_config = ConfigDict(frozen=True)

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
