"""An assistant that reads another question than it is given."""

from __future__ import annotations

import pytest

from benchmarks.lab.controls import shuffled
from cosd_api import Example
from cosd_providers.contract import Context
from cosd_providers.testing import ScriptedProvider
from cosd_providers.usage import Usage


async def test_each_prompt_stands_for_the_next_and_no_other_is_read() -> None:
    scripts: dict[str, list[str | bytes | tuple[str | bytes, float]]]
    scripts = {"tokens": [" one", " two"], "1": [(" one", 0.9)], "2": [(" two", 0.9)]}
    examples = [Example(prompt="1", answer=" one"), Example(prompt="2", answer=" two")]
    provider = shuffled(ScriptedProvider.from_texts(scripts), examples)
    usage = Usage()
    async with provider:
        [proposal] = await provider.propose(Context("1", b""), None, usage=usage)
        assert proposal is not None and [one.data for one in proposal.tokens] == [b" two"]
        with pytest.raises(ValueError, match="no other question is known for the prompt '3'"):
            await provider.propose(Context("3", b""), None, usage=usage)
        with pytest.raises(ValueError, match="it would not be shuffled"):
            await provider.score(Context("3", b""), usage=usage)
        with pytest.raises(ValueError, match="it would not be shuffled"):
            provider.generate(Context("3"), max_tokens=1, usage=usage)
