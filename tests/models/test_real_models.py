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
from gguf_writer import without_vocabulary
from model_harness import LOGIT_TOLERANCE, PagedRunner
from transformers import AutoModelForCausalLM, PreTrainedModel, modeling_utils

from inferx.loader import Tokenizer, load_tokenizer, open_checkpoint
from inferx.models import Model, build_model

NEW_TOKENS = 24
PROSE = "The lighthouse keeper climbed the stairs every evening, and on the night of the storm he"
CODE = "def fibonacci(n: int) -> int:\n    "
# More than Gemma's window of 512 tokens, so that its sliding layers forget the beginning.
LONG = " ".join(f"Entry {i}: the tide stood at {3 * i % 17} feet and the lamp burned." for i in range(36))

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
            return_dict_in_generate=True,
            output_logits=True,
        )
        return output.logits[0][0], output.sequences[0, len(ids) :].tolist()


def open_pair(path: Path, scratch: Path) -> Pair:
    checkpoint = open_checkpoint(path)
    model, tokenizer = build_model(checkpoint), load_tokenizer(checkpoint)
    with pytest.MonkeyPatch.context() as patch:
        # transformers asks for accelerate before it reads a GGUF file and then does not use it.
        patch.setattr(modeling_utils, "is_accelerate_available", lambda: True)
        slim = without_vocabulary(path, scratch / path.name)
        oracle = AutoModelForCausalLM.from_pretrained(
            slim.parent, gguf_file=slim.name, dtype=torch.float32, attn_implementation="eager"
        )
        slim.unlink()
    return Pair(oracle.eval(), model, tokenizer)


@pytest.fixture(scope="module", params=["smollm2_gguf", "qwen25_gguf", "gemma3_gguf"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One model in memory at a time."""
    made = open_pair(request.getfixturevalue(request.param), tmp_path_factory.mktemp("oracle"))
    yield made
    del made
    gc.collect()


def test_same_weights(pair: Pair) -> None:
    """The oracle's float32 matrices are bit for bit what ours dequantise to."""
    ours = pair.model.layers[1].mlp.down.weight.dequantize()
    assert torch.equal(ours, pair.oracle.model.layers[1].mlp.down_proj.weight.data)


@pytest.mark.parametrize("kind", ["prose", "other"])
def test_continues_as_transformers(pair: Pair, kind: str) -> None:
    """Also from a prompt longer than the window where there is one, else from code."""
    window = pair.model.config.sliding_window
    ids = pair.ids(PROSE if kind == "prose" else LONG if window else CODE)
    assert kind == "prose" or not window or len(ids) > window + 50
    logits, tokens = pair.expected(ids, NEW_TOKENS)
    first, continuation = PagedRunner(pair.model, block_size=16).continued(ids, NEW_TOKENS)
    error = (first - logits).abs().max().item()
    print(f"{len(ids)} tokens: first-step logit error {error:.2e}, largest logit {logits.abs().max():.1f}")
    assert continuation == tokens
    assert error <= LOGIT_TOLERANCE


def test_chunks_and_batches_change_no_bit(pair: Pair) -> None:
    ids, other = pair.ids(PROSE), pair.ids(CODE)
    whole = PagedRunner(pair.model).whole(ids)
    assert torch.equal(PagedRunner(pair.model, seed=2).chunked(ids, [5, 1, 7]), whole)
    assert torch.equal(PagedRunner(pair.model, seed=3).batched(ids, [other, ids[:9]], 4), whole)
