"""Rope types whose effect depends on the prompt's length, as whole models against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_harness import (
    LOGIT_TOLERANCE,
    PagedRunner,
    check_against_oracle,
    check_token_by_token,
    load,
    oracle_greedy,
    oracle_logits,
    prompt,
    save,
    tiny_model,
)
from test_families import llama, phi3
from transformers import PreTrainedModel

from inferx.models import Model

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 10000.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
HALF = 8
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.05 * i for i in range(HALF)],
    "long_factor": [1.5 + 0.6 * i for i in range(HALF)],
}


def pair(oracle: PreTrainedModel, path: Path) -> tuple[PreTrainedModel, Model]:
    return oracle, load(save(oracle, path))


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Model]:
    config = llama(max_position_embeddings=1024, rope_parameters=YARN)
    return pair(tiny_model(config, seed=3), tmp_path_factory.mktemp("yarn"))


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Model]:
    config = llama(max_position_embeddings=256, rope_parameters=DYNAMIC)
    return pair(tiny_model(config, seed=4), tmp_path_factory.mktemp("dynamic"))


@pytest.fixture(scope="module")
def longrope(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Model]:
    config = phi3(max_position_embeddings=512, original_max_position_embeddings=64, rope_parameters=LONGROPE)
    return pair(tiny_model(config, seed=5), tmp_path_factory.mktemp("longrope"))


@pytest.mark.parametrize("length", [10, 255, 257, 1023])
def test_yarn(yarn: tuple[PreTrainedModel, Model], length: int) -> None:
    oracle, model = yarn
    ids = prompt(length, seed=length)
    error = (PagedRunner(model).whole(ids) - oracle_logits(oracle, ids)).abs().max().item()
    assert error <= LOGIT_TOLERANCE
    assert model.config.max_position_embeddings == 1024


def test_yarn_continues(yarn: tuple[PreTrainedModel, Model]) -> None:
    check_against_oracle(*yarn, prompt(254, seed=1))


@pytest.mark.parametrize("length", [50, 256, 300, 506])
def test_dynamic(dynamic: tuple[PreTrainedModel, Model], length: int) -> None:
    """Also chunked, where every chunk must use the prompt's length, and continued past the original
    length."""
    check_against_oracle(*dynamic, prompt(length, seed=length))


def test_dynamic_at_the_limit(dynamic: tuple[PreTrainedModel, Model]) -> None:
    oracle, model = dynamic
    ids = prompt(512, seed=7)
    error = (PagedRunner(model).whole(ids) - oracle_logits(oracle, ids)).abs().max().item()
    assert error <= LOGIT_TOLERANCE


def test_dynamic_changes_nothing_within_the_original_length(
    dynamic: tuple[PreTrainedModel, Model], tmp_path: Path
) -> None:
    oracle, model = dynamic
    plain = tiny_model(llama(max_position_embeddings=512), seed=4)
    plain.load_state_dict(oracle.state_dict())
    unscaled = load(save(plain, tmp_path))
    for length in (50, 256):
        ids = prompt(length, seed=length)
        assert torch.equal(PagedRunner(model).whole(ids), PagedRunner(unscaled).whole(ids))
    ids = prompt(300)
    assert not torch.allclose(PagedRunner(model).whole(ids), PagedRunner(unscaled).whole(ids), atol=1e-2)


def test_dynamic_requests_of_different_lengths_share_a_batch(dynamic: tuple[PreTrainedModel, Model]) -> None:
    _, model = dynamic
    prompts = [prompt(length, seed=length) for length in (300, 20, 270, 256)]
    runner = PagedRunner(model)
    together = runner.step([(runner.start(ids), len(ids)) for ids in prompts])
    for ids, logits in zip(prompts, together, strict=True):
        assert torch.equal(PagedRunner(model, seed=1).whole(ids), logits)


def test_dynamic_prefix_cache_keys(dynamic: tuple[PreTrainedModel, Model]) -> None:
    _, model = dynamic
    assert model.prefix_cache_key(10) is None
    assert model.prefix_cache_key(256) is None
    keys = [model.prefix_cache_key(length) for length in (257, 300, 301)]
    assert len({*keys, None}) == 4


@pytest.mark.parametrize("length", [40, 64, 65, 200])
def test_longrope(longrope: tuple[PreTrainedModel, Model], length: int) -> None:
    """On both sides of the original length; 64 continues across it (see below), so it compares logits
    only."""
    oracle, model = longrope
    ids = prompt(length, seed=length)
    if length == 64:
        error = (PagedRunner(model).whole(ids) - oracle_logits(oracle, ids)).abs().max().item()
        assert error <= LOGIT_TOLERANCE
    else:
        check_against_oracle(oracle, model, ids)
    assert model.prefix_cache_key(length) == (None if length <= 64 else "longrope")


def test_longrope_crossing_keeps_the_cache(longrope: tuple[PreTrainedModel, Model]) -> None:
    """Past the original length new tokens use the long factors and cached keys stay as they are.

    transformers with a cache does the same for every model but Phi-3, whose ``generate`` recomputes the whole
    sequence at that one token; the model's own forward with a cache is the oracle here.
    """
    oracle, model = longrope
    ids = prompt(60, seed=1)
    runner = PagedRunner(model)
    generated = runner.greedy(ids, 12)
    sequence = torch.cat([ids, torch.tensor(generated)])
    with torch.no_grad():
        output = oracle(ids[None], use_cache=True)
        expected = [int(output.logits[0, -1].argmax())]
        for position in range(60, 71):
            output = oracle(sequence[None, position : position + 1], past_key_values=output.past_key_values)
            expected.append(int(output.logits[0, -1].argmax()))
    assert generated == expected


def test_longrope_on_llama(tmp_path: Path) -> None:
    """Not Phi-3's alone; and transformers keeps the cache when a Llama crosses the original length."""
    parameters = {**LONGROPE, "original_max_position_embeddings": 64, "factor": 8.0}
    oracle, model = pair(tiny_model(llama(rope_parameters=parameters), seed=6), tmp_path)
    check_against_oracle(oracle, model, prompt(100, seed=2))
    ids = prompt(60, seed=3)
    assert PagedRunner(model).greedy(ids, 10) == oracle_greedy(oracle, ids, 10)


def test_partial_rotary_with_longrope(tmp_path: Path) -> None:
    parameters = {**LONGROPE, "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0]}
    config = phi3(
        max_position_embeddings=512,
        original_max_position_embeddings=64,
        partial_rotary_factor=0.5,
        rope_parameters={**parameters, "partial_rotary_factor": 0.5},
    )
    oracle, model = pair(tiny_model(config, seed=8), tmp_path)
    for length in (30, 90):
        check_against_oracle(oracle, model, prompt(length, seed=length))
    check_token_by_token(model, prompt(70))
