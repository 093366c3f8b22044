"""Deferral: the draft hands single tokens to the assistant by a trained gate, before the assistant is asked.

::

    1   the draft writes greedily: x~_1, x~_2, ...
    2   s_i: the probability of deferral in the place of x~_i                          `TrainedGate.probability`
    3   x~_i is kept while s_i <= eta
    4   at the first s_i > eta the assistant writes one token, its most probable there
    5   the draft continues after it

There are two gates. Each is a verifier, which states the data that the draft has to report (`Needs`)::

    s_i = sigma(theta . features)       of the draft's list of probable tokens in that place     `DeferralVerifier`
    s_i = sigma(bias + theta . h_i)     of its last hidden state before x~_i                        `CoLLMVerifier`

The second is the gate of Co-LLM (Shen et al., ACL 2024), for whose features hardly any API exists; the first uses the
data that APIs do report.

With lists, models with the same ids are asked after ids; servers that take no ids are asked after the text, which each
model encodes by itself. With hidden states models are asked after the text: the draft continues from its own tokens
after x~_i, and from its encoding of the text after another token. States are requested in stretches of the draft, while
it continues; each belongs to its own place, so the text does not depend on the stretches.

These are the steps of Algorithm 1 with a verifier that replaces every differing token at the places that the gate
opens, so the decoder is `CoSD`'s. Both models must have the same tokens: one tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from cosd_api.alignment import Unit
from cosd_api.decoding.commands import Decoder
from cosd_api.decoding.run import AnswerJob
from cosd_api.errors import SettingError
from cosd_api.methods.base import DraftFirst, Models
from cosd_api.methods.cosd import CoSDDecoder, check_draft
from cosd_api.verification import CoLLMVerifier, DeferralVerifier
from cosd_api.verification.gate_kinds import TRAIN_A_GATE, Gate, gate_of
from cosd_providers.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Defer(DraftFirst):
    """Deferral of single tokens by a trained gate: Co-LLM (Shen et al., ACL 2024), or a baseline in its manner.

    The draft writes; where the gate opens, the assistant writes one token, and the draft continues after it. The method
    takes one assistant with the draft's tokenizer. A `DeferralVerifier` uses the draft's lists of probable tokens. A
    `CoLLMVerifier`, the gate of Co-LLM, uses the draft's hidden state, for a draft whose server reports it: llama.cpp's
    own with `--embeddings --pooling none`.

    Attributes:
        gate: the trained gate, or the path of its file. There is no default: it is trained for a pair of models.

    Raises:
        SettingError: there is no gate, or it is invalid.
        OSError: its file cannot be read.
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
        """The gate."""
        assert isinstance(self.gate, Gate)
        return self.gate

    @property
    def asks_by_ids(self) -> bool:
        """True for gates of lists, as in training; false for hidden states, known for a text's own encoding only."""
        return not self.judge.needs.draft_states

    def options(self) -> dict[str, Any]:
        """Its own settings, as a result records them: the gate as it would be in a file."""
        return {"gate": self.judge.model_dump(mode="json")}

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse a draft that reports less data than the gate needs; see `Method.examine`."""
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

    def decoder(self, job: AnswerJob) -> Decoder:
        """The decoder of one answer."""
        return CoSDDecoder.of(job, self.judge)
