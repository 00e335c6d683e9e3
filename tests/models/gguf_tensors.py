"""How llama.cpp's converter cuts a transformers model into the tensors of a GGUF file, as views of its
parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gguf
import torch
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Layout:
    """What older and newer files do differently.

    gate_up: gates and ups of all experts in one tensor.  one_by_one: a tensor for each expert.
    kv_b: keys and values of latent attention in one matrix, as before 2025.
    """

    gate_up: bool = False
    one_by_one: bool = False
    kv_b: bool = False


@dataclass(frozen=True)
class Piece:
    """One tensor of the file.  name: after Hugging Face.  view: the elements in the file's order, of the
    model's own memory; reshaped to ``shape`` they are the tensor."""

    name: str
    target: str
    view: torch.Tensor
    shape: tuple[int, ...]

    @property
    def matrix(self) -> bool:
        """Routers stay F32 whatever the rest is, and so do the gates of shared experts."""
        routing = ("mlp.gate.", "mlp.router.", "shared_expert_gate.")
        return self.view.ndim > 1 and not any(part in self.name for part in routing)


def pieces_of(model: PreTrainedModel, architecture: str, layout: Layout | None = None) -> Iterator[Piece]:
    config, layout = model.config, layout or Layout()
    arch = {value: key for key, value in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        shape = tuple(tensor.shape)
        if architecture == "llama" and "q_proj" in name:
            tensor = _pairs(tensor, config.num_attention_heads)
        if architecture == "llama" and "k_proj" in name:
            tensor = _pairs(tensor, config.num_key_value_heads)
        cut = [(name, tensor, shape)]
        if ".mlp.experts." in name:
            cut = [(n, view, tuple(view.shape)) for n, view in _experts(name, tensor, architecture, layout)]
        elif name.endswith("kv_b_proj.weight") and not layout.kv_b:
            cut = [(n, view, tuple(view.shape)) for n, view in _halves_of_kv_b(name, tensor, config)]
        for part, view, part_shape in cut:
            yield Piece(part, _target(part, names), view, part_shape)


def _target(name: str, names: gguf.TensorNameMap) -> str:
    if ".gate_up_proj." in name and ".experts." in name:  # no family's list in the package has it yet
        return f"blk.{name.split('.')[2]}.ffn_gate_up_exps.{name.rpartition('.')[2]}"
    parts = name.split(".")
    if ".mlp." in name and parts[4] in ("gate_proj", "up_proj", "down_proj"):
        return (
            f"blk.{parts[2]}.ffn_{parts[4].removesuffix('_proj')}.{parts[5]}"  # Qwen's lists leave these out
        )
    if "experts" in parts and parts[5].isdigit():
        return f"blk.{parts[2]}.ffn_{parts[6].removesuffix('_proj')}.{parts[5]}.weight"
    name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    name = name + ".weight" if name.endswith(".sinks") else name
    target = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert target is not None, name
    return target


def _pairs(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from (first half, second half) to pairs."""
    return tensor.view(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:]).transpose(1, 2)


def _experts(
    name: str, tensor: torch.Tensor, architecture: str, layout: Layout
) -> Iterator[tuple[str, torch.Tensor]]:
    stem, _, leaf = name.rpartition(".")
    kind = "bias" if leaf.endswith("_bias") else "weight"
    gpt_oss = architecture == "gpt-oss"
    if gpt_oss and kind == "weight":
        tensor = tensor.transpose(1, 2)
    if leaf.startswith("down"):
        parts = {"down_proj": tensor}
    elif layout.gate_up:
        assert not gpt_oss  # its converter takes gates and ups apart always
        parts = {"gate_up_proj": tensor}
    else:
        gate, up = (tensor[:, 0::2], tensor[:, 1::2]) if gpt_oss else tensor.chunk(2, dim=1)
        parts = {"gate_proj": gate, "up_proj": up}
    for part, stack in parts.items():
        if layout.one_by_one:
            for expert, matrix in enumerate(stack):
                yield f"{stem}.{expert}.{part}.{kind}", matrix
        else:
            yield f"{stem}.{part}.{kind}", stack


def _halves_of_kv_b(name: str, tensor: torch.Tensor, config: object) -> Iterator[tuple[str, torch.Tensor]]:
    """A matrix for each head: what the head's keys and values are of the latent, the keys' transposed."""
    heads = tensor.view(config.num_attention_heads, -1, tensor.shape[1])  # type: ignore[attr-defined]
    keys, values = heads.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)  # type: ignore[attr-defined]
    yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
    yield name.replace("kv_b_proj", "v_b_proj"), values
