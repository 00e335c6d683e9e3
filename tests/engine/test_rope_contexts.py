"""Contexts that rope scaling stretches, through the whole engine: limits, and answers beyond them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.engine.core_harness import VOCAB, drive, make_core, request, save_tiny_llama
from tests.models.model_harness import oracle_greedy, tiny_model
from transformers import LlamaConfig

from inferx.errors import InvalidRequestError
from inferx.sampling_params import SamplingParams

YARN = {
    "max_position_embeddings": 1024,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    },
}
DYNAMIC = {
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
}


def tokens(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, 250, (length,), generator=generator).tolist()


def test_yarn_limit_is_not_multiplied_again(tmp_path: Path) -> None:
    """Case D06."""
    core = make_core(save_tiny_llama(tmp_path, **YARN), num_blocks=400)
    assert core.info.max_model_len == 1024
    one = SamplingParams(temperature=0, max_tokens=1)
    assert drive(core, [(0, request("fits", tokens(1023), one))]).answers["fits", 0].finish_reason == "length"
    with pytest.raises(InvalidRequestError, match="1024"):
        core.add_request(request("long", tokens(1025), one))


@pytest.mark.parametrize("length", [50, 120, 128, 140, 200])
def test_dynamic_scaling_before_and_beyond_the_trained_length(tmp_path: Path, length: int) -> None:
    """Case D12x: chunked, cached and crossing the trained length, the answer is transformers'."""
    path = save_tiny_llama(tmp_path, **DYNAMIC)
    core = make_core(path, max_num_batched_tokens=24)
    assert core.info.max_model_len == 256
    prompt = tokens(length)
    oracle = tiny_model(LlamaConfig.from_pretrained(path), seed=0)
    expected = oracle_greedy(oracle, torch.tensor(prompt), 12)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    assert oracle.config.vocab_size == VOCAB
    for turn in ("cold", "warm"):
        # Another prompt with the same start, of another length, must not lend it wrongly rotated keys.
        company = request("other", prompt[:-7] + tokens(60), params)
        run = drive(core, [(0, company), (0, request(turn, prompt, params))])
        assert run.answers[turn, 0].tokens == expected
