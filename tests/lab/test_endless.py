"""Models that cannot end a text, and what is asked of them."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from benchmarks import weights
from benchmarks.lab.endless import ENDLESS, endless_asked, growth_claim, without_end
from benchmarks.lab.page import page
from benchmarks.lab.plan import LENGTHS, asked
from benchmarks.lab.protocol import QUICK, WEIGHTS, WORLD_SEED
from benchmarks.lab.runs import RunsFile
from benchmarks.lab.tasks import report
from benchmarks.lab.worlds import World
from cosd_api import Fusion, RuleVerifier
from cosd_api.demo.servers import serve
from lab_runs import run

pytestmark = pytest.mark.usefixtures("few_draws")

MODEL = WEIGHTS / "c-1.gguf"


def test_one_row_is_changed() -> None:
    before = MODEL.read_bytes()
    after = without_end(before)
    fields, tensors = weights.weights_in(before)
    output = tensors["output.weight"]
    changed = [at for at, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    rows = {(at - output.start) // (output.shape[0] * output.width) for at in changed}
    assert rows == {fields["tokenizer.ggml.eos_token_id"]}
    assert fields["tokenizer.ggml.tokens"][rows.pop()] == "<|endoftext|>"


@pytest.mark.live
@pytest.mark.extended
def test_a_text_goes_on_behind_its_end_and_is_the_same_before(tmp_path: Path) -> None:
    (tmp_path / "endless.gguf").write_bytes(without_end(MODEL.read_bytes()))
    [asking] = report.items(World(WORLD_SEED), 1, 1, "development")

    async def answer(model: Path, limit: int) -> tuple[str, int]:
        with serve(model) as server:
            async with Fusion(draft=server.url, assistant=server.url, verifier=RuleVerifier(alpha=0)) as fusion:
                found = await fusion.generate(asking.prompt, max_tokens=limit)
                return found.text, len(found.tokens)

    text, tokens = anyio.run(answer, MODEL, 512)
    longer, all_tokens = anyio.run(answer, tmp_path / "endless.gguf", tokens + 20)
    assert tokens < 400 and all_tokens == tokens + 20
    assert longer.startswith(text) and len(longer) > len(text)


def test_the_study_is_asked_again_of_other_weights() -> None:
    before = [one.step for one in asked(QUICK) if one.cell == "lengths"]
    after = endless_asked(QUICK)
    assert [one.task for one in after] == [f"report {limit}" for limit in LENGTHS]
    for old, new in zip(before, (one.step for one in after), strict=True):
        assert old.settings == new.settings and old.key != new.key and new.name.startswith("endless: report")
        assert {role for role, step in new.inputs.items() if step.key != old.inputs[role].key} == {"draft", "assistant"}


async def test_the_claim_is_decided_apart_from_those_of_the_protocol() -> None:
    about = {"size": "quick", "items": 10, "hash": "0" * 64, "date": "2026-01-01", "seconds": 61, "machine": "Linux"}
    runs = [await run(ENDLESS, f"report {limit}") for limit in LENGTHS]
    one = growth_claim(runs)
    assert (one.verdict, one.evidence.undecidable) == ("not tested", "no answer is as long as the limit")
    words = page(RunsFile(runs, about | {"likelihoods": [], "to_come": []}))
    assert "CoSD, Table 7, added: `endless`" in words
    assert growth_claim([]).verdict == "not tested"
