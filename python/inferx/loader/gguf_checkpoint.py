"""A GGUF file as a Checkpoint."""

from __future__ import annotations

from pathlib import Path

from inferx.errors import LoadError
from inferx.loader.checkpoint import Checkpoint, RawTensor, TensorInfo
from inferx.loader.config import ModelConfig
from inferx.loader.gguf_config import INTERLEAVED_ROTARY, architecture_of, extra_blocks, model_config
from inferx.loader.gguf_file import GGUFFile, GGUFTensor
from inferx.loader.gguf_names import ROPE_TENSORS, block_number, canonical_name
from inferx.loader.gguf_tokenizer import tokenizer_json
from inferx.loader.layout import parts_of
from inferx.loader.mla import rotary_rows
from inferx.loader.transforms import Part, RotaryRows, Source, cut


class GGUFCheckpoint(Checkpoint):
    """Weights stay as stored: block formats come as raw rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        self._released = False  # the file object has its vocabulary no more
        self._architecture = architecture_of(self._file)
        self.config = model_config(self._file)
        self.generation_config = {}
        self.special_tokens = {}
        template = self._file.metadata.get("tokenizer.chat_template")
        self.chat_template = template if isinstance(template, str) else None
        self._sources: dict[str, Source] = {}
        self.tensors = self._canonical_tensors()

    def _canonical_tensors(self) -> dict[str, TensorInfo]:
        infos: dict[str, TensorInfo] = {}
        first_extra = self.config.num_hidden_layers
        extra = range(first_extra, first_extra + extra_blocks(self._file, self._architecture))
        for name, stored in self._file.tensors.items():
            if name in ROPE_TENSORS or block_number(name) in extra:
                continue
            for canonical, source, shape in _sources_of(self._architecture, self.config, stored, self.path):
                if canonical in infos:
                    raise LoadError(f"{self.path}: tensor {canonical} occurs twice (again as {name})")
                infos[canonical] = TensorInfo(canonical, shape, stored.dtype, self.path)
                self._sources[canonical] = source
        return infos

    def read(self, name: str) -> RawTensor:
        source = self._sources.get(name)
        if source is None:
            raise LoadError(f"{self.path}: tensor {name} is missing")
        info = self.tensors[name]
        return RawTensor(info, cut(self._file.read(source.stored), source, info.shape))

    def tokenizer_json(self) -> str:
        return tokenizer_json(GGUFFile(self.path) if self._released else self._file)

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._file.tensors.values())

    def release(self) -> None:
        self._released = True
        self._file.release()

    def close(self) -> None:
        self._file.close()


def _sources_of(architecture: str, config: ModelConfig, stored: GGUFTensor, path: Path) -> list[Part]:
    """[(canonical name, where its rows are, shape)] for one stored tensor."""
    canonical = canonical_name(architecture, stored.name)
    rotary = _paired_rows(architecture, config, canonical.rpartition(".")[0])
    return parts_of(canonical, stored.name, stored.shape, config, path, rotary)


def _paired_rows(architecture: str, config: ModelConfig, stem: str) -> RotaryRows | None:
    if architecture not in INTERLEAVED_ROTARY:
        return rotary_rows(stem, config)
    heads = {
        "q_proj": config.num_attention_heads,
        "k_proj": config.num_key_value_heads,
    }.get(stem.rpartition(".self_attn.")[2])
    if heads is None:
        return None
    rotary_dim = int(config.head_dim * config.rope.partial_rotary_factor)
    return RotaryRows(heads, 0, rotary_dim, config.head_dim)
