"""The tests of the small ops again, on every instruction set below the one in use."""

from __future__ import annotations

import pytest
from op_checks import check_on_instruction_set

FILES = [
    "test_norm.py",
    "test_activation.py",
    "test_rotary.py",
    "test_reshape_and_cache.py",
    "test_routing.py",
    "test_moe_sum.py",
    "test_token_bitmask.py",
]


@pytest.mark.parametrize("isa", ["base", "v3"])
def test_small_ops(isa: str) -> None:
    check_on_instruction_set(isa, FILES, deselect="transformers")
