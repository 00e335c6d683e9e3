"""How tensors reach C++: what is seen of them, what is refused, on both ways in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from op_checks import run_python
from torch._subclasses import FakeTensorMode

from inferx import _C, ops

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "bool": torch.bool,
    "another dtype": torch.complex64,
}


def check_seen(tensor: torch.Tensor, dtype: str) -> None:
    seen = _C._describe_tensor(tensor)
    assert seen["data_ptr"] == tensor.data_ptr()
    assert seen["dtype"] == dtype
    assert seen["shape"] == list(tensor.shape)
    assert seen["device"] == "cpu"
    for size, stride, expected in zip(seen["shape"], seen["strides"], tensor.stride(), strict=True):
        assert size <= 1 or stride == expected


@pytest.mark.parametrize("name", list(DTYPES))
def test_dtypes(name: str) -> None:
    check_seen(torch.ones(3, 4).to(DTYPES[name]), name)


def test_views() -> None:
    base = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).view(2, 3, 4, 5)
    for view in (
        base,
        base[1:, :, 2],
        base.permute(3, 0, 2, 1),
        base[:, ::2, 1::2, 3:],
        base[:1].expand(7, 3, 4, 5),
        base.select(0, 1).t() if base[0, 0].dim() == 1 else base[0, 0].t(),
        base[0, 0, 0, 3],
        torch.tensor(1.0),
        base[:0],
        torch.empty(0),
        torch.ones(1, 1, 1, 1, 1, 1, 1, 2),
    ):
        check_seen(view, "float32")


def test_parameters_and_gradients() -> None:
    parameter = torch.nn.Parameter(torch.randn(6, 8))
    check_seen(parameter, "float32")
    check_seen(torch.randn(3, requires_grad=True), "float32")
    check_seen(parameter.detach()[1:], "float32")
    with torch.inference_mode():
        check_seen(torch.ones(2), "float32")


@pytest.mark.parametrize(
    "argument",
    [None, 3, [1.0], np.ones((2, 2), np.float32), "x"],
    ids=["None", "int", "list", "numpy", "str"],
)
def test_what_is_no_tensor_is_refused(argument: object) -> None:
    with pytest.raises(TypeError):
        _C._describe_tensor(argument)
    with pytest.raises(TypeError, match="weight"):
        _C.rms_norm(torch.ones(1, 2), torch.ones(1, 2), argument, 1e-5)


class Subclass(torch.Tensor):
    pass


def test_tensors_without_memory_of_their_own_are_refused() -> None:
    with FakeTensorMode():
        fake = torch.empty(2, 2)
    for tensor in (fake, torch.ones(2).as_subclass(Subclass)):
        with pytest.raises(TypeError):
            _C._describe_tensor(tensor)
    with pytest.raises(Exception, match=r"(?i)sparse|strided|storage|layout|stride"):
        _C._describe_tensor(torch.ones(2, 2).to_sparse())
    x = torch.empty(2, 2, device="meta")
    with pytest.raises(Exception, match=r"(?i)meta|device"):
        ops.rms_norm(x, torch.ones(2), 1e-5)


def test_too_many_dimensions() -> None:
    with pytest.raises(ValueError, match="9 dimensions; at most 8"):
        _C._describe_tensor(torch.ones([1] * 9))


def test_without_torchs_exchange_api_the_same_tests_pass() -> None:
    if ops.build_info()["tensor_access"] == "attributes":
        pytest.skip("this is that run")
    code = f"""
import sys, pytest
from inferx import ops
assert ops.build_info()["tensor_access"] == "attributes"
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", {str(Path(__file__))!r}]))
"""
    result = run_python(code, INFERX_NO_DLPACK_API="1")
    assert result.returncode == 0, result.stdout + result.stderr


def test_elements_without_memory_are_refused() -> None:
    weight = torch.ones(16)
    with pytest.raises(ValueError, match="no memory"):
        ops.rms_norm(torch._efficientzerotensor((4, 16)), weight, 1e-6)
    freed = torch.ones(4, 16)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="no memory"):
        ops.rms_norm(freed, weight, 1e-6)
    assert ops.rms_norm(torch.empty(0, 16), weight, 1e-6).shape == (0, 16)


def test_ops_are_seen_by_whoever_records_them() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x, weight = torch.randn(3, 16), torch.rand(16)
    expected = ops.rms_norm(x, weight, 1e-6)
    graph = make_fx(lambda a: ops.rms_norm(a, weight, 1e-6))(x)
    assert "inferx.rms_norm" in graph.code
    assert torch.equal(graph(x), expected)
    traced = torch.jit.trace(lambda a: ops.rms_norm(a, weight, 1e-6), x)
    assert torch.equal(traced(x), expected)
