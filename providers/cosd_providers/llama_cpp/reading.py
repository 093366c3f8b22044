"""How the answers of llama.cpp's `/completion` are read: as positions for scoring, and a stream as a draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cosd_providers.contract import ServerInfo, Token
from cosd_providers.errors import InvalidRequestError, ResponseError, UnsupportedError
from cosd_providers.greedy import Choice, Draft, Position, check_greedy, check_own, prob, with_alternatives
from cosd_providers.llama_cpp.wire import Answer, Entry, bill
from cosd_providers.parsing import parse
from cosd_providers.text import whole
from cosd_providers.usage import Usage

__all__ = ["Reader", "Server"]


@dataclass(frozen=True, slots=True)
class Server:
    """What was learned of a server.

    Attributes:
        info: its card.
        ends: the ids that end a sequence, with their names; one is added when it is first seen.
        visible: an id whose text is whole: its event is never held back.
    """

    info: ServerInfo
    ends: dict[int, str | None]
    visible: int

    def entries(self, answer: Answer, *, first: bool = True) -> Sequence[Entry]:
        """The tokens of an answer or event with their probabilities, or the reason why there are none."""
        entries = answer.completion_probabilities
        if not entries and first:
            words = "the server gives no probabilities with its tokens, although asked (n_probs)"
            raise UnsupportedError(words, endpoint=self.info.endpoint)
        if not entries or any(not entry.top_logprobs and not entry.logprob for entry in entries):
            raise self.speculative()
        return entries

    def speculative(self) -> UnsupportedError:
        """The server hides the probabilities of what it has speculated."""
        words = "the server decodes speculatively and then does not tell the probabilities of its tokens"
        hint = "Start it without a draft model (--model-draft, --spec-type)."
        return UnsupportedError(words, endpoint=self.info.endpoint, hint=hint)

    def greedy(self, entry: Entry, alternatives: int) -> Choice:
        """A token of a draft, which has to be the most probable one, with so many alternatives."""
        own = self._own(entry)
        check_greedy(own.token.prob, (prob(item.logprob) for item in entry.top_logprobs), self.info.endpoint)
        if not alternatives:
            return own
        others = [self.choice(item) for item in entry.top_logprobs if item.id != entry.id]
        position = Position(own, [other for other in others if not _unsure(other.token)])
        return replace(own, token=with_alternatives(position, alternatives))

    def _own(self, entry: Entry) -> Choice:
        """The token that the server took."""
        own = self.choice(entry)
        check_own(own.token.prob, self.info.endpoint)
        return own

    def choice(self, entry: Entry) -> Choice:
        """A token as scoring takes it."""
        if entry.id in self.ends:
            return Choice(entry.id, Token(b"", prob(entry.logprob), end=True, name=self.ends[entry.id]))
        return Choice(entry.id, Token(bytes(entry.bytes), prob(entry.logprob)))

    def positions(self, answer: Answer) -> list[Position]:
        """What the server went through, up to the first token that it hides, or to the end of the context.

        There a server with --context-shift forgets what stands at the start, and goes on.
        """
        entries = self.entries(answer) if answer.completion_probabilities else ()
        if answer.stop_type == "eos" and answer.tokens:
            self.ends.setdefault(answer.tokens[-1], None)
        positions: list[Position] = []
        for token_id, entry in zip(answer.tokens[: self._room(answer)], entries, strict=False):
            if entry.id != token_id:
                break
            positions.append(Position(self._own(entry), [self.choice(item) for item in entry.top_logprobs]))
        return positions

    def goes_on(self, answer: Answer) -> bool:
        """Whether there is a first token that is the model's own, shown or not."""
        return self._room(answer) != 0 and (bool(answer.tokens) or not answer.truncated)

    def _room(self, answer: Answer) -> int | None:
        """How many tokens fit after what was read, where that is known."""
        return max(self.info.context - answer.tokens_evaluated, 0) if self.info.context else None

    def hidden_position(self, answer: Answer) -> Position:
        """The position before a forced token. Of equally probable ones the hidden one was the server's pick."""
        top = [self.choice(item) for item in self.entries(answer)[0].top_logprobs]
        best = [choice for choice in top if choice.token.prob == top[0].token.prob]
        hidden = [choice for choice in best if whole(choice.token.data) < len(choice.token.data)]
        return Position(min(hidden or best, key=lambda choice: choice.id), top)

    def check_read(self, answer: Answer) -> None:
        """An error where the server had nothing to go on from."""
        if not answer.tokens_evaluated:
            words = "prompt and text are empty, and the model has no beginning-of-sequence token to go on from"
            raise InvalidRequestError(words, endpoint=self.info.endpoint)

    def broken(self, words: str) -> ResponseError:
        """An answer that is not what it should be."""
        return ResponseError(words, endpoint=self.info.endpoint, retryable=True)


class Reader:
    """Reads one stream of `/completion` into a draft, each token with so many `alternatives`.

    Attributes:
        done: nothing further of the stream is needed.
        hidden: the next raw token of the draft is one that the server does not show.
        full: the context is full.
    """

    def __init__(self, server: Server, draft: Draft, alternatives: int) -> None:
        self.done = False
        self.hidden = False
        self.full = False
        self._server = server
        self._draft = draft
        self._alternatives = alternatives
        self._seen = 0
        self._held: Choice | None = None
        self._last: Answer | None = None

    def feed(self, data: dict[str, Any]) -> list[Token]:
        """Takes one event; gives the whole tokens that it completes."""
        event = self._last = parse(Answer, data, self._server.info.endpoint)
        tokens: list[Token] = []
        if event.completion_probabilities or not event.stop:
            entries = self._server.entries(event, first=not self._seen)
            self._seen += len(entries)
            if event.tokens_predicted == self._seen and not self._beyond(event):
                for entry in entries:
                    tokens += self._release()
                    self._take(self._server.greedy(entry, self._alternatives), tokens)
        if event.tokens_predicted != self._seen:
            tokens += self._release()
            self.done = self.hidden = True
        elif event.stop:
            tokens += self._finish(event)
        return tokens

    def bill(self, usage: Usage) -> None:
        """Counts what was read and written so far."""
        if self._last is not None:
            bill(usage, self._last)

    def _take(self, choice: Choice, tokens: list[Token]) -> None:
        if _unsure(choice.token):
            self._held = choice  # perhaps an end that was not known yet: the next event tells
        else:
            tokens += self._draft.feed(choice.id, choice.token)

    def _release(self) -> list[Token]:
        """The token that was held back, as an ordinary one."""
        held, self._held = self._held, None
        return self._draft.feed(held.id, held.token) if held is not None else []

    def _finish(self, event: Answer) -> list[Token]:
        """The last event."""
        self.done = True
        self._server.check_read(event)
        if event.stop_type == "word":
            words = "the server stops at a text of its own (--reverse-prompt)"
            raise UnsupportedError(words, endpoint=self._server.info.endpoint)
        if event.stop_type == "eos" and self._held is not None:
            self._server.ends[self._held.id] = None
            self._held = Choice(self._held.id, Token(b"", self._held.token.prob, end=True))
        tokens = self._release()
        context = self._server.info.context
        self.full = event.truncated or bool(context and event.tokens_evaluated + self._seen >= context)
        if not (self._seen or self.full):  # it would be asked again for ever
            raise self._server.broken("the server stopped without a token and without a reason")
        if event.stop_type == "eos" and not self._draft.over:
            words = "the end of sequence is shown as text; start the server without --special"
            raise ResponseError(words, endpoint=self._server.info.endpoint)  # and so it would be once more
        return tokens

    def _beyond(self, event: Answer) -> bool:
        """Whether the server went on by forgetting what stands at the start of its context."""
        context = self._server.info.context
        if context and event.tokens_evaluated + event.tokens_predicted > context:
            self.done = self.full = True
        return self.full


def _unsure(token: Token) -> bool:
    """Whether it is perhaps an end that is not known yet."""
    data = token.data
    return not token.end and (not data or (data[:1] == b"<" and data[-1:] == b">"))
