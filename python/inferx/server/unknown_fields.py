"""Fields of requests that nothing here knows: ignored, but counted, and logged once per name."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel

logger = logging.getLogger("inferx.server")

# Names are the callers' own: so many get a label and a line in the log, the rest one label together.
MAX_NAMES = 64
MAX_NAME_CHARS = 40
OTHERS = "(others)"
# Of OpenAI's API, about the caller or its bookkeeping: to ignore them breaks no promise.
WITHOUT_EFFECT = frozenset(
    ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
)


class UnknownFields(Collector):
    """The counts of this process."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def observe(self, model: type[BaseModel], data: dict[str, Any]) -> None:
        """Count the top-level names of ``data`` that ``model`` has no field for."""
        unsupported = getattr(model, "unsupported", {})  # refused when they ask for something
        for name in data.keys() - model.model_fields.keys() - WITHOUT_EFFECT - unsupported.keys():
            if any(f.alias == name for f in model.model_fields.values()):
                continue
            label = _printable(name)
            if label not in self.counts and len(self.counts) >= MAX_NAMES:
                label = OTHERS
            if label not in self.counts:
                known = "further unknown request fields" if label == OTHERS else f"request field {label!r}"
                logger.warning("ignoring %s, which inferx does not know (said once)", known)
            self.counts[label] += 1

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "inferx:unknown_request_fields", "Request fields that were ignored, by name.", labels=("field",)
        )
        for name, count in self.counts.items():
            family.add_metric([name], count)
        yield family


def _printable(name: str) -> str:
    """Short and plain: it goes into the log and into metrics."""
    text = "".join(c if c.isascii() and (c.isalnum() or c in "_-.") else "?" for c in name[:MAX_NAME_CHARS])
    return text + ("..." if len(name) > MAX_NAME_CHARS else "")


unknown_fields = UnknownFields()
