"""Rows of a dense table on the device."""

from __future__ import annotations

import pytest
import torch
from harness import Device
from op_checks import FLOATS, assert_same_bits

from inferx.ops._lib import kernels_for


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("id_dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize(("tokens", "columns"), [(0, 8), (1, 1), (5, 7), (3, 640)])
def test_rows(device: Device, dtype: torch.dtype, id_dtype: torch.dtype, tokens: int, columns: int) -> None:
    table = torch.randn(11, columns).to(dtype)
    ids = torch.randint(11, (tokens,), dtype=id_dtype)
    with device:
        out = device.put(torch.full((tokens, columns), float("nan"), dtype=dtype))
        kernels_for(out).embedding(out, device.put(ids), device.put(table))
    assert_same_bits(out.cpu(), table[ids.long()])


def test_ids_out_of_range_give_zeros(device: Device) -> None:
    table, ids = torch.randn(4, 24), torch.tensor([3, 4, -1, 0, 2**40])
    with device:
        out = device.put(torch.full((5, 24), float("nan")))
        kernels_for(out).embedding(out, device.put(ids), device.put(table))
    expected = torch.stack([table[3], torch.zeros(24), torch.zeros(24), table[0], torch.zeros(24)])
    assert_same_bits(out.cpu(), expected)


def test_strided_table_and_output(device: Device) -> None:
    table, ids = torch.randn(6, 50), torch.tensor([5, 0, 2])
    with device:
        out = device.put(torch.zeros(3, 40))
        kernels_for(out).embedding(out[:, 1:34], device.put(ids), device.put(table)[:, 3:36])
    assert_same_bits(out[:, 1:34].cpu().contiguous(), table[ids, 3:36].contiguous())
    assert not out[:, 0].any()
    assert not out[:, 34:].any()


def test_errors_name_the_argument(device: Device) -> None:
    with device:
        table, ids = device.put(torch.randn(4, 8)), device.put(torch.zeros(3, dtype=torch.int64))
        embedding = kernels_for(table).embedding
        with pytest.raises(ValueError, match=r"embedding: out: expected shape \[T=3, K=8\], got \[3, 7\]"):
            embedding(device.put(torch.zeros(3, 7)), ids, table)
        with pytest.raises(ValueError, match=r"embedding: out: .*bfloat16"):
            embedding(device.put(torch.zeros(3, 8).bfloat16()), ids, table)
        with pytest.raises(ValueError, match="embedding: ids"):
            embedding(device.put(torch.zeros(3, 8)), ids.float(), table)
