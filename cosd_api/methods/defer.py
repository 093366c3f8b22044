"""Deferral: the draft hands one token to the assistant wherever a trained gate says so, before the assistant is asked.

::

    1   the draft writes greedily, and lists its most probable tokens in each place: x~_1, x~_2, ...
    2   s_i = sigma(theta . features): what the draft shows of x~_i alone        `DeferralVerifier.probability`
    3   x~_i stands where s_i <= eta
    4   at the first s_i > eta the assistant writes one token: its most probable one after the same ids
    5   the draft writes on behind it

Servers that take no ids are asked after the text before, which each model encodes by itself.

These are the steps of Algorithm 1 with a verifier that replaces whatever differs, at the places that the gate opens, so
the decoder is that of `CoSD`. The tokens have to be one model's as much as the other's: one tokenizer.

It is Co-LLM (Shen et al., ACL 2024) with another gate. There the gate is a linear function of the draft's last hidden
state, which hardly an API shows; here it is one of what they do show. So it is not called by that name: `co_llm` is the
gate of the paper, where a server does report that state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from cosd_api.alignment import Unit
from cosd_api.decoding.commands import Decoder
from cosd_api.decoding.run import AnswerJob
from cosd_api.errors import SettingError
from cosd_api.methods.base import DraftFirst, Models
from cosd_api.methods.cosd import CoSDDecoder, check_draft
from cosd_api.verification import CoLLMVerifier, DeferralVerifier
from cosd_providers.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class HandsOver(DraftFirst):
    """A method in which a trained gate hands single tokens of the draft to one assistant, which has its tokenizer.

    Attributes:
        kind: the class of its gate.
        made: advice on training one, for messages.
        gate: the trained gate, or the path of its file.

    Raises:
        SettingError: there is no gate, or it is invalid.
        OSError: its file cannot be read.
    """

    accepts: ClassVar[frozenset[str]] = DraftFirst.accepts | {"unit"}
    most_models: ClassVar[int | None] = 2
    compares_tokenizers: ClassVar[bool] = True
    one_tokenizer: ClassVar[bool] = True

    kind: ClassVar[type[DeferralVerifier | CoLLMVerifier]]
    made: ClassVar[str]

    gate: DeferralVerifier | CoLLMVerifier | str | Path | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "gate", self._given(self.gate))

    def _given(self, given: object) -> DeferralVerifier | CoLLMVerifier:
        """The gate, however it is given: itself, the path of its file, or its fields."""
        if isinstance(given, self.kind):
            return given
        if isinstance(given, str | Path):
            return self.kind.load(given)
        if isinstance(given, Mapping):  # of a saved model
            try:
                return self.kind.model_validate(given)
            except ValidationError as error:
                raise SettingError(f"gate is invalid: {error.errors(include_url=False)[0]['msg']}") from None
        if given is None:
            raise SettingError(f"the method {self.name!r} needs a gate, {type(self).__name__}(gate=...): {self.made}")
        raise SettingError(f"gate must be a {self.kind.__name__} or the path of its file, not {given!r}: {self.made}")

    @property
    def judge(self) -> DeferralVerifier | CoLLMVerifier:
        """The gate."""
        assert isinstance(self.gate, self.kind)
        return self.gate

    def options(self) -> dict[str, Any]:
        """Its own settings, as a result records them: the gate as it would be in a file."""
        return {"gate": self.judge.model_dump(mode="json")}

    def examine(self, models: Models, unit: Unit | None) -> tuple[str, ...]:  # noqa: ARG002
        """Refuse a draft that shows less than the gate looks at; see `Method.examine`."""
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


@dataclass(frozen=True, kw_only=True)
class Defer(HandsOver):
    """Deferral of single tokens by a trained gate: a baseline in the manner of Co-LLM (Shen et al., ACL 2024).

    The draft writes; where the gate finds that it looks unsure, the assistant writes one token, and the draft writes on
    behind it. It takes one assistant with the draft's tokenizer.

    Attributes:
        gate: the trained gate, or the path of its file. There is no default: it is trained for a pair of models.

    Raises:
        SettingError: there is no gate, or it is invalid.
        OSError: its file cannot be read.
    """

    name: ClassVar[str] = "defer"
    decides: ClassVar[str] = "a trained gate"

    kind: ClassVar[type[DeferralVerifier | CoLLMVerifier]] = DeferralVerifier
    made: ClassVar[str] = "cosd train-deferral makes one from examples, and DeferralVerifier.load(path) reads it"

    gate: DeferralVerifier | str | Path | Mapping[str, Any] | None = None

    @property
    def asks_by_ids(self) -> bool:
        """True: models with the same ids are asked after these, as its gate was trained."""
        return True
