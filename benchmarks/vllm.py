"""The same on real vLLM servers, on the CPU, where `make test-vllm` has put vLLM: else the section is left out.

vLLM scores a given text (echo) and reads many texts at once (a list): drafting in rounds is measured in both ways.
It keeps the connection behind a stream, so that no restart of a draft pays for a new one.
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
"""Round trip in seconds, and number of questions."""

ECHOED = "Echo scores the text in the assistant's own encoding."
SHARED = (
    "Both servers and the client share the cores of one machine: what is drafted, or hedged, while a verification is "
    "under way slows it down."
)
LEFT_OUT = Table(
    "Live: vLLM",
    ["method"],
    [],
    ["Left out: vLLM is not installed here. `make test-vllm` installs it (3.4 GB), and COSD_VLLM_ENV says where."],
)

_TESTS = Path(__file__).parent.parent / "tests"


def environment() -> Path | None:
    """The folder that vLLM is installed in; None without one."""
    return installed("vllm_cpu")


def installed(package: str) -> Path | None:
    """The folder that one of the tests' recipes has made ready; None if it has not."""
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))
    recipe = import_module(f"{package}.install").RECIPE
    folder: Path = recipe.folder()
    return folder if recipe.is_ready(folder) else None


def servers(stack: ExitStack, folder: Path, *names: str) -> dict[str, str]:
    """URLs of bundled models on vLLM, while the stack is open."""
    from vllm_cpu.servers import serve  # noqa: PLC0415 - the tests' own, found by environment()

    return {name: server.url for name, server in stack.enter_context(serve(folder, [*names])).items()}


async def run(options: Options) -> list[Table]:
    """The comparison, with short and long prompts."""
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
    """Every method by name, and (b) twice."""
    found: dict[str, Opener] = {}
    for method in METHODS:
        if method.length is None:
            found[method.name] = opener(method, draft, assistant)
            continue
        # One place has no list, and a text of one token scored is two requests' worth of work: (c) is asked plainly.
        strategies: tuple[Strategy, ...] = ("list",) if method.length == 1 else ("echo", "list")
        for strategy in strategies:
            name = method.name if method.length == 1 else f"{method.name}, {strategy}"
            found[name] = _rounds(method, draft, assistant, strategy)
    return found


def _rounds(method: Method, draft: str, assistant: str, strategy: Strategy) -> Opener:
    k = method.length
    assert k is not None
    return lambda: rounds(draft, assistant, k, engine="vllm", strategy=strategy)
