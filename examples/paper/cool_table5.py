"""Table 5 of Cool-Fusion: MGSM in six languages.

    python examples/paper/cool_table5.py --pairs pair.yaml --data data

The paper decodes greedily, with 3 examples before each question. Here, the prompt's words "Question" and "Answer" stay
English in all languages; lm-evaluation-harness translates them.
"""

from __future__ import annotations

from _columns import Column, alone
from _tables import COOL, Row, Table, main, row
from _tasks import LANGUAGES

from cosd_api import CoolFusion

TASKS = [f"mgsm_{name}" for name in LANGUAGES]

TABLE = Table(
    name="cool_table5",
    title=f"Table 5 of {COOL}: share of right answers to MGSM",
    columns=(
        alone("LLaMA-3", 0),
        alone("Phi-3", 1),
        Column("Cool, 2 models", CoolFusion(), (0, 1)),
        alone("GLM-4", 2),
        Column("Cool", CoolFusion()),
    ),
    rows=(*map(row, TASKS), Row("Average", tuple(TASKS), weight=1 / len(TASKS))),
    models={"cool": "LLaMA-3 8B, Phi-3 mini, GLM-4 9B"},
    printed={
        "cool": {
            "English": (0.72, 0.696, 0.724, 0.652, 0.716),
            "Chinese": (0.504, 0.472, 0.504, 0.58, 0.588),
            "Spanish": (0.572, 0.456, 0.548, 0.564, 0.596),
            "French": (0.568, 0.576, 0.62, 0.668, 0.636),
            "German": (0.592, 0.568, 0.568, 0.66, 0.696),
            "Russian": (0.54, 0.428, 0.548, 0.564, 0.592),
            "Average": (0.5827, 0.5327, 0.5853, 0.6147, 0.6373),
        }
    },
    scale=1,
)

if __name__ == "__main__":
    main(TABLE, __doc__)
