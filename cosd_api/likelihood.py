"""Log-likelihoods of a given text under the distribution that Algorithm 1 decodes greedily.

With `unit="token"` Algorithm 1 is greedy decoding of the **gated mixture**, a distribution over next tokens::

    x~ = argmax M_p(. | x)       the draft's own token after the text x
    x^ = argmax M_q(. | x)       an assistant's own token
    P_F(. | x) = M_q(. | x)      if x^ != x~ and the verifier replaces (max M_p, max M_q)
                 M_p(. | x)      otherwise

If several assistants would replace the draft's token, the distribution of the most confident one is used; among equally
confident assistants, the first in the list has priority. The gated mixture is this library's own extension, not part of
the paper.

Each model scores the text once, and lists the most probable tokens at each position. A second request to a model is
needed only if a list does not determine the model's choice: either two tokens are equally probable, or an unlisted
token (such as part of a character) could be more probable than all listed tokens.

Models that share the same token ids, on servers that accept ids, each read their own prompt, followed by the draft's
encoding of the text, as in a fusion. If the ids differ or a server accepts no ids, the models read the prompt and the
text as one text. If the chat templates write white space before every answer, that white space is the first part of the
encoding and is included in the probability. If the templates write different white space, the models do not share a
path, and the likelihood is undefined.
"""

from __future__ import annotations

import codecs
import math
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate

import anyio

from cosd_api import answer_warnings
from cosd_api.alignment import Decision, judge, same
from cosd_api.budget import Budget, late
from cosd_api.decoding.calls import Calls, placed
from cosd_api.decoding.timeline import Timeline
from cosd_api.endpoints import Endpoints, Facts
from cosd_api.errors import SettingError
from cosd_api.methods.cosd import CoSD
from cosd_api.methods.lists import key_of, most_probable
from cosd_api.paths.encoding import Encoder
from cosd_api.paths.own_ids import Path
from cosd_api.records import DRAFT, Endpoint, EndpointUsage, Probability, Record, Request, Seconds, TokenDecision
from cosd_api.settings import FusionSettings, LikelihoodLimits
from cosd_api.telemetry import FusionSpan, fusion_span
from cosd_api.verification import Place, Verifier, coin_of, digest_of, needs_of, tie_of, verifier_at
from cosd_providers.concurrency import concurrently
from cosd_providers.contract import IdScores, Proposal, Question, Token
from cosd_providers.errors import BudgetError, ProviderError, UnsupportedError
from cosd_providers.forwarding import by_ids
from cosd_providers.http.retries import RetriedFailures
from cosd_providers.messages import Message, RenderedPrompt
from cosd_providers.text import readable
from cosd_providers.usage import Usage

_LISTED = 20
"""Number of alternatives to request; most servers support it. With longer lists, fewer second requests are needed."""

_ANOTHER = "the draft's server read another text than the continuation"
_OTHER = "Each model by itself can score such a text: Provider.score."


class LikelihoodToken(Record):
    """One token of a scored continuation.

    Attributes:
        text: text of the token; empty for the end of sequence. If models are sent ids, the text consists of the
            characters that the token completes; therefore the texts of all tokens join to the continuation. The white
            space that a template writes before an answer is left out.
        end: whether the token is the end of sequence.
        source: the model whose distribution is used at this place: `"draft"`, or an assistant's name.
        logprob: natural logarithm of the token's probability; `-inf` for probability 0.
        is_greedy: whether the fusion would write this token at this place.
        draft_text: the draft's most probable token at this place (x~); empty for the end of sequence.
        draft_prob: probability of the draft's most probable token (max M_p).
        decisions: the decision about each assistant's most probable token (x^); empty if no assistant could replace
            the draft's token.
    """

    text: str
    end: bool = False
    source: str
    logprob: float
    is_greedy: bool
    draft_text: str
    draft_prob: Probability
    decisions: tuple[TokenDecision, ...] = ()


class LogLikelihood(Record):
    """The log-likelihood of a continuation under a fusion; see `Fusion.log_likelihood`.

    Attributes:
        total: natural logarithm of the continuation's probability given the prompt: the sum of the log probabilities of
            its tokens.
        is_greedy: whether the fusion would write exactly these tokens, because each one is the most probable token of
            the gated mixture at its place. Among equally probable tokens, the server's own choice counts as the most
            probable.
        tokens: the continuation, token by token, with the end of sequence if requested.
        usage: requests and billed tokens, by the name of the endpoint.
        requests: all requests, in the order in which they were sent.
        seconds: duration of the computation.
        warnings: the warnings, each of which is one sentence.
        draft: the draft endpoint.
        assistants: the assistants, in the order in which the user gave them.
    """

    total: float
    is_greedy: bool
    tokens: tuple[LikelihoodToken, ...]
    usage: dict[str, EndpointUsage]
    requests: tuple[Request, ...] = ()
    seconds: Seconds
    warnings: tuple[str, ...] = ()
    draft: Endpoint
    assistants: tuple[Endpoint, ...]

    @property
    def perplexity(self) -> float:
        """The exponential of the mean negative log probability per token."""
        mean = -self.total / len(self.tokens)
        return math.inf if mean == math.inf else math.exp(mean)


async def log_likelihood_of(
    endpoints: Endpoints,
    settings: FusionSettings,
    prompt: str | Sequence[Message],
    continuation: str,
    limits: LikelihoodLimits,
) -> LogLikelihood:
    """Compute a log-likelihood. See `Fusion.log_likelihood` for arguments and errors."""
    _check(settings, continuation, end=limits.end)
    ledgers = {name: Usage() for name in [DRAFT, *endpoints.names]}
    with fusion_span(f"{settings.method.name} log_likelihood", prompt) as span:
        failures = RetriedFailures()
        with failures.recorded(), anyio.move_on_after(limits.timeout):
            try:
                return await _found(endpoints, settings, prompt, continuation, limits, ledgers, span)
            except BudgetError as error:
                error.hint = "Allow more."  # the usual hint suggests ending an answer early
                raise
            finally:
                span.billed(_usage(ledgers))
        words = f"the log-likelihood took longer than timeout={limits.timeout:g} seconds"
        raise late(words, failures.last or endpoints.failures.last)


def _check(settings: FusionSettings, continuation: str, *, end: bool) -> None:
    if not isinstance(settings.method, CoSD):
        words = f"log_likelihood is not defined for the method {settings.method.name!r}"
        raise SettingError(f'{words}: leave method out, which is CoSD, and give unit="token"')
    if settings.unit in ("word", "literal"):
        named = "words" if settings.unit == "word" else "tokens of two vocabularies"
        words = f'log_likelihood is not defined for unit="{settings.unit}": {named} have no next-token distribution'
        raise SettingError(f'{words}. Models with one tokenizer can be fused with unit="token"')
    if looks := needs_of(settings.verifier).looks_at:
        words = f"log_likelihood is not computed for a {type(settings.verifier).__name__}"
        raise SettingError(f"{words}, which also looks at {looks} the draft's token")
    if not isinstance(continuation, str):
        raise SettingError(f"continuation must be a string, not {type(continuation).__name__}")
    if not continuation and not end:
        raise SettingError("continuation is empty: there is nothing to score. With end=True the end alone is")
    try:
        continuation.encode()
    except UnicodeEncodeError as error:
        raise SettingError(f"continuation is not valid Unicode text at character {error.start}") from None


async def _found(
    endpoints: Endpoints,
    settings: FusionSettings,
    prompt: str | Sequence[Message],
    continuation: str,
    limits: LikelihoodLimits,
    ledgers: Mapping[str, Usage],
    span: FusionSpan,
) -> LogLikelihood:
    began = time.perf_counter()
    facts = await endpoints.discover()
    turns, facts = await endpoints.turns(prompt, settings.on_special_tokens, facts)
    names = [*ledgers]
    for error in facts.without.values():  # leaving out an assistant would change the distribution
        raise error
    await _check_endpoints(turns, names, facts)
    facts = endpoints.apart(settings.method, turns, facts)
    if facts.unit != "token":
        words = "the models' chat templates write different white space before an answer: they have no path in common"
        hint = 'With unit="token", they are sent text.'
        raise UnsupportedError(words, endpoint=facts.draft.endpoint, hint=hint)
    budget = Budget([*ledgers.values()], max_requests=limits.max_requests, max_billed_tokens=limits.max_billed_tokens)
    timeline = Timeline(began, span.observer((facts.draft, *facts.assistants)))
    shared = facts.ids and all(isinstance(turn.on_path, IdScores) for turn in turns)
    ends = {one for turn in turns for one in (await turn.on_path.describe()).ends} if shared else None
    mixture = _GatedMixture(Calls(turns, budget, timeline), settings, names, continuation.encode(), ends)
    tokens = await mixture.tokens(end=limits.end)
    return LogLikelihood(
        total=math.fsum(token.logprob for token in tokens),
        is_greedy=all(token.is_greedy for token in tokens),
        tokens=tuple(tokens),
        usage=_usage(ledgers),
        requests=tuple(Request.of(span, names) for span in timeline.spans),
        seconds=time.perf_counter() - began,
        warnings=(
            *facts.warnings_for(prompt),
            *(warning for turn in turns for warning in turn.warnings),
            *answer_warnings.unreported(_usage(ledgers), [name for name, one in ledgers.items() if one.unreported]),
        ),
        draft=facts.draft,
        assistants=facts.assistants,
    )


def _usage(ledgers: Mapping[str, Usage]) -> dict[str, EndpointUsage]:
    return {name: EndpointUsage.of(ledger) for name, ledger in ledgers.items()}


async def _check_endpoints(turns: Sequence[RenderedPrompt], names: Sequence[str], facts: Facts) -> None:
    """Refuse models that do not report the data that the gated mixture needs.

    Raises:
        UnsupportedError: a model does not report the data, or the models are not known to share a tokenizer. The
            message suggests a remedy.
    """
    if facts.unit != "token":
        words = "the models are not known to have one tokenizer, and a mixture of their tokens is not defined"
        hint = 'If you know that they have, give unit="token"; with two tokenizers there is no exact definition.'
        raise UnsupportedError(words, endpoint=facts.draft.endpoint, hint=hint)
    for name, turn in zip(names, turns, strict=True):
        info = await turn.provider.describe()
        can = info.capabilities
        if not (can.score and can.probs):
            missing = "does not score a given text"
        elif not min(can.top_k, can.score_top_k):
            missing = "does not list the most probable tokens beside those of a given text"
        elif not can.end_prob:
            missing = "does not report the probability of its end of sequence, which may be its choice anywhere"
        else:
            continue
        hint = "cosd probe shows what an endpoint reports; llama.cpp, vLLM and SGLang report all that is needed."
        raise UnsupportedError(f"the {name} {missing}: it has no log-likelihoods", endpoint=info.endpoint, hint=hint)


def _has_no_distribution(token: Token) -> bool:
    """Test whether a token has no distribution: it shows a character of several tokens, or it begins in the prompt."""
    return token.prob is None or (token.prob < 1 and not token.alternatives)


class _GatedMixture:
    """The gated mixture along one continuation.

    Args:
        calls: access to the models, within the limits.
        settings: the settings of the fusion, whose verifier is the gate.
        names: names of the models, the draft's first.
        text: the continuation.
        ends: end-of-sequence ids of all models, if they are sent ids; None if they are sent text.
    """

    def __init__(
        self,
        calls: Calls,
        settings: FusionSettings,
        names: Sequence[str],
        text: bytes,
        ends: Container[int | None] | None,
    ) -> None:
        self._calls = calls
        self._verifier = settings.verifier
        self._ends = ends
        self._tie = 0.0 if ends is None else tie_of(settings.verifier, settings.tie)
        self._path: Path | None = None
        self._prompt = digest_of(calls.turns[0].prompt)
        self._names = names
        self._text = text
        self._given: list[list[Token]] = []  # each model's tokens of the continuation, with alternatives
        self._starts: list[int] = []  # byte offset of each token

    async def tokens(self, *, end: bool) -> list[LikelihoodToken]:
        """Score each token under the distribution that is used at its place."""
        everybody = range(len(self._names))
        if self._ends is not None:
            self._path = await self._encoded()
        self._given = await concurrently([partial(self._score, model, end=end) for model in everybody])
        self._starts = [0, *accumulate(len(token.data) for token in self._given[0])][:-1]
        self._check_tokens()
        drafted = await self._choices(0, dict.fromkeys(range(len(self._starts))))
        contested = {at: one for at, one in drafted.items() if self._at(at).contestable(one.prob or 0.0)}
        heard = await concurrently([partial(self._choices, model, contested) for model in everybody[1:]])
        texts = self._texts()
        return [self._token(at, drafted[at], [one.get(at) for one in heard], texts[at]) for at in sorted(drafted)]

    def _texts(self) -> list[str]:
        """The text of each token; if models are sent ids, the characters that the token completes."""
        if self._path is None:
            return [readable(token.data) for token in self._given[0]]
        characters = codecs.getincrementaldecoder("utf-8")()
        return [characters.decode(token.data) for token in self._given[0]]

    async def _encoded(self) -> Path:
        """The draft's encoding of the continuation, which all models read."""
        turn = self._calls.turns[0]
        with self._located(0):
            found = await Encoder(by_ids(turn.on_path).encode, turn.lead).upto(self._text, len(self._text))
        if found is None:
            raise self._refusal(0, _ANOTHER)
        return Path(self._text, found.ids, found.ends)

    async def _score(self, model: int, *, end: bool) -> list[Token]:
        with self._located(model):
            if self._path is None:
                found = await self._calls.score(model, self._text, 0, end=end, alternatives=_LISTED)
            else:
                found = await self._calls.score_path(model, self._path, 0, end=end, alternatives=_LISTED)
            return [*map(self._known, found)]

    def _known(self, token: Token) -> Token:
        """The token as it is compared: by its id, which may end any model's answer; without a path, by its text."""
        token = replace(token, alternatives=tuple(map(self._known, token.alternatives)))
        if self._ends is None:
            return replace(token, id=None)
        return replace(token, data=b"", end=True) if token.id in self._ends else token

    def _check_tokens(self) -> None:
        """Refuse models that split the continuation into different tokens."""
        mine = [key_of(token) for token in self._given[0]]
        if b"".join(token.data for token in self._given[0]) != self._text:
            raise self._refusal(0, _ANOTHER)
        for model, given in enumerate(self._given):
            theirs = [key_of(token) for token in given]
            if theirs != mine:
                place = next((at for at, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), 0)
                words = f"the {self._names[model]} cuts the continuation into other tokens than the draft"
                hint = "The gated mixture is defined for models with one tokenizer."
                raise self._refusal(model, f"{words}, from byte {self._starts[place]} on", hint)

    async def _choices(self, model: int, places: Mapping[int, Token | None]) -> dict[int, Token]:
        """Find a model's most probable token at each place. If several are equally probable, ask the model to choose.

        Args:
            model: index of the model.
            places: the places, each with the token to prefer among equally probable tokens; None for no preference.
        """
        found = dict[int, Token]()
        for place, wish in places.items():
            given = self._given[model][place]
            best = self._listed(given)
            wished = [one for one in best if wish is not None and same(one, wish)]
            if wished or len(best) == 1:
                [found[place]] = wished or best
        left = {place: wish for place, wish in places.items() if place not in found}
        if left:
            questions = [
                Question(self._starts[place], () if wish is None else (wish.data,)) for place, wish in left.items()
            ]
            paths = None if self._path is None else [self._path.ids[:place] for place in left]
            with self._located(model):
                proposals = await self._calls.propose(model, self._text, questions, alternatives=1, paths=paths)
            found |= {place: self._choice(model, place, one) for place, one in zip(left, proposals, strict=True)}
        return found

    def _listed(self, given: Token) -> list[Token]:
        """All tokens that share the highest probability at a place; empty if the list does not show them."""
        if _has_no_distribution(given):
            return []
        if self._path is None:
            return most_probable(given)
        first, *others = sorted((given, *given.alternatives), key=lambda one: -(one.prob or 0.0))
        equal = [one for one in others if one.prob == first.prob]
        return [replace(one, alternatives=tuple(others)) for one in (first, *equal)]

    def _choice(self, model: int, place: int, proposal: Proposal | None) -> Token:
        """A model's own token at a place, according to its answer to a question."""
        if proposal is None:
            words = f"the {self._names[model]} could not say what it would write {self._where(place)}"
            raise self._refusal(model, words)
        token = self._known(proposal.tokens[0])
        if token.prob is None or _has_no_distribution(token):
            words = f"the {self._names[model]} would write {readable(token.data)!r} {self._where(place)}"
            raise self._refusal(model, f"{words}, one character of several tokens, which has no distribution", _OTHER)
        return token

    def _token(self, place: int, drafted: Token, heard: Sequence[Token | None], text: str) -> LikelihoodToken:
        """Score one token of the continuation under the gated mixture."""
        verifier = self._at(place)

        def replaces(decision: Decision) -> bool:
            return verifier.replaces(decision.p or 0.0, decision.q or 0.0)

        decisions: list[Decision] = []
        for assistant, choice in enumerate(heard):
            if choice is not None:
                decisions.append(judge(drafted, choice, replaces, assistant=assistant, tie=self._tie))
                decisions[-1].coin = coin_of(verifier)
        replacing = [one for one in decisions if one.fired]
        winner = max(replacing, key=lambda one: one.q or 0.0, default=None)  # the first of equally confident assistants
        model, choice = 0, drafted
        if winner is not None:
            model = 1 + winner.assistant
            choice = heard[winner.assistant] or drafted
        token = self._given[model][place]
        if token.prob is None or _has_no_distribution(token):
            raise self._without_distribution(model, place)
        return LikelihoodToken(
            text=text,
            end=token.end,
            source=self._names[model],
            logprob=math.log(token.prob) if token.prob else -math.inf,
            is_greedy=same(token, choice),
            draft_text=readable(drafted.data),
            draft_prob=drafted.prob or 0.0,
            decisions=tuple(TokenDecision.of(one, self._names[1:], self._verifier) for one in decisions),
        )

    def _at(self, place: int) -> Verifier:
        return verifier_at(self._verifier, Place(self._prompt, self._starts[place]))

    def _without_distribution(self, model: int, place: int) -> UnsupportedError:
        token, name = self._given[model][place], self._names[model]
        if token.end:
            return self._refusal(model, f"the {name} does not report the probability of its end of sequence", _OTHER)
        words = f"{readable(token.data)!r} {self._where(place)} has no distribution of the {name}"
        if place == 0:
            words += ": it begins in the prompt, or is one character of several tokens"
            hint = "End the prompt before a space, and begin the continuation with it."
            return self._refusal(model, words, hint)
        return self._refusal(model, f"{words}: it is one character of several tokens", _OTHER)

    def _where(self, place: int) -> str:
        return f"at byte {self._starts[place]} of the continuation"

    def _refusal(self, model: int, words: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(words, endpoint=self._calls.turns[model].provider.name, hint=hint)

    @contextmanager
    def _located(self, model: int) -> Iterator[None]:
        """Add the model's endpoint to errors."""
        try:
            yield
        except ProviderError as error:
            placed(error, self._calls.turns[model].provider)
            raise
