"""What SGLang's ids say: their bytes.

The server shows a token's text only decoded alone: a part of a character is U+FFFD there, and a SentencePiece
vocabulary loses the space before a word. Its text of a whole answer is right. So a token that the two agree on is
known; any other is decoded behind a plain token, together with those before it that leave its character open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from cosd_providers.concurrency import concurrently
from cosd_providers.contract import Token
from cosd_providers.greedy import Choice, is_plain
from cosd_providers.sglang.asking import Asking
from cosd_providers.sglang.wire import Run, Server
from cosd_providers.usage import Usage

__all__ = ["Strings"]

_LOST = "\ufffd"
_LONGEST = 6  # tokens that are decoded together at once, to finish a character


class Strings:
    """What the ids of one server say; what was found out once is kept in `Server`.

    Args:
        asking: the server's requests.
        server: what it is.
        usage: is billed.
    """

    def __init__(self, asking: Asking, server: Server, usage: Usage) -> None:
        self._asking = asking
        self._server = server
        self._usage = usage

    def note(self, ids: Sequence[int], texts: Sequence[str], text: str) -> None:
        """Takes over what needs no asking: tokens whose texts, each decoded alone, join to the text of all."""
        if self._asking.tokenizer is not None or _LOST in text or "" in texts:
            return
        if len(texts) == 1 and text == " " + texts[0]:
            texts = [text]
        if "".join(texts) == text:
            for token_id, one in zip(ids, texts, strict=True):
                self._server.spelt.setdefault((token_id,), one.encode())

    async def walk(self, ids: Sequence[int], run: Run = ()) -> list[Run]:
        """The run of open ids before each token, and after the last one.

        Args:
            ids: some ids, in order.
            run: those before them that leave a character open.
        """
        ahead = range(1, _LONGEST)
        await self.know([*((token_id,) for token_id in ids), *((*run, *ids[:more]) for more in ahead if run)])
        runs = [run]
        for at, token_id in enumerate(ids):
            if run and self._says((*run, token_id)) is _UNKNOWN:
                await self.know((*run, *ids[at : at + more]) for more in ahead)
            run = self.after(run, token_id)
            runs.append(run)
        return runs

    async def spelt(self, ids: Sequence[int]) -> list[bytes]:
        """What ids say that a text was encoded to: special tokens by their names.

        Of a token that leaves a character open, only that is known and what is whole before that character: it is
        given one byte of it, or none where an earlier token was.
        """
        runs = await self.walk(ids)
        found: list[bytes] = []
        held: list[tuple[int, int]] = []  # open tokens, and how many bytes there are up to their end
        for run, token_id in zip(runs, ids, strict=False):
            if token_id in self._server.specials:
                found.append(self._server.specials[token_id].encode())
            elif (data := self._says((*run, token_id))) is None:
                held.append((len(found), self._server.begun[*run, token_id] + 1))
                found.append(b"")
            else:
                done = 0
                for at, end in held:
                    found[at], done = data[done:end], max(done, end)
                found.append(data[done:])
                held = []
        return found

    def after(self, run: Run, token_id: int) -> Run:
        """The run of open ids after a token, which is known."""
        if token_id in self._server.specials:
            return run
        return (*run, token_id) if self._says((*run, token_id)) is None else ()

    def open(self, ids: Iterable[int]) -> Run:
        """The open ids at the end of known ones."""
        run: Run = ()
        for token_id in ids:
            run = self.after(run, token_id)
        return run

    def choice(self, run: Run, token_id: int, prob: float | None) -> Choice:
        """A known token as scoring takes it.

        Args:
            run: the open ids before it.
            token_id: its id.
            prob: its probability.
        """
        if token_id in self._server.specials:
            end = token_id in self._server.ends
            name = self._server.specials[token_id]
            shown = name.encode() if self._server.shows and not end else b""
            return Choice(token_id, Token(shown, prob, end=end, name=(name or None) if end else None))
        data = self._says((*run, token_id))
        assert data is not _UNKNOWN
        return Choice(token_id, Token(data or b"", prob), open=data is None)

    def other(self, token_id: int, prob: float, text: str, *, spaced: bool) -> Choice:
        """A token that was not taken and may not be known; nothing is asked for it.

        Args:
            token_id: its id.
            prob: its probability.
            text: its text, decoded alone.
            spaced: whether such texts keep the space before a word.
        """
        if self._says((token_id,)) is not _UNKNOWN:
            return self.choice((), token_id, prob)
        if (tokenizer := self._asking.tokenizer) is not None:
            return Choice(token_id, Token(tokenizer.token(token_id) or b"", prob))
        return Choice(token_id, Token(text.encode(), prob), sure=spaced and is_plain(text))

    def ended(self, token_id: int) -> None:
        """An answer was over with this token."""
        if token_id not in self._server.ends:
            self._server.specials.setdefault(token_id, "")
            self._server.ends.add(token_id)

    async def know(self, runs: Iterable[Run]) -> None:
        """Finds out what runs of ids say that are not known yet."""
        new = [run for run in dict.fromkeys(runs) if self._says(run) is _UNKNOWN]
        if not new:
            return
        if (tokenizer := self._asking.tokenizer) is not None:
            found = {run[-1]: tokenizer.token(run[-1]) for run in new}
            self._server.spelt.update({(n,): data for n, data in found.items() if data is not None})
            await self._specials({n: "" for n, data in found.items() if data is None})
            return
        for run, text in zip(new, await self._decode(new, specials=False), strict=True):
            data = text.replace(_LOST, "").encode()  # what is lost within a text can never become a character
            self._server.spelt[run] = None if text.endswith(_LOST) else data
            self._server.begun[run] = len(data)
        silent = [run for run in new if len(run) == 1 and self._server.spelt[run] == b""]
        shown = await self._decode(silent, specials=True) if silent else []
        await self._specials({run[0]: text.strip() for run, text in zip(silent, shown, strict=True) if text})

    async def _decode(self, runs: Sequence[Run], *, specials: bool) -> list[str]:
        """The text of each run, behind a plain token."""
        asked = [[self._server.anchor, *run] for run in runs]
        texts = await self._asking.decode(self._server.info.model, asked, specials=specials)
        return [text.removeprefix(self._server.anchored) for text in texts]

    async def _specials(self, names: dict[int, str]) -> None:
        """Notes tokens that are no text: does an answer end with them?"""
        new = [n for n in names if n not in self._server.specials]
        ends = await concurrently([partial(self._asking.ends, self._server, n, self._usage) for n in new])
        for token_id, end in zip(new, ends, strict=True):
            if end:
                self._server.ends.add(token_id)
            self._server.specials[token_id] = names[token_id]

    def _says(self, run: Run) -> bytes | None:
        """The bytes of a run; None where they are no whole characters; `_UNKNOWN` before it is known."""
        if run[-1] in self._server.specials:
            return b""
        if self._asking.tokenizer is not None:
            run = run[-1:]
        return self._server.spelt.get(run, _UNKNOWN)


_UNKNOWN = b"\xff unknown"
"""Stands for what was not found out; no text is like that."""
