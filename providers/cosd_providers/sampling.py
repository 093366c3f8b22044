"""The options of a draft, which is greedy or drawn from the model's own distribution, and the seeds of its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SEEDS = 2**32
_STEP = 0x9E3779B1  # odd, so that no seed repeats; large, so that no seed equals a seed that the user chooses next


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """The options of `contract.Provider.generate` that determine each token.

    Raises:
        ValueError: the temperature is neither 0 nor 1.
    """

    alternatives: int = 0  # the number of other tokens to list
    temperature: float = 0  # 0 selects the most probable token, 1 draws from the model's distribution
    seed: int | None = None  # the random seed; None lets the server choose
    # the continuation of an earlier draft; None unless the endpoint has `Capabilities.token_ids`
    continuation: Any = None
    states: bool = False  # whether each token comes with its hidden state
    # whether the context has ids. If so, tokens are returned exactly as the model wrote them, with their ids
    raw: bool = False

    def __post_init__(self) -> None:
        if self.temperature not in (0, 1):
            words = "0 is greedy, 1 draws from the model's own distribution"
            raise ValueError(f"temperature must be 0 or 1, not {self.temperature!r}: {words}")

    @property
    def sampled(self) -> bool:
        """True if tokens are drawn at random; a drawn token is not always the most probable one."""
        return self.temperature != 0

    def seed_after(self, tokens: int) -> int | None:
        """The seed of a request that continues the draft after `tokens` drawn tokens; see `other_seed`."""
        return other_seed(self.seed, tokens)


def other_seed(seed: int | None, number: int) -> int | None:
    """Return the seed for one of the requests of a draft.

    Later requests need different seeds, because the server would use the same random numbers again for the same seed.

    Args:
        seed: the draft's seed.
        number: 0 for the first request, which uses `seed` itself, and a different number for each later request.
    """
    return seed if seed is None or not number else (seed + number * _STEP) % _SEEDS
