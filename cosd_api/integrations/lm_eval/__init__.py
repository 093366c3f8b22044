"""A fusion as the model `cosd` in lm-evaluation-harness. Requires the extra `cosd-api[lm-eval]`.

`python -m cosd_api.integrations.lm_eval --model cosd ...` runs the command `lm-eval` with this model registered.
"""

from __future__ import annotations

try:
    import lm_eval as _  # noqa: F401 - imported to find out if it is installed
except ModuleNotFoundError as error:
    if error.name != "lm_eval":
        raise
    words = 'cosd_api.integrations.lm_eval needs lm-evaluation-harness: pip install "cosd-api[lm-eval]"'
    raise ModuleNotFoundError(words, name=error.name) from None

from cosd_api.integrations.lm_eval.model import FusionLM

__all__ = ["FusionLM"]
