"""Damaged files give LoadError or load; they never crash, hang or take much memory (a child process each)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_gguf
import torch

CHILD = Path(__file__).parent / "fuzz_child.py"
SEED = int(os.environ.get("INFERX_FUZZ_SEED", "1"))
COUNT = int(os.environ.get("INFERX_FUZZ_COUNT", "600"))


def run(kind: str, path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(CHILD), kind, str(path), str(SEED), str(COUNT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"seed {SEED}: exit {done.returncode}\n{done.stderr[-4000:]}"
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["grown_mb"] < 200, outcome
    # Both happen, or the changes were too small or too large to try anything.
    assert outcome["refused"] > COUNT // 4, outcome
    assert outcome["loaded"] > COUNT // 50, outcome


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_damaged_gguf(architecture: str, tmp_path: Path) -> None:
    tensors = tiny_gguf.default_tensors() | {"rope_freqs.weight": np.ones(8, np.float32)}
    run("gguf", tiny_gguf.write(tmp_path / "m.gguf", architecture=architecture, tensors=tensors))


def test_damaged_hugging_face_directory(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, **sizes))
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    raw = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "hello": 2}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.add_special_tokens(["</s>"])
    raw.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>", "chat_template": "x"}')
    run("hf", tmp_path)
