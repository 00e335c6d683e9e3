"""Checkpoints of gpt-oss with experts in MXFP4, as transformers reads them."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

# As the published configurations have it.
QUANTIZATION = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
}


def save_mxfp4(model: PreTrainedModel, folder: Path) -> Path:
    """Saves the model with random blocks for its experts, and gives it their values."""
    generator = torch.Generator().manual_seed(2)
    stored = {}
    for name, value in model.state_dict().items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            stored[name] = value.contiguous()
            continue
        experts, columns, rows = value.shape
        blocks = torch.randint(256, (experts, rows, columns // 32, 16), generator=generator).byte()
        scales = torch.randint(121, 125, (experts, rows, columns // 32), generator=generator).byte()
        stored |= {name + "_blocks": blocks, name + "_scales": scales}
        value.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    folder.mkdir(exist_ok=True)
    save_file(stored, folder / "model.safetensors")
    config = model.config.to_dict() | {"quantization_config": QUANTIZATION}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
