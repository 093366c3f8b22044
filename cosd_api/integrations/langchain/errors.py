"""Errors of endpoints on LangChain's own tree: what is raised is caught as either."""

from __future__ import annotations

from typing import Any

from langchain_core import exceptions as langchain

from cosd_providers import errors as ours

__all__ = ["on_their_tree"]

_TREE: tuple[tuple[type[ours.ProviderError], type[langchain.ModelError]], ...] = (
    (ours.ContextLengthError, langchain.ContextOverflowError),
    (ours.AuthenticationError, langchain.ModelAuthenticationError),
    (ours.RateLimitError, langchain.ModelRateLimitError),
    (ours.ServerError, langchain.ModelAPIError),
    (ours.InvalidRequestError, langchain.ModelInvalidRequestError),
    (ours.ModelChoiceError, langchain.ModelNotFoundError),
    (ours.ConnectError, langchain.ModelConnectionError),
    (ours.ProviderTimeoutError, langchain.ModelTimeoutError),
    (ours.BudgetTimeoutError, langchain.ModelTimeoutError),
)
"""What is in neither is a `ModelError`."""

_FORBIDDEN = 403

_made: dict[tuple[object, object], type[ours.ProviderError]] = {}


def on_their_tree(error: ours.ProviderError) -> ours.ProviderError:
    """The same error, which is one of LangChain's too: endpoint, hint and `partial` as they are.

    Raise it from `error`.
    """
    if isinstance(error, langchain.ModelError):
        return error
    kinds = (theirs for kind, theirs in _TREE if isinstance(error, kind))
    theirs = next(kinds, langchain.ModelError)
    if theirs is langchain.ModelAuthenticationError and error.status == _FORBIDDEN:
        theirs = langchain.ModelPermissionDeniedError
    both = _made.setdefault((type(error), theirs), _both(type(error), theirs))
    made = both.__new__(both)
    made.args = error.args
    made.__dict__.update(error.__dict__, is_retryable=error.retryable, _ours=error)
    return made


def _both(kind: type[ours.ProviderError], theirs: type[langchain.ModelError]) -> type[ours.ProviderError]:
    """A class that is both; called as ours, so that a message says what it always said."""

    def reduced(self: Any) -> tuple[object, ...]:
        return (on_their_tree, (self._ours,))  # a class made here cannot be found by its name

    return type(kind.__name__, (kind, theirs), {"__reduce__": reduced, "__module__": __name__, "__doc__": kind.__doc__})
