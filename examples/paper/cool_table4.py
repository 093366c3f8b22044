"""Table 4 of Cool-Fusion: three subjects of MATH.

    python examples/paper/cool_table4.py --pairs pair.yaml --data data

The paper decodes greedily, with 3 examples before each question. An answer is right if its formula equals the formula
in the solution's last box, after both are normalised much as lm-evaluation-harness does. Formulas that are only
mathematically equal count as wrong.
"""

from __future__ import annotations

from _columns import Column, alone
from _tables import COOL, Row, Table, main, row
from _tasks import SUBJECTS

from cosd_api import CoolFusion

TASKS = [f"math_{name}" for name in SUBJECTS]

TABLE = Table(
    name="cool_table4",
    title=f"Table 4 of {COOL}: share of right answers to MATH",
    columns=(alone("LLaMA-3", 0), alone("Phi-3", 1), alone("GLM-4", 2), Column("Cool", CoolFusion())),
    rows=(*map(row, TASKS), Row("Average", tuple(TASKS), weight=1 / len(TASKS))),
    models={"cool": "LLaMA-3 8B, Phi-3 mini, GLM-4 9B"},
    printed={
        "cool": {
            "Algebra": (0.2797, 0.3783, 0.1137, 0.4330),
            "Count-prob": (0.1899, 0.27, 0.1983, 0.2785),
            "Prealgebra": (0.3846, 0.4294, 0.2939, 0.5718),
            "Average": (0.2847, 0.3592, 0.2020, 0.4278),
        }
    },
    scale=1,
)

if __name__ == "__main__":
    main(TABLE, __doc__)
