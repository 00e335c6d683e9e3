"""What all tests share: one seed, printed when a test fails, and the GPU marker."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    default = int(os.environ.get("INFERX_TEST_SEED", "0"))
    parser.addoption("--seed", type=int, default=default, help="seed of random, numpy and torch")


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seeds every generator before each test; pytest shows the line only for tests that fail."""
    value: int = request.config.getoption("--seed")
    print(f"seed {value} (repeat with --seed={value})")
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)
    return value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
