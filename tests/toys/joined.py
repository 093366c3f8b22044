"""Several answers as if they were one: long ones for the tests and the picture of the report."""

from __future__ import annotations

from collections.abc import Sequence

from cosd_api.records import EndpointUsage, FusedToken, Request, Timings, TokenDecision
from cosd_api.result import FusionResult


def joined(results: Sequence[FusionResult]) -> FusionResult:
    """One answer after another, counted on: their units, rounds, requests and times are those of one long answer."""
    tokens = list[FusedToken]()
    requests = list[Request]()
    units = rounds = drafts = questions = length = 0
    begun = 0.0
    for result in results:
        tokens += [_later(token, begun, units, rounds, drafts, questions) for token in result.tokens]
        requests += [
            _moved(one, begun, length, questions if one.kind == "question" else drafts) for one in result.requests
        ]
        units = 1 + max((token.unit for token in tokens), default=-1)
        rounds += result.iterations or 0
        drafts += result.draft_requests
        questions += result.assistant_requests
        length += len(result.text.encode())
        begun += result.timings.total
    kept = sum(result.kept_tokens or 0 for result in results)
    replaced = sum(result.replaced_tokens or 0 for result in results)
    counts = ("replacements", "iterations", "drafted_tokens", "draft_requests")
    return results[-1].model_copy(
        update={
            **{name: sum(getattr(result, name) for result in results) for name in (*counts, "assistant_requests")},
            "text": "".join(result.text for result in results),
            "tokens": tuple(tokens),
            "requests": tuple(requests),
            "kept_tokens": kept,
            "replaced_tokens": replaced,
            "acceptance_rate": kept / (kept + replaced),
            "timings": Timings(
                total=begun, first_token=results[0].timings.first_token, per_token=begun / max(1, len(tokens))
            ),
            "usage": {name: _together([result.usage[name] for result in results]) for name in results[-1].usage},
        }
    )


def _later(token: FusedToken, begun: float, units: int, rounds: int, drafts: int, questions: int) -> FusedToken:
    update = {
        "unit": token.unit + units,
        "round": token.round + rounds,
        "draft": None if token.draft is None else token.draft + drafts,
        "placed_at": None if token.placed_at is None else token.placed_at + begun,
        "final_at": None if token.final_at is None else token.final_at + begun,
        "decisions": tuple(_asked_later(decision, questions) for decision in token.decisions),
    }
    return token.model_copy(update=update)


def _asked_later(decision: TokenDecision, questions: int) -> TokenDecision:
    if decision.request is None:
        return decision
    return decision.model_copy(update={"request": decision.request + questions})


def _moved(request: Request, seconds: float, length: int, numbers: int) -> Request:
    first = None if request.first is None else request.first + seconds
    update = {
        "number": request.number + numbers,
        "at": request.at + length,
        "start": request.start + seconds,
        "first": first,
        "end": request.end + seconds,
    }
    return request.model_copy(update=update)


def _together(usages: Sequence[EndpointUsage]) -> EndpointUsage:
    names = ("requests", "retries", "prompt_tokens", "completion_tokens", "cached_tokens", "busy_seconds")
    sums = {name: sum(getattr(usage, name) for usage in usages) for name in names}
    return EndpointUsage(first_token_seconds=usages[0].first_token_seconds, **sums)
