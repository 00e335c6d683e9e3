"""How many parameters a configuration has, without any weights."""

from __future__ import annotations

from pathlib import Path

from inferx.errors import LoadError
from inferx.layers.attention import KVScales
from inferx.loader.checkpoint import Checkpoint, RawTensor, TensorInfo
from inferx.loader.config import ModelConfig
from inferx.models.registry import model_class
from inferx.models.weights import ParameterCount, WeightPlan


def count_parameters(config: ModelConfig, source: str = "configuration") -> ParameterCount:
    """source: for the messages of a LoadError, where the configuration is none that can run."""
    plan = _Blueprint(_NoWeights(config, Path(source)))
    model_class(config.architecture)(config, plan)
    return plan.parameters


class _Blueprint(WeightPlan):
    """Every tensor is there, in the shape that the model asks for."""

    def declare(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        self.add_parameters(shape)
        return TensorInfo(name, shape, "F32", self.source)

    def kv_scales(self, prefix: str, num_kv_heads: int) -> KVScales:
        return KVScales()

    def is_copy(self, name: str, other: str) -> bool:
        return True


class _NoWeights(Checkpoint):
    def __init__(self, config: ModelConfig, path: Path) -> None:
        self.path = path
        self.config = config
        self.tensors = {}

    def read(self, name: str) -> RawTensor:
        raise LoadError(f"{self.path}: has no weights")

    def tokenizer_json(self) -> str:
        raise LoadError(f"{self.path}: has no tokenizer")

    @property
    def weight_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass
