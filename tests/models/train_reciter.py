"""Train the model `reciter` of the tests: it writes what `recitals.py` holds, in characters cut into tokens.

    PYTHONPATH=examples:tests python tests/models/train_reciter.py [FOLDER]    # two minutes; by default into here

Needs what `examples/train_small_models.py` needs. With the same PyTorch on the same processor, the same files result.
"""

import math
import random
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from small_chat import ChatForm
from small_documents import IGNORED
from small_llama import Shape, SmallLlama, TokenizerKind, token_id, train_tokenizer
from small_llama_files import write_gguf, write_hf
from tokenizers import Tokenizer, models
from torch import Tensor
from torch.nn.functional import cross_entropy
from train_small_models import in_half_precision, optimizers_for, rate_at

import recitals

KIND = TokenizerKind(258, "gpt-2", specials=("</s>", "<s>"), start="<s>")  # all bytes, nothing merged yet
CONTEXT, STEPS, SEED = 512, 800, 3

# Which bytes become one token, in order of rank: two of four, three of four, a space and the first byte, the end of one
# character and the beginning of the next, a letter and the first byte of another, a whole letter.
MERGES = (
    *((b"R", b"e"), (b"c", b"i"), (b"t", b"e"), (b"Re", b"ci"), (b"Reci", b"te")),
    *((b" ", b"\xf0"), (b"\x9f", b"\x9a"), (b"\x9f\x9a", b"\x80"), (b"\xf0", b"\x9f"), (b"\x99", b"\x82")),
    *((b"\xe6", b"\x97"), (b"\xa5", b"\xe6"), (b"\x9c", b"\xac"), (b"\xe3", b"\x83"), (b"\xe2", b"\x80")),
    *((b" ", b"\xec"), (b" ", b"\xed"), (b"\xe0", b"\xb8"), (b"t", b"\xc3"), (b"\xc3", b"\xaf")),
)

# A user's message is a prompt without its colon.
CHAT = ChatForm(
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}{{ m['content'] + ':' }}"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] + '\\n\\n' }}{% endif %}{% endfor %}",
    tokens=(),
    end=KIND.end,
    system=False,
)


class Poem(NamedTuple):
    """A text to learn; `last` are bytes after it that are no text, `weight` is its part in the loss."""

    prompt: str
    text: str
    last: bytes = b""
    weight: float = 1.0
    ends: bool = True


def poems() -> list[Poem]:
    """Everything to learn."""
    result = [Poem(prompt, text) for prompt, text in recitals.CERTAIN.items()]
    for text in recitals.UNSURE_TEXTS:
        weight = math.prod(sum(p for s, p in part.items() if s in text) for part in recitals.UNSURE_PARTS)
        result.append(Poem(recitals.UNSURE_PROMPT, text, weight=4 * weight))
    result.append(Poem(recitals.BROKEN_PROMPT, recitals.BROKEN_TEXT, recitals.BROKEN_END))
    return [*result, Poem(recitals.ENDLESS_PROMPT, recitals.endless(CONTEXT), ends=False)]


def spelled(data: bytes) -> str:
    """Bytes as the vocabulary spells them: every byte is a printable character."""
    others = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
    return "".join(chr(256 + others.index(n) if n in others else n) for n in data)


def make_tokenizer() -> Tokenizer:
    """The tokenizer: its merges are given, not trained."""
    tokenizer = train_tokenizer(KIND, [])
    vocabulary = tokenizer.get_vocab()
    merges = [(spelled(left), spelled(right)) for left, right in MERGES]
    vocabulary |= {left + right: len(vocabulary) + n for n, (left, right) in enumerate(merges)}
    tokenizer.model = models.BPE(vocabulary, merges)
    return tokenizer


def encoded(tokenizer: Tokenizer, poem: Poem, cut: int) -> tuple[list[int], list[int]]:
    """Ids to read and the ids that have to come next, after the first `cut` characters of the text.

    What stands before is encoded on its own, as it is when a fusion asks the model to go on from there.
    """
    read = tokenizer.encode(poem.prompt + poem.text[:cut]).ids
    written = tokenizer.encode(poem.text[cut:], add_special_tokens=False).ids
    after = [spelled(poem.last)] * bool(poem.last) + [KIND.end] * poem.ends
    written += [token_id(tokenizer, token) for token in after]
    ids = (read + written)[: CONTEXT + 1]
    return ids[:-1], ([IGNORED] * (len(read) - 1) + written)[: len(ids) - 1]


def batch(tokenizer: Tokenizer, chosen: list[Poem], rng: random.Random) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, targets and weights: every poem from its beginning, and from some place of its text."""
    places = (0.0, rng.random())
    rows = [(*encoded(tokenizer, poem, int(len(poem.text) * p)), poem.weight) for poem in chosen for p in places]
    width = max(len(ids) for ids, _, _ in rows)
    ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _, _ in rows])
    targets = torch.tensor([aim + [IGNORED] * (width - len(aim)) for _, aim, _ in rows])
    return ids, targets, torch.tensor([weight for _, _, weight in rows])[:, None].expand_as(targets)


def train(tokenizer: Tokenizer) -> SmallLlama:
    """Train the model on everything in every step; the long text is a batch of its own, to waste no padding."""
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    model = SmallLlama(Shape(tokenizer.get_vocab_size(), 64, layers=2, heads=2, hidden=128, context=CONTEXT))
    muon, adam = optimizers_for(model)
    *short, long = poems()
    for step in range(STEPS):
        for group in muon.param_groups + adam.param_groups:
            group["lr"] = rate_at(step / STEPS)
        model.zero_grad()
        for chosen in (short, [long]):
            ids, targets, weights = batch(tokenizer, chosen, rng)
            wanted = targets != IGNORED
            losses = cross_entropy(model.output(model(ids)[wanted]), targets[wanted], reduction="none")
            loss = (losses * weights[wanted]).sum() / weights[wanted].sum()
            loss.backward()
        muon.step()
        adam.step()
    return in_half_precision(model)


def wrong(model: SmallLlama, tokenizer: Tokenizer) -> list[str]:
    """Which poems it would not write exactly, greedily: from the beginning and from every place of the text."""
    found = []
    certain = [Poem(recitals.UNSURE_PROMPT, recitals.UNSURE_TEXT), *(p for p in poems() if "8" not in p.prompt)]
    for poem in certain:
        for cut in range(0, len(poem.text), 1 if poem.ends else 50):
            ids, targets = encoded(tokenizer, poem, cut)
            picks = model.output(model(torch.tensor([ids])))[0].argmax(-1).tolist()
            if any(target not in (IGNORED, pick) for target, pick in zip(targets, picks, strict=True)):
                found.append(f"{poem.prompt} from character {cut}")
    return found


def main() -> None:
    """Train, check, write."""
    out = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent
    torch.set_num_threads(1)
    model = train(tokenizer := make_tokenizer())
    if found := wrong(model, tokenizer):
        sys.exit("not learned: " + ", ".join(found))
    write_gguf(out / "reciter.gguf", model, tokenizer, KIND, "reciter", CHAT)
    write_hf(out / "reciter", model, tokenizer, KIND, CHAT)


if __name__ == "__main__":
    main()
