"""A local Ray cluster of two nodes: prints its address, and does what standard input says: `kill` or `add` the second.

Run by a Python that has Ray; it ends with its standard input.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

PROCESSORS = 2


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": PROCESSORS})
    try:
        second = cluster.add_node(num_cpus=PROCESSORS)
        say(cluster.address)
        for line in sys.stdin:
            if line.strip() == "kill":
                cluster.remove_node(second, allow_graceful=False)
            else:
                second = cluster.add_node(num_cpus=PROCESSORS)
            say("done")
    finally:
        cluster.shutdown()


def say(words: str) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
