"""Figures for the terminal."""

from __future__ import annotations

from inferx.engine.protocol import RequestMetrics


def latency_line(metrics: RequestMetrics) -> str:
    """One line: tokens, speeds, and where the time went."""
    stalls = metrics.stall_preempted_time + metrics.stall_recompute_time + metrics.stall_scheduled_out_time
    parts = [
        f"prompt {metrics.num_prompt_tokens} tokens ({metrics.num_cached_tokens} cached)",
        f"queue {metrics.queue_time * 1000:.0f} ms",
        f"prefill {metrics.prefill_time * 1000:.0f} ms"
        + _rate(metrics.num_computed_prompt_tokens, metrics.prefill_time),
        f"decode {metrics.decode_time * 1000:.0f} ms" + _rate(metrics.num_decode_steps, metrics.decode_time),
    ]
    if stalls > 0.0005:
        parts.append(f"stalls {stalls * 1000:.0f} ms, {metrics.num_preemptions} preemptions")
    parts.append(f"total {metrics.e2e_time * 1000:.0f} ms")
    return ", ".join(parts)


def _rate(tokens: int, seconds: float) -> str:
    return f" ({tokens / seconds:.0f} tok/s)" if seconds > 0 and tokens else ""
