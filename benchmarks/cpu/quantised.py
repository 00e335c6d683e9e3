"""What of a model is stored or computed in fewer bits: weights, activations, keys and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from inferx.engine.args import EngineArgs


def engine_option(name: str) -> bool:
    """Whether this version of the engine has it."""
    return name in EngineArgs.__struct_fields__


def describe(engine: Any) -> dict[str, Any]:
    """weights: tensors by stored type.  activations: of products with weights.  kv: type of the cache."""
    core = engine.core
    types = Counter(info.dtype for info in core.checkpoint.tensors.values())
    return {
        "weights": dict(sorted(types.items())),
        "activations": _activations(core.model),
        "kv": str(core.runner.kv[0][0].dtype).removeprefix("torch."),
    }


def _activations(model: Any) -> str:
    flags = Counter(bool(getattr(layer, "int8", False)) for layer in _linears(model.layers))
    if not flags[True]:
        return "float32"
    return "int8" if not flags[False] else f"int8 in {flags[True]} of {flags.total()} products"


def _linears(value: object, depth: int = 0) -> Iterator[object]:
    """Everything below ``value`` that has a weight and multiplies with it."""
    if type(value).__name__ == "Linear":
        yield value
        return
    if depth > 6 or isinstance(value, (str, int, float)):
        return
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _linears(item, depth + 1)
        return
    if type(value).__module__.startswith("inferx."):
        names = list(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            slots = getattr(kind, "__slots__", ())
            names += [slots] if isinstance(slots, str) else list(slots)
        for name in names:
            yield from _linears(getattr(value, name, None), depth + 1)
