"""What loading a mixture of experts takes at its peak: the weights, and little else.

Measured in a process of its own as private writable memory, which the kernel limits (RLIMIT_DATA): a load
that asks for more fails.  Pages of the mapped file are not in it; the kernel drops them when it needs to.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf_metadata import write_metadata
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, MixtralConfig, PretrainedConfig

EXPERTS, HIDDEN, INTERMEDIATE, LAYERS = 16, 512, 1024, 6
SHARE = 1.15
LOAD = """
import resource, sys, torch
from inferx.layers.placement import Placement
from inferx.loader import open_checkpoint
from inferx.models import build_model
from inferx import ops

path, share, dense = sys.argv[1], float(sys.argv[2]), sys.argv[3] == "dense"
# OpenMP's threads and torch's own tables are there before anything is measured.
ops.linear(torch.ones(64, 64), ops.pack_weight(torch.ones(64, 64), "F32", (64, 64)))
torch.ones(1 << 20).bfloat16().float().sum()
checkpoint = open_checkpoint(path)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
before = int(status["VmData"].split()[0]) * 1024
size = int(sys.argv[4])
limit = before + int(size * share)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
where = {"placement": Placement(torch.device("cpu"), torch.bfloat16, dense=True)} if dense else {}
try:
    model = build_model(checkpoint, **where)
except (MemoryError, RuntimeError) as error:
    sys.exit(f"refused: {error}")
print(model.weight_bytes)
"""


def peak_within(share: float, path: Path, size: int, *, dense: bool = False) -> int | None:
    """Loads with at most ``share * size`` bytes; the weights' bytes, or None when that was not enough."""
    mode = "dense" if dense else "packed"
    run = subprocess.run(
        [sys.executable, "-c", LOAD, str(path), str(share), mode, str(size)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if run.returncode == 0:
        return int(run.stdout)
    assert "refused" in run.stderr, run.stderr
    return None


def config(layers: int = LAYERS) -> MixtralConfig:
    return MixtralConfig(
        vocab_size=256,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_local_experts=EXPERTS,
        tie_word_embeddings=False,
    )


def tensors(one_by_one: bool) -> dict[str, torch.Tensor]:
    """Random bytes are enough: only sizes matter."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config(), dtype=torch.bfloat16)
    result = {}
    for name, value in model.state_dict().items():
        stem = name.replace(".mlp.", ".block_sparse_moe.")
        if one_by_one and ".experts." in name:
            parts = {"w1": 0, "w3": 1} if "gate_up" in name else {"w2": 0}
            rows = value.shape[1] // len(parts)
            for e in range(EXPERTS):
                for part in parts:
                    key = f"{stem.rpartition('.')[0]}.{e}.{part}.weight"
                    result[key] = torch.full((rows, value.shape[2]), 0.01, dtype=torch.bfloat16)
        else:
            result[stem if one_by_one else name] = torch.full(value.shape, 0.01, dtype=torch.bfloat16)
    return result


def hugging_face(directory: Path, one_by_one: bool) -> Path:
    settings: PretrainedConfig = config()
    settings.architectures = ["MixtralForCausalLM"]
    settings.dtype = "bfloat16"
    settings.save_pretrained(directory)
    save_file(tensors(one_by_one), directory / "model.safetensors", metadata={"format": "pt"})
    return directory / "model.safetensors"


def quantised(file: Path) -> Path:
    """Stacks of Q8_0."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config(2 * LAYERS))  # half the bytes each
    writer = gguf.GGUFWriter(file, "llama")
    write_metadata(writer, model, "llama")
    width, kv = HIDDEN, HIDDEN // 4
    vectors = {"attn_norm": (width,), "ffn_norm": (width,), "ffn_gate_inp": (EXPERTS, width)}
    matrices = {
        "attn_q": (width, width),
        "attn_k": (kv, width),
        "attn_v": (kv, width),
        "attn_output": (width, width),
        "ffn_gate_exps": (EXPERTS, INTERMEDIATE, width),
        "ffn_up_exps": (EXPERTS, INTERMEDIATE, width),
        "ffn_down_exps": (EXPERTS, width, INTERMEDIATE),
    }
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for name in ("token_embd", "output"):
        writer.add_tensor(f"{name}.weight", np.ones((256, width), np.float32))
    for layer in range(model.config.num_hidden_layers):
        for name, shape in vectors.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(shape, np.float32))
        for name, (*rows, columns) in matrices.items():
            blocks = np.ones((*rows, columns // 32 * 34), np.uint8)
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(f"blk.{layer}.{name}.weight", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def check(file: Path, *, dense: bool = False) -> None:
    path = file if file.suffix == ".gguf" else file.parent
    size = file.stat().st_size
    assert size > 300_000_000
    loaded = peak_within(SHARE, path, size, dense=dense)
    assert loaded is not None, f"the load takes more than {SHARE} x its weights"
    # As large as it is in the file, give or take the padding; and the limit does limit.
    assert loaded == pytest.approx(size, rel=0.02)
    assert peak_within(0.9, path, size, dense=dense) is None


@pytest.mark.parametrize(("one_by_one", "dense"), [(False, False), (True, False), (False, True)])
def test_hugging_face(one_by_one: bool, dense: bool, tmp_path: Path) -> None:
    """Fused stacks and experts one by one; dense: in the tensors that a device has."""
    check(hugging_face(tmp_path, one_by_one), dense=dense)


def test_quantised_stacks(tmp_path: Path) -> None:
    check(quantised(tmp_path / "m.gguf"))
