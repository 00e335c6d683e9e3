"""The compiled module.  Its functions check their arguments themselves; inferx.ops is the typed interface."""

from typing import Any

def __getattr__(name: str) -> Any: ...
