"""NaN in a query reaches its own row and no other, whatever the number of splits."""

from __future__ import annotations

import pytest
import torch
from nan_queries import check_nan_query


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("keys", [40, 512, 1100])
@pytest.mark.parametrize("queries", [1, 5, 40])
def test_nan_stays_visible(queries: int, keys: int, latent: bool) -> None:
    check_nan_query(lambda tensor: tensor, torch.float32, queries, keys, latent=latent)
