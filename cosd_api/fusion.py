"""`Fusion`, in which two or more models write one text, and functions for a single answer.

`fuse` and `fuse_sync` return one answer, `log_likelihood` and `log_likelihood_sync` one log-likelihood; each opens and
closes a `Fusion` of its own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, Self, Unpack, overload

from cosd_api.checks import Prompt, check_choice, check_count, check_hedge, check_prompt
from cosd_api.endpoints import Endpoints
from cosd_api.errors import SettingError
from cosd_api.estimate import Estimate, Past, estimate
from cosd_api.likelihood import LogLikelihood, log_likelihood_of
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
from cosd_api.sync import synchronous
from cosd_api.together import Order, together
from cosd_providers.contract import Provider
from cosd_providers.errors import ProviderError

if TYPE_CHECKING:
    from cosd_api.config.file import FusionConfig


class Fusion:
    """A draft model, assistants that judge its text, and a verifier that decides between them.

    A fusion owns the connections to endpoints that are given as URLs, and remembers the properties of the servers. So
    use one fusion for many prompts; it can answer many of them at once. Constructing it does no I/O.

    Args:
        draft: URL of a server, or a provider (`cosd_api.connect`).
        assistant: one URL or provider, or a list of them. Every assistant judges every unit; if several would replace
            it, the most confident one does.
        models: two or more URLs or providers, in place of `draft` and `assistant`, for methods in which all models are
            equal. Results call the first model the draft and the others assistants.
        method: the way to fuse: an object such as `CoSD(verifier=..., unit=...)`, or a name such as `"cosd"` for the
            method with its default settings. `CoSD` is the default; `verifier` and `unit` are short for its arguments.
        verifier: `RuleVerifier()` by default; `RuleVerifier.paper()` has the paper's thresholds. Use
            `AgreementVerifier` for an assistant that does not report the probabilities of its tokens.
        unit: the draft tokens that are judged together: `"token"` (Algorithm 1 to the letter), or `"word"` for models
            with different tokenizers. By default the library compares the tokenizers, and uses `"word"` if in doubt.
        tie: largest difference of two log probabilities that counts as a tie (0.02 by default). An assistant with the
            draft's ids agrees if the draft's token is its second choice and ties with its first. The same model gives
            a token slightly different probabilities when it reads the token and when it writes it; `cosd probe`
            measures the difference. With 0 only equal probabilities tie. Verifiers that replace every differing token
            ignore ties.
        draft_length: number of tokens in a drafting round; each round is verified before the next one starts. By
            default one draft streams without pausing, and verification keeps up with it. This setting changes only the
            cost, never the text.
        ask: `"contestable"` asks an assistant only if its answer could change the text; `"all"` asks about every unit,
            so that the result shows the assistant's answer everywhere. The text is the same.
        on_assistant_error: `"raise"` ends an answer as soon as it has to wait for an assistant that has failed for
            good; the `partial` of the error is the result so far. `"draft"` continues without that assistant: tokens
            that it might have changed have `verified` set to False, and a warning names the first such token and the
            reason. The assistant's answers about later positions are discarded and drafting restarts there, so the
            result depends on where the assistant failed, not on when. An assistant that is down from the start is left
            out of the whole answer. If a failure is temporary, answers that start in the next 30 seconds leave the
            assistant out; then one answer tries it again. An assistant that cannot be used at all (because there is no
            such model, for example) is an error in either mode. An assistant that hangs counts as failed after its
            `connect(timeout=...)`.
        on_special_tokens: what to do if a message contains the text of a special token (`<|im_end|>`). An endpoint
            that takes token ids reads it as text. An endpoint that takes only text reads it as the special token: then
            `"warn"` adds a warning to the result, and `"refuse"` raises before the first token.
        tuning: more requests and drafted tokens in exchange for less time, see `Tuning`. The text is the same.
        temperature: 1 draws every token from the models' own distributions, if the method can; 0 is greedy. It sets
            the method's own `temperature`; the default is the method's, too.

    Attributes:
        settings: the checked settings.
        limits: default limits for each answer, from a settings file.
        endpoints: the servers.

    Raises:
        SettingError: a setting is invalid; the message has the reason.
        cosd_providers.ProviderError: an endpoint failed; every method may raise it.
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
        )
        check_hedge(self.settings.tuning.hedge, self.endpoints.draft)
        self.limits: AnswerOptions = {}
        self._past = Past()

    @classmethod
    def load(cls, path: str | PathLike[str] | FusionConfig, **overrides: Any) -> Self:
        """Create a fusion from a settings file (`FusionConfig` describes its fields), without sending any request.

        Args:
            path: path of a YAML or JSON file, or the parsed content as a `FusionConfig`.
            overrides: arguments of `Fusion`, and limits of an answer, that replace those in the file. A `method`
                replaces the file's method together with all of its settings.

        Raises:
            OSError: the file, or another file that it names, cannot be read.
            SettingError: the file or an override is invalid; for the file, the message has the line and the field.
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
        AnswerLimits.checked(**fusion.limits).seeded(fusion.settings.method)  # only to raise its errors now
        return fusion

    def save(self, path: str | PathLike[str], *, comment: str = "") -> None:
        """Write a settings file for `load` and `cosd fuse --config`.

        The file contains no keys, headers or HTTP clients; `connect` finds keys in the environment. A trained tree or
        gate is written to a separate file in the same folder.

        Args:
            path: path of the file; it is written as JSON if the name ends in `.json`, else as YAML.
            comment: text for comment lines at the top of a YAML file.

        Raises:
            OSError: a file cannot be written.
            SettingError: PyYAML is missing; or a provider, a verifier or an argument of `connect` is an object of your
                own, or `extra_body` contains a key, and nothing is written.
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

        Leaving the block early cancels the requests at every server.

        Args:
            prompt: text that all models continue, or a conversation: a list of messages (`Message`, or dictionaries
                with `role` and `content`), which each model reads through its own chat template. If the last message
                is the assistant's, the models continue it.
            max_tokens: maximum number of tokens in the answer, its end of sequence included; 256 by default.
            stop: one or more strings; the answer ends before the first one that would appear in it.
            timeout: limit in seconds for the whole answer.
            max_requests: limit on generation requests to all endpoints together, retries included.
            max_billed_tokens: limit on tokens read and written by all endpoints together, as the endpoints bill them;
                `cosd_api.budget.Budget` describes the exact count.
            on_budget: what happens at one of these three limits. `"raise"` raises `BudgetError`. `"end"` ends the
                answer with its verified text: `finish_reason` is `"budget"` and `stop_reason` names the limit. If
                the timeout passes before the servers are known, the error is raised in either case.
            seed: seed of the random draws, for methods that draw. The same seed and prompt give the same answer if the
                servers' output is reproducible; each prompt has its own draws. The default is a random seed, which the
                result records.
            own: extra messages for single models in this answer, by name (`"draft"`, `"assistant"`, `"assistant 1"`):
                a string, which becomes a system message, or a list of messages. They precede the conversation, are
                sent only to that model's server, and appear in no result. Messages that `connect(url, system=...,
                messages=...)` gave the model come before them.
            alternatives: number of other tokens to list with each token of the answer (`FusedToken.alternatives`), 0 to
                20. It needs models with the same token ids, and the method `cosd` or `defer`. The list changes neither
                the text nor a decision.

        Raises:
            SettingError: a limit is invalid, or means nothing to the method.
            ProviderError: raised while the stream is read; its `partial` is the result so far, or None before the first
                request.
        """
        refuse_settings(limits, Fusion.stream)
        return self._stream(prompt, self._checked(limits))

    @spell_out_options(AnswerOptions, AnswerLimits)
    async def generate(self, prompt: Prompt, **limits: Unpack[AnswerOptions]) -> FusionResult:
        """Generate a whole answer. It accepts the same arguments and raises the same errors as `stream`."""
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

        `prompts` is read lazily. Leaving the loop cancels the answers in progress. Limits apply to each answer.

        Args:
            prompts: the prompts; `stream` describes a prompt, and the limits.
            concurrency: number of answers in progress at a time. While the next answer in order is slow, up to three
                times as many complete answers wait for their turn.
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
        checked.seeded(self.settings.method)  # only to raise its errors now
        work = (self._generate(prompt, checked) for prompt in prompts)
        async with aclosing(together(work, concurrency, order)) as complete:
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

        CoSD with `unit="token"` writes the most probable token of the *gated mixture*. Its next-token distribution is
        the assistant's if the two models' most probable tokens differ and the verifier replaces, else the draft's. The
        gated mixture is defined for models with one tokenizer.

        Models with the same ids read the draft's encoding of the continuation after their prompts. That encoding
        begins with the white space that their chat templates write before every answer. Other models, and servers that
        take no ids, read prompt and continuation as one text. Each model gets one scoring request, and one more
        question if the tokens that it lists do not show its most probable token. Leaving out an assistant would change
        the distribution, so `on_assistant_error` has no effect here.

        Args:
            prompt: see `stream`; it may be an empty string for models that have a beginning-of-sequence token.
            continuation: the text to score; it may be empty with `end=True`.
            end: whether the answer ends after it; if so, the end of sequence counts as its last token.
            timeout: limit in seconds.
            max_requests: limit on requests to all endpoints together, retries included.
            max_billed_tokens: limit on tokens read and written by all endpoints together, as the endpoints bill them.

        Raises:
            SettingError: the method is not CoSD, or judges words; or an argument is invalid.
            UnsupportedError: an endpoint does not report the data that this needs; or the tokenizers differ, or the
                white space before an answer does; or, for models that read text, the continuation contains a character
                of several tokens, or its first token begins in the prompt: neither has a next-token distribution.
            BudgetError: a limit is reached.
        """
        refuse_settings(limits, Fusion.log_likelihood)
        checked = LikelihoodLimits.checked(**limits)
        context = "" if isinstance(prompt, str) and not prompt else check_prompt(prompt)
        return await log_likelihood_of(self.endpoints, self.settings, context, continuation, checked)

    async def estimate(self, prompt: Prompt, *, max_tokens: int | None = None, **refused: Never) -> Estimate:
        """Estimate the cost of an answer to `prompt` at each endpoint; see `Estimate`.

        No answer is generated. The servers count the tokens of the prompt. Before the first answer they also report
        their properties, for which some servers need a few requests of one token.
        """
        refuse_settings(refused, Fusion.estimate)
        if max_tokens is None:
            max_tokens = self.limits.get("max_tokens", DEFAULT_MAX_TOKENS)
        check_count("max_tokens", max_tokens)
        return await estimate(self.endpoints, self.settings, self._past, check_prompt(prompt), max_tokens)


def _roles(
    draft: str | Provider | None,
    assistant: str | Provider | Sequence[str | Provider] | None,
    models: Sequence[str | Provider] | None,
    method: Method,
) -> tuple[str | Provider, str | Provider | Sequence[str | Provider]]:
    """The draft and the assistants, given under these names or as `models`.

    Raises:
        SettingError: they are given twice or not at all, or the method takes another number of models.
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
    """Fuse one answer with a `Fusion` of its own. It accepts the arguments of `Fusion` and `Fusion.stream`."""
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
    """Compute the log-likelihood of one continuation with a `Fusion` of its own.

    It accepts the arguments of `Fusion` and `Fusion.log_likelihood`.
    """
    refuse_settings(settings, log_likelihood)
    limits: LikelihoodOptions = {}
    own: FusionOptions = {}
    for name, value in settings.items():
        (limits if name in LikelihoodOptions.__annotations__ else own)[name] = value  # type: ignore[literal-required]
    async with Fusion(draft=draft, assistant=assistant, **own) as fusion:
        return await fusion.log_likelihood(prompt, continuation, **limits)


log_likelihood_sync = synchronous(log_likelihood, "log_likelihood_sync")
