"""The class `Fusion`, in which two or more models write one text, and functions for a single answer.

`fuse` and `fuse_sync` return one answer; `log_likelihood` and `log_likelihood_sync` return one log-likelihood. Each
call opens and closes its own `Fusion`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, Self, Unpack, overload

from cosd_api.checks import Prompt, check_choice, check_count, check_prompt
from cosd_api.common.bounded_map import Order, bounded_map
from cosd_api.common.sync import synchronous
from cosd_api.endpoints import Endpoints
from cosd_api.errors import SettingError
from cosd_api.estimate import Estimate, Past, estimate
from cosd_api.methods.base import Method, method_class
from cosd_api.result import FusionResult
from cosd_api.settings import (
    DEFAULT_MAX_TOKENS,
    AnswerLimits,
    AnswerOptions,
    FuseOptions,
    FusionOptions,
    FusionSettings,
    LikelihoodLimits,
    LikelihoodOptions,
    LogLikelihoodOptions,
    refuse_settings,
    spell_out_options,
)
from cosd_api.stream import FusionStream
from cosd_providers.contract import Provider
from cosd_providers.errors import ProviderError

if TYPE_CHECKING:
    from cosd_api.config.file import FusionConfig
    from cosd_api.likelihood import LogLikelihood


class Fusion:
    """A draft model, assistants that judge its text, and a verifier that decides between them.

    A fusion owns the connections to endpoints that are given as URLs, and remembers the properties of the servers. Use
    one fusion for many prompts; it can answer many of them at once. Creating a `Fusion` does no I/O.

    Args:
        draft: a server's URL, or a provider (see `cosd_api.connect`).
        assistant: one URL or provider, or a list of them. Every assistant judges every unit; if several assistants
            would replace a unit, the text of the most confident one is used.
        models: two or more URLs or providers, in place of `draft` and `assistant`, for methods in which all models have
            the same role. In results, the first model is called the draft, and the other models are called assistants.
        method: the fusion method: an object such as `CoSD(verifier=..., unit=...)`, or a name such as `"cosd"`, or
            `"path/to/file.py:Class"`, for the method with its default settings. The default is `CoSD`; the arguments
            `verifier` and `unit` are shortcuts for the arguments of `CoSD` with the same names.
        verifier: decides whether an assistant's word replaces the draft's. The default is `RuleVerifier()`;
            `RuleVerifier.paper()` has the paper's thresholds. Use `AgreementVerifier` for an assistant that does not
            report the probabilities of its tokens.
        unit: the draft tokens that are judged together: `"token"` (exactly Algorithm 1), or `"word"` for models with
            different tokenizers. By default, the library compares the tokenizers, and chooses `"word"` if in doubt.
            `"literal"` is the paper's equation 3 as printed: each draft token is compared as text with the token that
            the assistant writes after the text cut there. It is never chosen by default, because such cuts mislead an
            assistant.
        tie: largest difference of two log probabilities that counts as a tie (0.02 by default). An assistant that
            shares the draft's token ids also agrees if the draft's token is its second choice and ties with its first
            choice. The same model gives a token slightly different probabilities when it reads the token and when it
            writes it; `cosd probe` measures the difference. With `tie=0`, only equal probabilities tie. Verifiers that
            replace every differing token ignore ties.
        draft_length: number of tokens in a drafting round; each round is verified before the next one starts. By
            default, the draft streams without pausing while its earlier tokens are verified. This setting changes only
            the cost, never the text.
        ask: `"contestable"` asks an assistant only if its answer could change the text; `"all"` asks about every unit,
            and the result then contains the assistant's answer for every unit. The text is the same in both cases.
        on_draft_error: `"raise"` ends an answer when the draft has failed, after any retries. `"assistant"` lets the
            first living assistant of the list write on alone from the text that was judged; its tokens are unverified.
            The draft takes over again as soon as its server answers and still has the same model; see
            `FusionResult.seams`. For the method `cosd`.
        on_assistant_error: `"raise"` ends an answer as soon as it needs an assistant that has failed, after any
            retries; the error's `partial` is the result so far. `"draft"` continues without that assistant: tokens that
            the assistant might have changed have `verified` set to False, and a warning names the first such token and
            the reason. The assistant's answers about later positions are discarded and drafting restarts at the first
            such token, so the result depends on where the assistant failed, not on when. An assistant that is down from
            the start is left out of the whole answer. If a failure is temporary, answers that start in the next 30
            seconds leave the assistant out; the next answer after that tries it again. An assistant that cannot be used
            at all (for example, because the server does not have the model) causes an error in either mode. An
            assistant that hangs counts as failed after its `connect(timeout=...)`.
        on_special_tokens: the reaction if a message contains the text of a special token, such as `<|im_end|>`. An
            endpoint that accepts token ids reads this text as ordinary text. An endpoint that accepts only text reads
            it as the special token; in this case, `"warn"` adds a warning to the result, and `"refuse"` raises an error
            before the first token.
        max_ahead: limit on the number of tokens that are drafted beyond the judged text, which does not change the
            text. By default, a draft that continues its own token ids runs ahead as far as its tokens are likely to be
            kept, given how often the drafts of this fusion are replaced; other drafts have no limit.
        temperature: 1 draws every token from the models' own distributions, if the method supports it; 0 is greedy.
            This argument overrides the method's own `temperature`, which is the default.

    Attributes:
        settings: the checked settings.
        limits: default limits for each answer, from a settings file.
        endpoints: the servers.

    Raises:
        SettingError: a setting is invalid; the message gives the reason.
        cosd_providers.ProviderError: an endpoint failed. Every method may raise this error.
    """

    @spell_out_options(FusionOptions, FusionSettings)
    def __init__(
        self,
        *,
        draft: str | Provider | None = None,
        assistant: str | Provider | Sequence[str | Provider] | None = None,
        models: Sequence[str | Provider] | None = None,
        **settings: Unpack[FusionOptions],
    ) -> None:
        refuse_settings(settings, Fusion)
        self.settings = FusionSettings.checked(**settings)
        self.endpoints = Endpoints(
            *_roles(draft, assistant, models, self.settings.method),
            unit=self.settings.unit,
            method=self.settings.method,
            spares=self.settings.on_assistant_error == "draft",
            fails_over=self.settings.on_draft_error == "assistant",
        )
        self.limits: AnswerOptions = {}
        self._past = Past()

    @classmethod
    def load(cls, path: str | PathLike[str] | FusionConfig, **overrides: Any) -> Self:
        """Create a fusion from a settings file (`FusionConfig` describes its fields), without sending any request.

        Args:
            path: path of a YAML or JSON file, or the parsed content as a `FusionConfig`.
            overrides: arguments of `Fusion` and limits of an answer, which replace the values in the file. An
                overriding `method` replaces the file's method together with all of its settings.

        Raises:
            OSError: the file, or another file that it names, cannot be read.
            SettingError: the file or an override is invalid. If the file is invalid, the message gives the line and the
                field.
        """
        from cosd_api.config.file import FusionConfig  # noqa: PLC0415 - imports every method

        config = path if isinstance(path, FusionConfig) else FusionConfig.load(path)
        limits = {name: overrides.pop(name) for name in [*overrides] if name in AnswerOptions.__annotations__}
        refuse_settings(overrides, cls)
        given: dict[str, Any] = {**config.options()}
        if (method := overrides.get("method")) is not None:
            accepts = method_class(method).accepts if isinstance(method, str) else getattr(method, "accepts", ())
            given = {name: value for name, value in given.items() if name in {*accepts} - {"verifier", "unit"}}
        if overrides.get("models") is not None:
            roles: dict[str, Any] = {}
        else:
            roles = {**config.servers(overrides)}
        fusion = cls(**{**roles, **given, **overrides})
        fusion.limits = {**config.answer_options(), **limits}  # type: ignore[typeddict-item]
        AnswerLimits.checked(**fusion.limits).seeded(fusion.settings.method)  # only to raise its errors early
        return fusion

    def save(self, path: str | PathLike[str], *, comment: str = "") -> None:
        """Write a settings file for `load` and `cosd fuse --config`.

        The file contains no API keys, headers or HTTP clients; `connect` finds the keys in the environment. A trained
        tree or gate is written to a separate file in the same folder.

        Args:
            path: path of the file, which is written as JSON if its name ends in `.json`, else as YAML.
            comment: text that is written as a comment at the top of a YAML file.

        Raises:
            OSError: a file cannot be written.
            SettingError: a provider, a verifier or an argument of `connect` is an object of your own, or `extra_body`
                contains a key; nothing is written.
        """
        from cosd_api.config.saving import config_of  # noqa: PLC0415 - imports every method

        target = Path(path).absolute()
        config, trained = config_of(self.settings, self.limits, self.endpoints.draft, self.endpoints.assistants, target)
        for file, part in trained.items():
            part.save(file)
        config.save(target, comment=comment)

    async def __aenter__(self) -> Self:
        await self.endpoints.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.endpoints.__aexit__(*exc)

    def __repr__(self) -> str:
        names = ", ".join(provider.name for provider in self.endpoints.assistants)
        method = self.settings.method
        chosen = f"verifier={self.settings.verifier!r}" if method.hoisted else f"method={method!r}"
        return f"Fusion(draft={self.endpoints.draft.name}, assistant={names}, {chosen})"

    @spell_out_options(AnswerOptions, AnswerLimits)
    def stream(self, prompt: Prompt, **limits: Unpack[AnswerOptions]) -> FusionStream:
        """Stream an answer token by token, each token as soon as it is final::

            async with fusion.stream(prompt) as stream:
                async for token in stream:
                    print(token.text, end="")
            stream.result

        Leaving the block early cancels the requests to all servers.

        Args:
            prompt: text that all models continue, or a conversation: a list of messages (`Message`, or dictionaries
                with `role` and `content`), which each model reads through its own chat template. If the last message
                has the role `assistant`, the models continue it.
            max_tokens: maximum number of tokens in the answer, including the end of sequence; 256 by default.
            stop: one or more strings; the answer ends before the first of these strings that would appear in it.
            timeout: limit in seconds for the whole answer.
            max_requests: limit on generation requests to all endpoints together, retries included.
            max_billed_tokens: limit on the tokens that all endpoints together read and write, as they bill them;
                `cosd_api.budget.Budget` describes how they are counted.
            on_budget: the reaction when `timeout`, `max_requests` or `max_billed_tokens` is reached. `"raise"` raises
                `BudgetError`. `"end"` ends the answer with its verified text; then `finish_reason` is `"budget"`, and
                `stop_reason` names the limit. If the timeout passes before the servers are identified, the error is
                raised in either case.
            seed: seed of the random draws, for methods that draw. The same seed and prompt give the same answer if the
                servers' output is reproducible. With the same seed, different prompts have different draws. The default
                is a random seed, which the result records.
            own: extra messages for single models in this answer, by name (`"draft"`, `"assistant"`, `"assistant 1"`): a
                string, which becomes a system message, or a list of messages. These messages precede the conversation,
                are sent only to that model's server, and appear in no result. Messages from `connect(url, system=...,
                messages=...)` come before them.
            alternatives: number of other tokens to list with each token of the answer (`FusedToken.alternatives`), from
                0 to 20. The models must have the same token ids, and the method must be `cosd` or `defer`. The list
                affects neither the text nor the decisions.
            response_format: the format of the answer: a JSON schema, a pydantic model, a compiled regular expression, a
                list of choices, or a `response_format` of OpenAI's API. All models are restricted to it, and text
                without a choice is written without asking them; see docs/exact.md. The value is `FusionResult.parsed`.
                Requires the method `cosd` and the extra `structured`.

        Raises:
            SettingError: a limit is invalid, or has no meaning for the method.
            ProviderError: raised while the stream is read. Its `partial` is the result so far, or None before the first
                request.
        """
        refuse_settings(limits, Fusion.stream)
        return self._stream(prompt, self._checked(limits))

    @spell_out_options(AnswerOptions, AnswerLimits)
    async def generate(self, prompt: Prompt, **limits: Unpack[AnswerOptions]) -> FusionResult:
        """Generate a whole answer, with the same arguments and errors as `stream`."""
        refuse_settings(limits, Fusion.generate)
        return await self._generate(prompt, self._checked(limits))

    def _checked(self, limits: AnswerOptions) -> AnswerLimits:
        merged: AnswerOptions = {**self.limits, **limits}
        return AnswerLimits.checked(**merged)

    def _stream(self, prompt: Prompt, limits: AnswerLimits) -> FusionStream:
        return FusionStream(self.endpoints, self.settings, check_prompt(prompt), limits, self._past)

    async def _generate(self, prompt: Prompt, limits: AnswerLimits) -> FusionResult:
        async with self._stream(prompt, limits) as stream:
            return await stream.finished()

    @overload
    def map(
        self,
        prompts: Iterable[Prompt],
        *,
        concurrency: int = 8,
        order: Order = "given",
        on_error: Literal["raise"] = "raise",
        **limits: Unpack[AnswerOptions],
    ) -> AsyncGenerator[FusionResult, None]: ...
    @overload
    def map(
        self,
        prompts: Iterable[Prompt],
        *,
        concurrency: int = 8,
        order: Order = "given",
        on_error: Literal["return"],
        **limits: Unpack[AnswerOptions],
    ) -> AsyncGenerator[FusionResult | ProviderError | SettingError, None]: ...
    @spell_out_options(AnswerOptions, AnswerLimits)
    async def map(
        self,
        prompts: Iterable[Prompt],
        *,
        concurrency: int = 8,
        order: Order = "given",
        on_error: Literal["raise", "return"] = "raise",
        **limits: Unpack[AnswerOptions],
    ) -> AsyncGenerator[FusionResult | ProviderError | SettingError, None]:
        """Answer many prompts, up to `concurrency` at once.

        `prompts` is read lazily. Leaving the loop cancels the answers in progress. The limits apply to each answer
        separately.

        Args:
            prompts: the prompts; `stream` describes the possible prompts and the limits.
            concurrency: maximum number of answers in progress at a time. If the next answer to yield is slow, up to `3
                * concurrency` complete answers may wait for it.
            order: `"given"` keeps the order of the prompts; `"completed"` yields each answer as soon as it is complete.
            on_error: `"raise"` ends the loop with the first error. `"return"` yields the error in place of the answer:
                a `ProviderError`, whose `partial` is the result so far, or the `SettingError` of an invalid prompt.
        """
        refuse_settings(limits, Fusion.map)
        if isinstance(prompts, str):
            raise SettingError("map takes several prompts; for one, use generate or stream")
        check_count("concurrency", concurrency)
        check_choice("order", order, Order)
        check_choice("on_error", on_error, Literal["raise", "return"])
        checked = self._checked(limits)
        checked.seeded(self.settings.method)  # only to raise its errors early
        work = (self._generate(prompt, checked) for prompt in prompts)
        async with aclosing(bounded_map(work, concurrency, order)) as complete:
            async for answer in complete:
                error = answer.exception()
                if isinstance(error, ProviderError | SettingError) and on_error == "return":
                    yield error
                else:
                    yield answer.result()

    @spell_out_options(LikelihoodOptions, LikelihoodLimits)
    async def log_likelihood(
        self, prompt: Prompt, continuation: str, **limits: Unpack[LikelihoodOptions]
    ) -> LogLikelihood:
        """Compute the log-likelihood of `continuation` under the distribution that the fusion decodes greedily.

        CoSD with `unit="token"` writes the most probable token of the *gated mixture*. The gated mixture's next-token
        distribution is the assistant's distribution if the models' most probable tokens differ and the verifier chooses
        the assistant's token; otherwise, it is the draft's distribution. The gated mixture is defined only for models
        that share a tokenizer.

        Models that share the same token ids each read their own prompt, followed by the draft's encoding of the
        continuation. That encoding begins with any white space that their chat templates write before every answer.
        If the ids differ or a server accepts no ids, the models read the prompt and the continuation as one text. Each
        model receives one scoring request, and a second request if the tokens that it lists do not show its most
        probable token. Leaving out an assistant would change the distribution, so `on_assistant_error` has no effect on
        this method.

        Args:
            prompt: see `stream`; may be an empty string if the models have a beginning-of-sequence token.
            continuation: the text to score; it may be empty with `end=True`.
            end: whether the answer ends after the continuation; if so, the end of sequence is scored as its last token.
            timeout: limit in seconds.
            max_requests: limit on requests to all endpoints together, retries included.
            max_billed_tokens: limit on the tokens that all endpoints together read and write, as they bill them.

        Raises:
            SettingError: the method is not CoSD, or it judges words; or an argument is invalid.
            UnsupportedError: an endpoint does not report the necessary data; or the models differ in their tokenizers
                or in the white space before an answer. For models that read text, the error is also raised if the
                continuation contains a character that consists of several tokens, or if its first token begins in the
                prompt, because such tokens have no next-token distribution.
            BudgetError: a limit is reached.
        """
        from cosd_api.likelihood import log_likelihood_of  # noqa: PLC0415 - only needed here

        refuse_settings(limits, Fusion.log_likelihood)
        checked = LikelihoodLimits.checked(**limits)
        context = "" if isinstance(prompt, str) and not prompt else check_prompt(prompt)
        return await log_likelihood_of(self.endpoints, self.settings, context, continuation, checked)

    async def estimate(
        self, prompt: Prompt, *, max_tokens: int | None = None, length: int | None = None, **refused: Never
    ) -> Estimate:
        """Estimate the cost of an answer to `prompt` at each endpoint; see `Estimate`.

        No answer is generated. The servers count the prompt's tokens. If they have not been discovered yet, they are
        also asked for their properties, which takes a few requests of one token on some servers.

        Args:
            prompt: see `stream`.
            max_tokens: limit of the answer; see `stream`.
            length: number of tokens in the answer that the expected cost is for, at most `max_tokens`. The default is
                the mean of this fusion's past answers, or `max_tokens` before the first answer.
            refused: other arguments are refused.
        """
        refuse_settings(refused, Fusion.estimate)
        if max_tokens is None:
            max_tokens = self.limits.get("max_tokens", DEFAULT_MAX_TOKENS)
        check_count("max_tokens", max_tokens)
        if length is not None and check_count("length", length) > max_tokens:
            raise SettingError(f"length must be at most max_tokens, which is {max_tokens}, not {length}")
        return await estimate(self.endpoints, self.settings, self._past, check_prompt(prompt), max_tokens, length)


def _roles(
    draft: str | Provider | None,
    assistant: str | Provider | Sequence[str | Provider] | None,
    models: Sequence[str | Provider] | None,
    method: Method,
) -> tuple[str | Provider, str | Provider | Sequence[str | Provider]]:
    """The draft and the assistants, whether they were given as `draft` and `assistant` or as `models`.

    Raises:
        SettingError: models are missing or given in both ways, or the method needs a different number of models.
    """
    if models is not None:
        if draft is not None or assistant is not None:
            raise SettingError("models are the draft and the assistants: give either models, or draft and assistant")
        if not method.symmetric:
            words = f"models is for methods in which all models are equal, and in {method.name!r} one drafts"
            raise SettingError(f"{words}: give draft and assistant")
        if isinstance(models, str | Provider) or len(models) < 2:
            raise SettingError("models must be two or more URLs or providers")
        draft, *assistant = models
    elif draft is None or assistant is None:
        missing = " and ".join(name for name, one in (("draft", draft), ("assistant", assistant)) if one is None)
        more = ", or all models as models=[...]" if method.symmetric else ""
        are = "are" if " and " in missing else "is"
        words = "give the URL of a server, or a provider (see cosd_api.connect)"
        raise SettingError(f"{missing} {are} missing: {words}{more}")
    count = 1 + len(assistant) if isinstance(assistant, Sequence) and not isinstance(assistant, str) else 2
    method.check_models(count)
    return draft, assistant


@spell_out_options(FuseOptions, FusionSettings, AnswerLimits)
async def fuse(
    prompt: Prompt,
    *,
    draft: str | Provider | None = None,
    assistant: str | Provider | Sequence[str | Provider] | None = None,
    models: Sequence[str | Provider] | None = None,
    **settings: Unpack[FuseOptions],
) -> FusionResult:
    """Generate one fused answer with its own `Fusion`. Accepts the arguments of `Fusion` and `Fusion.stream`."""
    refuse_settings(settings, fuse)
    limits: AnswerOptions = {}
    own: FusionOptions = {}
    for name, value in settings.items():
        (limits if name in AnswerOptions.__annotations__ else own)[name] = value  # type: ignore[literal-required]
    async with Fusion(draft=draft, assistant=assistant, models=models, **own) as fusion:
        return await fusion.generate(prompt, **limits)


fuse_sync = synchronous(fuse, "fuse_sync")


@spell_out_options(LogLikelihoodOptions, FusionSettings, LikelihoodLimits)
async def log_likelihood(
    prompt: Prompt,
    continuation: str,
    *,
    draft: str | Provider,
    assistant: str | Provider | Sequence[str | Provider],
    **settings: Unpack[LogLikelihoodOptions],
) -> LogLikelihood:
    """Compute the log-likelihood of one continuation with its own `Fusion`.

    Accepts the arguments of `Fusion` and `Fusion.log_likelihood`.
    """
    refuse_settings(settings, log_likelihood)
    limits: LikelihoodOptions = {}
    own: FusionOptions = {}
    for name, value in settings.items():
        (limits if name in LikelihoodOptions.__annotations__ else own)[name] = value  # type: ignore[literal-required]
    async with Fusion(draft=draft, assistant=assistant, **own) as fusion:
        return await fusion.log_likelihood(prompt, continuation, **limits)


log_likelihood_sync = synchronous(log_likelihood, "log_likelihood_sync")
