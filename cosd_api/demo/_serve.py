"""The child process behind `cosd_api.demo.servers`: one llama.cpp server, until standard input closes.

It is run by its path and imports nothing of `cosd_api`, so that it starts fast and wherever the package lies. It
writes the server's URL to standard output as one line, once the model is loaded, and nothing else.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from typing import Any

ERRORS_ONLY = 1
"""llama.cpp's log level: what goes wrong, and nothing else."""


def main() -> None:
    """Serves one model on a free port of the loopback interface."""
    # Ctrl-C reaches every process of a terminal. The parent decides when this one ends: by closing the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard output is for the URL alone: whatever a library prints goes where the errors go.
    announcement = os.dup(1)
    os.dup2(2, 1)

    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--name", required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    try:
        xllamacpp: Any = importlib.import_module("xllamacpp")  # has no types
        server = xllamacpp.Server(_parameters(xllamacpp.CommonParams(), options))
    except (ImportError, RuntimeError) as error:
        sys.exit(str(error))

    os.write(announcement, f"{server.listening_address}\n".encode())
    os.close(announcement)
    # The pipe closes when the parent wants it, and also when the parent is no more, however it ended.
    while os.read(0, 1024):
        pass
    # At once: answers under way have nobody left who would read them.
    os._exit(0)


def _parameters(params: Any, options: argparse.Namespace) -> Any:
    params.model.path = options.model
    params.model_alias = {options.name}
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # the system chooses a free one
    params.verbosity = ERRORS_ONLY
    params.warmup = False
    params.ui = False
    params.endpoint_props = params.endpoint_slots = True
    params.cache_ram_mib = 64  # by default prompts of the past may take 8 GB
    params.n_parallel = options.slots
    # Every slot has its own part of the memory; 0 stands for the context that the model was trained with, in each.
    params.kv_unified = False
    params.n_ctx = options.context * options.slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    return params


if __name__ == "__main__":
    main()
