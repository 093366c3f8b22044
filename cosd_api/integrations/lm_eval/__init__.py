"""A fusion as the model `cosd` in lm-evaluation-harness. Requires the extra `lm-eval`.

`python -m cosd_api.integrations.lm_eval --model cosd ...` runs the command `lm-eval` with this model registered.
"""

from __future__ import annotations

try:
    import lm_eval as _  # noqa: F401 - imported to find out if it is installed
except ModuleNotFoundError as error:
    if error.name != "lm_eval":
        raise
    words = 'cosd_api.integrations.lm_eval needs lm-eval: pip install ".[lm-eval]" in a clone of the repository'
    raise ModuleNotFoundError(words, name=error.name) from None

from cosd_api.integrations.lm_eval.model import FusionLM

__all__ = ["FusionLM"]
