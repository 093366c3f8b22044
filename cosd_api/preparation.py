"""The preparation of an answer: what its models are, how they are decoded, and the job that its method carries out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cosd_api.decoding.answer_job import DraftJob, ProgramJob, never
from cosd_api.decoding.route import BY_IDS, Route, Routes, in_words
from cosd_api.decoding.watches import watched
from cosd_api.endpoints import Endpoints, Facts
from cosd_api.records import DRAFT
from cosd_api.settings import AnswerLimits, FusionSettings
from cosd_api.structured.constrained import constrained
from cosd_providers.contract import ServerInfo
from cosd_providers.errors import BudgetError, ProviderError, UnsupportedError
from cosd_providers.messages import Message, RenderedPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The models of an answer that is about to begin, and the way in which they are decoded.

    Attributes:
        prompt: text, or a conversation.
        facts: the facts about the servers.
        infos: the description of each server, by the index of its assistant; -1 is the draft's.
        turns: the models with their rendered prompts, the draft first.
        routes: the way in which the models are decoded.
        named: the routes of the models with which the answer begins, by name.
        judges_ids: whether Algorithm 1 judges the draft, and not by equation 3 as printed.
        discovered: the time at which the servers were known, as `time.perf_counter` gives it.
    """

    prompt: str | Sequence[Message]
    facts: Facts
    infos: Mapping[int, ServerInfo]
    turns: Sequence[RenderedPrompt]
    routes: Routes
    named: Mapping[str, Route]
    judges_ids: bool
    discovered: float

    @property
    def by_ids(self) -> bool:
        """True if all models with which the answer begins are sent ids."""
        return all(route in BY_IDS for route in self.named.values())

    @property
    def ties(self) -> bool:
        """True if ties can occur, because an assistant that judges the draft is sent ids."""
        return self.judges_ids and any(route in BY_IDS for name, route in self.named.items() if name != DRAFT)

    @property
    def parts(self) -> bool:
        """True if tokens may be parts of characters."""
        return self.by_ids or (self.judges_ids and self.routes.draft == "ids")

    @property
    def ends(self) -> set[int]:
        """The end-of-sequence ids of the draft and of the assistants that judge the draft's ids."""
        if not self.judges_ids:
            return set()
        sharing = [at for at in self.infos if at < 0 or self.routes.assistants[at] == "ids"]
        return {one for at in sharing for one in self.infos[at].ends}


async def prepare(
    endpoints: Endpoints, settings: FusionSettings, prompt: str | Sequence[Message], limits: AnswerLimits
) -> Preparation:
    """Discover the models, render the prompt for each of them, check it, and choose how they are decoded.

    Raises:
        SettingError: a setting has no meaning for these models.
        ProviderError: a server failed, or cannot serve the method or the prompt.
    """
    method = settings.method
    facts = await endpoints.discover()
    discovered = time.perf_counter()
    facts = await endpoints.check_messages(prompt, facts, limits.own)
    turns, facts = await endpoints.turns(prompt, settings.on_special_tokens, facts, limits.own)
    facts = endpoints.apart(method, turns, await endpoints.check_length(turns, facts))
    infos = {at: await one.on_path.describe() for at, one in enumerate(turns, -1) if at < 0 or at not in facts.without}
    routes = facts.routes(method, infos)
    named = routes.named([DRAFT, *endpoints.names], {*facts.without} - {-1})
    judges_ids = method.asks_by_ids and not routes.literal
    if limits.response_format is not None:
        language, cuts = limits.response_format.language, facts.cuts or [False] * len(turns)
        turns = [constrained(turn, language, cuts=one) for turn, one in zip(turns, cuts, strict=True)]
    if limits.alternatives and not (judges_ids and routes.same_ids):
        raise UnsupportedError(_no_alternatives({} if method.own_paths else named))
    return Preparation(
        prompt=prompt,
        facts=facts,
        infos=infos,
        turns=turns,
        routes=routes,
        named=named,
        judges_ids=judges_ids,
        discovered=discovered,
    )


def draft_job(endpoints: Endpoints, settings: FusionSettings, limits: AnswerLimits, found: Preparation) -> DraftJob:
    """The part of the job that concerns methods which judge a draft."""
    infos = found.infos
    pace = replace(
        settings.pace,
        places=tuple(infos[at].capabilities.places if at in infos else 1 for at in range(len(endpoints.assistants))),
        leases=infos[-1].capabilities.places == 1,
        watched=watched(infos, endpoints.speeds),
        questions_only=frozenset(at for at, info in infos.items() if info.capabilities.watch is False),
        shown=limits.alternatives,
    )
    may_return = bool(found.turns[0].prompt)  # the prompt of a draft that is down may not have been rendered
    return DraftJob(
        unit=found.facts.unit,
        pace=pace,
        skip=settings.ask == "contestable",
        tie=settings.tie,
        ends=found.ends,
        cuts=found.facts.cuts,
        rate=endpoints.rate,
        speeds=endpoints.speeds,
        fails_over=is_a_models if endpoints.fails_over else lambda _: False,
        draft_is_back=endpoints.draft_is_back if may_return else never,
        down=found.facts.without.get(-1),
    )


def program_job(endpoints: Endpoints, settings: FusionSettings, limits: AnswerLimits, found: Preparation) -> ProgramJob:
    """The part of the job that concerns methods which are programs."""
    return ProgramJob(
        plain=endpoints.plain(found.prompt),
        conversation=None if isinstance(found.prompt, str) else found.prompt,
        render=partial(endpoints.render, on_special_tokens=settings.on_special_tokens, own=limits.own),
        seed=limits.seed or 0,
    )


def is_a_models(error: Exception) -> bool:
    """Test whether a model caused an error, as opposed to one of the caller's limits or the caller's own code."""
    return isinstance(error, ProviderError) and not isinstance(error, BudgetError)


def _no_alternatives(routes: Mapping[str, Route]) -> str:
    here = f" ({in_words(routes)})" if routes else ""
    words = f"other tokens of each place (alternatives, top_logprobs) are not listed here{here}: that needs models with"
    words += " the same token ids, and the method cosd or defer without a temperature. Leave them out; each token has"
    return f"{words} its own probability anyway"
