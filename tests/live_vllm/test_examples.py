"""The script for two vLLM hosts, over two vLLM hosts."""

from __future__ import annotations

import re

from cosd_api.apps.demo.servers import Pair
from support.scripts import run_script


def test_two_vllm_hosts(vllm_pair: Pair) -> None:
    ran = run_script("two_vllm_hosts", "--draft", vllm_pair.sums, "--assistant", vllm_pair.facts)
    assert (ran.code, ran.out) == (0, " The capital of Peru is Lima and the total is 42.\n")
    assert re.match(r"'.+' became ' L\w*': 0\.\d+ < 0\.9 and 0\.\d+ > 1 x 0\.\d+\n", ran.err)
