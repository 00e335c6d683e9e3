"""Rotary parameters of a ``config.json``, in the spellings of transformers 4 and 5."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from inferx.errors import LoadError
from inferx.loader.config import RopeConfig, RopeType
from inferx.loader.hf_values import FLOAT32_END

_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
_SCALED = ("linear", "dynamic", "llama3", "yarn")
DEFAULT_THETA = 10000.0
GEMMA3_THETA, GEMMA3_LOCAL_THETA = 1000000.0, 10000.0


def rope_config(
    data: dict[str, Any],
    defaults: dict[str, Any],
    max_positions: int,
    original: int | None,
    architecture: str,
    path: Path,
) -> RopeConfig:
    """defaults: rope_theta, and rope_parameters as a whole, where the file has none.
    original: the config's own original_max_position_embeddings, which wins over the one in the rope
    fields."""
    fields = _fields(data, path) or dict(defaults.get("rope_parameters", {}))
    if any(isinstance(value, dict) for value in fields.values()):
        fields = _one_of_nested(fields, path)
    theta = defaults.get("rope_theta", DEFAULT_THETA)
    fields.setdefault("rope_theta", data.get("rope_theta", theta))
    if data.get("partial_rotary_factor") is not None:
        fields.setdefault("partial_rotary_factor", data["partial_rotary_factor"])
    if architecture == "phi3" and _kind(fields) in ("su", "yarn"):
        fields["rope_type"] = "longrope"  # what the first Phi-3 configurations called it
    if original is not None:
        fields["original_max_position_embeddings"] = original
    return _parse(fields, max_positions, path)


def gemma3_ropes(data: dict[str, Any], max_positions: int, path: Path) -> tuple[RopeConfig, RopeConfig]:
    """(full layers, sliding layers).  rope_scaling of transformers 4 is for the full layers alone."""
    parameters = data.get("rope_parameters")
    nested = parameters if isinstance(parameters, dict) else {}
    full = dict(nested.get("full_attention") or {})
    local = dict(nested.get("sliding_attention") or {})
    full.update(data.get("rope_scaling") or {} if isinstance(data.get("rope_scaling"), dict) else {})
    full.setdefault("rope_theta", data.get("rope_theta", GEMMA3_THETA))
    local.setdefault("rope_theta", data.get("rope_local_base_freq", GEMMA3_LOCAL_THETA))
    return _parse(full, max_positions, path), _parse(local, max_positions, path)


def _fields(data: dict[str, Any], path: Path) -> dict[str, Any]:
    for key in ("rope_scaling", "rope_parameters"):
        value = data.get(key)
        if value is not None and not isinstance(value, dict):
            raise LoadError(f"{path}: {key}: expected an object or null, got {str(value)[:100]}")
        if value:
            return dict(value)
    return {}


def _one_of_nested(fields: dict[str, Any], path: Path) -> dict[str, Any]:
    """Parameters per layer type, which only Gemma 3 may have different."""
    entries = [value for value in fields.values() if isinstance(value, dict)]
    if len(entries) != len(fields) or any(entry != entries[0] for entry in entries):
        raise LoadError(
            f"{path}: rope_parameters: differing parameters per layer type are not supported here"
        )
    return dict(entries[0])


def _kind(fields: dict[str, Any]) -> Any:
    return fields.get("rope_type") or fields.get("type") or "default"


def _parse(fields: dict[str, Any], max_positions: int, path: Path) -> RopeConfig:
    kind = "longrope" if _kind(fields) == "su" else _kind(fields)
    if kind not in _TYPES:
        raise LoadError(f"{path}: rope_type {kind!r} is not supported (supported: {', '.join(_TYPES)})")

    def number(key: str, default: float | None = None) -> float:
        value: Any = fields.get(key, default)
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not 0 < value < FLOAT32_END:
            raise LoadError(
                f"{path}: {key} of rope type {kind}: expected a positive number in float32's range, "
                f"got {str(value)[:100]}"
            )
        return float(value)

    def optional(key: str) -> float | None:
        return None if fields.get(key) is None else number(key)

    def factors(key: str) -> tuple[float, ...]:
        value = fields.get(key)
        good = isinstance(value, list) and all(type(n) in (int, float) and 0 < n < FLOAT32_END for n in value)
        if not good or not value:
            raise LoadError(
                f"{path}: {key} of rope type {kind}: expected positive numbers in float32's range, "
                f"got {str(value)[:100]}"
            )
        return tuple(float(n) for n in value)

    def mscale(key: str) -> float | None:
        """Zero is "none" to transformers, too."""
        return None if fields.get(key) == 0 else optional(key)

    truncate = fields.get("truncate", True)
    if truncate is not None and not isinstance(truncate, bool):
        raise LoadError(
            f"{path}: truncate of rope type {kind}: expected true or false, got {str(truncate)[:100]}"
        )
    needs_original = kind in ("llama3", "yarn", "longrope")
    # transformers' dynamic scaling counts from max_position_embeddings, whatever the file says beside it.
    original = None if kind == "dynamic" else optional("original_max_position_embeddings")
    if original is None and needs_original:
        original = float(max_positions)
    if kind in ("yarn", "longrope") and fields.get("factor") is None:
        factor = max_positions / (original or max_positions)
    else:
        factor = number("factor") if kind in _SCALED else number("factor", 1.0)
    return RopeConfig(
        theta=number("rope_theta"),
        rope_type=cast(RopeType, kind),
        factor=factor,
        original_max_position_embeddings=None if original is None else int(original),
        partial_rotary_factor=number("partial_rotary_factor", 1.0),
        low_freq_factor=number("low_freq_factor") if kind == "llama3" else 1.0,
        high_freq_factor=number("high_freq_factor") if kind == "llama3" else 4.0,
        beta_fast=optional("beta_fast") or 32.0,
        beta_slow=optional("beta_slow") or 1.0,
        attention_factor=optional("attention_factor"),
        mscale=mscale("mscale"),
        mscale_all_dim=mscale("mscale_all_dim"),
        truncate=bool(truncate),
        short_factor=factors("short_factor") if kind == "longrope" else (),
        long_factor=factors("long_factor") if kind == "longrope" else (),
    )
