"""The executor's self-test kernels (csrc/simt/selftest), run in one build and schedule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from harness import ORDERS, guarded_copy, simt_module


class Simt:
    """One build of the self-tests in one schedule."""

    def __init__(self, build: str, order: str = "forward", seed: int = 1, preempt: int = 0) -> None:
        self.is_simt = build != "cuda"
        self.checked = build == "checked"
        self.module = simt_module(f"inferx_selftest_{build}")
        self._options = {"order": ORDERS[order], "seed": seed, "preempt": preempt}

    def run(
        self,
        name: str,
        *,
        inputs: Sequence[torch.Tensor] = (),
        outputs: Sequence[torch.Tensor] = (),
        numbers: Sequence[int] = (),
        grid: Sequence[int] = (1,),
        block: Sequence[int] = (32,),
        shared: int = 0,
        options: dict[str, int] | None = None,
        in_place: bool = False,
    ) -> None:
        """Launches it on copies of the tensors (unless in_place); outputs are copied back, errors or not."""
        placed = [t if in_place else self._put(t) for t in (*inputs, *outputs)]
        if self.is_simt:
            defaults = {
                "time_limit": 120,
                "num_sms": 3,
                "shared_limit": 227 * 1024,
                "uninitialised": 1,
                "bank_conflicts": 0,
            }
            self.module.configure(defaults | self._options | (options or {}))
        try:
            self.module.selftest(
                name,
                inputs=placed[: len(inputs)],
                outputs=placed[len(inputs) :],
                numbers=list(numbers),
                grid=list(grid),
                block=list(block),
                shared=shared,
            )
        finally:
            for out, copy in zip(outputs, placed[len(inputs) :], strict=True):
                if copy is not out:
                    out.copy_(copy)

    def fails(self, message: str, name: str, *, checked_only: bool = False, **arguments: Any) -> str:
        """It ends with an error that matches ``message``; that error.  Some the fast build cannot see."""
        if not self.is_simt or (checked_only and not self.checked):
            pytest.skip("seen by the executor's checked build")
        with pytest.raises(RuntimeError, match=message) as error:
            self.run(name, **arguments)
        return str(error.value)

    def fails_or_differs(self, message: str, want: torch.Tensor, name: str, **arguments: Any) -> None:
        """The checked build finds the bug; in the fast one it shows as an error or in the last output."""
        if self.checked or not self.is_simt:
            self.fails(message, name, **arguments)
            return
        try:
            self.run(name, **arguments)
        except RuntimeError as error:
            found = re.search(message, str(error)) is not None
        else:
            found = not torch.equal(arguments["outputs"][-1], want)
        assert found

    def stats(self) -> dict[str, int]:
        """Counters since the last call."""
        counters: dict[str, int] = self.module.stats()
        return counters

    def _put(self, tensor: torch.Tensor) -> torch.Tensor:
        return guarded_copy(self.module, tensor) if self.is_simt else tensor.cuda()
