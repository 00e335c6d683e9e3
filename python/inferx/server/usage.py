"""Token counts and the latency split of a response."""

from __future__ import annotations

from typing import Any

from inferx.engine.protocol import RequestMetrics


class UsageCounter:
    """Counts over all prompts and samples of one response."""

    def __init__(self, prompt_tokens: list[int]) -> None:
        self.prompt_tokens = sum(prompt_tokens)  # each prompt once, however many samples it has
        self.completion_tokens = 0
        self._cached = [0] * len(prompt_tokens)

    def add(self, prompt: int, num_new_tokens: int, num_cached_tokens: int) -> None:
        self.completion_tokens += num_new_tokens
        # Samples of one prompt share its blocks: the largest report is the prompt's.
        self._cached[prompt] = max(self._cached[prompt], num_cached_tokens)

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached)},
        }


def add_continuous_usage(chunk: dict[str, Any], wanted: bool, usage: UsageCounter) -> dict[str, Any]:
    """The chunk; with the usage so far when ``continuous_usage_stats`` asks for it."""
    if wanted:
        chunk["usage"] = usage.as_dict()
    return chunk


def latency_split(metrics: RequestMetrics) -> dict[str, Any]:
    """Where one sample's time went, in seconds: queue, prefill, decode, stalls and output sum to e2e."""
    stalls = {
        "preempted": metrics.stall_preempted_time,
        "recompute": metrics.stall_recompute_time,
        "scheduled_out": metrics.stall_scheduled_out_time,
    }
    accounted = metrics.queue_time + metrics.prefill_time + metrics.decode_time + sum(stalls.values())
    return {
        "e2e_time": metrics.e2e_time,
        "time_to_first_token": metrics.time_to_first_token,
        "queue_time": metrics.queue_time,
        "prefill_time": metrics.prefill_time,
        "decode_time": metrics.decode_time,
        "stall_time": stalls,
        "output_time": max(0.0, metrics.e2e_time - accounted),
        "prompt_tokens": metrics.num_prompt_tokens,
        "cached_prompt_tokens": metrics.num_cached_tokens,
        "computed_prompt_tokens": metrics.num_computed_prompt_tokens,
        "recomputed_tokens": metrics.num_recomputed_tokens,
        "prefill_chunks": metrics.num_prefill_chunks,
        "decode_steps": metrics.num_decode_steps,
        "preemptions": metrics.num_preemptions,
    }


def response_metrics(per_choice: list[RequestMetrics | None]) -> dict[str, Any] | None:
    """The split of the choice that took longest, since its time is the response's; with several choices,
    all of them under ``choices``."""
    known = [m for m in per_choice if m is not None]
    if not known:
        return None
    split = latency_split(max(known, key=lambda m: m.e2e_time))
    if len(per_choice) > 1:
        split["choices"] = [None if m is None else latency_split(m) for m in per_choice]
    return split
