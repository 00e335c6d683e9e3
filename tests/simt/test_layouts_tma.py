"""Tensor tiles: what lies where in shared memory, against the PTX ISA's swizzle, for 2 to 5 dimensions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
import torch
from ptx_layouts import SWIZZLE_BITS, TENSOR_MAP_MODE, swizzle


@dataclass
class Case:
    """A tensor of `dims` (innermost first) with `pad` more bytes to each row, and a box of it at `coords`."""

    element: int
    mode: str
    dims: list[int]
    box: list[int]
    coords: list[int]
    pad: int = 0
    strides: list[int] = field(init=False)

    def __post_init__(self) -> None:
        stride = (self.dims[0] * self.element + self.pad + 15) // 16 * 16
        self.strides = [stride]
        for n in self.dims[1:-1]:
            self.strides.append(self.strides[-1] * n)

    @property
    def bytes(self) -> int:
        return self.strides[-1] * self.dims[-1]

    @property
    def box_bytes(self) -> int:
        return self.element * torch.tensor(self.box).prod().item()

    def numbers(self, bug: int = 0, other_rank: int = 0, base: int = 0) -> list[int]:
        def five(values: list[int], fill: int, n: int = 5) -> list[int]:
            return [*values, *[fill] * (n - len(values))]

        return [
            len(self.dims),
            self.element,
            TENSOR_MAP_MODE[self.mode],
            *five(self.dims, 0),
            *five(self.strides, 0, 4),
            *five(self.box, 0),
            *five(self.coords, 0),
            bug,
            other_rank,
            base,
        ]

    def elements(self):
        """(offset of an element's byte in shared memory, its offset in the tensor or None) over the box."""
        dense = 0
        for position in itertools.product(*[range(n) for n in reversed(self.box)]):
            at = [c + i for c, i in zip(self.coords, reversed(position), strict=True)]
            inside = all(0 <= x < n for x, n in zip(at, self.dims, strict=True))
            offset = at[0] * self.element + sum(x * s for x, s in zip(at[1:], self.strides, strict=True))
            for byte in range(self.element):
                yield swizzle(dense + byte, SWIZZLE_BITS[self.mode]), offset + byte if inside else None
            dense += self.element


CASES = [
    Case(2, "128B", [100, 37], [64, 16], [0, 0]),
    Case(2, "128B", [100, 37], [64, 16], [50, 30], pad=16),  # hangs over on two sides
    Case(2, "128B", [100, 37], [64, 8], [-3, -5]),
    Case(2, "64B", [64, 40], [32, 24], [8, 3]),
    Case(2, "32B", [48, 40], [16, 24], [40, 20]),
    Case(2, "none", [48, 40], [40, 7], [3, 35]),
    Case(1, "128B", [200, 20], [128, 16], [100, 7]),
    Case(1, "32B", [61, 9], [32, 9], [40, 0]),
    Case(4, "128B", [50, 20], [32, 8], [25, 15]),
    Case(4, "64B", [33, 20], [16, 9], [30, 13]),
    Case(2, "128B", [96, 5, 7], [64, 3, 2], [40, 3, 6]),
    Case(1, "64B", [70, 3, 4, 2], [64, 2, 3, 2], [7, 2, 2, 1]),
    Case(4, "none", [12, 3, 2, 3, 2], [8, 2, 2, 2, 2], [-2, 1, 1, -1, 1]),
    Case(2, "32B", [64, 3, 2, 3, 2], [16, 2, 1, 3, 2], [60, 2, 1, 1, 0], pad=32),
    Case(2, "128B", [64, 16], [64, 16], [64, 16]),  # entirely outside
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_load(simt, case: Case) -> None:
    tensor = torch.randint(1, 255, (case.bytes,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    out = torch.empty(case.box_bytes, dtype=torch.uint8)
    simt.run(
        "tma_load", inputs=[tensor], outputs=[out], numbers=case.numbers(), block=(64,), shared=case.box_bytes
    )
    want = torch.zeros(case.box_bytes, dtype=torch.uint8)
    for shared, offset in case.elements():
        if offset is not None:
            want[shared] = tensor[offset]
    assert torch.equal(out, want)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_store(simt, case: Case) -> None:
    image = torch.randint(1, 255, (case.box_bytes,), generator=torch.Generator().manual_seed(0)).to(
        torch.uint8
    )
    tensor = torch.zeros(case.bytes, dtype=torch.uint8)
    simt.run(
        "tma_store",
        inputs=[image],
        outputs=[tensor],
        numbers=case.numbers(),
        block=(64,),
        shared=case.box_bytes,
    )
    want = torch.zeros(case.bytes, dtype=torch.uint8)
    for shared, offset in case.elements():
        if offset is not None:
            want[offset] = image[shared]
    assert torch.equal(tensor, want)


def test_the_swizzle_as_figures_show_it() -> None:
    """Chunk c of row r lies at c ^ (r % 8) with 128 bytes, c ^ (r/2 % 4) with 64, c ^ (r/4 % 2) with 32."""
    for mode, chunks, rows in [("128B", 8, 1), ("64B", 4, 2), ("32B", 2, 4)]:
        for r, c in itertools.product(range(16), range(chunks)):
            want = (r * chunks + (c ^ r // rows % chunks)) * 16
            assert swizzle((r * chunks + c) * 16, SWIZZLE_BITS[mode]) == want


@pytest.mark.parametrize(
    "changes",
    [
        {"element": 8},
        {"dims": [64]},
        {"box": [64, 257]},
        {"box": [64, 0]},
        {"box": [72, 8]},  # 144 bytes: longer than the span
        {"box": [60, 8]},  # 120 bytes
        {"box": [32, 8]},  # 64 bytes: shorter
        {"strides": [136]},
        {"strides": [1 << 40]},
        {"dims": [0, 16]},
    ],
    ids=str,
)
def test_a_tensor_map_that_the_driver_would_refuse_is_refused(simt, changes: dict) -> None:
    case = Case(2, "128B", [64, 16], [64, 16], [0, 0])
    for name, value in changes.items():
        setattr(case, name, value)
    tensor = torch.zeros(1 << 14, dtype=torch.uint8)
    with pytest.raises(RuntimeError):
        simt.run("tma_load", inputs=[tensor], outputs=[tensor.clone()], numbers=case.numbers(), shared=2048)


def test_base_of_a_tensor_map_is_aligned(simt) -> None:
    case = Case(2, "128B", [64, 15], [64, 16], [0, 0])
    tensor = torch.zeros(1 << 14, dtype=torch.uint8)
    with pytest.raises(RuntimeError):
        simt.run(
            "tma_load", inputs=[tensor], outputs=[tensor.clone()], numbers=case.numbers(base=8), shared=2048
        )


@pytest.mark.parametrize(
    ("bug", "other_rank", "message"),
    [(1, 0, "1024-byte aligned"), (2, 0, "missing wait"), (0, 1, "has 2 dimensions")],
)
def test_planted_bug_of_a_load(simt, bug: int, other_rank: int, message: str) -> None:
    case = Case(2, "128B", [64, 16], [64, 16], [0, 0])
    tensor = torch.ones(case.bytes, dtype=torch.uint8)
    out = torch.empty(case.box_bytes, dtype=torch.uint8)
    checked_only = bug == 2  # the fast build sees that the bytes are 0xFF
    simt.fails(
        message,
        "tma_load",
        inputs=[tensor],
        outputs=[out],
        numbers=case.numbers(bug, other_rank),
        block=(64,),
        shared=case.box_bytes + 128,
        checked_only=checked_only,
    )


@pytest.mark.parametrize(("bug", "message"), [(1, "no fence_proxy_async"), (2, "before bulk_wait_read")])
def test_planted_bug_of_a_store(simt, bug: int, message: str) -> None:
    case = Case(2, "128B", [64, 16], [64, 16], [0, 0])
    image = torch.ones(case.box_bytes, dtype=torch.uint8)
    simt.fails(
        message,
        "tma_store",
        inputs=[image],
        outputs=[torch.zeros(case.bytes, dtype=torch.uint8)],
        numbers=case.numbers(bug),
        block=(64,),
        shared=case.box_bytes,
        checked_only=bug == 1,
    )


def test_load_outside_of_the_tensor_argument(simt) -> None:
    """A tensor map whose last row lies past the end of the tensor that the op was given."""
    if not simt.is_simt:
        pytest.skip("found by the executor")
    case = Case(2, "128B", [64, 17], [64, 16], [0, 1])
    tensor = torch.ones(case.bytes - 128, dtype=torch.uint8)
    out = torch.empty(case.box_bytes, dtype=torch.uint8)
    simt.fails(
        "out of bounds",
        "tma_load",
        inputs=[tensor],
        outputs=[out],
        numbers=case.numbers(),
        shared=case.box_bytes,
    )
