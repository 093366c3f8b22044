"""Deferral: a trained gate decides which tokens the assistant writes, before the assistant is asked.

::

    1   the draft writes greedily: x~_1, x~_2, ...
    2   s_i is the probability of deferral at the place of x~_i                        `TrainedGate.probability`
    3   x~_i is kept while s_i <= eta
    4   at the first s_i > eta, the assistant writes its most probable token
    5   the draft continues after the assistant's token

There are two kinds of gates. Each is a verifier, and states the data that the draft has to report (`Needs`)::

    s_i = sigma(theta . features)       features of the draft's list of tokens at this place     `DeferralVerifier`
    s_i = sigma(bias + theta . h_i)     h_i is the draft's last hidden state before x~_i            `CoLLMVerifier`

The second gate is the gate of Co-LLM (Shen et al., ACL 2024). Hardly any API reports hidden states, so the first gate
uses data that APIs do report.

With the first gate, models that share the same token ids are sent ids. A model whose server accepts no ids is sent the
text, and encodes it by itself. With the second gate, all models are sent the text. If x~_i is kept, the draft continues
from its own tokens. After an assistant's token, the draft encodes the text again. Hidden states are requested for one
stretch of the draft at a time, while the draft continues. Each state belongs to one place, so the answer does not
depend on the length of the stretches.

These are the steps of Algorithm 1 with a verifier that replaces the draft's token if the gate opens and the assistant's
token differs. Therefore `Defer` uses the decoder of `CoSD`. Both models must share a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cosd_api.alignment import Unit
from cosd_api.errors import SettingError
from cosd_api.methods.base import DraftFirst
from cosd_api.methods.cosd import check_draft
from cosd_api.methods.needs import Models
from cosd_api.verification import CoLLMVerifier, DeferralVerifier
from cosd_api.verification.gate_files import TRAIN_A_GATE, Gate, gate_of
from cosd_providers.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Defer(DraftFirst):
    """Deferral: a trained gate hands over single tokens to the assistant (Co-LLM, Shen et al., ACL 2024, or similar).

    The draft writes. When the gate opens, the assistant writes one token, and the draft continues after that token. The
    method needs one assistant with the draft's tokenizer. There are two kinds of gates. A `DeferralVerifier` uses the
    draft's lists of probable tokens. A `CoLLMVerifier`, the gate of Co-LLM, uses the draft's hidden states, which only
    llama.cpp's own server reports, if it is started with `--embeddings --pooling none`.

    Attributes:
        gate: the trained gate, the path of its file, or its fields as a mapping. There is no default, because each gate
            is trained for one pair of models.

    Raises:
        SettingError: no gate is given, or the gate is invalid.
        OSError: the file of the gate cannot be read.
    """

    name: ClassVar[str] = "defer"
    decides: ClassVar[str] = "a trained gate"
    accepts: ClassVar[frozenset[str]] = DraftFirst.accepts | {"unit"}
    most_models: ClassVar[int | None] = 2
    compares_tokenizers: ClassVar[bool] = True
    one_tokenizer: ClassVar[bool] = True

    gate: DeferralVerifier | CoLLMVerifier | str | Path | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.gate is None:
            raise SettingError(f"the method 'defer' needs a gate, Defer(gate=...): {TRAIN_A_GATE}")
        object.__setattr__(self, "gate", gate_of(self.gate))

    @property
    def judge(self) -> Gate:
        """The gate, which is a verifier."""
        assert isinstance(self.gate, Gate)
        return self.gate

    @property
    def asks_by_ids(self) -> bool:
        """True unless the gate uses hidden states, which are known only for the server's own encoding of a text."""
        return not self.judge.needs.draft_states

    def options(self) -> dict[str, Any]:
        """Return the gate in the format of its file, as a result records it."""
        return {"gate": self.judge.model_dump(mode="json")}

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse a draft that does not report the data for the gate, or an assistant that reports no probabilities.

        See `Method.examine`.
        """
        for name, info in models:
            if not info.capabilities.probs:
                words = f"the {name} does not report the probabilities of its tokens"
                words += ", which the gate looks at" if name == "draft" else ", and is not asked token by token"
                hint = 'method="cosd" with verifier=AgreementVerifier(alpha=0.5) works with such an assistant.'
                raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
        name, info = models[0]
        check_draft(info, self.judge)
        if info.capabilities.end_prob:
            return ()
        return (f"{name} does not report the probability of its end of sequence: an end is never deferred",)
