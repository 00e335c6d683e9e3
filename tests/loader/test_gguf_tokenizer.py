"""Tokenizers rebuilt from GGUF against independent oracles.

Byte-level BPE: a plain Python BPE over the merges in the file (``plain_bpe``).  SentencePiece: the
sentencepiece library itself, on a model file put together from the GGUF's pieces, and on a model that it
trained itself.
"""

from __future__ import annotations

import random
from pathlib import Path

import gguf
import numpy as np
import pytest
import sentencepiece
import tiny_gguf
from plain_bpe import TEXTS, PlainBPE, random_texts

from inferx.errors import LoadError
from inferx.loader import load_tokenizer, open_checkpoint
from inferx.loader.gguf_checkpoint import GGUFCheckpoint
from inferx.loader.gguf_file import GGUFFile
from inferx.loader.tokenizer import Tokenizer

# ---- byte-level BPE


@pytest.mark.parametrize("model", ["smollm2_gguf", "qwen25_gguf"])
def test_byte_level_ids_equal_a_plain_bpe(model: str, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(model)
    tokenizer = load_tokenizer(open_checkpoint(path))
    oracle = PlainBPE(GGUFFile(path))
    for text in [*TEXTS, *random_texts(1, 300)]:
        assert tokenizer.encode(text) == oracle.encode(text), repr(text)


def test_smollm2_special_tokens_and_known_ids(smollm2_gguf: Path) -> None:
    tokenizer = load_tokenizer(open_checkpoint(smollm2_gguf))
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>") == [1, 4093, 198, 6004, 2]
    # "I am 25" of the published tokenizer: each digit is a token of its own.
    assert [tokenizer.id_to_token(i) for i in tokenizer.encode("I am 25")] == ["I", "Ġam", "Ġ", "2", "5"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.vocab_size) == (1, (2, 0), 49152)


def test_qwen2_placeholders_are_no_tokens(qwen25_gguf: Path) -> None:
    tokenizer = load_tokenizer(open_checkpoint(qwen25_gguf))
    assert tokenizer.vocab_size == 151665
    assert tokenizer.id_to_token(151665) == ""
    assert tokenizer.decode([151700, 9707]) == "Hello"
    marked = "<|im_start|>user\nhi <tool_call>{}</tool_call><|im_end|>"
    # as transformers' own conversion of this file gives them
    assert tokenizer.encode(marked) == [151644, 872, 198, 6023, 220, 151657, 6257, 151658, 151645]
    assert tokenizer.is_special(151645)
    assert not tokenizer.is_special(151657)


def test_llama_bpe_takes_whole_words_and_adds_bos(tmp_path: Path) -> None:
    tokens = ["<bos>", *map(chr, range(0x21, 0x7F)), "hello", "he"]

    def vocabulary(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe")
        writer.add_token_list(tokens)
        writer.add_token_types([3] + [1] * (len(tokens) - 1))
        writer.add_token_merges(["h e"])
        writer.add_bos_token_id(0)

    tensors = tiny_gguf.default_tensors()
    tokenizer = load_tokenizer(
        open_checkpoint(
            tiny_gguf.write(tmp_path / "m.gguf", tokenizer=False, metadata=vocabulary, tensors=tensors)
        )
    )
    # No merge leads to "hello", but it is in the vocabulary and Llama 3 looks words up first.
    assert tokenizer.encode("hello") == [0, tokens.index("hello")]
    assert tokenizer.encode("hello", add_special_tokens=False) == [tokens.index("hello")]
    assert tokenizer.encode("hellos", add_special_tokens=False)[0] == tokens.index("he")


# ---- SentencePiece


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def sentencepiece_model(file: GGUFFile, *, prefix: bool) -> sentencepiece.SentencePieceProcessor:
    """The protobuf of a SentencePiece BPE model, written by hand from a GGUF's pieces."""
    pieces = []
    for token, score, kind in zip(
        file.metadata["tokenizer.ggml.tokens"],
        file.metadata["tokenizer.ggml.scores"],
        file.metadata["tokenizer.ggml.token_type"],
        strict=True,
    ):
        text = token.replace(" ", "▁").encode()
        piece = _field(1, text) + b"\x15" + np.float32(score).tobytes() + b"\x18" + _varint(int(kind))
        pieces.append(_field(1, piece))
    trainer = b"\x18\x02" + b"\x98\x02\x01"  # model_type = BPE, byte_fallback = true
    unknown = file.metadata["tokenizer.ggml.unknown_token_id"]
    bos, eos = (file.metadata[f"tokenizer.ggml.{n}_token_id"] for n in ("bos", "eos"))
    trainer += b"\xc0\x02" + _varint(unknown) + b"\xc8\x02" + _varint(bos) + b"\xd0\x02" + _varint(eos)
    normalizer = _field(1, b"identity") + b"\x18" + bytes([prefix]) + b"\x20\x00" + b"\x28\x01"
    return sentencepiece.SentencePieceProcessor(
        model_proto=b"".join(pieces) + _field(2, trainer) + _field(3, normalizer)
    )


def test_gemma3_ids_equal_sentencepiece(gemma3_gguf: Path) -> None:
    tokenizer = load_tokenizer(open_checkpoint(gemma3_gguf))
    oracle = sentencepiece_model(GGUFFile(gemma3_gguf), prefix=False)
    for text in [*TEXTS, *random_texts(3, 400)]:
        if "\0" in text:
            continue  # sentencepiece ends its input there
        assert tokenizer.encode(text, add_special_tokens=False) == oracle.encode(text), repr(text)
        assert tokenizer.decode(tokenizer.encode(text)) == text.replace("▁", " ")
    assert tokenizer.encode("<start_of_turn>user\nhi<end_of_turn>") == [2, 105, 2364, 107, 2202, 106]


@pytest.fixture(scope="module")
def trained_sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama-style model: BPE, byte fallback, a space put before the text."""
    folder = tmp_path_factory.mktemp("spm")
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "a",
        "lazy",
        "dog",
        "and",
        "runs",
        "away",
        "quickly",
        "again",
    ]
    rng = random.Random(7)
    lines = [" ".join(rng.choice(words) for _ in range(12)) for _ in range(200)]
    (folder / "text.txt").write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "m"),
        model_type="bpe",
        vocab_size=380,
        byte_fallback=True,
        character_coverage=1.0,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=["<|user|>"],
        num_threads=1,
        minloglevel=2,
    )
    return folder / "m.model"


def spm_gguf(path: Path, model: sentencepiece.SentencePieceProcessor) -> Path:
    size = model.get_piece_size()

    def kind(i: int) -> int:
        if model.is_unknown(i):
            return gguf.TokenType.UNKNOWN
        if model.is_control(i):
            return gguf.TokenType.CONTROL
        if model.is_byte(i):
            return gguf.TokenType.BYTE
        return gguf.TokenType.USER_DEFINED if model.id_to_piece(i) == "<|user|>" else gguf.TokenType.NORMAL

    def vocabulary(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list([model.id_to_piece(i) for i in range(size)])
        writer.add_token_scores([model.get_score(i) for i in range(size)])
        writer.add_token_types([kind(i) for i in range(size)])
        writer.add_bos_token_id(model.bos_id())
        writer.add_eos_token_id(model.eos_id())
        writer.add_unk_token_id(model.unk_id())

    embedding = np.zeros((size, tiny_gguf.HIDDEN), np.float32)
    tensors = tiny_gguf.default_tensors() | {"token_embd.weight": embedding}
    return tiny_gguf.write(path, tokenizer=False, metadata=vocabulary, tensors=tensors)


def test_llama_style_sentencepiece(trained_sentencepiece: Path, tmp_path: Path) -> None:
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(trained_sentencepiece))
    tokenizer = load_tokenizer(open_checkpoint(spm_gguf(tmp_path / "m.gguf", oracle)))
    rng = random.Random(8)
    words = ["the", "quickly", "brown", "foxes", "over", "dogs.", "日本", "é", "runs", "", "again", "\n"]
    for text in [*TEXTS, *(" ".join(rng.choice(words) for _ in range(9)) for _ in range(200))]:
        if "\0" in text:
            continue
        ids = tokenizer.encode(text)
        assert ids == [oracle.bos_id(), *oracle.encode(text)], repr(text)
        assert tokenizer.decode(ids) == oracle.decode(ids), repr(text)
    assert tokenizer.token_bytes(oracle.piece_to_id("<0xE6>")) == b"\xe6"
    assert tokenizer.token_bytes(oracle.piece_to_id("▁the")) == b" the"


# ---- what is refused


def load(path: Path) -> Tokenizer:
    return load_tokenizer(GGUFCheckpoint(path))


def test_unknown_pre_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"m\.gguf: pre-tokenizer 'viking' is not supported"):
        load(tiny_gguf.write(tmp_path / "m.gguf", pre="viking"))


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("tokenizer 'bert' is not supported", lambda w: w.add_tokenizer_model("bert")),
        ("token_type does not match", lambda w: w.add_token_types([1, 1])),
        ("joins 'q' and 'zz'", lambda w: w.add_token_merges(["q zz"])),
        ("malformed entry 'hello'", lambda w: w.add_token_merges(["hello"])),
        ("tokens' is missing", lambda w: w.add_array("tokenizer.ggml.tokens", [1, 2, 3])),
        ("scores does not match", lambda w: w.add_tokenizer_model("llama")),
    ],
)
def test_inconsistent_vocabularies_are_refused(message: str, change: object, tmp_path: Path) -> None:
    def replace(writer: gguf.GGUFWriter) -> None:
        kept = dict(writer.kv_data[0])
        writer.kv_data[0].clear()
        change(writer)  # type: ignore[operator]
        writer.kv_data[0].update({key: value for key, value in kept.items() if key not in writer.kv_data[0]})

    with pytest.raises(LoadError, match=message):
        load(tiny_gguf.write(tmp_path / "m.gguf", metadata=replace))
