"""A Hugging Face directory as a Checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from inferx.errors import LoadError
from inferx.loader import mxfp4
from inferx.loader.checkpoint import Checkpoint, RawTensor, TensorInfo
from inferx.loader.config import ModelConfig
from inferx.loader.expert_layout import PLAIN, StackLayout
from inferx.loader.hf_config import model_config, token_ids
from inferx.loader.hf_defaults import DEFAULTS
from inferx.loader.hf_names import extra_layer, moe_name
from inferx.loader.hf_text import chat_template, special_token_ids, special_tokens, tokenizer_json
from inferx.loader.hf_values import Values
from inferx.loader.hf_weights import open_weights
from inferx.loader.json_file import read_json, read_optional_json
from inferx.loader.layout import parts_of
from inferx.loader.mla import rotary_rows
from inferx.loader.transforms import Source, cut

# The text model inside a multimodal Gemma 3, as saved by different versions of transformers.
_TEXT_PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
_OTHER_MODALITIES = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)


class HFCheckpoint(Checkpoint):
    """config.json, safetensors (single or sharded), tokenizer.json, generation_config.json, a chat
    template."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "config.json").is_file():
            raise LoadError(f"{path}: no config.json, so this is no Hugging Face model directory")
        raw_config = read_json(path / "config.json")
        self.generation_config = read_optional_json(path / "generation_config.json")
        tokenizer_config = read_optional_json(path / "tokenizer_config.json")
        self.special_tokens = special_tokens(tokenizer_config)
        self.chat_template = chat_template(path, tokenizer_config)
        self._stored = open_weights(path)
        try:
            config = model_config(raw_config, path / "config.json")
        except (ArithmeticError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            # Whatever nonsense a field holds, it is the file's, not the reader's, fault.
            message = f"{path / 'config.json'}: cannot be understood: {type(error).__name__}: {error}"
            raise LoadError(message) from error
        self.config = self._with_token_ids(config, raw_config)
        values = Values(raw_config, DEFAULTS[config.architecture], path / "config.json")
        self._extra_layers = values.get("num_nextn_predict_layers")
        # DeepSeek-V2 always has its rotary rows in pairs; later models say so.
        self._paired = config.architecture == "deepseek_v2" or values.flag("rope_interleave")
        self._sources: dict[str, Source] = {}
        self.tensors = self._canonical_tensors()

    def _with_token_ids(self, config: ModelConfig, raw: dict[str, Any]) -> ModelConfig:
        """End ids are the union of all declarations; the class defaults count only when there is none."""
        where = self.path / "generation_config.json"
        declared = [
            *token_ids(self.generation_config.get("eos_token_id"), "eos_token_id", where),
            *config.eos_token_ids,
            *(token_ids(raw.get("eos_token_id"), "eos_token_id", where) if "text_config" in raw else ()),
        ]
        by_text = special_token_ids(self.path, self.special_tokens)
        if (index := by_text.get("eos_token")) is not None:
            declared.append(index)
        defaults = DEFAULTS[config.architecture]
        if not declared and "eos_token_id" not in raw and "eos_token_id" in defaults:
            declared.append(defaults["eos_token_id"])
        bos = by_text.get("bos_token", config.bos_token_id)
        if bos is None and "bos_token_id" not in raw:
            bos = defaults.get("bos_token_id")
        # Class defaults stay in configurations of smaller vocabularies; such ids can never be produced.
        eos = tuple(index for index in dict.fromkeys(declared) if index < config.vocab_size)
        bos = bos if bos is not None and bos < config.vocab_size else None
        return replace(config, eos_token_ids=eos, bos_token_id=bos)

    def _canonical_tensors(self) -> dict[str, TensorInfo]:
        infos: dict[str, TensorInfo] = {}
        for stored in self._stored:
            file, _ = self._stored[stored]
            info = file.tensors[stored]
            canonical_name = self._canonical_name(stored)
            if canonical_name is None:
                continue
            rotary = rotary_rows(canonical_name.rpartition(".")[0], self.config) if self._paired else None
            layout = self._stack_layout(stored)
            parts = parts_of(canonical_name, stored, info.shape, self.config, file.path, rotary, layout)
            if layout.scales is not None:
                self._check_halves(stored, layout.scales)
            for canonical, source, shape in parts:
                if canonical in infos:
                    raise LoadError(f"{file.path}: tensor {canonical} occurs twice (again as {stored})")
                dtype = info.dtype if source.scales is None else "MXFP4"
                infos[canonical] = TensorInfo(canonical, shape, dtype, file.path)
                self._sources[canonical] = source
        return infos

    def _stack_layout(self, stored: str) -> StackLayout:
        """Of the experts in that tensor, if it holds experts."""
        if self.config.architecture != "gpt_oss":
            return PLAIN
        if not stored.endswith(mxfp4.BLOCKS):
            # Alone in this too: it multiplies by its experts from the other side.
            return StackLayout(transposed=True, alternating=True)
        scales = stored.removesuffix(mxfp4.BLOCKS) + mxfp4.SCALES
        if scales not in self._stored:
            raise LoadError(f"{self._stored[stored][0].path}: tensor {stored} is there without {scales}")
        return StackLayout(alternating=True, scales=scales)

    def _check_halves(self, blocks: str, scales: str) -> None:
        """LoadError when the two tensors do not fit together."""
        files = {name: self._stored[name][0] for name in (blocks, scales)}
        for name, file in files.items():
            if file.tensors[name].dtype != "U8":
                raise LoadError(
                    f"{file.path}: tensor {name}: expected dtype U8, got {file.tensors[name].dtype}"
                )
        expected, shape = files[blocks].tensors[blocks].shape[:-1], files[scales].tensors[scales].shape
        if shape != expected:
            raise LoadError(
                f"{files[scales].path}: tensor {scales}: expected shape {list(expected)} for {blocks}, "
                f"got {list(shape)}"
            )

    def _canonical_name(self, stored: str) -> str | None:
        """None: belongs to another modality, to layers that predict further tokens, or to another tensor
        (scales to their blocks)."""
        gpt_oss, stem = self.config.architecture == "gpt_oss", stored.removesuffix(mxfp4.SCALES)
        if gpt_oss and stem != stored and stem + mxfp4.BLOCKS in self._stored:
            return None
        if self.config.architecture == "gemma3":
            if stored.startswith(_OTHER_MODALITIES):
                return None
            for old, new in _TEXT_PREFIXES:
                if stored.startswith(old):
                    return new + stored.removeprefix(old)
        # Saved from the bare decoder, without the language-model head around it.
        if "embed_tokens.weight" in self._stored and not stored.startswith(("model.", "lm_head.")):
            stored = "model." + stored
        if extra_layer(stored, self.config, self._extra_layers):
            return None
        return moe_name(stored) if self.config.moe is not None else stored

    def read(self, name: str) -> RawTensor:
        source = self._sources.get(name)
        if source is None:
            raise LoadError(f"{self.path}: tensor {name} is missing")
        file, stored = self._stored[source.stored]
        info = self.tensors[name]
        if source.scales is not None:
            return RawTensor(info, self._read_mxfp4(source, info))
        return RawTensor(info, cut(file.read(stored), source, info.shape))

    def _read_mxfp4(self, source: Source, info: TensorInfo) -> torch.Tensor:
        """One expert's rows out of the two tensors."""
        assert source.scales is not None
        (file, blocks), (scales_file, scales) = self._stored[source.stored], self._stored[source.scales]
        rows, columns = info.shape
        shape = mxfp4.stored_shape(rows, columns, f"{file.path}: tensor {blocks}")
        return mxfp4.ggml_rows(
            cut(file.read_bytes(blocks), source, shape),
            cut(scales_file.read_bytes(scales), source, shape[:-1]),
            f"{scales_file.path}: tensor {scales}",
        )

    def tokenizer_json(self) -> str:
        return tokenizer_json(self.path)

    @property
    def weight_bytes(self) -> int:
        files = {id(file): file for file, _ in self._stored.values()}
        return sum(t.end - t.begin for file in files.values() for t in file.tensors.values())

    def release(self) -> None:
        for file in {id(file): file for file, _ in self._stored.values()}.values():
            file.release()

    def close(self) -> None:
        for file, _ in self._stored.values():
            file.close()
