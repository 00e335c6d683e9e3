"""Writes a tiny transformers model as a GGUF file, in the way of llama.cpp's converter.

Tensor names come from the gguf package.  The converter's own choices are repeated here: rows of q and k are
interleaved for Llama, Gemma's norms are stored as 1 + w, Phi-3 keeps its fused matrices, Llama 3.1's scaling
and longrope's factors become tensors, experts are stacked, and DeepSeek's kv_b is taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf_metadata import write_metadata
from gguf_tensors import Layout, Piece, pieces_of
from tests.ops.packed_weights import SCALES, random_source, with_scales
from transformers import PreTrainedModel

from inferx.loader.gguf_file import GGUFFile

TypeOf = Callable[[str], str]
# Formats that the gguf package reads and does not write.
_READ_ONLY = ("Q4_K", "Q5_K", "Q6_K")


def all_f32(name: str) -> str:
    return "F32"


def write_gguf(
    model: PreTrainedModel,
    path: Path,
    architecture: str,
    type_of: TypeOf = all_f32,
    layout: Layout | None = None,
    blocks: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """type_of: GGML type name for each Hugging Face matrix name (of stacked experts
    ``model.layers.N.mlp.experts.gate_proj.weight`` and so on); vectors and routers are F32 always.
    blocks: what ``round_to_blocks`` returned for the same arguments; without it the matrices are quantised
    here, which the gguf package cannot do for every type."""
    writer = gguf.GGUFWriter(path, architecture)
    write_metadata(writer, model, architecture, layout is not None and layout.kv_b)
    for piece in pieces_of(model, architecture, layout):
        data = piece.view.float().numpy().reshape(piece.shape)
        if architecture == "gemma3" and "norm" in piece.name:
            data = data + np.float32(1)
        kind = gguf.GGMLQuantizationType[type_of(piece.name) if piece.matrix else "F32"]
        stored = None if blocks is None else blocks.get(piece.target)
        if stored is None:
            stored = gguf.quants.quantize(np.ascontiguousarray(data), kind)
        writer.add_tensor(piece.target, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def round_to_blocks(
    model: PreTrainedModel, architecture: str, type_of: TypeOf, layout: Layout | None = None
) -> dict[str, np.ndarray]:
    """Rounds the model's matrices in place to what their types can hold, and returns the data by tensor name.

    Types that the gguf package cannot write get random blocks of the matrix's spread instead.
    """
    torch.manual_seed(0)
    np.random.seed(0)
    return {
        piece.target: _round(piece, type_of(piece.name))
        for piece in pieces_of(model, architecture, layout)
        if piece.matrix
    }


def _round(piece: Piece, name: str) -> np.ndarray:
    kind = gguf.GGMLQuantizationType[name]
    rows = np.ascontiguousarray(piece.view.float().numpy().reshape(-1, piece.shape[-1]))
    stored = _random_blocks(rows, name) if name in _READ_ONLY else gguf.quants.quantize(rows, kind)
    values = torch.from_numpy(gguf.quants.dequantize(stored, kind).copy())
    piece.view.copy_(values.reshape(piece.view.shape))
    return stored.reshape(*piece.shape[:-1], -1)


def _random_blocks(rows: np.ndarray, name: str) -> np.ndarray:
    data = random_source(name, *rows.shape)
    kind = gguf.GGMLQuantizationType[name]
    spread = rows.std() / gguf.quants.dequantize(data.numpy(), kind).std()
    count, size = rows.shape[1] // 256, gguf.GGML_QUANT_SIZES[kind][1]
    blocks = data.numpy().reshape(rows.shape[0], count, size)
    scales = [blocks[..., at : at + 2].copy().view("<f2")[..., 0] for at in SCALES[name]]
    scaled = np.stack(scales, axis=-1).astype(np.float32) * spread
    return with_scales(data, name, scaled.astype(np.float16)).numpy()


def without_vocabulary(source: Path, target: Path) -> Path:
    """The same tensors, byte for byte, without the tokenizer.

    transformers parses every string of the vocabulary twice, which takes half a minute for 262,144 of them.
    """
    file = GGUFFile(source)
    writer = gguf.GGUFWriter(target, file.metadata["general.architecture"])
    writers = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    for key, value in file.metadata.items():
        if type(value) in writers and not key.startswith(("tokenizer.", "general.")):
            writers[type(value)](key, value)
    writer.add_vocab_size(file.tensors["token_embd.weight"].shape[0])
    for name, info in file.tensors.items():
        kind = gguf.GGMLQuantizationType[info.dtype]
        writer.add_tensor(name, file.read(name).numpy(), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
