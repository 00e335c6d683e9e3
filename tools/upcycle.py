"""Makes a mixture of experts out of a dense Llama-type GGUF file.

    python tools/upcycle.py dense.gguf moe.gguf [--experts 8] [--top-k 2] [--noise 0.0] [--seed 0]

Every expert gets the dense model's MLP (Komatsuzaki et al., "Sparse Upcycling", 2022) and the router random
weights; the result is of Mixtral's type, with tokenizer and all.  A token's expert weights sum to one, so
without noise it answers what the dense model answers, which tests routing, permutation and combine on real
weights.  --noise adds to each expert's weights normal numbers of that share of their standard deviation, and
quantises them again.  Tensors keep their types.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import gguf
import numpy as np

MLP = re.compile(r"blk\.(\d+)\.(ffn_gate|ffn_up|ffn_down)\.weight")
WRITTEN_BY_THE_WRITER = ("GGUF.", "general.architecture")


def upcycle(
    source: Path, target: Path, *, experts: int = 8, top_k: int = 2, noise: float = 0.0, seed: int = 0
) -> Path:
    """Writes ``target``.  ValueError when ``source`` is no dense model of Llama's type."""
    if not 1 <= top_k <= experts:
        raise ValueError(f"top_k: expected 1 to experts = {experts}, got {top_k}")
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    if architecture != "llama" or "llama.expert_count" in reader.fields:
        raise ValueError(f"{source}: expected a dense model of architecture llama, got {architecture}")
    writer = gguf.GGUFWriter(target, architecture)
    _copy_metadata(reader, writer)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(top_k)
    random = np.random.default_rng(seed)
    hidden = int(reader.fields["llama.embedding_length"].contents())
    for layer in range(int(reader.fields["llama.block_count"].contents())):
        router = random.standard_normal((experts, hidden)).astype(np.float32) * hidden**-0.5
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)
    for tensor in reader.tensors:
        match = MLP.fullmatch(tensor.name)
        if match is None:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        layer, kind = match.groups()
        stack = np.stack([_expert(tensor, noise, random) for _ in range(experts)])
        writer.add_tensor(f"blk.{layer}.{kind}_exps.weight", stack, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def _copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for field in reader.fields.values():
        if field.name.startswith(WRITTEN_BY_THE_WRITER):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=element)


def _expert(tensor: gguf.ReaderTensor, noise: float, random: np.random.Generator) -> np.ndarray:
    """The tensor's rows as stored, perturbed."""
    if noise == 0:
        return tensor.data
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    values = values + random.standard_normal(values.shape, dtype=np.float32) * (noise * values.std())
    return gguf.quants.quantize(values.astype(np.float32), tensor.tensor_type)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    upcycle(
        args.source, args.target, experts=args.experts, top_k=args.top_k, noise=args.noise, seed=args.seed
    )


if __name__ == "__main__":
    main()
