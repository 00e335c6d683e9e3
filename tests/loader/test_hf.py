"""Hugging Face directories: weights, damage (case D02), tokenizer files, end ids (case D10), templates."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inferx.errors import LoadError
from inferx.loader import load_tokenizer, open_checkpoint

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def edit(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text()) if path.is_file() else {}
    write_json(path, {**value, **changes})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama in three or more shards, as transformers writes it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("hf")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) >= 3
    return folder


@pytest.fixture
def sharded(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


def shard(folder: Path, number: int) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[number - 1]


def all_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: value for path in folder.glob("model*.safetensors") for name, value in load_file(path).items()
    }


def check(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    expected = all_tensors(folder)
    assert set(checkpoint.tensors) == set(expected)
    for name, value in expected.items():
        raw = checkpoint.read(name)
        assert torch.equal(raw.data, value)
        assert raw.info.shape == tuple(value.shape)
    assert checkpoint.weight_bytes == sum(t.numel() * t.element_size() for t in expected.values())


# ---- weights


def test_shards_and_single_files_hold_the_same(sharded: Path) -> None:
    check(sharded)
    tensors = all_tensors(sharded)
    for path in sharded.glob("model*"):
        path.unlink()
    save_file(tensors, sharded / "model.safetensors")
    check(sharded)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_read_as_it_is(dtype: torch.dtype, sharded: Path) -> None:
    tensors = {name: value.to(dtype) for name, value in all_tensors(sharded).items()}
    for path in sharded.glob("model*"):
        path.unlink()
    save_file(tensors, sharded / "model.safetensors")
    check(sharded)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    name = shard(sharded, 2).name
    shard(sharded, 2).unlink()
    with pytest.raises(
        LoadError, match=rf"{name}: missing, but model\.safetensors\.index\.json puts model\."
    ):
        open_checkpoint(sharded)
    (sharded / "model.safetensors.index.json").unlink()
    with pytest.raises(LoadError, match="shard 2 of"):
        open_checkpoint(sharded)


def test_a_cut_shard_is_named(sharded: Path) -> None:
    path = shard(sharded, 3)
    data = path.read_bytes()
    path.write_bytes(data[:-4096])
    with pytest.raises(LoadError, match=rf"{path.name}: tensor \S+: needs bytes .* the file ends at"):
        open_checkpoint(sharded)
    path.write_bytes(data[:60])
    with pytest.raises(LoadError, match=rf"{path.name}: the header is said to take .*truncated"):
        open_checkpoint(sharded)
    path.write_bytes((1 << 60).to_bytes(8, "little") + data[8:])
    with pytest.raises(
        LoadError, match=rf"{path.name}: the header is said to take 1152921504606846976 bytes"
    ):
        open_checkpoint(sharded)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(LoadError, match=rf"{path.name}: a Git LFS pointer"):
        open_checkpoint(sharded)
    path.write_bytes(b"")
    with pytest.raises(LoadError, match=rf"{path.name}: the file is empty"):
        open_checkpoint(sharded)


def test_an_index_must_keep_its_promises(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    good = index["weight_map"]
    write_json(path, {"weight_map": {**good, "model.extra.weight": shard(sharded, 1).name}})
    with pytest.raises(LoadError, match=r"tensor model\.extra\.weight is missing, but .*index.json says"):
        open_checkpoint(sharded)
    for bad in ("../x.safetensors", "/etc/passwd", "model.bin", 3):
        write_json(path, {"weight_map": {**good, "a": bad}})
        with pytest.raises(LoadError, match="tensor a: expected a safetensors file name"):
            open_checkpoint(sharded)
    for broken in ("{", "[]", '{"weight_map": {}}', "[" * 100000):
        path.write_text(broken)
        with pytest.raises(LoadError, match=r"model\.safetensors\.index\.json"):
            open_checkpoint(sharded)


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    tensors = load_file(shard(sharded, 1))
    name, value = next(iter(load_file(shard(sharded, 2)).items()))
    save_file({**tensors, name: value}, shard(sharded, 1))
    with pytest.raises(LoadError, match=rf"tensor {name} occurs twice"):
        open_checkpoint(sharded)


def test_copies_in_other_layouts_are_ignored(sharded: Path) -> None:
    save_file({"layers.0.wq.weight": torch.zeros(4)}, sharded / "consolidated.safetensors")
    save_file({"lora": torch.zeros(4)}, sharded / "adapter_model.safetensors")
    (sharded / "pytorch_model.bin").write_bytes(b"\x80\x04")
    check(sharded)
    # Alone they are no model.
    for path in sharded.glob("model*"):
        path.unlink()
    with pytest.raises(LoadError, match=r"only adapter_model\.safetensors, consolidated\.safetensors"):
        open_checkpoint(sharded)


def test_pickles_are_never_opened(sharded: Path) -> None:
    for path in sharded.glob("model*"):
        path.unlink()
    (sharded / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(LoadError, match=r"pickle files \(pytorch_model\.bin .*convert them to safetensors"):
        open_checkpoint(sharded)
    (sharded / "pytorch_model.bin").unlink()
    with pytest.raises(LoadError, match="no weights: expected"):
        open_checkpoint(sharded)
    (sharded / "config.json").unlink()
    with pytest.raises(LoadError, match=r"no config\.json"):
        open_checkpoint(sharded)


def test_element_types_that_are_no_weights(sharded: Path) -> None:
    tensors = load_file(shard(sharded, 1))
    name = next(iter(tensors))
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, shard(sharded, 1))
    checkpoint = open_checkpoint(sharded)
    with pytest.raises(LoadError, match=rf"tensor {name}: dtype F8_E4M3 is not supported"):
        checkpoint.read(name)
    edit(sharded / "config.json", quantization_config={"quant_method": "fp8"})
    with pytest.raises(LoadError, match="quantised safetensors are not supported"):
        open_checkpoint(sharded)


HEADERS: list[tuple[Any, str]] = [
    ("{", "not valid JSON"),
    ("[" * 50000, "not valid JSON"),
    ("[]", "not a JSON object"),
    ('{"a": 1, "a": 2}', "'a' occurs twice"),
    ({"a": 1}, "tensor a: expected an object"),
    ({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, "tensor a: unknown dtype 'F99'"),
    ({"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}, "tensor a: shape"),
    ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, "tensor a: shape"),
    ({"a": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, "tensor a: shape"),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, "tensor a: data_offsets"),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, "tensor a: data_offsets"),
    ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "does not take the 4 bytes"),
    (
        {"a": {"dtype": "F32", "shape": [1 << 61, 1 << 61], "data_offsets": [0, 8]}},
        "does not take the 8 bytes",
    ),
    ({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, "needs bytes .*truncated"),
    (
        {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
        },
        "tensors a and b overlap",
    ),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "4 bytes before tensor a belong to no"),
    ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, "tensors end at byte .* the file at"),
]


@pytest.mark.parametrize(("header", "message"), HEADERS)
def test_headers_that_do_not_fit(header: Any, message: str, sharded: Path) -> None:
    raw = (header if isinstance(header, str) else json.dumps(header)).encode()
    shard(sharded, 1).write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    with pytest.raises(LoadError, match=message):
        open_checkpoint(sharded)


def test_unaligned_data_is_read(sharded: Path) -> None:
    """Writers before 2023 did not pad the header."""
    for path in sharded.glob("model*"):
        path.unlink()
    value = torch.arange(6, dtype=torch.float32)
    header = json.dumps(
        {"model.norm.weight": {"dtype": "F32", "shape": [6], "data_offsets": [0, 24]}}
    ).encode()
    header += b" " * (1 - (len(header) % 2))
    (sharded / "model.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + value.numpy().tobytes()
    )
    assert torch.equal(open_checkpoint(sharded).read("model.norm.weight").data, value)


# ---- names


def rewrite(folder: Path, rename: dict[str, str]) -> None:
    tensors = all_tensors(folder)
    for path in folder.glob("model*"):
        path.unlink()

    def new(name: str) -> str:
        for old, replacement in rename.items():
            if name.startswith(old):
                return replacement + name.removeprefix(old)
        return name

    save_file({new(name): value for name, value in tensors.items()}, folder / "model.safetensors")


def test_a_bare_decoder_gets_its_prefix(sharded: Path) -> None:
    expected = set(open_checkpoint(sharded).tensors)
    rewrite(sharded, {"model.": ""})
    assert set(open_checkpoint(sharded).tensors) == expected


@pytest.mark.parametrize(
    "rename",
    [
        {"model.": "model.language_model."},
        {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    ],
)
def test_the_text_model_of_gemma3(rename: dict[str, str], sharded: Path) -> None:
    text = json.loads((sharded / "config.json").read_text())
    expected = set(open_checkpoint(sharded).tensors)
    rewrite(sharded, rename)
    tensors = all_tensors(sharded)
    for name in ("vision_tower.x.weight", "multi_modal_projector.y", "model.vision_tower.z"):
        tensors[name] = torch.zeros(2)
    save_file(tensors, sharded / "model.safetensors")
    text["model_type"] = "gemma3_text"
    config = {"model_type": "gemma3", "text_config": {**text, "eos_token_id": 1}, "eos_token_id": [1, 106]}
    write_json(sharded / "config.json", config)
    checkpoint = open_checkpoint(sharded)
    assert set(checkpoint.tensors) == expected
    assert checkpoint.config.architecture == "gemma3"
    assert checkpoint.config.num_hidden_layers == 2
    assert checkpoint.config.tie_word_embeddings is False  # text_config says so and the outer config nothing


# ---- tokenizer, template, end ids


@pytest.fixture(scope="module")
def words() -> Any:
    """A word-level tokenizer with <s>, </s>, <end> and <pad>, as a transformers tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", "<end>", "hi", "there", "user"])}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.add_special_tokens(["<s>", "</s>", "<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def test_tokenizer_and_template_files(sharded: Path, words: Any) -> None:
    words.chat_template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }} {{ m.content }}{{ eos_token }}{% endfor %}"
    )
    words.save_pretrained(sharded)
    tokenizer = load_tokenizer(open_checkpoint(sharded))
    assert tokenizer.encode("hi there") == words.encode("hi there")
    messages = [{"role": "user", "content": "hi there"}]
    assert tokenizer.apply_chat_template(messages) == words.apply_chat_template(messages, tokenize=False)
    assert tokenizer.encode_chat(messages) == [1, 6, 4, 5, 2]
    assert tokenizer.bos_token_id == 1


@pytest.mark.parametrize("place", ["jinja", "string", "named", "mapping", "json", "none"])
def test_every_place_for_a_template(place: str, sharded: Path, words: Any) -> None:
    words.chat_template = None
    words.save_pretrained(sharded)
    config, template = sharded / "tokenizer_config.json", "T{{ messages | length }}"
    if place == "jinja":
        (sharded / "chat_template.jinja").write_text(template)
        edit(config, chat_template="not this one")
    elif place == "string":
        edit(config, chat_template=template)
    elif place == "named":
        named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": template}]
        edit(config, chat_template=named)
    elif place == "mapping":
        edit(config, chat_template={"tool_use": "no", "default": template})
    elif place == "json":
        write_json(sharded / "chat_template.json", {"chat_template": template})
    tokenizer = load_tokenizer(open_checkpoint(sharded))
    assert tokenizer.has_chat_template == (place != "none")
    if place != "none":
        assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}]) == "T1"


def test_tokenizer_json_alone_says_what_is_added(sharded: Path, words: Any) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    words.chat_template = None
    words.save_pretrained(sharded)
    edit(sharded / "tokenizer_config.json", add_bos_token=True, add_eos_token=True)
    tokenizer = load_tokenizer(open_checkpoint(sharded))
    assert tokenizer.encode("hi there") == AutoTokenizer.from_pretrained(sharded).encode("hi there") == [4, 5]
    raw = json.loads((sharded / "tokenizer.json").read_text())
    processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    raw["post_processor"] = json.loads(processor.__getstate__())
    write_json(sharded / "tokenizer.json", raw)
    tokenizer = load_tokenizer(open_checkpoint(sharded))
    assert (
        tokenizer.encode("hi there") == AutoTokenizer.from_pretrained(sharded).encode("hi there") == [1, 4, 5]
    )


def test_end_ids_are_the_union_of_all_declarations(sharded: Path, words: Any) -> None:
    words.save_pretrained(sharded)  # "</s>" = 2
    (sharded / "generation_config.json").unlink(missing_ok=True)
    config, generation = sharded / "config.json", sharded / "generation_config.json"

    def ids(in_config: Any, in_generation: Any) -> set[int]:
        edit(config, eos_token_id=in_config)
        write_json(generation, {"eos_token_id": in_generation, "temperature": 0.6})
        return set(open_checkpoint(sharded).config.eos_token_ids)

    assert ids(2, [2, 3]) == {2, 3}
    assert ids([2, 3], None) == {2, 3}
    assert ids(None, 3) == {2, 3}
    assert ids(None, None) == {2}
    assert open_checkpoint(sharded).generation_config["temperature"] == 0.6
    for bad in ("2", -1, [1.5], True):
        with pytest.raises(LoadError, match="eos_token_id: expected a token id"):
            ids(2, bad)
    generation.unlink()
    (sharded / "tokenizer.json").unlink()
    (sharded / "tokenizer_config.json").unlink()
    edit(config, eos_token_id=None)
    assert open_checkpoint(sharded).config.eos_token_ids == ()  # said explicitly
    value = json.loads(config.read_text())
    del value["eos_token_id"]
    write_json(config, value)
    assert open_checkpoint(sharded).config.eos_token_ids == (2,)  # what transformers' class says


def test_a_missing_or_broken_tokenizer(sharded: Path) -> None:
    with pytest.raises(LoadError, match=r"tokenizer\.json: missing"):
        load_tokenizer(open_checkpoint(sharded))
    (sharded / "tokenizer.json").write_text('{"model": {}}')
    with pytest.raises(LoadError, match=r"tokenizer cannot be built"):
        load_tokenizer(open_checkpoint(sharded))
    edit(sharded / "tokenizer_config.json", eos_token="</s>")
    for broken in ('{"model": {}}', '{"added_tokens": [1]}', '{"added_tokens": 3}'):
        (sharded / "tokenizer.json").write_text(broken)
        with pytest.raises(LoadError, match=r"tokenizer\.json: not a tokenizer"):
            open_checkpoint(sharded)
