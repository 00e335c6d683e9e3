"""As tests/ops/test_nan_queries.py, for the kernels of the device."""

from __future__ import annotations

import pytest
import torch
from harness import Device
from nan_queries import check_nan_query


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("queries", "keys"), [(1, 40), (5, 40), (1, 600)])
def test_nan_stays_visible(device: Device, queries: int, keys: int, dtype: torch.dtype, latent: bool) -> None:
    with device:
        check_nan_query(device.put, dtype, queries, keys, latent=latent)
