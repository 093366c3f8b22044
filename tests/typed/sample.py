"""A user's program, for type checkers alone: it is checked against the installed wheel, and never runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal, Self, assert_type

from cosd_api import (
    AgreementVerifier,
    CoLLMVerifier,
    DeferralVerifier,
    DiffVerifier,
    Fusion,
    FusionClosedError,
    FusionError,
    FusionResult,
    FusionStream,
    MatchVerifier,
    RandomVerifier,
    RuleVerifier,
    SettingError,
    SurpriseVerifier,
    TreeVerifier,
    connect,
    fuse,
    fuse_sync,
    log_likelihood_sync,
    probe,
    tune_answers,
)
from cosd_api.extend import Verifier
from cosd_api.types import (
    CustomVerifier,
    Endpoint,
    EndpointEstimate,
    EndpointUsage,
    Estimate,
    FusedToken,
    LikelihoodToken,
    LogLikelihood,
    Range,
    Timings,
    TokenDecision,
)
from cosd_providers import (
    BudgetError,
    BudgetTimeoutError,
    Capabilities,
    DraftEnd,
    Piece,
    ProbeReport,
    Proposal,
    Provider,
    ProviderError,
    ProviderTimeoutError,
    Question,
    RateLimitError,
    ServerInfo,
    Token,
    UnsupportedError,
    Usage,
)
from cosd_providers.contract import Context


async def one_answer() -> str:
    result = await fuse("Q:", draft="http://gpu1:8080", assistant=["http://gpu2:8080", "http://gpu3:8080"])
    assert_type(result, FusionResult)
    return str(result)


async def what_it_can_do() -> bool:
    found = await probe("http://gpu1:8080", prompt="Q:", engine="vllm", timeout=60, add_special_tokens=False)
    assert_type(found, ProbeReport)
    return found.can_draft


def without_async() -> None:
    result = fuse_sync("Q:", draft="http://gpu1:8080", assistant="http://gpu2:8080", stop=["\n"], unit="word")
    assert_type(result, FusionResult)
    fields(result)


def fields(result: FusionResult) -> None:
    assert_type(result.text, str)
    assert_type(result.finish_reason, Literal["stop", "length", "content_filter", "budget", "error"])
    assert_type(result.tokens, tuple[FusedToken, ...])
    assert_type(result.acceptance_rate, float | None)
    assert_type(result.replacements, int | None)
    assert_type(result.usage, dict[str, EndpointUsage])
    assert_type(result.timings, Timings)
    assert_type(result.timings.per_token, float | None)
    assert_type(result.warnings, tuple[str, ...])
    assert_type(result.draft, Endpoint)
    assert_type(result.assistants, tuple[Endpoint, ...])
    assert_type(
        result.settings.verifier,
        RuleVerifier
        | TreeVerifier
        | AgreementVerifier
        | DiffVerifier
        | MatchVerifier
        | RandomVerifier
        | SurpriseVerifier
        | DeferralVerifier
        | CoLLMVerifier
        | CustomVerifier
        | None,
    )
    assert_type(result.settings.unit, Literal["token", "word", "literal"] | None)
    assert_type(result.usage["draft"].completion_tokens, int)
    assert_type(result.model_dump_json(), str)
    assert_type(FusionResult.model_validate_json("{}"), FusionResult)
    for token in result.tokens:
        assert_type(token.draft_prob, float | None)
        assert_type(token.replaced, str | None)
        assert_type(token.decisions, tuple[TokenDecision, ...])


async def many_answers(prompts: Sequence[str]) -> list[str]:
    texts: list[str] = []
    draft = connect(
        "http://gpu1:8080", model="small", api_key="key", headers={"X-Team": "a"}, extra_body={"id_slot": 0}
    )
    assert_type(draft, Provider)
    async with Fusion(
        draft=draft, assistant=connect("http://gpu2:8080"), verifier=RuleVerifier(alpha=0.4), ask="all"
    ) as fusion:
        assert_type(fusion, Fusion)
        async for result in fusion.map(prompts, concurrency=4, max_tokens=100):
            assert_type(result, FusionResult)
            texts.append(result.text)
        async with fusion.stream(prompts[0], stop="\n") as stream:
            assert_type(stream, FusionStream)
            async for token in stream:
                assert_type(token, FusedToken)
                texts.append(token.text)
        assert_type(stream.result, FusionResult)
        assert_type(await fusion.generate(prompts[0]), FusionResult)
        async for answer in fusion.map(prompts, on_error="return", max_requests=40):
            assert_type(answer, FusionResult | ProviderError | SettingError)
    return texts


async def how_likely(prompt: str, text: str) -> float:
    async with Fusion(draft="http://gpu1:8080", assistant="http://gpu2:8080", unit="token") as fusion:
        found = await fusion.log_likelihood(prompt, text, end=True, timeout=60, max_requests=4)
    assert_type(found, LogLikelihood)
    assert_type(found.is_greedy, bool)
    assert_type(found.tokens, tuple[LikelihoodToken, ...])
    other = log_likelihood_sync(prompt, text, draft="http://gpu1:8080", assistant="http://gpu2:8080", end=True)
    return found.total + other.perplexity


async def what_it_costs(prompt: str) -> int:
    async with Fusion(
        draft="http://gpu1:8080",
        assistant="http://gpu2:8080",
        verifier=AgreementVerifier(alpha=0.4),
        on_assistant_error="draft",
    ) as fusion:
        estimate = await fusion.estimate(prompt, max_tokens=100)
        assert_type(estimate, Estimate)
        assert_type(estimate.endpoints, dict[str, EndpointEstimate])
        assert_type(estimate.forecast, bool)
        assert_type(estimate.billed_tokens, Range)
        assert_type(estimate.per_token, float)
        result = await fusion.generate(
            prompt, timeout=60, max_billed_tokens=estimate.billed_tokens.high, on_budget="end"
        )
        assert_type(result.tokens[0].verified, bool)
        assert_type(result.usage["assistant"].strategies, dict[str, int])
    return estimate.billed_tokens.expected


async def what_can_go_wrong() -> float | None:
    try:
        await fuse("Q:", draft="http://gpu1:8080", assistant="http://gpu2:8080")
    except SettingError as error:
        return float(str(error))
    except (FusionClosedError, FusionError):
        return None
    except BudgetTimeoutError:
        return None
    except BudgetError as error:
        assert_type(error.limit, str)
    except ProviderTimeoutError as error:
        assert_type(error.retryable, bool)
    except RateLimitError as error:
        assert_type(error.status, int | None)
    except ProviderError as error:
        assert_type(error.endpoint, str)
        assert_type(error.request_id, str | None)
        assert_type(error.hint, str)
    return None


class Careful:
    """A verifier of the user's own."""

    def replaces(self, p: float, q: float) -> bool:
        return p < 0.3 and q > 0.9

    def contestable(self, p: float) -> bool:
        return p < 0.3

    def explain(self, p: float, q: float) -> str:
        return f"{p} against {q}"


class Constant:
    """A provider of the user's own, which always says the same."""

    @property
    def name(self) -> str:
        return "constant"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def describe(self) -> ServerInfo:
        able = Capabilities(token_ids=False, end_prob=True, tokenize=False, score=False)
        return ServerInfo("constant:", "constant", "constant", None, None, able)

    async def generate(
        self,
        context: Context,
        *,
        max_tokens: int,
        continuation: Any = None,
        alternatives: int = 0,
        temperature: float = 0,
        seed: int | None = None,
        usage: Usage,
    ) -> AsyncGenerator[Token | DraftEnd, None]:
        usage.completion_tokens += 1
        yield Token(b"", 1.0, end=True)
        yield DraftEnd("end")

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
    ) -> list[Proposal | None]:
        return [Proposal(question.start, (Token(b"", 1.0, end=True),)) for question in questions or ()]

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        raise UnsupportedError("no scores", endpoint=self.name)

    async def tokenize(self, text: str) -> list[Piece]:
        raise UnsupportedError("no tokens", endpoint=self.name)


def own_parts() -> FusionResult:
    verifier: Verifier = Careful()
    provider: Provider = Constant()
    return fuse_sync("Q:", draft=provider, assistant=[provider, "http://gpu2:8080"], verifier=verifier)


# Mistakes that a type checker finds: each line would be an unused "ignore" if it did not.


async def mistakes() -> None:
    await fuse("Q:", draft=1, assistant="http://gpu2:8080")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fuse_sync("Q:", draft="a", assistant="b", unit="line")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fuse_sync("Q:", draft="a", assistant="b", verifier=RuleVerifier)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def misspelt_keywords() -> None:
    await fuse("Q:", draft="a", assistant="b", max_token=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await fuse("Q:", draft="a", assistant="b", top_p=0.7)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fuse_sync("Q:", draft="a", assistant="b", head=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fusion = Fusion(draft="a", assistant="b", max_ahed=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fusion.stream("Q:", unit="word")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await fusion.generate("Q:", max_token=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    fusion.map(["Q:"], max_token=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await fusion.estimate("Q:", max_token=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await tune_answers([], draft="a", assistant="b", max_token=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await probe("http://gpu1:8080", engin="vllm")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await probe("http://gpu1:8080", prompt="Q:", strategy="best")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    connect("http://gpu1:8080", engin="vllm")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    connect("http://gpu1:8080", engine="vllm", strategy="best")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
