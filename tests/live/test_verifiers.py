"""Two real llama.cpp servers under each verifier: the fused text is the naive reference's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from itertools import takewhile

import httpx
import pytest

from cosd_api import AgreementVerifier, DiffVerifier, Fusion, FusionResult, RandomVerifier, SurpriseVerifier
from cosd_api.alignment import Unit
from cosd_api.apps.demo.questions import sample
from cosd_api.apps.demo.servers import Pair
from cosd_api.extend import Place, Verifier
from cosd_api.verification import needs_of, verifier_at
from naive import over_http as naive
from naive import reference, reference_paths
from naive.surprised import draft_q
from support.drawn import partly
from support.near_ties import CLOSE, tied

pytestmark = [pytest.mark.live, pytest.mark.timeout(400)]

MAX_TOKENS = 40
MAY_DIFFER = 2  # answers of 20: a server's digits change with what it does beside them
PROMPTS = [question.prompt for question in sample("mixed", 20, seed=31)]


def placed(verifier: Verifier, prompt: str) -> Callable[..., Callable[[float, float], bool]]:
    """The verifier where a token begins."""
    digest = blake2b(prompt.encode(), digest_size=16).digest()
    size = len(prompt.encode())

    def here(model: naive.HttpModel, before: bytes, ours: reference.Tok) -> Callable[[float, float], bool]:
        known = draft_q(model, before, ours, verifier) if isinstance(verifier, SurpriseVerifier) else None
        return verifier_at(verifier, Place(digest, len(before) - size, draft_q=known)).replaces

    return here


@pytest.fixture(scope="module")
def models(pair: Pair) -> Iterator[dict[str, naive.HttpModel]]:
    """The two servers as the naive reference sees them; what it asked once it remembers."""
    with httpx.Client(timeout=60) as client:
        yield {name: naive.HttpModel(url, client) for name, url in pair.items()}


@pytest.mark.parametrize("count", partly([3, 20]))
@pytest.mark.parametrize(
    "verifier",
    [
        AgreementVerifier(alpha=0.6),
        DiffVerifier(tau=0.1),
        RandomVerifier(rate=0.25, seed=1),
        SurpriseVerifier(gamma=0.2),
    ],
    ids=lambda one: one.kind,
)
@pytest.mark.parametrize("direction", partly([("sums", "facts"), ("facts", "sums")]))
async def test_the_naive_reference_writes_the_same(
    pair: Pair, models: dict[str, naive.HttpModel], direction: tuple[str, str], verifier: Verifier, count: int
) -> None:
    draft, assistant = direction
    unit: Unit = "literal" if isinstance(verifier, SurpriseVerifier) else "word"
    async with Fusion(draft=pair[draft], assistant=pair[assistant], verifier=verifier, unit=unit) as fusion:
        results = [result async for result in fusion.map(PROMPTS[:count], max_tokens=MAX_TOKENS)]
    assert sum(result.replacements or 0 for result in results) > 0
    excused = 0
    for prompt, result in zip(PROMPTS[:count], results, strict=True):
        wanted = naively(prompt, models[draft], models[assistant], verifier, unit)
        assert result.trace.replay() == result.text
        if (result.text.encode(), result.finish_reason) != (wanted.text, wanted.finish_reason):
            pairs = (models[draft], models[assistant])
            assert undecided(prompt.encode(), pairs, result, wanted.text), (prompt, result.text, wanted.text)
            excused += 1
    assert excused <= MAY_DIFFER


def naively(
    prompt: str, draft: naive.HttpModel, assistant: naive.HttpModel, verifier: Verifier, unit: Unit
) -> reference.Fused | reference_paths.Fused:
    """The naive answer: token by token after text, or in words, each model on its own ids."""
    if unit == "literal":
        return reference.fuse(
            prompt.encode(),
            draft,
            [assistant],
            reference.rule(),
            unit="token",
            max_tokens=MAX_TOKENS,
            needs_q=needs_of(verifier).q,
            placed=placed(verifier, prompt),
        )
    digest = blake2b(prompt.encode(), digest_size=16).digest()
    asked = [naive.PathModel(one, prompt) for one in (draft, assistant)]
    return reference_paths.Reference(
        b"",
        asked[0],
        asked[1:],
        lambda at, p, q: verifier_at(verifier, Place(digest, at)).replaces(p, q),
        contestable=lambda at, p: verifier_at(verifier, Place(digest, at)).contestable(p),
        max_tokens=MAX_TOKENS,
        tie=0.02,
    ).fuse()


def undecided(
    prompt: bytes, pair: tuple[naive.HttpModel, naive.HttpModel], result: FusionResult, wanted: bytes
) -> bool:
    """Test whether two answers part in a word where a model, or the verifier, is undecided within rounding."""
    text, verifier = result.text.encode(), result.settings.verifier
    common = bytes(one for one, _ in takewhile(lambda two: two[0] == two[1], zip(text, wanted, strict=False)))
    at, word, distances = 0, common.rfind(b" "), list[float]()
    for token in result.tokens:
        if word <= at + len(token.data) and at <= len(common):
            for one in token.decisions:
                p, q, draft_q = one.draft_prob or 0.0, one.prob or 0.0, one.draft_text_prob
                match verifier:
                    case AgreementVerifier(alpha=alpha):
                        distances.append(p - alpha)
                    case DiffVerifier(tau=tau):
                        distances.append(q - p - tau)
                    case SurpriseVerifier(gamma=gamma, beta=beta) if draft_q is not None:
                        distances += [draft_q - gamma, q - beta * p]
                    case _:
                        pass
        at += len(token.data)
    return tied(prompt, pair, (text, wanted)) or min(map(abs, distances), default=1.0) < CLOSE
