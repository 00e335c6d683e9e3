"""What benchmarks.cpu knows of the engine's insides still holds: a renamed method would go unmeasured."""

from __future__ import annotations

import pytest
from benchmarks.cpu import overhead
from benchmarks.cpu.floors import shape_of
from benchmarks.cpu.overhead import MODEL, PARTS, profile
from benchmarks.cpu.quantised import describe
from benchmarks.cpu.scaling import _cell, fill_cache, without_forward
from benchmarks.cpu.session import Session, greedy
from tests.engine.core_harness import save_tiny_llama

LAYERS, HEADS, HEAD_DIM, HIDDEN, VOCAB = 2, 5, 16, 40, 258


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("model")))


def session(model: str) -> Session:
    options = {"num_blocks": 256, "max_num_seqs": 8, "enable_prefix_caching": False}
    return Session({"model": model, "threads": 1, "options": options})


def test_a_run_is_text_tokens_and_times(model: str) -> None:
    run = session(model).run([([1, 2, 3], 4), ([7, 8], 2)])
    assert [len(tokens) for tokens in run.tokens] == [4, 2]
    assert run.steps == 4
    assert 0 < run.first_token < run.wall
    assert run.digest != session(model).run([([1, 2, 3], 3)]).digest


def test_every_part_of_a_step_takes_time(model: str) -> None:
    engine = session(model).engine
    result = profile(engine, streams=6, prompt=9, new_tokens=12)
    # The first token comes from the prompt; steps count from the second to the last but one.
    assert 5 <= result["steps"] <= 10
    assert set(result["mean_s"]) == {MODEL, *PARTS}
    assert all(seconds > 0 for seconds in result["mean_s"].values()), result["mean_s"]
    assert sum(result["mean_s"].values()) == pytest.approx(result["step_s"])
    assert 0 < result["share"] < 1


def test_the_engine_is_left_as_it_was(model: str) -> None:
    engine = session(model).engine
    before = overhead.runner_module.build_batch
    profile(engine, streams=2, prompt=3, new_tokens=8)
    assert overhead.runner_module.build_batch is before
    assert "step" not in vars(engine.core)


def test_too_many_streams_are_refused(model: str) -> None:
    with pytest.raises(RuntimeError, match="no step in which all 12 streams decode"):
        profile(session(model).engine, streams=12, prompt=3, new_tokens=6)


def test_prompts_are_taken_in_without_the_model(model: str) -> None:
    engine = session(model).engine
    fill_cache(engine.core.runner.kv)
    kept = [cache.clone() for layer in engine.core.runner.kv for cache in layer]
    assert all(len(cache[:64].unique()) > 1000 for cache in kept)
    engine.add_request("a", list(range(40)), greedy(3))
    with without_forward(engine):
        assert len(list(engine.step())) == 1
    caches = [cache for layer in engine.core.runner.kv for cache in layer]
    assert all(bool((a == b).all()) for a, b in zip(caches, kept, strict=True))
    list(engine.step())
    assert not all(bool((a == b).all()) for a, b in zip(caches, kept, strict=True))


def test_a_runner_of_another_kind_is_noticed(model: str) -> None:
    engine = session(model).engine
    with pytest.raises(RuntimeError, match="no longer calls"), without_forward(engine):
        pass


def test_a_cell_of_the_grid(model: str) -> None:
    used = session(model)
    fill_cache(used.engine.core.runner.kv)
    cell = _cell(used, batch=3, context=64)
    assert (cell.batch, cell.context) == (3, 64)
    assert cell.seconds > 0


def test_sizes_come_from_the_model(model: str) -> None:
    core = session(model).engine.core
    shape = shape_of(core.model, core.info, core.checkpoint.weight_bytes)
    table = HIDDEN * VOCAB
    tied = core.model.config.tie_word_embeddings
    assert shape.head_parameters == table
    assert shape.layer_parameters == core.model.parameters.total - table * (1 if tied else 2)
    assert shape.attention_flops == LAYERS * 4 * HEADS * HEAD_DIM


def test_what_is_quantised(model: str) -> None:
    found = describe(session(model).engine)
    assert set(found["weights"]) == {"F32"}
    assert found["activations"] == "float32"
    assert found["kv"] in ("float32", "float16", "bfloat16")
