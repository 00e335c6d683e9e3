"""The Tokenizer class: bytes of tokens, decoding, markers in text, threads."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from plain_bpe import TEXTS, random_texts

from inferx.errors import InvalidRequestError, LoadError
from inferx.loader import Tokenizer, load_tokenizer, open_checkpoint


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(smollm2_gguf))


@pytest.fixture(scope="module")
def gemma3(gemma3_gguf: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(gemma3_gguf))


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return request.getfixturevalue(request.param)


def test_token_bytes_join_to_the_text(tokenizer: Tokenizer) -> None:
    lost = {"\x00\x01\x7f control"}  # SmolLM2 has no tokens for these bytes
    for text in TEXTS + [t for t in random_texts(11, 100) if t.isprintable()]:
        if text in lost or "▁" in text:
            continue
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode(), repr(text)
        assert tokenizer.decode(ids) == text


def test_token_bytes_agree_with_decode_for_every_token(smollm2: Tokenizer) -> None:
    for index in range(smollm2.vocab_size):
        expected = "" if smollm2.is_special(index) else smollm2.token_bytes(index).decode(errors="replace")
        assert smollm2.decode([index]) == expected


def test_specials_and_ids_without_a_token(tokenizer: Tokenizer) -> None:
    special = tokenizer.eos_token_ids[0]
    assert tokenizer.is_special(special)
    assert tokenizer.token_bytes(special) == b""
    assert tokenizer.decode([special]) == ""
    assert tokenizer.decode([special], skip_special_tokens=False) == tokenizer.id_to_token(special) != ""
    for outside in (tokenizer.vocab_size, -1, 1 << 40):
        assert tokenizer.id_to_token(outside) == ""
        assert tokenizer.token_bytes(outside) == b""
        assert tokenizer.decode([outside]) == ""


def test_white_space_survives_token_by_token(tokenizer: Tokenizer) -> None:
    """Joined bytes keep the leading space and runs of spaces that piecewise decoding drops (case A23)."""
    text = " Hello world  a    b\n\tc" + tokenizer.id_to_token(tokenizer.eos_token_ids[0]) + "  tail "
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert joined == tokenizer.decode(ids) == " Hello world  a    b\n\tc  tail "


def test_marker_text_can_be_taken_literally(tokenizer: Tokenizer) -> None:
    marker = tokenizer.id_to_token(tokenizer.eos_token_ids[0])
    text = f"a {marker} b{marker}"
    parsed = tokenizer.encode(text, add_special_tokens=False)
    literal = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    assert sum(map(tokenizer.is_special, parsed)) == 2
    assert not any(map(tokenizer.is_special, literal))
    assert tokenizer.decode(literal) == text
    for plain in TEXTS:
        assert tokenizer.encode(plain, parse_special=False) == tokenizer.encode(plain)


def test_bos_is_added_when_the_model_wants_it(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    assert gemma3.encode("hi")[0] == gemma3.bos_token_id == 2
    assert gemma3.encode("hi", parse_special=False) == gemma3.encode("hi")
    assert gemma3.encode("", parse_special=False) == gemma3.encode("") == [2]
    assert smollm2.encode("") == []


def description(
    vocab: dict[str, int], merges: list[list[str]], added: list[dict[str, Any]], **parts: Any
) -> str:
    """A BPE ``tokenizers`` JSON.  added: id, content and whatever differs from the plainest special token."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{**flags, **token} for token in added],
            "normalizer": None,
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": None,
            "model": {"type": "BPE", "vocab": vocab, "merges": merges},
            **parts,
        }
    )


def test_a_marker_reachable_by_merges_is_still_taken_apart() -> None:
    """Llama 2's merges lead to "</s>": without its added token the text would become the control id again."""
    vocab = {c: i for i, c in enumerate("</s>ab")} | {"</": 6, "s>": 7, "</s>": 8}
    merges = [["<", "/"], ["s", ">"], ["</", "s>"]]
    tokenizer = Tokenizer(description(vocab, merges, [{"id": 8, "content": "</s>"}]), eos_token_ids=[8])
    assert tokenizer.encode("a</s>b") == [4, 8, 5]
    literal = tokenizer.encode("a</s>b</s>", parse_special=False)
    assert 8 not in literal
    assert tokenizer.decode(literal).replace(" ", "") == "a</s>b</s>"


def test_markers_that_swallow_white_space_and_prefixed_segments() -> None:
    """Phi-3: its markers take the white space after them, and each stretch between them gets a space put
    before it; both must come out the same beside a covered marker."""
    letters = {c: i for i, c in enumerate("<|end>▁abn\n")}
    added = [{"id": 20, "content": "<|end|>", "rstrip": True}]
    normalizer = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    tokenizer = Tokenizer(description(letters, [], added, normalizer=normalizer))
    template = "{% for m in messages %}<|end|>\n{{ m.content }}<|end|>\n{% endfor %}a"

    def chat(text: str) -> list[int]:
        return tokenizer.encode_chat([{"role": "user", "content": text}], chat_template=template)

    marker = tokenizer.token_to_id("<|end|>")
    plain = tokenizer.encode("<|end|>\nab b<|end|>\na")
    assert plain == [marker, *tokenizer.encode("ab b"), marker, *tokenizer.encode("a")]
    assert chat("ab b") == plain
    covered = tokenizer.encode("ab<|end|> b", parse_special=False)
    assert covered.count(marker) == 0
    assert chat("ab<|end|> b") == [marker, *covered, marker, *tokenizer.encode("a")]


def test_added_words_decode_with_spaces() -> None:
    """Gemma's tokenizer.json has runs of the space sign as added tokens."""
    decoder = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    added = [{"id": 9, "content": "▁▁", "special": False}]
    tokenizer = Tokenizer(description({"a": 0, "▁": 1, "▁▁": 9}, [], added, decoder=decoder))
    assert tokenizer.token_bytes(9) == b"  " == tokenizer.decode([9]).encode()


def test_both_ways_to_drop_markers_agree(tokenizer: Tokenizer) -> None:
    shared, rebuilt = tokenizer._sharing_model(), tokenizer._rebuilt()
    assert shared is not None
    marker = tokenizer.id_to_token(tokenizer.eos_token_ids[0])
    for text in [*TEXTS, *random_texts(13, 50), f"a{marker}  b\n\n{marker}"]:
        assert (
            shared.encode(text, add_special_tokens=False).ids
            == rebuilt.encode(text, add_special_tokens=False).ids
        )


def test_threads_share_a_tokenizer(smollm2: Tokenizer) -> None:
    texts = random_texts(12, 200)
    expected = [smollm2.encode(text) for text in texts]
    literal = [smollm2.encode(text, parse_special=False) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(smollm2.encode, texts)) == expected
        assert list(pool.map(lambda t: smollm2.encode(t, parse_special=False), texts)) == literal
        assert list(pool.map(smollm2.decode, expected)) == [smollm2.decode(ids) for ids in expected]


def test_what_is_not_text_is_refused(smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="lone surrogate at position 2"):
        smollm2.encode("ab\ud800")
    with pytest.raises(InvalidRequestError, match="expected a string, got bytes"):
        smollm2.encode(b"ab")  # type: ignore[arg-type]


def test_a_damaged_description_is_a_load_error() -> None:
    for broken in ("", "{}", "[1]", '{"version": "1.0", "model": {"type": "Nope"}}'):
        with pytest.raises(LoadError, match=r"here\.json: the tokenizer cannot be built"):
            Tokenizer(broken, source="here.json")


def test_a_long_text_does_not_stall_other_threads(smollm2: Tokenizer) -> None:
    """Case F10x: other threads (the event loop) run on while a megabyte is encoded."""
    text = "a wordy text, " * 40_000
    worker = threading.Thread(target=smollm2.encode, args=(text,))
    longest, last = 0.0, time.perf_counter()
    started = last
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    # Holding the interpreter's lock, the one gap would be the whole time.
    assert longest < 0.6 * (last - started)
    assert smollm2.decode(smollm2.encode(text)) == text
