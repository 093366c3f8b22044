"""The protocol of graders, and the base of those that come with the library."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from cosd_api.training.dataset import Example

__all__ = ["BaseGrader", "Grader", "identity_of"]


@runtime_checkable
class Grader(Protocol):
    """A judge of answers. Use it within `async with`.

    Texts that are known are graded again at every run of a comparison, so that no grade is older than its grader. One
    whose verdicts are dear may have an attribute `identity`, too; see `BaseGrader`.

    Attributes:
        name: for reports, with the settings that change its verdicts.
    """

    @property
    def name(self) -> str:
        """The name, with the settings that change verdicts."""
        ...

    async def __call__(self, example: Example, text: str) -> bool:
        """Tell whether `text` is a right answer to `example`.

        Raises:
            GradingError: the answer can be called neither right nor wrong.
            ProviderError: a model that judges failed.
        """
        ...

    def check(self, example: Example) -> None:
        """Check that the example has what this grader needs, before any model is asked.

        Raises:
            SettingError: it has not; the message says what is missing.
        """
        ...

    def reads(self, example: Example, text: str) -> str | None:
        """The answer as the grader reads it, in one spelling for equal answers; None if nothing is read."""
        ...

    async def __aenter__(self) -> Self:
        """Open what grading needs."""
        ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close it."""
        ...


class BaseGrader:
    """A grader that opens nothing, needs nothing of an example and reads nothing out of a text.

    Attributes:
        identity: all that its verdicts depend on beside example and text. Grades of this identity are kept when a
            comparison is resumed; with None, the texts are graded again.
        warnings: what a reader of the grades should know; filled on entering.
    """

    warnings: tuple[str, ...] = ()

    @property
    def identity(self) -> str | None:
        """None: grading again costs nothing."""
        return None

    def check(self, example: Example) -> None:
        """See `Grader.check`."""

    def reads(self, example: Example, text: str) -> str | None:  # noqa: ARG002
        """See `Grader.reads`."""
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def identity_of(grader: Grader) -> str | None:
    """The identity of a grader whose grades are kept; see `BaseGrader`."""
    found = getattr(grader, "identity", None)
    return found if isinstance(found, str) else None
