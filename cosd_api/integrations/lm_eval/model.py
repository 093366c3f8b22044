"""The model `cosd` for lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

from cosd_api import SettingError
from cosd_api.integrations.harness import ConversationText, Done, HarnessFusion

__all__ = ["FusionLM"]

if TYPE_CHECKING:  # the type checker runs without the harness, so its names are declared here
    tqdm: Any
    _T = TypeVar("_T")

    class LM:
        """The harness's base class for models."""

        cache_hook: Any

    def register_model(name: str) -> Callable[[_T], _T]:
        """Register a model class under a name."""
        ...
else:
    import lm_eval.models  # noqa: F401 - imported first: the harness registers its models only if it has none
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
    from tqdm import tqdm


@register_model("cosd")
class FusionLM(LM):
    """A fusion as a model in lm-evaluation-harness: `lm-eval --model cosd --model_args draft=URL,assistant=URL`.

    The model arguments are the servers (`draft`, `assistant`, `draft_model`, `assistant_model`), the settings of a
    `Fusion` (`method=cool`, `unit=token`, ...), the settings of its method or verifier (`alpha=0.6`), the limits on an
    answer (`timeout`, `max_billed_tokens`, ...), and the arguments below. API keys are read from the environment.

    `generate_until` uses the fusion's method. `loglikelihood` and `loglikelihood_rolling` use the gated mixture
    (`Fusion.log_likelihood`), which is this library's own extension, not part of the paper. It requires CoSD and models
    that share a tokenizer. If a task uses chat templates, every model is sent the messages in its own template.

    Args:
        concurrency: maximum number of requests in progress.
        max_gen_toks: maximum number of tokens in an answer if the task sets no limit.
        max_length: number of tokens in a model's context; `loglikelihood_rolling` cuts longer texts into windows. By
            default, this is the smallest context that a server reports.
        batch_size: ignored, like `max_batch_size` and `device`, because the servers form the batches.
        arguments: the servers, settings and limits.

    Raises:
        SettingError: an argument is invalid, or a task requires something that a fusion does not support.
        ProviderError: a request failed; a note on the error names the request. With `--use_cache`, the next run
            continues from that request.
    """

    def __init__(
        self,
        *,
        concurrency: int = 8,
        max_gen_toks: int = 256,
        max_length: int | None = None,
        batch_size: object = None,  # noqa: ARG002
        max_batch_size: object = None,  # noqa: ARG002
        device: object = None,  # noqa: ARG002
        **arguments: Any,
    ) -> None:
        super().__init__()
        self._fusion = HarnessFusion(
            arguments, concurrency=concurrency, max_gen_toks=max_gen_toks, max_length=max_length
        )

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Answer requests of the form `(context, generation_kwargs)`; return the answers in the same order."""
        with closing(_Progress(self, "generate_until", requests, disable_tqdm)) as progress:
            return self._fusion.generate(progress.given, progress.done, progress.where)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return each continuation's log-likelihood, and whether the fusion would write it after its context."""
        with closing(_Progress(self, "loglikelihood", requests, disable_tqdm)) as progress:
            return self._fusion.log_likelihoods(progress.given, progress.done, progress.where)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each whole text."""
        with closing(_Progress(self, "loglikelihood_rolling", requests, disable_tqdm)) as progress:
            return self._fusion.rolling([text for (text,) in progress.given], progress.done, progress.where)

    def apply_chat_template(
        self,
        chat_history: list[dict[str, str]],
        add_generation_prompt: bool = True,  # noqa: ARG002 - False if the last message is the assistant's
    ) -> str:
        """Keep the messages as they are, because each server renders them with its own template.

        If the last message is the assistant's, the servers continue it.
        """
        return ConversationText.of(chat_history)

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name in the harness's request cache; all models share it, because prompts are messages."""
        return "cosd-messages"

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Describe the chat templates, for the harness's results: each model has its own."""
        if isinstance(chat_template, str):
            words = "each model has its own chat template, which its server applies"
            raise SettingError(f"the chat template {chat_template!r} cannot be chosen: {words}. Leave its name out")
        return "each model's own" if chat_template else ""

    def get_model_info(self) -> Mapping[str, Any]:
        """Return the requests and tokens so far, by endpoint. The harness adds them to its results as `config`."""
        return {"cosd_usage": self._fusion.used}


class _Progress:
    """Progress bar that also stores each answer in the harness's cache as soon as the answer is known."""

    def __init__(self, model: FusionLM, kind: str, requests: Sequence[Any], quiet: bool) -> None:
        self.given: list[Any] = [request.args for request in requests]
        self._requests = requests
        self._model = model
        self._kind = kind
        self._bar = tqdm(total=len(requests), desc=kind, disable=quiet)
        self.done: Done = self._done

    def _done(self, at: int, answer: Any) -> None:
        self._model.cache_hook.add_partial(self._kind, self.given[at], answer)
        self._bar.update()

    def where(self, at: int) -> str:
        """Name the task and the document of a request."""
        request = self._requests[at]
        return f"task {request.task_name}, document {request.doc_id}"

    def close(self) -> None:
        self._bar.close()
