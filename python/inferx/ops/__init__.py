"""The kernels, one function per op.  Importing this also defines ``torch.ops.inferx.*``.

Ops are for inference: they do not record gradients.
"""

from __future__ import annotations

from inferx.ops import _lib  # noqa: F401
from inferx.ops.attention import *  # noqa: F403
from inferx.ops.embedding import *  # noqa: F403
from inferx.ops.info import build_info, get_num_threads, set_num_threads
from inferx.ops.linear import *  # noqa: F403

__all__ = [
    "build_info",
    "get_num_threads",
    "set_num_threads",
]
