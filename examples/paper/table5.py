"""Table 5 of CoSD: time per token, and the share of the draft that is kept.

    python examples/paper/table5.py --pairs pair.yaml --data data

The paper does not name the questions; here they are GSM8K's. Answers are requested one at a time and kept separate from
the answers of other tables, so that no time is measured on a busy server. Times depend on your servers and your
network.
"""

from __future__ import annotations

from _columns import Column, rule, tree
from _tables import COSD, Row, Table, main
from _tasks import ACCEPTANCE, LATENCY

from cosd_api import Speculative

TABLE = Table(
    name="table5",
    title=f"Table 5 of {COSD}: efficiency",
    columns=(
        Column("Spec. Decoding", Speculative(temperature=1, test="cosd")),
        Column("CoSD-Rule", rule()),
        Column("CoSD-Tree", tree()),
    ),
    rows=(Row("ms a token", ("gsm8k",), LATENCY), Row("acceptance rate", ("gsm8k",), ACCEPTANCE)),
    models={"pair 3": "Mistral 7B + Mistral Math 7B"},
    printed={"pair 3": {"ms a token": (131.22, 132.31, 135.82), "acceptance rate": (0.89, 0.81, 0.77)}},
    concurrency=1,
    notes=("Means over answers; the intervals are Student's",),
)

if __name__ == "__main__":
    main(TABLE, __doc__)
