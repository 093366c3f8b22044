"""The child process of `cosd_api.apps.demo.servers`: one llama.cpp server, which runs until standard input is closed.

The script is run by its path and imports nothing from `cosd_api`, so it starts fast and from any location. When the
model is loaded, the script writes one line with the server's URL to standard output; it writes nothing else there.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from typing import Any

ERRORS_ONLY = 1
"""Log level of llama.cpp that shows only errors."""


def main() -> None:
    """Serve one model on a free port of the loopback interface."""
    # Ctrl-C reaches every process of a terminal. Ignore it: the parent ends this process by closing the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Standard output is for the URL alone, so the output of libraries goes to standard error.
    announcement = os.dup(1)
    os.dup2(2, 1)

    options: dict[str, Any] = json.loads(sys.argv[1])
    try:
        xllamacpp: Any = importlib.import_module("xllamacpp")  # the package has no type hints
        server = xllamacpp.Server(_parameters(xllamacpp, options))
    except (ImportError, RuntimeError) as error:
        sys.exit(str(error))

    os.write(announcement, f"{server.listening_address}\n".encode())
    os.close(announcement)
    # The pipe closes when the parent closes it or ends.
    while os.read(0, 1024):
        pass
    # Exit immediately, because no client is left to read unfinished answers.
    os._exit(0)


def _parameters(xllamacpp: Any, options: dict[str, Any]) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.model_alias = {options["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # the system chooses a free port
    params.verbosity = ERRORS_ONLY
    params.warmup = False
    params.ui = False
    params.endpoint_props = params.endpoint_slots = True
    params.cache_ram_mib = options["cache"]  # the default, 8 GB, is too much
    params.swa_full, params.chat_template = options["swa_full"], options["template"]
    params.n_parallel = options["slots"]
    # Every slot has its own memory. If `n_ctx` is 0, each slot has the context length that the model was trained with.
    params.kv_unified = False
    params.n_ctx = options["context"] * options["slots"]
    if options["embeddings"]:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_NONE
    if adapters := options["adapters"]:
        params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, scale) for path, scale in adapters.items()]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
    return params


if __name__ == "__main__":
    main()
