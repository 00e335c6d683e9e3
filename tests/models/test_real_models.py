"""Real weights: each model continues prompts as transformers does from the same GGUF file.

transformers dequantises the whole file to float32; ours multiplies from the quantised weights.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from model_harness import LOGIT_TOLERANCE, PagedRunner
from transformers import AutoModelForCausalLM, PreTrainedModel

from inferx.loader import Tokenizer, load_tokenizer, open_checkpoint
from inferx.models import Model, build_model

NEW_TOKENS = 32
PROSE = "The lighthouse keeper climbed the stairs every evening, and on the night of the storm he"
CODE = "def fibonacci(n: int) -> int:\n    "
# More than Gemma's window of 512 tokens, so that its sliding layers forget the beginning.
LONG = " ".join(f"Entry {i}: the tide stood at {3 * i % 17} feet and the lamp burned." for i in range(45))

pytestmark = pytest.mark.real_model


@dataclass
class Pair:
    oracle: PreTrainedModel
    model: Model
    tokenizer: Tokenizer

    def ids(self, text: str) -> torch.Tensor:
        return torch.tensor(self.tokenizer.encode(text))

    def expected(self, ids: torch.Tensor, count: int) -> tuple[torch.Tensor, list[int]]:
        """First-step logits and the greedy continuation."""
        with torch.no_grad():
            logits = self.oracle(ids[None], logits_to_keep=1).logits[0, -1]
        self.oracle.generation_config.eos_token_id = None
        output = self.oracle.generate(
            ids[None],
            attention_mask=torch.ones_like(ids)[None],
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            max_new_tokens=count,
            pad_token_id=0,
        )
        return logits, output[0, len(ids) :].tolist()


def open_pair(path: Path) -> Pair:
    checkpoint = open_checkpoint(path)
    model, tokenizer = build_model(checkpoint), load_tokenizer(checkpoint)
    oracle = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    )
    return Pair(oracle.eval(), model, tokenizer)


@pytest.fixture(scope="module", params=["smollm2_gguf", "qwen25_gguf", "gemma3_gguf"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """One model in memory at a time."""
    made = open_pair(request.getfixturevalue(request.param))
    yield made
    del made
    gc.collect()


def test_same_weights(pair: Pair) -> None:
    """The oracle's float32 matrices are bit for bit what ours dequantise to."""
    ours = pair.model.layers[1].mlp.down.weight.dequantize()
    assert torch.equal(ours, pair.oracle.model.layers[1].mlp.down_proj.weight.data)


@pytest.mark.parametrize("text", [PROSE, CODE, LONG], ids=["prose", "code", "long"])
def test_continues_as_transformers(pair: Pair, text: str, record_property) -> None:
    ids = pair.ids(text)
    logits, tokens = pair.expected(ids, NEW_TOKENS)
    runner = PagedRunner(pair.model, block_size=16)
    actual = runner.step([(runner.start(ids), len(ids))], last_only=True)[0][0]
    error = (actual - logits).abs().max().item()
    record_property("logit_error", error)
    print(f"\n{len(ids)} tokens, first-step logit error {error:.2e}, largest logit {logits.abs().max():.1f}")
    assert PagedRunner(pair.model, block_size=16, seed=1).greedy(ids, NEW_TOKENS) == tokens
    assert error <= LOGIT_TOLERANCE


def test_chunks_and_batches_change_no_bit(pair: Pair) -> None:
    ids, other = pair.ids(PROSE), pair.ids(CODE)
    whole = PagedRunner(pair.model).whole(ids)
    assert torch.equal(PagedRunner(pair.model, seed=2).chunked(ids, [5, 1, 7]), whole)
    assert torch.equal(PagedRunner(pair.model, seed=3).batched(ids, [other, ids[:9]], 4), whole)
