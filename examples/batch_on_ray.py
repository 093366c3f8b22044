"""Answer a file of prompts on a Ray cluster, with one fusion in each of several processes.

    python examples/batch_on_ray.py prompts.jsonl answers --config fusion.yaml --actors 4

The prompts are JSON objects, one per line, with a ``prompt`` or ``messages``. The answers are written to a folder of
files with one JSON object per line, each with a ``text`` or an ``error``. RAY_ADDRESS names the cluster; if it is not
set, Ray uses a cluster on this machine, or starts one. Every machine needs ``ray[data]``, this library, and the
servers' keys in its environment.
"""

from __future__ import annotations

import argparse

import ray

from cosd_api import FusionConfig
from cosd_api.apps.batch import FusionActor


def main() -> None:
    parser = argparse.ArgumentParser(description="A file of prompts becomes a folder of answers, on a Ray cluster.")
    parser.add_argument("prompts", help="file of prompts (*.jsonl)")
    parser.add_argument("answers", help="folder of the answers")
    parser.add_argument(
        "--config", required=True, metavar="FILE", help="settings file with the servers and their limits"
    )
    parser.add_argument("--actors", type=int, default=2, metavar="N", help="number of processes that answer (2)")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="concurrent prompts per process (16)")
    args = parser.parse_args()
    fusion = {
        "source": FusionConfig.load(args.config),  # the actors share the limits in this file
        "actors": args.actors,
        "concurrency": args.concurrency,
    }
    rows = ray.data.read_json(args.prompts)
    answered = rows.map_batches(
        FusionActor, fn_constructor_kwargs=fusion, concurrency=args.actors, batch_size=args.concurrency
    )
    answered.write_json(args.answers)


if __name__ == "__main__":
    main()
