"""The comparison of `live.py` on real vLLM servers on the CPU; skipped unless `make test-vllm` has installed vLLM.

vLLM can score a given text (`echo`) and read many texts at once (`list`), so drafting in rounds is measured with both
strategies. vLLM keeps the connection open after a stream, so a restart of the draft needs no new connection.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

from benchmarks.live import QUICK, Opener, compare, opener
from benchmarks.methods import METHODS, Method, rounds
from benchmarks.prompts import prompts
from benchmarks.proxy import delayed
from benchmarks.report import Options, Table
from cosd_providers.strategies import Strategy

__all__ = ["ECHOED", "LEFT_OUT", "SHARED", "environment", "installed", "run", "servers", "ways"]

ROUND_TRIPS = {0.02: 6}
"""The number of questions for each round trip in seconds."""

ECHOED = "With *echo*, the server scores the text in the assistant's own encoding."
SHARED = (
    "Both servers and the client share the cores of one machine, so drafts and hedges that run during a verification "
    "slow the verification down."
)
LEFT_OUT = Table(
    "Live: vLLM",
    ["method"],
    [],
    ["Left out: vLLM is not installed here. `make test-vllm` installs it (3.4 GB); COSD_VLLM_ENV names its folder."],
)

_TESTS = Path(__file__).parent.parent / "tests"


def environment() -> Path | None:
    """The folder in which vLLM is installed; None if it is not installed."""
    return installed("vllm_cpu")


def installed(package: str) -> Path | None:
    """The folder in which a recipe of the tests has installed a package; None if the package is not installed."""
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))
    recipe = import_module(f"{package}.install").RECIPE
    folder: Path = recipe.folder()
    return folder if recipe.is_ready(folder) else None


def servers(stack: ExitStack, folder: Path, *names: str) -> dict[str, str]:
    """Serve bundled models with vLLM while the stack is open; return their URLs."""
    from vllm_cpu.servers import serve  # noqa: PLC0415 - the tests' own, found by environment()

    return {name: server.url for name, server in stack.enter_context(serve(folder, [*names])).items()}


async def run(options: Options) -> list[Table]:
    """Compare the methods, with short and long prompts."""
    folder = environment()
    if folder is None:
        return [LEFT_OUT]
    tables: list[Table] = []
    with ExitStack() as stack:
        options.say("vllm: starting two servers")
        urls = servers(stack, folder, "sums", "words")
        for round_trip, count in (QUICK if options.quick else ROUND_TRIPS).items():
            async with delayed(urls["sums"], round_trip) as draft, delayed(urls["words"], round_trip) as assistant:
                for context in ("short", "long"):
                    where = f"vLLM on the CPU, {1000 * round_trip:g} ms, {context} prompts"
                    options.say(f"vllm: {where}")
                    long = context == "long"
                    asked = await prompts([*urls.values()], count, long=long, kind="mixed-translation")
                    compared = await compare(draft, assistant, asked, ways(draft, assistant), few=max(1, count // 3))
                    tables.append(compared.table(where, {"round_trip": round_trip, "context": context}, ECHOED, SHARED))
    return tables


def ways(draft: str, assistant: str) -> dict[str, Opener]:
    """Every method by name; (b) appears with both strategies."""
    found: dict[str, Opener] = {}
    for method in METHODS:
        if method.length is None:
            found[method.name] = opener(method, draft, assistant)
            continue
        # (c) asks about one place at a time: a list would save nothing, and scoring one token would double the work.
        strategies: tuple[Strategy, ...] = ("list",) if method.length == 1 else ("echo", "list")
        for strategy in strategies:
            name = method.name if method.length == 1 else f"{method.name}, {strategy}"
            found[name] = _rounds(method, draft, assistant, strategy)
    return found


def _rounds(method: Method, draft: str, assistant: str, strategy: Strategy) -> Opener:
    k = method.length
    assert k is not None
    return lambda: rounds(draft, assistant, k, engine="vllm", strategy=strategy)
