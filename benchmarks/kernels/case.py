"""What is measured: one op at one shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

Call = Callable[[], object]


@dataclass
class Work:
    """Calls that do the same on different memory, so that running them in turn finds nothing in a cache.

    bytes: what one call has to move from and to memory, at least.  operations: floating-point operations
    (two a multiply-add).  tensor_cores: whether they may run there.  peers: the same work by other libraries.
    """

    calls: list[Call]
    bytes: float
    operations: float = 0.0
    tensor_cores: bool = False
    peers: dict[str, list[Call]] = field(default_factory=dict)


@dataclass
class Case:
    """``shape`` is printed; ``make`` allocates.  memory: bytes that ``make`` will need, about."""

    op: str
    shape: str
    make: Callable[[], Work]
    memory: float = 0.0


@dataclass(frozen=True)
class Target:
    """Where and how much is measured.  cold_bytes: memory that passes before an input comes round again."""

    device: torch.device
    cold_bytes: int
    memory_bytes: int
    quick: bool = False

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtypes(self) -> list[torch.dtype]:
        """Of activations: the CPU's kernels compute in float32."""
        return [torch.bfloat16] if self.is_cuda else [torch.float32]

    def copies(self, nbytes: float) -> int:
        """How many sets of inputs make up cold_bytes, at least one, at most what fits."""
        wanted = -(-self.cold_bytes // max(1, int(nbytes)))
        return int(max(1, min(wanted, self.memory_bytes // max(1, int(nbytes)), 2048)))

    def pick(self, values: list[int]) -> list[int]:
        """All of them, or the ends and the middle for a quick run."""
        if not self.quick or len(values) <= 2:
            return values
        return [values[0], values[len(values) // 2], values[-1]]


Cases = Iterator[Case]
DTYPE_NAMES = {
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
}
