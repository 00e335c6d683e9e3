"""settle_heap: what is loaded is out of the collector's way, what comes later is still collected."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import gc, weakref
from inferx.heap import settle_heap

class Node:
    pass

old = [Node() for _ in range(1000)]
settle_heap()
assert gc.get_freeze_count() > 1000
assert not any(tracked is old for tracked in gc.get_objects())
a, b = Node(), Node()
a.other, b.other = b, a
gone = weakref.ref(a)
del a, b
for _ in range(100_000):
    old.append([old])  # objects that stay, so that collections come by themselves
assert gone() is None
"""


def test_only_what_comes_later_is_collected() -> None:
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
