"""The methods of `examples/methods`, loaded as users load them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cosd_api.methods.base import EXAMPLES, method_class

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "methods"
AT = {name: f"{FOLDER}/{file}" for name, file in EXAMPLES.items()}
"""The address of each method, by its name."""
AdaFuse: Any = method_class(AT["adafuse"])
Cascade: Any = method_class(AT["cascade"])
Nudging: Any = method_class(AT["nudging"])
Route: Any = method_class(AT["route"])
Switch: Any = method_class(AT["switch"])


def beside(kind: Any, name: str) -> Any:
    """Another name of the file in which a method's class is defined."""
    return getattr(sys.modules[kind.__module__], name)
