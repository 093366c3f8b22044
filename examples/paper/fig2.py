"""Figure 2 of CoSD: the sum of the scores on MMLU and GSM8K, for several values of alpha and beta.

    python examples/paper/fig2.py --pairs pair.yaml --data data

The paper shows the numbers only as a picture, so this program does not repeat them, except for alpha = beta = 0.5,
which is also in Table 2. The paper's text recommends the values 0.5 and 0.75 for both parameters. The grid is this
program's own.
"""

from __future__ import annotations

from itertools import product

from _columns import Column, rule
from _tables import COSD, Row, Table, main

GRID = [*product((0.25, 0.5, 0.75, 1.0), repeat=2)]
NAME = "MMLU + GSM8K"


def printed(figure: float) -> dict[str, list[float | None]]:
    """The printed figures: one in the column of alpha = beta = 0.5, and none in all other columns."""
    return {NAME: [figure if pair == (0.5, 0.5) else None for pair in GRID]}


TABLE = Table(
    name="fig2",
    title=f"Figure 2 of {COSD}: sum of the right answers to both tasks in per cent",
    columns=[Column(f"alpha {alpha:g}, beta {beta:g}", rule(alpha, beta)) for alpha, beta in GRID],
    rows=(Row(NAME, ("mmlu", "gsm8k")),),
    models={
        "pair 1": "Llama 3 Wissenschaft 8B + Llama 3 Bophades 8B",
        "pair 2": "Mistral 7B DARE + Mistral 7B Mixed",
    },
    printed={"pair 1": printed(56.97 + 45.72), "pair 2": printed(65.06 + 36.81)},
    notes=(
        "The best of sixteen settings is partly luck: test it on other questions",
        "The printed figure is the sum of Table 2's",
    ),
)

if __name__ == "__main__":
    main(TABLE, __doc__)
