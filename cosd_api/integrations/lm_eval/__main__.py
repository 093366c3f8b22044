"""`python -m cosd_api.integrations.lm_eval` runs `lm-eval` with the model `cosd` registered."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the type checker runs without the harness

    def cli_evaluate() -> None:
        """Run the command `lm-eval`."""
else:
    from lm_eval.__main__ import cli_evaluate

if __name__ == "__main__":
    cli_evaluate()
