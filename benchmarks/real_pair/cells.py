"""The cells: which two models are fused, and in which ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from benchmarks.real_pair.bases import BASES
from benchmarks.real_pair.learned import LEARNED, learned_ways
from benchmarks.real_pair.questions import COUNTS, forgetting, questions
from benchmarks.real_pair.ways import WAYS
from cosd_api import Example
from cosd_api.apps.demo.servers import serve
from cosd_api.extend import Method, Unit

__all__ = ["CELLS", "FEW", "Cell", "Weights", "served"]

Weights = Mapping[str, float]
"""The scale of each adapter, by a name such as `products`; empty for the pretrained model itself."""

_PRODUCTS: Weights = {"products": 1.0}
_NUMBERS: Weights = {"numbers": 1.0}


@dataclass(frozen=True)
class Cell:
    """Two models and the ways in which they are fused.

    Attributes:
        draft: the draft's adapters.
        assistant: the assistant's adapters.
        ways: names of ways in `WAYS`, or of ways that were learned for the draft.
        both_ways: whether the questions are also asked with draft and assistant swapped.
        baselines: whether to include the random gate and self-consistency.
        seeds: the seeds of the draft's and the assistant's trainings; None for the seed that is asked for.
        counts: number of questions by family, as in `COUNTS`; empty for the questions of the scenario *forgetting*.
        bases: names of the pretrained models of the draft and the assistant.
        unit: the unit in which tokens are judged; None for the library's choice.
    """

    draft: Weights
    assistant: Weights
    ways: Sequence[str]
    both_ways: bool = True
    baselines: bool = False
    seeds: tuple[int | None, int | None] = (None, None)
    counts: Mapping[str, int] = field(default_factory=lambda: COUNTS)
    bases: tuple[str, str] = ("smollm2", "smollm2")
    unit: Unit | None = None

    def questions(self, share: float) -> list[Example]:
        """The first questions of each family; `share`, in (0, 1], is the part of the questions that is returned."""
        if not self.counts:
            return forgetting(round(share * 300), round(share * 100))
        return questions("test", {family: round(share * count) for family, count in self.counts.items()})

    def methods(self, seed: int) -> dict[str, Method]:
        """The ways of the cell, by name; learned ways are those for the specialists trained with this seed."""
        known = {**WAYS}
        if not {*self.ways} <= {*known}:
            [draft] = self.draft
            known |= learned_ways(draft, seed)
        return {name: known[name] for name in self.ways}


FEW = ("cosd", "cosd-0.9-1", "cosd-1-1", "average")
"""The ways that are used for further trainings and scenarios."""
_CONTROL = {"facts": 100, "numbers": 75, "both": 100, "general": 22}
_ACROSS = Cell(_PRODUCTS, _NUMBERS, FEW[:3], bases=("smollm2", "gemma3"))
_SHORT = Cell(_NUMBERS, _NUMBERS, FEW, counts={"numbers": 300, "general": 22}, bases=("smollm2-short", "smollm2"))

CELLS: Mapping[str, Cell] = {
    "complementary": Cell(_PRODUCTS, _NUMBERS, [one for one in WAYS if one != "rerank"], baselines=True),
    "merged": Cell({"products": 0.5, "numbers": 0.5}, {"products": 1.0, "numbers": 1.0}, ["cosd-1-1"], both_ways=False),
    "seeds": Cell(_PRODUCTS, _NUMBERS, FEW),
    "learned": Cell(_PRODUCTS, _NUMBERS, LEARNED, both_ways=False),
    "learned-reversed": Cell(_NUMBERS, _PRODUCTS, LEARNED, both_ways=False),
    "forgetting": Cell({}, {"facts-only": 1.0}, FEW, counts={}),
    "copy": Cell(_PRODUCTS, _PRODUCTS, ["cosd", "cosd-1-1", "average"], both_ways=False, counts=_CONTROL),
    "with-base": Cell({}, _PRODUCTS, ["cosd", "cosd-1-1"], counts=_CONTROL),
    "other-seed": Cell(_PRODUCTS, _PRODUCTS, ["cosd", "cosd-1-1"], seeds=(1, 2), counts=_CONTROL),
    "capacity": _SHORT,
    "capacity-again": replace(_SHORT, seeds=(None, 1)),
    "tokenizers": replace(_ACROSS, ways=(*FEW, "cool", "rerank"), baselines=True),
    "tokenizers-literal": replace(_ACROSS, unit="literal"),
    "tokenizers-again": replace(_ACROSS, seeds=(1, None)),
    "tokenizers-copy": Cell(
        _NUMBERS, _NUMBERS, ["cosd", "cosd-1-1"], both_ways=False, counts=_CONTROL, bases=("gemma3", "gemma3")
    ),
}
"""The cells by name, in this order: the pair; its rival (one model with both adapters, each at half or at full
strength); the pairs of further trainings, with fewer ways; learned verifiers; the pretrained model with a specialist
that has forgotten; the controls; a short model with the whole one, and a second training of the short one with the
same; and the pair of two tokenizers, as words and literally, with further trainings of Gemma, and its control."""


@contextmanager
def served(cell: Cell, seed: int) -> Iterator[tuple[str, str]]:
    """Run the two servers of a cell, each with one thread and four slots, and yield their URLs.

    Raises:
        LocalServerError: a server cannot be started, or an adapter is missing.
    """
    with ExitStack() as stack:
        urls: list[str] = []
        models = zip((cell.draft, cell.assistant), cell.seeds, (BASES[one] for one in cell.bases), strict=True)
        for weights, own, base in models:
            number = own or seed
            loaded = {base.adapters / f"{name}-{number}.gguf": scale for name, scale in weights.items()}
            name = "+".join(f"{one}-{number}" for one in weights) or "base"
            server = serve(base.file(), name=name, adapters=loaded, context=1024, slots=4, template=base.template)
            urls.append(stack.enter_context(server).url)
        draft, assistant = urls
        yield draft, assistant
