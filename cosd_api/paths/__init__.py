r"""The draft's path through an answer, each model's encoding of it, and what is certain when.

When a model is asked about a place, it is sent the ids of its own encoding of the answer, never a text that ends at the
place. A tokenizer may encode the end of a text in a way that the model has never seen inside a text. For example,
GPT-2's tokenizer encodes the new lines in `"end.\n\nThe"` as two tokens, but new lines at the end of a text as one
token. Therefore the text before a place is encoded together with the text that the draft wrote after it
(`cuts.look`), and only the boundaries of the assistant's own tokens are places. This makes equation 3 of the paper
exact.

::

    cuts          where a text may be cut, how far a lookahead reaches, where words start
    encoding      the draft's path, and the cached encoding of a growing answer by one model
    units         the draft tokens that one assistant judges together
    text_only     the same for models that accept only text
    differences   the first difference in a unit
    restart       the draft's path after a replacement
    own_ids       each model's own path through an answer that several models write

All offsets are in bytes of the answer. All results depend only on the draft's path, not on earlier requests.
"""
