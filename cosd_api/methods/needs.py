"""Checks of the capabilities that a method needs, each of which refuses a model with a remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from cosd_providers.contract import ServerInfo
from cosd_providers.errors import UnsupportedError

Models = Sequence[tuple[str, ServerInfo]]
"""The models of a fusion, draft first: each model's name in results, and information about its server."""

Need = Literal["probs", "lists", "scores", "sampling", "draws"]
"""A capability: to report the probabilities of one's tokens, to list the most probable tokens, to score a given text,
to draw tokens from one's own distribution, or to draw tokens in any way."""

RoleNeeds = Mapping[str, Sequence[Need]]
"""The needs of each role, which is the name of a parameter of `Program.write`."""


def check_needs(needs: RoleNeeds, roles: Sequence[str], models: Models, method: str, listed: int) -> tuple[str, ...]:
    """Check that each model does what its role needs.

    Args:
        needs: the needs by role.
        roles: the role of each model; if there is only one role, it is the role of all models.
        models: the models, with information about their servers.
        method: the name of the method.
        listed: the number of other tokens that a model must be able to list with each token.

    Returns:
        Warnings about the models.

    Raises:
        UnsupportedError: a model lacks a capability.
    """
    warnings: tuple[str, ...] = ()
    for role, wanted in needs.items():
        own = [one for at, one in enumerate(models) if roles[min(at, len(roles) - 1)] == role]
        for need in wanted:
            if need == "probs":
                free = [one for one in roles if not needs.get(one)]
                _probs_needed(own, method, role.replace("_", " "), [one.replace("_", " ") for one in free])
            elif need == "lists":
                lists_needed(own, method, others=listed)
            elif need == "scores":
                scores_needed(own, method)
            elif need == "sampling":
                check_sampling(own, repr(method))
            else:
                warnings += check_draws(own, repr(method))
    return warnings


def _probs_needed(models: Models, method: str, role: str, free: Sequence[str]) -> None:
    for name, info in models:
        if not info.capabilities.probs:
            words = "does not report the probabilities of its tokens"
            words = (
                f"{words}, by which {method!r} decides" if role == name else f"is the {role} of {method!r}, and {words}"
            )
            other = f", the {free[0]}," if free and free[0] != "assistant" else ","
            hint = f"It can be the assistant{other} which needs none: let the other model draft." if free else ""
            raise UnsupportedError(f"the {name} {words}", endpoint=info.endpoint, hint=hint)


def lists_needed(models: Models, method: str, *, others: int = 1) -> None:
    """Check that every model lists its most probable tokens, including the end of sequence.

    Args:
        models: the models, with information about their servers.
        method: the name of the method that needs the lists.
        others: the number of tokens that the method needs in addition to the most probable one.

    Raises:
        UnsupportedError: a model lists no tokens or too few, or does not list the end of sequence.
    """
    for name, info in models:
        can = info.capabilities
        if not can.probs or not can.top_k:
            missing = f"does not list its most probable tokens, which {method!r} compares"
        elif can.top_k < others:
            missing = f"lists at most {1 + can.top_k} tokens, and {method!r} needs the {1 + others} most probable ones"
        elif not can.end_prob:
            missing = f"does not report the probability of its end of sequence, which {method!r} compares, too"
        else:
            continue
        hint = 'method="cosd" needs no lists, and with AgreementVerifier(alpha=0.5) no probabilities of the assistant.'
        raise UnsupportedError(f"the {name} {missing}", endpoint=info.endpoint, hint=hint)


def scores_needed(models: Models, method: str) -> None:
    """Check that every model reports the probabilities of a given text.

    Raises:
        UnsupportedError: a model does not report these probabilities.
    """
    for name, info in models:
        if not (info.capabilities.score and info.capabilities.probs):
            words = f"the {name} does not report the probabilities of a given text, by which {method!r} compares"
            hint = 'method="cosd", the default, needs only what each model writes by itself.'
            raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)


def check_sampling(models: Models, needed_by: str) -> None:
    """Check that every model draws tokens from its own distribution, including the end of sequence.

    Raises:
        UnsupportedError: a model does not draw such tokens.
    """
    for name, info in models:
        can = info.capabilities
        if not can.sampling:
            words = f"the {name} does not draw tokens from the model's own distribution, which {needed_by} needs"
            hint = 'cosd probe shows what an endpoint can do; without a temperature, method="cosd" needs no draws.'
            raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)


def check_draws(models: Models, needed_by: str) -> tuple[str, ...]:
    """Check that every model draws tokens, whether or not it draws them from its own distribution.

    Returns:
        Warnings about models that are not known to draw from their own distribution.

    Raises:
        UnsupportedError: a model does not draw tokens.
    """
    for name, info in models:
        if not (info.capabilities.sampling or info.capabilities.draws):
            words = f"the {name} does not draw tokens, which {needed_by} needs"
            hint = 'Most servers do over OpenAI\'s route for messages: connect(url, engine="openai", api="messages").'
            raise UnsupportedError(words, endpoint=info.endpoint, hint=hint)
    return tuple(
        f"{name} draws in its server's own way: perhaps not from the model's own distribution, and perhaps other "
        "tokens for the same seed"
        for name, info in models
        if not info.capabilities.sampling
    )
