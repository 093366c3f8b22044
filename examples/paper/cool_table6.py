"""Table 6 of Cool-Fusion: question answering, measured by F1 and exact match.

    python examples/paper/cool_table6.py --pairs pair.yaml --data data

The paper decodes greedily, with 3 examples before each question. It does not say how many models the column Cool fuses
in this table; in the paper's other tables, the name Cool without a number means three models. Only the first line of an
answer counts, and is compared with the closest accepted answer. For DROP, several spans are treated as one text; DROP's
own matching of spans and numbers is not implemented.
"""

from __future__ import annotations

from dataclasses import replace

from _columns import Column, alone
from _tables import COOL, Row, Table, main
from _tasks import F1, TASKS

from cosd_api import CoolFusion

EXACT = [Row(f"EM {TASKS[name].title}", (name,)) for name in ("coqa", "drop", "triviaqa")]
BY_F1 = [Row(f"F1 {TASKS[name].title}", (name,), F1) for name in ("coqa", "drop")]


def average(name: str, rows: list[Row]) -> Row:
    """The mean of several rows."""
    tasks = tuple(task for one in rows for task in one.tasks)
    return replace(rows[0], name=name, tasks=tasks, weight=1 / len(tasks))


TABLE = Table(
    name="cool_table6",
    title=f"Table 6 of {COOL}: F1 and exact match",
    columns=(alone("LLaMA-3", 0), alone("Phi-3", 1), Column("Cool", CoolFusion(), (0, 1, 2))),
    rows=(*BY_F1, average("F1 average", BY_F1), *EXACT, average("EM average", EXACT)),
    models={"cool": "LLaMA-3 8B, Phi-3 mini, GLM-4 9B"},
    printed={
        "cool": {
            "F1 CoQA": (0.8172, 0.8091, 0.8225),
            "F1 DROP": (0.5277, 0.4041, 0.5504),
            "F1 average": (0.6724, 0.6066, 0.6865),
            "EM CoQA": (0.6727, 0.6848, 0.6795),
            "EM DROP": (0.4268, 0.2925, 0.4539),
            "EM TriviaQA": (0.6121, 0.4829, 0.5927),
            "EM average": (0.5705, 0.4867, 0.5754),
        }
    },
    scale=1,
)

if __name__ == "__main__":
    main(TABLE, __doc__)
