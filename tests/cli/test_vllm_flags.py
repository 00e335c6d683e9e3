"""``inferx serve`` with the flags of vLLM; nothing is loaded."""

from __future__ import annotations

from typing import Any

import pytest

import inferx.server.serve
from inferx import StructuredOutputsParams
from inferx.cli.main import app
from inferx.cli.serve import key_warnings
from inferx.cli.vllm_flags import ABSENT, NO_EFFECT, VALUES
from inferx.engine.args import EngineArgs
from inferx.server.args import ServerArgs


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the command up to the point where the server would start; what that would get."""

    def run(*arguments: str) -> tuple[EngineArgs, ServerArgs]:
        got: list[tuple[EngineArgs, ServerArgs]] = []
        monkeypatch.setattr(
            inferx.server.serve, "run_server", lambda engine, args, show_progress: got.append((engine, args))
        )
        assert app(("serve", *arguments)) == 0
        return got[0]

    return run


def test_flags_without_effect(serve: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve(*NO_EFFECT) == serve()
    assert capsys.readouterr().err == ""


def test_hidden_flags_are_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert app(("serve", "--help")) == 0
    text = capsys.readouterr().out
    assert not any(flag in text for flag in (*NO_EFFECT, "--kv-cache-memory-bytes"))


@pytest.mark.parametrize(
    ("flag", "value", "ours"), [(flag, *pair) for flag, values in VALUES.items() for pair in values.items()]
)
def test_names_of_values(serve: Any, flag: str, value: str, ours: str) -> None:
    assert serve(flag, value) == serve(flag, ours) != serve()


def test_cache_size_in_bytes(serve: Any) -> None:
    assert serve("--kv-cache-memory-bytes", "1048576") == serve("--kv-cache-memory", "1MiB")
    assert serve("--kv-cache-memory-bytes", "1048576")[0].kv_cache_memory_bytes == 1 << 20


def test_origins_as_a_list(serve: Any) -> None:
    origins = ("https://a.example", "https://b.example", "https://c.example")
    given = ("--allowed-origins", '["https://a.example", "https://b.example"]')
    assert serve(*given, "--allowed-origins", origins[2])[1].allowed_origins == origins


@pytest.mark.parametrize("value", ["[1]", '["x"', '[["x"]]', "[" * 100_000], ids=lambda value: value[:8])
def test_origins_that_are_no_list(capsys: pytest.CaptureFixture[str], value: str) -> None:
    assert app(("serve", "--allowed-origins", value)) == 1
    assert "--allowed-origins takes an origin or a JSON list" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ABSENT)
@pytest.mark.parametrize("form", ["alone", "value", "assigned"])
def test_flags_of_what_is_not_there(capsys: pytest.CaptureFixture[str], flag: str, form: str) -> None:
    if form == "assigned" and not flag.startswith("--"):
        pytest.skip("short ones are not assigned")
    arguments = {"alone": (flag,), "value": (flag, "2"), "assigned": (f"{flag}=2",)}[form]
    assert app(("serve", *arguments)) == 1
    assert capsys.readouterr().err == f"inferx: error: inferx does not have {flag}: {ABSENT[flag]}\n"


@pytest.mark.parametrize(
    ("host", "keys", "environment", "wanted"),
    [
        ("127.0.0.1", (), {}, ()),
        ("127.8.9.1", (), {}, ()),
        ("::1", (), {}, ()),
        ("localhost", (), {}, ()),
        ("0.0.0.0", (), {}, ("0.0.0.0",)),
        ("::", (), {}, ("no key",)),
        ("", (), {}, ("any address",)),
        ("server.example", (), {}, ("server.example",)),
        ("0.0.0.0", ("k",), {"VLLM_API_KEY": "v"}, ()),
        ("127.0.0.1", (), {"VLLM_API_KEY": "v"}, ("VLLM_API_KEY is not read",)),
        ("127.0.0.1", (), {"VLLM_API_KEY": ""}, ()),
        ("0.0.0.0", (), {"VLLM_API_KEY": "v"}, ("VLLM_API_KEY", "0.0.0.0")),
    ],
)
def test_warnings_of_an_open_server(
    host: str, keys: tuple[str, ...], environment: dict[str, str], wanted: tuple[str, ...]
) -> None:
    found = key_warnings(host, keys, environment)
    assert len(found) == len(wanted)
    for warning, part in zip(found, wanted, strict=True):
        assert part in warning
        assert "INFERX_API_KEY" in warning


def test_warnings_are_on_stderr(
    serve: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret-of-mine")
    serve("--host", "0.0.0.0")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("inferx: warning: ") == 2
    assert "secret-of-mine" not in err
    monkeypatch.setenv("INFERX_API_KEY", "ours")
    serve("--host", "0.0.0.0")
    assert capsys.readouterr().err == ""


def test_structured_outputs_are_in_the_package() -> None:
    from inferx.structured_outputs import StructuredOutputsParams as Original

    assert StructuredOutputsParams is Original
