"""Adapter for any server that speaks OpenAI's protocol, over `/v1/completions` or over messages.

These servers accept text only, and each server reports its tokens in its own way. `logprobs` finds the bytes of the
tokens, and `dialects` lists the other differences. These differences have the following consequences:

- A draft has no `continuation`; the next draft starts from the text of the response.
- Questions are sent as a list of prompts, as single prompts, or by echo, which scores the whole text in one request.
  With a local tokenizer, an echo also answers questions about places in the middle of the text, provided that the
  encoding of the text before the place is a prefix of the whole text's encoding. Without a tokenizer, an echo answers
  only at the end of the text. All other places are sent as prompts.
- A server without log probabilities can only agree or disagree, word by word (`no_logprobs`).
- Every server can draw at temperature 1, but only a few are known to draw from the model's own distribution
  (`Dialect.sampling`). All other servers draw in their own way, and may draw different tokens for the same seed.
- A server may hide tokens that leave a character unfinished, as llama.cpp does. The probability of the token that
  completes the character is then unknown (None). The separate adapter for llama.cpp can find the probability.
- If the route for raw text may wrap prompts in a chat template (`Dialect.templates`), the adapter checks before the
  first use that a prompt reaches the model unchanged. With `api="chat"`, it checks that a partial answer keeps its
  trailing white space.
- A conversation is either rendered with the user's own template and sent as raw text, or sent unchanged over the route
  for messages (`chat`).
- Most servers report the usage of a stream in the last event. If a stream is closed early, the tokens received are
  billed, and the prompt with the number that the server reported for it before, or with an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self, Unpack

from cosd_providers.chat.leading_space import led
from cosd_providers.chat.templates import Template
from cosd_providers.contract import Capabilities, Context, Proposal, Question, ServerInfo, Token
from cosd_providers.engine import Engine, EngineOptions, ServerFacts, no_probs
from cosd_providers.engines.openai.client import OWNED, OpenAIClient, OpenAIFacts, Prefix
from cosd_providers.engines.openai.conversations import ChatRouteRenderer, no_partial
from cosd_providers.engines.openai.dialects import Dialect, dialect_of
from cosd_providers.engines.openai.discovery import check_tokenizer, discover, unbegun
from cosd_providers.engines.openai.echo import Echo, cannot_score, end_at
from cosd_providers.engines.openai.no_logprobs import AGREE, Agreement
from cosd_providers.engines.openai.probe_client import CompletionsProbeClient, probe_client
from cosd_providers.engines.openai.proposals import Proposing
from cosd_providers.engines.openai.text_drafts import Drafting
from cosd_providers.engines.openai.wire import Conversation
from cosd_providers.greedy import answer, within
from cosd_providers.http.keys import with_key
from cosd_providers.http.transport import MANY_IDLE
from cosd_providers.messages import Message, OnSpecialTokens, RenderedPrompt, after_own
from cosd_providers.sampling import DraftOptions
from cosd_providers.strategies import counted
from cosd_providers.usage import Usage


class OpenAICompatible(Engine[ServerFacts]):
    """A model served by an API like OpenAI's. See `contract.Provider`.

    If the server returns no log probabilities, the text of each event counts as one token. If the server is not known
    to draw from the model's own distribution, drawn tokens are treated in the same way, because their probabilities
    would be meaningless.

    Args:
        url: the server's URL; a trailing `/v1` is ignored.
        tokenizer: the model's own tokenizer, in any form that `tokenizers.load_tokenizer` accepts. It is used for
            `tokenize`, for counting tokens, and for `strategy="echo"`.
        dialect: the kind of server: a key of `dialects.DIALECTS`, or a `Dialect`.
        api: `"completions"` sends the prompt to the model unchanged. `"chat"` sends the prompt as a user's message, and
            the response so far as the start of the answer. `"messages"` is like `"chat"`, but continues no answer and
            requests no probabilities. The default comes from the dialect.
        context: size of the model's context in tokens, prompt and answer together, if the server does not report it.
        strategy: the kind of request for proposals (`strategies.Strategy`). The default is `"list"` if the server
            accepts lists, and otherwise `"singles"`. All strategies return the same answers. Without a `tokenizer`,
            `"echo"` answers only at the end of the text.
        options: as in `engine.Engine`. `model` is required if the server has several models, or does not list them.

    Raises:
        ValueError: the dialect or the strategy is unknown, or `extra_body` sets a field that the fusion controls.
    """

    strategies = ("echo", "list", "singles")

    def __init__(
        self,
        url: str,
        *,
        tokenizer: object = None,
        dialect: str | Dialect = "openai",
        api: Literal["completions", "chat", "messages"] | None = None,
        context: int | None = None,
        strategy: Literal["echo", "list", "singles"] | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        known = dialect_of(dialect)
        wanted = known.api if api is None else api
        if wanted not in ("completions", "chat", "messages"):
            words = "'completions', which gives the model raw text, 'chat', which gives it messages and continues its"
            words += " answers, or 'messages', which continues nothing"
            raise ValueError(f"there is no api={wanted!r}; it is {words}")
        api = "chat" if wanted == "messages" else wanted
        if api == "chat" and strategy in ("echo", "list"):
            raise ValueError(f"strategy={strategy!r} needs api='completions': messages go one by one")
        key, headers = with_key(known.key_header, options.get("api_key"), options.get("headers"))
        owned = OWNED | {*known.greedy, *known.whole, *(known.continues or ())}
        more: EngineOptions = {**options, "api_key": key, "headers": headers}
        base = url.strip().rstrip("/").removesuffix("/v1")
        super().__init__(base, owned=owned, strategy=strategy, tokenizer=tokenizer, **more)
        if known.keep_alive and (known.engine != "openai" or url.startswith("https:")):
            self._transport.idle = MANY_IDLE  # an unknown server may use a thread for each connection
        self._api: str = wanted
        self._context = context
        partial = wanted != "messages"
        self._client = OpenAIClient(self._transport, known, api, self._tokenizer, self._extra, partial=partial)
        self._echo = Echo(self._client)
        self._listing = known.models
        self._renderer = ChatRouteRenderer(self._client)

    def __repr__(self) -> str:
        engine = self._client.dialect.engine
        return f"OpenAICompatible({self._transport.endpoint!r}, model={self._model!r}, dialect={engine!r})"

    async def describe(self) -> ServerInfo:
        """Find out the model and its context, and test whether prompts reach it unchanged and the server can score.

        The tests run only once. They generate a few tokens, which are not billed.
        """
        info = await super().describe()
        scores, listed = await self._scores(Usage()), self._listed(self._client.most)
        score_top_k = listed if scores and self._echo.lists else 0
        texts = self._client.facts.texts
        able = replace(info.capabilities, score=scores, top_k=listed, score_top_k=score_top_k, texts=texts)
        return replace(info, capabilities=able)

    async def _draft(self, context: Context, max_tokens: int, options: DraftOptions, usage: Usage) -> Drafting:
        client = self._client
        if context.text and not client.partial:
            raise no_partial(client.endpoint)
        own_way = options.sampled and not client.samples
        return Drafting(client.without_probs() if own_way else client, context, usage, options, max_tokens)

    async def propose(
        self, context: Context, questions: Sequence[Question] | None, *, alternatives: int = 0, usage: Usage
    ) -> list[Proposal | None]:
        """Propose with the chosen strategy; see `contract.Provider`.

        `questions=None` is possible only with a tokenizer, or if the server scores text.
        """
        await self.facts()
        client = self._client
        if not client.partial:
            raise no_partial(self._transport.endpoint)
        if client.facts.probs:
            options: Any = {"strategy": self._strategy, "alternatives": self._listed(alternatives)}
            return await Proposing(client, context, usage, echo=self._echo, **options).answer(questions)
        if questions is None or not all(question.word for question in questions):
            raise no_probs("logprobs", self._transport.endpoint, hint=AGREE)
        found = await answer(questions, Agreement(client, context, usage).ask)
        return counted(found, "list" if len(questions) > 1 and client.facts.lists else "singles", usage)

    async def score(self, context: Context, *, alternatives: int = 0, end: bool = False, usage: Usage) -> list[Token]:
        """Score a text in one request, if the server has passed the test; see `contract.Provider`.

        Without a beginning-of-sequence token, the first token has no probability (None). The end of sequence has a
        probability if the server lists it. If it is not listed, one more request asks for the longest list that the
        server allows.
        """
        await self.facts()
        if not await self._scores(usage):
            raise cannot_score(self._transport.endpoint)
        whole, listed = Prefix.of(context), self._listed(alternatives)
        if not whole.text:
            return [await self._end(whole, listed, usage)] if end else []
        scored = await self._echo.score(whole, usage, listed)
        tokens = within(scored.tokens(listed), len(whole.prompt.encode()))
        if not end:
            return tokens
        last = end_at(scored.after, listed)
        return [*tokens, await self._end(whole, listed, usage) if last.prob is None else last]

    async def _end(self, whole: Prefix, listed: int, usage: Usage) -> Token:
        """Look up the end of sequence after a text in the longest list that the server returns."""
        client, most = self._client, self._client.most - 1
        answer = await client.one(whole, 1, usage, alternatives=most)
        positions = client.positions(answer.choices[0], most)
        return end_at(positions[0] if positions else None, listed)

    def _listed(self, alternatives: int) -> int:
        """The number of alternatives to return: 0 unless the lists are known to contain the most probable tokens."""
        ranked = self._client.dialect.ranked and self._client.facts.probs
        return min(alternatives, self._client.most - 1) if ranked else 0

    async def render_prompt(
        self, messages: Sequence[Message], *, on_special_tokens: OnSpecialTokens = "warn"
    ) -> RenderedPrompt:
        """Return the prompt that makes the model answer a conversation; see `messages.ChatProvider`."""
        await self.facts()
        if self._client.api == "completions":
            return await super().render_prompt(messages, on_special_tokens=on_special_tokens)
        whole = after_own(self.own_messages, messages)
        around, prompt, lead, warnings = await self._renderer.begin(self, whole, on_special_tokens)
        view = await self._for_chat(around)
        return led(view, lead, prompt, warnings) if lead else RenderedPrompt(view, prompt, warnings)

    async def _for_chat(self, conversation: Conversation | None = None) -> Self:
        """Return a view of this adapter within a conversation, in which special tokens are text."""
        view = copy(self)
        view._client = self._client.of_chat(conversation or Conversation())
        return view

    def use_template(self, template: Template) -> None:
        """Render conversations with this template.

        Raises:
            ValueError: the server renders conversations itself.
        """
        if self._client.api == "chat":
            raise ValueError("chat_template needs api='completions': over the chat route the server renders messages")
        super().use_template(template)

    async def begun(self, prompt: str) -> str:
        """Strip the beginning of sequence, which the server adds to every text, from a rendered prompt."""
        return await unbegun(self._client, prompt)

    def connect_options(self) -> dict[str, str]:
        """The options that `connect` needs, in addition to the engine, to recreate this adapter."""
        return {**super().connect_options(), "dialect": self._client.dialect.engine, "api": self._api}

    async def probe_client(self) -> CompletionsProbeClient:
        """Return a client without checks, for the probe."""
        await self.facts()
        return probe_client(self._client, self._transport)

    async def snapshot(self) -> dict[str, Any]:
        """Test `echo`, and return the facts about the server, including the result of the test, for `restore`."""
        await self.facts()
        await self._scores(Usage())
        return await self._kept(self._client.facts, self._client.facts.model)

    async def discovered(self) -> ServerFacts:
        """Return the facts about the server, which are found at the first use (not billed) or restored."""
        return await self._found.get(self._discover)

    async def _discover(self) -> ServerFacts:
        client, tokenizer = self._client, self._client.tokenizer
        facts, dialect = await self._taken_up(OpenAIFacts), client.dialect
        if facts is None:
            facts = await discover(client, self._transport, self._model, self._context)
        else:
            client.facts = facts
            if self._context is not None:
                facts.context = self._context
            if tokenizer is not None and tokenizer.name != facts.tokenizer:
                await check_tokenizer(client, tokenizer)
                facts.tokenizer = tokenizer.name
        able = Capabilities(
            token_ids=False,
            end_prob=dialect.end_prob if client.api == "completions" else dialect.chat_end_prob,
            tokenize=tokenizer is not None,
            score=False,  # tested in `describe`, and when a score is requested
            probs=facts.probs,
            sampling=client.samples,
            draws=True,
            continues=client.partial,
        )
        return ServerFacts(ServerInfo(client.endpoint, dialect.engine, facts.model, None, facts.context, able))

    async def _scores(self, usage: Usage) -> bool:
        """Test, at the first call, whether the server reports the probabilities of a given text's tokens."""
        return self._client.api == "completions" and self._client.facts.probs and await self._echo.works(usage)
