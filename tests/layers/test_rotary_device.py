"""Rotary rows on a device are those of the CPU, without a look at any position."""

from __future__ import annotations

import pytest
import torch

from inferx.layers import rotary_device
from inferx.layers.rotary import RotaryEmbedding
from inferx.layers.rotary_device import DeviceRotary, table_bytes
from inferx.loader.config import RopeConfig

CPU = torch.device("cpu")
HALF = 8
ROPES = {
    "default": RopeConfig(),
    "linear": RopeConfig(rope_type="linear", factor=3.0),
    "partial": RopeConfig(partial_rotary_factor=0.5),
    "llama3": RopeConfig(rope_type="llama3", factor=4.0, original_max_position_embeddings=32),
    "yarn": RopeConfig(rope_type="yarn", factor=4.0, original_max_position_embeddings=32),
    "dynamic": RopeConfig(rope_type="dynamic", factor=2.5, original_max_position_embeddings=40),
    "dynamic-factors": RopeConfig(
        rope_type="dynamic", factor=2.0, original_max_position_embeddings=40, freq_factors=(1.5,) * HALF
    ),
    "longrope": RopeConfig(
        rope_type="longrope",
        factor=4.0,
        original_max_position_embeddings=50,
        short_factor=tuple(1 + 0.1 * i for i in range(HALF)),
        long_factor=tuple(2 + 0.5 * i for i in range(HALF)),
    ),
}


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("piece", [7, rotary_device.PIECE])
def test_rows_are_the_cpus(name: str, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary_device, "PIECE", piece)
    reference = RotaryEmbedding(ROPES[name], 2 * HALF, 200)
    device = DeviceRotary(reference, 100, CPU)
    assert device.nbytes == table_bytes(reference, 100)
    # Prompts below, at and above the original length, output tokens, and a padded row.
    positions = torch.tensor([0, 5, 39, 40, 49, 50, 99, 3, 0])
    rope_lens = torch.tensor([30, 40, 41, 41, 50, 51, 100, 90, 1])
    expected = reference.rows(positions, rope_lens)
    actual = device.rows(positions, rope_lens)
    assert actual.table.dtype == torch.float32
    # dynamic NTK takes its power for all tokens at once, which may round otherwise.
    tolerance = 1e-5 if name.startswith("dynamic") else 0
    torch.testing.assert_close(
        actual.table[actual.index], expected.table[expected.index], rtol=0, atol=tolerance
    )
    assert device.prefix_cache_key(90) == reference.prefix_cache_key(90)


@pytest.mark.parametrize("name", ROPES)
def test_no_value_is_looked_at(name: str) -> None:
    """Tensors on "meta" have no values: whoever asks for one fails."""
    device = DeviceRotary(RotaryEmbedding(ROPES[name], 2 * HALF, 200), 100, torch.device("meta"))
    tokens = torch.zeros(6, dtype=torch.int64, device="meta")
    rows = device.rows(tokens, tokens)
    assert rows.index.shape == (6,)
    assert rows.table.is_meta


def test_types_that_depend_on_the_length_need_it() -> None:
    device = DeviceRotary(RotaryEmbedding(ROPES["longrope"], 2 * HALF, 200), 100, CPU)
    with pytest.raises(ValueError, match="rope_lens"):
        device.rows(torch.tensor([1]))
