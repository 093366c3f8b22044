"""Table 7 of CoSD: drafting rounds, by the maximum length of an answer.

    python examples/paper/table7.py --pairs pair.yaml --data data

A round is a draft and its verification; there is one at the start and one after each replacement. The paper names
neither models nor questions; this program uses pair 3, and AlpacaEval, whose answers are long.
"""

from __future__ import annotations

from _columns import Column, rule, tree
from _tables import COSD, Row, Table, main
from _tasks import ITERATIONS

from cosd_api import Speculative

TABLE = Table(
    name="table7",
    title=f"Table 7 of {COSD}: mean number of rounds",
    columns=(
        Column("CoSD-Rule", rule()),
        Column("CoSD-Tree", tree()),
        Column("Spec. Decoding", Speculative(temperature=1, test="cosd")),
    ),
    rows=tuple(Row(f"{n} tokens", ("alpacaeval",), ITERATIONS, max_tokens=n) for n in (128, 256, 512)),
    models={"pair 3": "models that the paper does not name"},
    printed={
        "pair 3": {
            "128 tokens": (11.41, 13.58, 9.77),
            "256 tokens": (15.29, 16.01, 14.20),
            "512 tokens": (21.23, 21.95, 18.51),
        }
    },
    notes=("Means over answers; the intervals are Student's",),
)

if __name__ == "__main__":
    main(TABLE, __doc__)
