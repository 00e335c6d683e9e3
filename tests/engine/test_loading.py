"""From options and configurations to a loaded model: what is odd ends in an error that names it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.engine.core_harness import make_core, save_tiny_llama, save_tiny_moe

from inferx.errors import LoadError

HUGE = 10**400


def rope(**fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **fields}}


@pytest.mark.parametrize(
    "change",
    [
        {"rms_norm_eps": HUGE},
        {"max_position_embeddings": 1},
        {"num_hidden_layers": 0},
        {"hidden_size": "40"},
        rope(rope_type="linear", factor=0.001),
        rope(rope_type="dynamic", factor=HUGE),
        rope(rope_type="default", rope_theta=HUGE),
        rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
             original_max_position_embeddings=1e300),
        rope(rope_type="default", partial_rotary_factor=1e308),
        {"rope_parameters": "abc"},
    ],
    ids=lambda change: json.dumps(change)[:60],
)  # fmt: skip
def test_absurd_configurations(tmp_path: Path, change: dict[str, Any]) -> None:
    path = save_tiny_llama(tmp_path)
    config = json.loads((path / "config.json").read_text())
    sys.set_int_max_str_digits(0)
    (path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(LoadError) as caught:
        make_core(path)
    # Names the file, and is no wall of digits.
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_a_huge_token_id_is_damage(tmp_path: Path) -> None:
    path = save_tiny_llama(tmp_path)
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["zz"] = 1_000_000_000
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(LoadError, match="1000000000"):
        make_core(path)


def test_parameters_in_the_table_and_in_the_statistics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them take memory; a token computes with two of five experts."""
    with caplog.at_level("INFO", "inferx.engine"):
        core = make_core(save_tiny_moe(tmp_path))
    total, active = core.info.total_parameters, core.info.active_parameters
    assert total - active == 2 * 3 * 3 * 48 * 72  # layers, idle experts, matrices of each
    assert (core.stats().total_parameters, core.stats().active_parameters) == (total, active)
    assert f"{total / 1000:.1f} K total, {active / 1000:.1f} K active per token" in caplog.text


@pytest.mark.parametrize("value", ["2,1", "abc", "-3", "99999999999", ""])
def test_odd_omp_num_threads(value: str) -> None:
    """OpenMP's own reading of the variable counts, nested lists included."""
    code = (
        "from inferx import ops; from inferx.engine.loading import set_threads; import torch;"
        "set_threads(None); assert ops.get_num_threads() == torch.get_num_threads() >= 1"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": value}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
