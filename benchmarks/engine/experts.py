"""Which experts a step reads: the floor of a mixture of experts depends on what its routers choose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from inferx.layers.moe import MoE
from inferx.models import Model


class ExpertCounter:
    """Bytes of experts that no token chose, summed over the forward passes inside ``counting()``."""

    def __init__(self, model: Model) -> None:
        self._layers = [layer.mlp for layer in model.layers if isinstance(layer.mlp, MoE)]
        self._idle_bytes = 0.0
        self._passes = 0

    @property
    def idle_bytes(self) -> float:
        """Per forward pass; 0 for a dense model."""
        return self._idle_bytes / self._passes if self._passes else 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        self._idle_bytes, self._passes = 0.0, 0
        routers = [layer.router for layer in self._layers]
        for layer in self._layers:
            layer.router = self._counted(layer)
        try:
            yield
        finally:
            for layer, router in zip(self._layers, routers, strict=True):
                layer.router = router

    def _counted(self, layer: MoE) -> Any:
        router, experts = layer.router, layer.experts
        stack_bytes = experts.w13.nbytes + experts.w2.nbytes
        num_experts = experts.w2.shape[0]

        def call(*args: Any) -> Any:
            weights, ids = router(*args)
            self._idle_bytes += stack_bytes * (1 - len(ids.unique()) / num_experts)
            self._passes += layer is self._layers[0]
            return weights, ids

        return call
