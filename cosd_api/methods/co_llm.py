"""Co-LLM (Shen et al., ACL 2024): the draft hands one token to the assistant wherever its own hidden state says so.

::

    1   the draft writes greedily: x~_1, x~_2, ...
    2   h_i: the draft's last hidden state behind the prompt and all before x~_i            `HiddenStates`
    3   s_i = sigma(bias + theta . h_i)                                      `CoLLMVerifier.probability`
    4   x~_i stands where s_i <= eta
    5   at the first s_i > eta the assistant writes one token: its most probable one after its own encoding of
        the text before
    6   the draft writes on behind it: by its own tokens if that is x~_i, by its encoding of the text if not

All but lines 2 and 3 are those of `defer`, and so is the decoder. States are asked for in stretches of the draft, while
it writes on; each is that of its own place, so the text does not depend on the stretches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cosd_api.methods.cost import Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.defer import HandsOver
from cosd_api.verification import CoLLMVerifier, DeferralVerifier
from cosd_providers.hidden_states import SEARCH, STRETCH


@dataclass(frozen=True, kw_only=True)
class CoLLM(HandsOver):
    """Co-LLM: deferral of single tokens by a trained gate on the draft's last hidden state.

    The draft writes; where the gate opens, the assistant writes one token, and the draft writes on behind it. It takes
    one assistant with the draft's tokenizer, and a draft whose server reports hidden states: llama.cpp's own with
    `--embeddings --pooling none`.

    Attributes:
        gate: the trained gate, or the path of its file. There is no default: it is trained for a pair of models.

    Raises:
        SettingError: there is no gate, or it is invalid.
        OSError: its file cannot be read.
    """

    name: ClassVar[str] = "co-llm"
    decides: ClassVar[str] = "a trained gate on the draft's hidden state"

    kind: ClassVar[type[DeferralVerifier | CoLLMVerifier]] = CoLLMVerifier
    made: ClassVar[str] = (
        "cosd train-deferral --method co-llm makes one from examples, and CoLLMVerifier.load(path) reads it"
    )

    gate: CoLLMVerifier | str | Path | Mapping[str, Any] | None = None

    def cost(self, plan: Plan, model: int, prompt: Reading) -> Cost:
        """The cost of an answer at one model: the draft also reads each stretch, and all before it, for its states."""
        cost = super().cost(plan, model, prompt)
        if model:
            return cost
        n, stretch = plan.max_tokens, min(STRETCH, plan.pace.draft_length or STRETCH)
        drafts, most = cost.requests, 1 + n // STRETCH + SEARCH  # passes of one draft, at most
        passes = drafts.expected + n / stretch
        requests = Bounds(drafts.low + 1, drafts.expected + passes, drafts.high * (1 + most))
        read = passes * (prompt.expected + n / 2)
        tokens = Bounds(cost.tokens.low + prompt.least, cost.tokens.expected + read, cost.tokens.high * (1 + most))
        return Cost(requests, tokens, cost.written)

    def assumptions(self, plan: Plan) -> Assumptions:
        """The basis of `cost`."""
        found = super().assumptions(plan)
        more = f"the draft's states are asked for {STRETCH} tokens at a time, or as long as its drafts are"
        high = f"{found.high}; a text that the server does not take at once is halved until it does"
        return Assumptions(f"{found.expected}; {more}", high)
