"""inferx: an LLM inference engine.

``from inferx import LLM, SamplingParams`` for offline use, ``inferx serve`` for the server, and
``inferx.ops`` for the kernels alone.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

# OpenMP's threads spin between two ops.  With libgomp's default they spin so long that a busy machine
# becomes many times slower; a short spin costs nothing.  libgomp reads this when torch loads it.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")

# torch first: the module's libgomp.so.1 is then the one that torch brought, never a second one.
import torch as _torch  # noqa: F401

if TYPE_CHECKING:
    from inferx.llm import LLM
    from inferx.outputs import RequestOutput
    from inferx.pooling_params import PoolingParams
    from inferx.sampling_params import SamplingParams
    from inferx.structured_outputs import StructuredOutputsParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "PoolingParams",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
    "ops",
]

# Imported when first asked for, so that `import inferx` stays light.
_LAZY = {
    "LLM": "inferx.llm",
    "PoolingParams": "inferx.pooling_params",
    "RequestOutput": "inferx.outputs",
    "SamplingParams": "inferx.sampling_params",
    "StructuredOutputsParams": "inferx.structured_outputs",
}


def __getattr__(name: str) -> Any:
    if name == "ops":
        return importlib.import_module("inferx.ops")
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'inferx' has no attribute {name!r}")
