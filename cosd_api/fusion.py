"""`Fusion`: two or more models that write one text. `fuse` and `fuse_sync` give one answer without it.

`log_likelihood` and `log_likelihood_sync` do the same for one log-likelihood.
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

    A fusion owns the connections to endpoints given as URLs and remembers properties of the servers, so keep one for
    many prompts. It can answer many prompts at once. Constructing it does no I/O.

    Args:
        draft: URL of a server, or a provider (`cosd_api.connect`).
        assistant: the same, or several of them: every assistant judges every unit, and the most confident of the
            assistants that would replace the unit does so.
        models: instead of both, two or more models, for methods in which all models are equal. In results the first is
            called the draft, and the others assistants.
        method: the way to fuse: an object such as `CoSD(verifier=..., unit=...)`, or its name, for its defaults.
            `verifier` and `unit` are short for the arguments of `CoSD`, the default.
        verifier: `RuleVerifier()` by default; `RuleVerifier.paper()` has the paper's thresholds. `AgreementVerifier`
            is for an assistant that does not report the probabilities of its tokens.
        unit: the draft tokens judged together: `"token"` (Algorithm 1 to the letter), or `"word"` for models with
            different tokenizers. By default the two encodings of a test text are compared; `"word"` when in doubt.
        tie: difference of two log probabilities within which an assistant that has the draft's ids is in agreement,
            if the draft's token is its second choice. The same model gives a token slightly different probabilities
            when it reads and when it writes the token; `cosd probe` measures the difference. By default 0.02. 0 counts
            equal probabilities only. Verifiers that replace every differing token have no tie.
        draft_length: draft in rounds of this many tokens, each followed by its verification. By default one draft
            streams on and verification keeps up with it. This setting changes the cost only: the text is the same.
        ask: `"contestable"` asks an assistant only if its answer could change the text; `"all"` asks about every unit,
            which shows its answers everywhere. The text is the same.
        on_assistant_error: `"raise"` ends an answer with the error when it waits for an assistant that has failed for
            good; the error's `partial` is the result so far. `"draft"` continues without the assistant: tokens that it
            might have changed have `token.verified` False, and a warning has the first place and the reason. Its
            answers about later positions are discarded and drafting restarts there, so the result depends on the place
            of the failure, not its time. An assistant that is down from the start is left out of the whole answer; an
            assistant that cannot be used at all (no such model, say) is an error either way. If a failure may pass, the
            answers of the next 30 seconds leave out the assistant; then one answer tries it again. An assistant that
            hangs has failed after its `connect(timeout=...)`.
        on_special_tokens: if a message holds a special token of a model as text (`<|im_end|>`), it stays text with an
            endpoint that takes token ids. If an endpoint takes only text, its model reads it as the token: `"warn"`
            adds a warning to the result, `"refuse"` raises before the first token.
        tuning: requests and drafted tokens traded for time, see `Tuning`. The text is the same.
        temperature: 1 draws every token from the models' own distributions, by methods that can; 0 is greedy. The
            setting is the method's own, as is its default: see the method's settings.

    Attributes:
        settings: as given, checked.
        limits: the defaults for an answer's limits, from a settings file.
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
        """Make a fusion of a settings file (`FusionConfig` describes its fields). Sends nothing yet.

        Args:
            path: the path of the file, in YAML or JSON; or its content, a `FusionConfig`.
            overrides: arguments of `Fusion`, and limits of an answer, that replace the file's. A `method` replaces the
                file's method with all of its settings.

        Raises:
            OSError: the file, or a file that it names, cannot be read.
            SettingError: it is invalid, or an override is; the message has the file, the line and the field.
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
        AnswerLimits.checked(**fusion.limits).seeded(fusion.settings.method)  # refuses
        return fusion

    def save(self, path: str | PathLike[str], *, comment: str = "") -> None:
        """Write a settings file that `load` reads, and that `cosd fuse --config` takes.

        Keys, headers and HTTP clients are not in it: `connect` finds keys in the environment. A trained tree or gate is
        written beside it, as a file of its own.

        Args:
            path: YAML, or JSON if the name ends in `.json`.
            comment: lines at the top of the file, in YAML.

        Raises:
            OSError: a file cannot be written.
            SettingError: a provider, a verifier or an argument of `connect` is an object of your own, or `extra_body`
                holds a key: nothing is written. Or PyYAML is missing.
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
        """Stream an answer token by token, each as it becomes final::

            async with fusion.stream(prompt) as stream:
                async for token in stream:
                    print(token.text, end="")
            stream.result

        Leaving the block early cancels the requests at every server.

        Args:
            prompt: text that all models continue; or a conversation, a list of messages (`Message`, or dictionaries
                with `role` and `content`), which each model reads through its own chat template. A last message of the
                assistant is continued.
            max_tokens: of the answer, its end of sequence included; 256 by default.
            stop: strings; the answer ends before the first one.
            timeout: seconds for the whole answer.
            max_requests: generation requests to all endpoints together, retries included.
            max_billed_tokens: tokens read and written by all endpoints together, as they bill them; see
                `cosd_api.budget.Budget` for the exact count.
            on_budget: at one of these three limits `"raise"` raises `BudgetError`; `"end"` ends the answer with its
                verified text (`finish_reason="budget"`, and `stop_reason` names the limit), unless no server is known
                yet.
            seed: of the random draws, if the method draws. The same seed and prompt give the same answer from servers
                that repeat themselves, and each prompt has draws of its own. By default a random seed, which the result
                records.
            own: messages of single models for this answer, by name (`"draft"`, `"assistant"`, `"assistant 1"`): text is
                a system message, or a list of messages. They precede the conversation, go to that model's server alone,
                and are in no result. The messages of `connect(url, system=..., messages=...)` precede them.
            alternatives: other tokens to list with each token of the answer (`FusedToken.alternatives`), 0 to 20, if
                `cosd` (or `defer`) judges models with the same token ids. They change neither the text nor a decision.

        Raises:
            SettingError: a limit is invalid, or means nothing to the method.
            ProviderError: while reading; its `partial` is the result so far, None before the first request.
        """
        refuse_settings(limits, Fusion.stream)
        return self._stream(prompt, self._checked(limits))

    @spell_out_options(AnswerOptions, AnswerLimits)
    async def generate(self, prompt: Prompt, **limits: Unpack[AnswerOptions]) -> FusionResult:
        """Generate a whole answer. Arguments and errors are the same as in `stream`."""
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

        `prompts` is read as needed. Leaving the loop cancels the answers in progress. Limits apply to each answer.

        Args:
            prompts: see `stream`, as are the limits.
            concurrency: answers in progress at a time, also while an earlier answer is slow: up to three times as many
                complete answers wait for their turn.
            order: `"given"` keeps the order of the prompts; `"completed"` gives each answer as soon as it is complete.
            on_error: `"raise"` ends the loop with the first error; `"return"` gives a `ProviderError` (its `partial` is
                the result so far), or the `SettingError` of an invalid prompt, in place of the answer.
        """
        refuse_settings(limits, Fusion.map)
        if isinstance(prompts, str):
            raise SettingError("map takes several prompts; for one, use generate or stream")
        check_count("concurrency", concurrency)
        check_choice("order", order, Order)
        check_choice("on_error", on_error, Literal["raise", "return"])
        checked = self._checked(limits)
        checked.seeded(self.settings.method)  # refuses
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
        """The log-likelihood of `continuation` after `prompt`, under the distribution that the fusion decodes greedily.

        CoSD with `unit="token"` writes the most probable token of the *gated mixture*: the assistant's distribution
        if the two models' most probable tokens differ and the verifier replaces, else the draft's. It is defined for
        models with one tokenizer. Models with the same ids read the draft's encoding of the continuation after their
        prompts, and after the white space that their chat templates write before every answer; other models, and
        servers that take no ids, read prompt and continuation as one text. Each model gets one scoring request, and one
        question more if the tokens that it lists leave its most probable token open. Without an assistant it would be
        another distribution, so `on_assistant_error` means nothing here.

        Args:
            prompt: see `stream`; empty text for models that have a beginning-of-sequence token.
            continuation: text; it may be empty with `end=True`.
            end: whether the answer ends after it: the end of sequence then counts as its last token.
            timeout: seconds.
            max_requests: requests to all endpoints together, retries included.
            max_billed_tokens: tokens read and written by all endpoints together, as they bill them.

        Raises:
            SettingError: the method is not CoSD, or judges words; or an argument is invalid.
            UnsupportedError: an endpoint does not report the needed data; the tokenizers, or that white space, differ;
                or, after text, a place has no distribution: one character of several tokens, or a token that begins in
                the prompt.
            BudgetError: a limit is reached.
        """
        refuse_settings(limits, Fusion.log_likelihood)
        checked = LikelihoodLimits.checked(**limits)
        context = "" if isinstance(prompt, str) and not prompt else check_prompt(prompt)
        return await log_likelihood_of(self.endpoints, self.settings, context, continuation, checked)

    async def estimate(self, prompt: Prompt, *, max_tokens: int | None = None, **refused: Never) -> Estimate:
        """Estimate the cost of an answer to `prompt` at each endpoint: see `Estimate`.

        Nothing is generated. The servers count the tokens of the prompt, and at first report their properties (some by
        a few requests of one token).
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
    """The draft and the assistants, as they were given or as `models`.

    Raises:
        SettingError: they were given twice, or not at all, or more or fewer than the method takes.
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
    """Fuse one answer: open and close a `Fusion` for it. It takes the arguments of `Fusion` and `Fusion.stream`."""
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
    """The log-likelihood of one continuation: open and close a `Fusion` for it.

    It takes the arguments of `Fusion` and `Fusion.log_likelihood`.
    """
    refuse_settings(settings, log_likelihood)
    limits: LikelihoodOptions = {}
    own: FusionOptions = {}
    for name, value in settings.items():
        (limits if name in LikelihoodOptions.__annotations__ else own)[name] = value  # type: ignore[literal-required]
    async with Fusion(draft=draft, assistant=assistant, **own) as fusion:
        return await fusion.log_likelihood(prompt, continuation, **limits)


log_likelihood_sync = synchronous(log_likelihood, "log_likelihood_sync")
