"""Prometheus metrics under vLLM's names; what vLLM does not have is prefixed ``inferx:``."""

from __future__ import annotations

import contextlib
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from inferx.engine.protocol import EngineStats, RequestMetrics
from inferx.outputs import RequestOutput
from inferx.server.unknown_fields import unknown_fields

if TYPE_CHECKING:
    from inferx.server.generation import Job

LABELS = ("model_name",)
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640
)  # fmt: skip
TOKEN_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 40
)  # fmt: skip
REQUEST_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960
)  # fmt: skip

GAUGES = (
    ("vllm:num_requests_running", "num_running", "Requests in the running batch."),
    ("vllm:num_requests_waiting", "num_waiting", "Requests waiting for a place in the batch."),
    ("vllm:kv_cache_usage_perc", "kv_cache_usage", "Share of KV blocks in use; 1 is all of them."),
    ("inferx:num_kv_blocks", "num_blocks", "KV blocks in the pool."),
    ("inferx:num_free_kv_blocks", "num_free_blocks", "KV blocks not in use, cached ones included."),
    ("inferx:num_cached_kv_blocks", "num_cached_blocks", "Unused KV blocks that still hold a known prefix."),
)
COUNTERS = (
    ("vllm:prefix_cache_queries", "prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    ("vllm:prefix_cache_hits", "prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    ("vllm:num_preemptions", "num_preemptions", "Requests evicted to make room for others."),
    ("vllm:prompt_tokens", "prompt_tokens", "Prompt tokens processed."),
    ("vllm:generation_tokens", "generation_tokens", "Tokens generated."),
    ("inferx:engine_steps", "num_steps", "Steps of the engine."),
)


class StatsSource(Protocol):
    def stats(self) -> EngineStats: ...


class EngineCollector(Collector):
    """Reads the engine's latest snapshot at scrape time; a step costs nothing."""

    def __init__(self, source: StatsSource, model_name: str) -> None:
        self.source = source
        self.model_name = model_name

    def collect(self) -> Iterator[Metric]:
        stats = self.source.stats()
        for name, attribute, text in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            gauge.add_metric([self.model_name], getattr(stats, attribute))
            yield gauge
        for name, attribute, text in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=LABELS)
            counter.add_metric([self.model_name], getattr(stats, attribute))
            yield counter
        parameters = GaugeMetricFamily(
            "inferx:model_parameters",
            "Parameters of the model: all, which take memory, and those that one token computes with.",
            labels=(*LABELS, "kind"),
        )
        for kind, count in (("total", stats.total_parameters), ("active", stats.active_parameters)):
            parameters.add_metric([self.model_name, kind], count)
        yield parameters


class TokenHistogram(Collector):
    """A histogram that every token passes: used on one thread, it needs no locks."""

    def __init__(self, name: str, text: str, buckets: tuple[float, ...], model_name: str) -> None:
        self._name, self._text, self._model_name = name, text, model_name
        self._bounds = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, seconds: float, count: int) -> None:
        """``count`` tokens came together after that time: at an equal share of it each."""
        if count > 0:
            self._counts[bisect_left(self._bounds, seconds / count)] += count
            self._sum += seconds

    def collect(self) -> Iterator[Metric]:
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        metric = HistogramMetricFamily(self._name, self._text, labels=LABELS)
        cumulative = list(zip(bounds, accumulate(self._counts), strict=True))
        metric.add_metric([self._model_name], cumulative, self._sum)
        yield metric


class ServerMetrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self, engine: StatsSource, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.model_name = model_name
        self.on_request_end: Callable[[], None] = lambda: None
        self.registry.register(EngineCollector(engine, model_name))
        self.registry.register(unknown_fields)
        self._responses = Counter(
            "inferx:http_responses",
            "Responses by endpoint and status (0: the client left first).",
            ("endpoint", "status"),
            registry=self.registry,
        )
        self._refusals = Counter(
            "inferx:http_refusals", "Error responses by code.", ("code",), registry=self.registry
        )
        token_buckets = tuple(float(2**i) for i in range(18))
        self._time_to_first_token = self._histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token.", FIRST_TOKEN_BUCKETS
        )
        self._inter_token_latency = TokenHistogram(
            "vllm:inter_token_latency_seconds", "Between tokens of one sample.", TOKEN_BUCKETS, model_name
        )
        self.registry.register(self._inter_token_latency)
        self._queue = self._histogram(
            "vllm:request_queue_time_seconds", "Arrival to first scheduled.", REQUEST_BUCKETS
        )
        self._prefill = self._histogram(
            "vllm:request_prefill_time_seconds", "Steps that computed the prompt.", REQUEST_BUCKETS
        )
        self._decode = self._histogram(
            "vllm:request_decode_time_seconds", "Steps that produced tokens.", REQUEST_BUCKETS
        )
        self._stall = self._histogram(
            "inferx:request_stall_time_seconds", "Preempted, recomputed or left out.", REQUEST_BUCKETS
        )
        self._inference = self._histogram(
            "vllm:request_inference_time_seconds", "First scheduled to finished.", REQUEST_BUCKETS
        )
        self._e2e = self._histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to finished.", REQUEST_BUCKETS
        )
        self._prompt_tokens = self._histogram(
            "vllm:request_prompt_tokens", "Prompt tokens per request.", token_buckets
        )
        self._generation_tokens = self._histogram(
            "vllm:request_generation_tokens", "Tokens generated per sample.", token_buckets
        )
        self._success = Counter(
            "vllm:request_success",
            "Finished samples by reason.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, text, LABELS, buckets=buckets, registry=self.registry)
        return histogram.labels(self.model_name)

    def render(self) -> bytes:
        """The text format that Prometheus scrapes."""
        return generate_latest(self.registry)

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is asked for its value when metrics are read."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def observe_response(self, endpoint: str, status: int, error_code: str | None) -> None:
        """A response has been sent.  endpoint: the route's path as registered, so that labels are few."""
        self._responses.labels(endpoint, str(status)).inc()
        if error_code is not None:
            self._refusals.labels(error_code).inc()

    async def observe(
        self, outputs: AsyncGenerator[RequestOutput, None], job: Job
    ) -> AsyncGenerator[RequestOutput, None]:
        """Pass the outputs of one request through and count them; leaving early counts as an abort."""
        arrival = time.monotonic() if job.arrival_time is None else job.arrival_time
        last: dict[int, float] = {}
        generated: dict[int, int] = {}
        unfinished = set(range(job.params.n))
        reason = "abort"
        try:
            async with contextlib.aclosing(outputs) as source:
                async for output in source:
                    now = time.monotonic()
                    for sample in output.outputs:
                        new = len(sample.token_ids)
                        generated[sample.index] = generated.get(sample.index, 0) + new
                        self._observe_tokens(new, now, last.get(sample.index), None if last else arrival)
                        last[sample.index] = now
                        if sample.finish_reason is not None:
                            unfinished.discard(sample.index)
                            self.observe_finished(
                                sample.finish_reason, sample.metrics, generated[sample.index]
                            )
                    yield output
        except Exception:
            reason = "error"
            raise
        finally:
            self.on_request_end()
            for _ in unfinished:
                self._success.labels(self.model_name, reason).inc()

    def _observe_tokens(self, new: int, now: float, last: float | None, arrival: float | None) -> None:
        if arrival is not None:
            self._time_to_first_token.observe(now - arrival)
        if last is not None:
            self._inter_token_latency.observe(now - last, new)

    def observe_finished(self, reason: str, metrics: RequestMetrics | None, num_generated: int) -> None:
        """One sample has ended in the ordinary way."""
        self._success.labels(self.model_name, reason).inc()
        self._generation_tokens.observe(num_generated)
        if metrics is None:
            return
        self._prompt_tokens.observe(metrics.num_prompt_tokens)
        self._queue.observe(metrics.queue_time)
        self._prefill.observe(metrics.prefill_time)
        self._decode.observe(metrics.decode_time)
        stalls = (
            metrics.stall_preempted_time + metrics.stall_recompute_time + metrics.stall_scheduled_out_time
        )
        self._stall.observe(stalls)
        self._inference.observe(metrics.e2e_time - metrics.queue_time)
        self._e2e.observe(metrics.e2e_time)
