"""The workloads: exact lengths, and the same tokens for ever."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from benchmarks.cpu.workloads import (
    END_ID,
    FIRST_ID,
    NAMES,
    SHARED_PREFIX,
    different_prompts,
    make_workloads,
    output_tokens,
    prompt_tokens,
    warm_up_prompt,
    write_json,
)

# Of the token ids and lengths; results of other days and other engines are of these.
DIGESTS = {
    "W1": "633627351c6a888a",
    "W2": "3944b40475084c36",
    "W3": "bd56c297fd7354f5",
    "W4": "094d3dccd69cede1",
    "W5": "bb36131c65b02563",
    "W6": "023d4ccaca84da25",
}
# Requests, prompt tokens, output tokens.
SIZES = {
    "W1": (1, 128, 256),
    "W2": (16, 16 * 128, 16 * 128),
    "W3": (64, 64 * 64, 64 * 64),
    "W4": (1, 2000, 1),
    "W5": (32, 9504, 4847),
    "W6": (16, 16 * 1056, 16 * 32),
}


@pytest.mark.parametrize("name", NAMES)
def test_lengths_and_tokens_never_change(name: str) -> None:
    requests = make_workloads()[name]
    assert (len(requests), prompt_tokens(requests), output_tokens(requests)) == SIZES[name]
    plain = json.dumps([[list(r.prompt), r.new_tokens] for r in requests])
    assert hashlib.sha256(plain.encode()).hexdigest()[:16] == DIGESTS[name]


def test_all_ids_are_ordinary_tokens() -> None:
    ids = {t for requests in make_workloads().values() for r in requests for t in r.prompt}
    assert min(ids) >= FIRST_ID
    assert max(ids) < END_ID


def test_mixed_lengths_stay_in_their_ranges() -> None:
    for request in make_workloads()["W5"]:
        assert 32 <= len(request.prompt) <= 512
        assert 16 <= request.new_tokens <= 256


def test_requests_share_exactly_the_prefix() -> None:
    requests = make_workloads()["W6"]
    assert len({r.prompt[:SHARED_PREFIX] for r in requests}) == 1
    assert len({r.prompt[: SHARED_PREFIX + 1] for r in requests}) == len(requests)


def test_the_warm_up_finds_nothing_in_the_cache() -> None:
    first = warm_up_prompt()[0]
    assert all(r.prompt[0] != first for requests in make_workloads().values() for r in requests)


def test_different_prompts_begin_differently() -> None:
    prompts = different_prompts(256, 3, 49_152)
    assert len({p[0] for p in prompts}) == 256
    assert all(0 <= t < 258 for p in different_prompts(20, 50, 258) for t in p)


def test_json_for_peers(tmp_path: Path) -> None:
    write_json(tmp_path / "w.json")
    data = json.loads((tmp_path / "w.json").read_text())
    assert list(data) == list(NAMES)
    for name, requests in make_workloads().items():
        assert [(tuple(r["p"]), r["n"]) for r in data[name]] == [(r.prompt, r.new_tokens) for r in requests]
