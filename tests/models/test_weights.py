"""Loading: what is missing, misshapen, left over or out of range ends with an error that names file and
tensor."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from model_harness import (
    LOGIT_TOLERANCE,
    PagedRunner,
    check_against_oracle,
    load,
    oracle_logits,
    prompt,
    save,
    tiny_model,
)
from safetensors.torch import load_file, save_file
from test_families import HEADS, gemma3, llama, phi3
from transformers import AutoModelForCausalLM, PreTrainedModel

from inferx.errors import LoadError
from inferx.loader import RawTensor, open_checkpoint
from inferx.models import build_model

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def oracle() -> PreTrainedModel:
    return tiny_model(llama(**HEADS["9q3kv"]), seed=1)


def edited(oracle: PreTrainedModel, directory: Path, edit: Callable[[Tensors], object]) -> Path:
    save(oracle, directory)
    path = directory / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    return directory


def test_extra_tensor(oracle: PreTrainedModel, tmp_path: Path) -> None:
    extra = "model.layers.0.self_attn.q_proj.foo"
    path = edited(oracle, tmp_path, lambda tensors: tensors.update({extra: torch.ones(3)}))
    with pytest.raises(LoadError, match=extra):
        load(path)


def test_bias_that_the_configuration_does_not_name(oracle: PreTrainedModel, tmp_path: Path) -> None:
    extra = {f"model.layers.{i}.self_attn.{p}_proj.bias": torch.ones(72) for i in range(2) for p in "qo"}
    path = edited(oracle, tmp_path, lambda tensors: tensors.update(extra))
    with pytest.raises(LoadError, match=r"4 tensors .*layers\.0\.self_attn\.o_proj\.bias"):
        load(path)


def test_many_extra_tensors_are_counted(oracle: PreTrainedModel, tmp_path: Path) -> None:
    extra = {f"visual.block.{i}": torch.ones(1) for i in range(12)}
    path = edited(oracle, tmp_path, lambda tensors: tensors.update(extra))
    with pytest.raises(LoadError, match=r"12 tensors .* and 7 more"):
        load(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["layers.1.mlp.up_proj", "layers.0.input_layernorm", "embed_tokens"])
def test_values_that_are_not_finite(
    oracle: PreTrainedModel, name: str, value: float, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Attention would take a NaN for a key that nobody looks at, and answer."""

    def edit(tensors: Tensors) -> None:
        tensors.update({key: tensor.to(dtype) for key, tensor in tensors.items()})
        tensors[f"model.{name}.weight"].view(-1)[7] = value

    path = edited(oracle, tmp_path, edit)
    with pytest.raises(LoadError, match=rf"{name}\.weight: expected finite values, got .*(nan|inf)"):
        load(path)


def test_inverse_frequencies_are_harmless(oracle: PreTrainedModel, tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    load(edited(oracle, tmp_path, lambda tensors: tensors.update(extra)))


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "model.norm.weight",
        "lm_head.weight",
    ],
)
def test_missing_tensor(oracle: PreTrainedModel, tmp_path: Path, name: str) -> None:
    path = edited(oracle, tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(LoadError, match=f"{name} is missing"):
        load(path)


def test_missing_bias(tmp_path: Path) -> None:
    biased = tiny_model(llama(attention_bias=True), seed=2)
    path = edited(biased, tmp_path, lambda tensors: tensors.pop("model.layers.1.self_attn.o_proj.bias"))
    with pytest.raises(LoadError, match=r"layers\.1\.self_attn\.o_proj\.bias is missing"):
        load(path)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.k_proj.weight", [72, 72]),
        ("model.layers.1.mlp.down_proj.weight", [88, 72]),
        ("model.norm.weight", [71]),
        ("model.embed_tokens.weight", [250, 72]),
    ],
)
def test_wrong_shape(oracle: PreTrainedModel, tmp_path: Path, name: str, shape: list[int]) -> None:
    path = edited(oracle, tmp_path, lambda tensors: tensors.update({name: torch.ones(shape)}))
    with pytest.raises(LoadError) as error:
        load(path)
    message = str(error.value)
    assert name in message
    assert str(shape) in message
    assert "model.safetensors" in message


def test_nothing_is_read_before_everything_is_checked(oracle: PreTrainedModel, tmp_path: Path) -> None:
    path = edited(oracle, tmp_path, lambda tensors: tensors.update({"stray": torch.ones(1)}))
    checkpoint = open_checkpoint(path)
    read: list[int] = []
    with pytest.raises(LoadError, match="stray"):
        build_model(checkpoint, progress=read.append)
    assert read == []


def test_one_layer_object_in_memory_at_a_time(oracle: PreTrainedModel, tmp_path: Path) -> None:
    """The peak is the packed weights plus the tensors of one layer object (three for QKV)."""
    checkpoint = open_checkpoint(save(oracle, tmp_path))
    read, alive, peak = checkpoint.read, 0, 0

    def released() -> None:
        nonlocal alive
        alive -= 1

    def counted(name: str) -> RawTensor:
        nonlocal alive, peak
        raw = read(name)
        alive += 1
        peak = max(peak, alive)
        weakref.finalize(raw, released)
        return raw

    checkpoint.read = counted  # type: ignore[method-assign]
    build_model(checkpoint)
    assert peak == 3
    assert alive == 0


def test_tied_head_is_one_weight(tmp_path: Path) -> None:
    tied = tiny_model(llama(tie_word_embeddings=True), seed=3)
    untied = tiny_model(llama(tie_word_embeddings=False), seed=3)
    one, two = load(save(tied, tmp_path / "tied")), load(save(untied, tmp_path / "untied"))
    table = tied.get_input_embeddings().weight
    assert two.weight_bytes - one.weight_bytes >= table.numel() * 4
    # A copy of the table stored as the head is no stray tensor, and no second weight.
    ids = prompt(9)
    copied = load(edited(tied, tmp_path / "copy", lambda t: t.update({"lm_head.weight": table.clone()})))
    assert copied.weight_bytes == one.weight_bytes
    assert torch.equal(PagedRunner(copied).whole(ids), PagedRunner(one).whole(ids))
    # Another head counts, as in transformers.
    head = edited(tied, tmp_path / "head", lambda t: t.update({"lm_head.weight": table.flip(0)}))
    oracle = AutoModelForCausalLM.from_pretrained(head, dtype=torch.float32).eval()
    assert torch.allclose(
        PagedRunner(load(head)).whole(ids), oracle_logits(oracle, ids), atol=LOGIT_TOLERANCE
    )


def test_progress_counts_stored_bytes(oracle: PreTrainedModel, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save(oracle, tmp_path))
    seen: list[int] = []
    model = build_model(checkpoint, progress=seen.append)
    assert seen == sorted(seen)
    assert len(seen) == len(checkpoint.tensors)
    assert seen[-1] == checkpoint.weight_bytes
    # Packing may pad rows.
    assert checkpoint.weight_bytes <= model.weight_bytes < 1.5 * checkpoint.weight_bytes


def test_dtype_keeps_or_converts(oracle: PreTrainedModel, tmp_path: Path) -> None:
    stored = save(oracle.to(torch.bfloat16), tmp_path)
    oracle.float()
    ids = prompt(30)
    kept, widened = load(stored), load(stored, dtype="float32")
    assert kept.layers[0].mlp.down.weight.dtype == "BF16"
    assert widened.layers[0].mlp.down.weight.dtype == "F32"
    # Widening is exact, so the values are the same up to the order of summation.
    assert (PagedRunner(kept).whole(ids) - PagedRunner(widened).whole(ids)).abs().max() < 1e-3
    assert (PagedRunner(kept).whole(ids) - oracle_logits(oracle, ids)).abs().max() < 1e-3
    halved = load(stored, dtype="float16")
    assert halved.layers[0].mlp.down.weight.dtype == "F16"
    assert (PagedRunner(halved).whole(ids) - oracle_logits(oracle, ids)).abs().max() < 0.2


def test_unknown_dtype(oracle: PreTrainedModel, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="dtype"):
        load(save(oracle, tmp_path), dtype="int8")


def with_huge_activations(directory: Path, weight_scale: float) -> tuple[PreTrainedModel, Path]:
    """A residual stream of about 1e5, as bfloat16 checkpoints have it; float16 ends at 65504."""
    model = tiny_model(llama(), seed=4)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(weight_scale)
    return model, save(model.to(torch.bfloat16), directory)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float32", "float16"])
def test_activations_beyond_float16(dtype: str, tmp_path: Path) -> None:
    """The weights fit into float16, the activations do not; they are float32 whatever the weights are."""
    model, path = with_huge_activations(tmp_path, 2e4)
    ids = prompt(20)
    with torch.no_grad():
        expected = oracle_logits(model.float(), ids)
        hidden = model.model(ids[None], output_hidden_states=True).hidden_states
    assert max(state.abs().max() for state in hidden) > 1e5
    assert hidden[-1].isfinite().all()
    actual = PagedRunner(load(path, dtype=dtype)).whole(ids)
    assert (actual - expected).abs().max() <= (0.05 if dtype == "float16" else 2e-3)


def test_weights_beyond_float16_are_refused(tmp_path: Path) -> None:
    _, path = with_huge_activations(tmp_path, 1e6)
    with pytest.raises(LoadError, match=r"model\.layers\.0\.mlp\.down_proj\.weight.*float16.*bfloat16"):
        load(path, dtype="float16")
    load(path, dtype="bfloat16")


def test_phi3_and_gemma_names_are_consumed(tmp_path: Path) -> None:
    """Fused files and Gemma's four norms load without a stray or missing name."""
    for name, config in (("phi3", phi3()), ("gemma3", gemma3())):
        oracle = tiny_model(config, seed=6)
        check_against_oracle(oracle, load(save(oracle, tmp_path / name)), prompt(20))


def test_sharded_files(tmp_path: Path) -> None:
    oracle = tiny_model(llama(**HEADS["9q3kv"]), seed=7)
    oracle.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    check_against_oracle(oracle, load(tmp_path), prompt(20))
