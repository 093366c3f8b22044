"""A command that copies trained models and their keys into the repository: `python -m benchmarks.lab.keep folder`."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from benchmarks.lab.corpora import recipe_key
from benchmarks.lab.protocol import WEIGHTS


def keep(folder: Path, weights: Path = WEIGHTS) -> dict[str, str]:
    """Copy every `<recipe>-<seed>.gguf` in a folder; return the keys of all models that are then kept."""
    weights.mkdir(parents=True, exist_ok=True)
    file = weights / "keys.json"
    keys: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for path in sorted(folder.glob("*.gguf")):
        name, _, seed = path.stem.rpartition("-")
        keys[path.stem] = recipe_key(name, int(seed))
        shutil.copyfile(path, weights / path.name)
    file.write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return keys


def main() -> None:
    """Keep the models in the folder given on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("folder", type=Path)
    print("\n".join(keep(parser.parse_args().folder)))


if __name__ == "__main__":
    main()
