"""Installs a real SGLang that runs on the CPU into a folder of the user's cache, once, for `make test-sglang`.

    python tests/sglang_cpu/install.py      prints the folder to standard output, all else to standard error

The folder is $COSD_SGLANG_ENV, or one named after SGLang's and Python's version in $XDG_CACHE_HOME/cosd-api. SGLang's
kernels have no build for the CPU, and torchvision none that fits. A Llama model calls neither: placeholder modules
import like them and raise when called, so a result can never come from a missing kernel. Standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script it has its own folder there

from environments import Recipe

_CHECK = """
import torch, sglang.launch_server, sglang.srt.entrypoints.http_server
assert torch.version.cuda is None and torch.version.hip is None, "torch is not the build for the CPU"
"""

_PLACEHOLDER = """\
\"\"\"Placeholder for {name}: importing works, calling raises.\"\"\"

__version__ = "{version}"


class _Absent(type):
    def __getattr__(cls, name):
        return _absent(name)


def _absent(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(self, *args, **kwargs):
        raise RuntimeError(f"{name} is not installed: {{name}}")

    return _Absent(name, (), {{"__init__": refuse}})


__getattr__ = _absent
"""

_KERNELS = ("sampling", "speculative", "flash_attn", "kvcacheio", "quantization", "elementwise", "utils")
_VISION = ("transforms", "transforms/functional", "transforms/v2", "transforms/v2/functional", "io", "ops")


def _add_placeholders(folder: Path) -> None:
    (site,) = folder.glob("lib/python*/site-packages")
    for name, version, modules in (("sgl_kernel", "0.4.10", _KERNELS), ("torchvision", "0.0.0", _VISION)):
        for module in ("", *modules):
            package = site / name / module
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").write_text(_PLACEHOLDER.format(name=name, version=version), encoding="utf-8")


RECIPE = Recipe(
    name="SGLang",
    target="test-sglang",
    package="sglang",
    variable="COSD_SGLANG_ENV",
    requirements=Path(__file__).with_name("requirements.txt"),
    gigabytes=5,
    announcement="2.5 GB, a few minutes",
    check=_CHECK,
    advice="It needs PyTorch's build for the CPU: let pip see an index that has it (PIP_EXTRA_INDEX_URL).",
    prepare=_add_placeholders,
)

if __name__ == "__main__":
    RECIPE.main()
