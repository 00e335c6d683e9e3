"""The command line, in-process: errors are one line and exit code 1, answers are on stdout."""

from __future__ import annotations

import socket
import sys
from io import StringIO

import pytest

import inferx
from inferx.cli.main import app
from inferx.cli.options import parse_bytes
from inferx.errors import InvalidRequestError


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = app(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"inferx {inferx.__version__}\n", "")


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("--help",)):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        assert all(name in out for name in ("serve", "generate", "chat", "env"))


@pytest.mark.parametrize("command", ["serve", "generate", "chat"])
def test_engine_flags_have_vllms_names(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    for flag in (
        "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--block-size", "--dtype",
        "--num-gpu-blocks-override", "--kv-cache-dtype", "--no-enable-prefix-caching", "--scheduling-policy",
        "--kv-cache-memory", "--threads", "--generation-config", "--device", "--gpu-memory-utilization",
        "--enforce-eager",
    ):  # fmt: skip
        assert flag in out


def test_env_reports_versions_and_the_build(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "env")
    assert code == 0
    for label in ("version", "python", "cpu", "gpu", "simd_target", "torch", "fastapi"):
        assert f"  {label}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("frobnicate",), "frobnicate"),
        (("serve", "--frobnicate"), "--frobnicate"),
        (("serve", "--port", "x"), "--port"),
        (("serve", "--port", "99999"), "--port must be from 0 to 65535, got 99999"),
        (("serve", "--max-num-seqs", "0"), "max_num_seqs must be at least 1, got 0"),
        (("serve", "--block-size", "12"), "block_size must be a multiple of 8"),
        (("serve", "--kv-cache-dtype", "int3"), "kv_cache_dtype must be one of"),
        (("serve", "--device", "tpu"), "device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        (("generate", "x", "--device", "simt"), "for inferx's own tests"),
        (("chat", "--gpu-memory-utilization", "1.5"), "at most 1, got 1.5"),
        (
            ("generate", "x", "--device", "cpu", "--kv-cache-dtype", "fp8"),
            "float32, float16, bfloat16 on the CPU",
        ),
        (("serve", "--kv-cache-memory", "lots"), "got 'lots'"),
        (("serve", "--generation-config", "x"), "--generation-config must be auto or none"),
        (("serve", "--port", "0", "/nonexistent/model"), "/nonexistent/model"),
        (("generate",), "PROMPT"),
        (("generate", ""), "the prompt is empty"),
        (("generate", "x", "--temperature", "-1"), "temperature"),
        (("generate", "x", "--top-p", "2"), "top_p"),
        (("generate", "x", "--model", "/nonexistent/model"), "/nonexistent/model"),
        (("chat", "/nonexistent/model.gguf"), "/nonexistent/model.gguf"),
        (("generate", "x", "--kv-cache-memory", "999TiB"), "KV cache"),
    ],
    ids=lambda a: " ".join(a)[:40] if isinstance(a, tuple) else "",
)
def test_mistakes_are_named_in_one_message(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 1
    assert out == ""
    assert err.startswith("inferx: error: ")
    assert message.lower() in err.lower()


def test_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    """Found before a model is loaded."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = run(capsys, "serve", "--port", str(port), "/nonexistent/model")
    assert code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in err


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("10B", 10), ("4GiB", 4 << 30), ("4G", 4 << 30), ("1.5 MiB", 3 << 19), ("2tb", 2 << 40)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text, "size") == size


@pytest.mark.parametrize("text", ["", "-1", "GiB", "1 PiB", "1e9", "0x10", "1G1", "١"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_bytes(text, "max_body_size")


@pytest.mark.real_model
class TestGenerate:
    PROMPT = "The capital of France is"
    FLAGS = ("--temperature", "0", "--max-tokens", "8", "--max-model-len", "512")

    def test_text_and_stats(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, err = run(capsys, "generate", self.PROMPT, "--stats", *self.FLAGS)
        assert code == 0
        assert out.startswith(" Paris")
        assert "prompt 5 tokens (0 cached)" in err
        assert "tok/s" in err

    def test_prompt_from_stdin(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stdin", StringIO(self.PROMPT))
        code, out, _ = run(capsys, "generate", "-", *self.FLAGS, "--stop", "Paris")
        assert (code, out) == (0, " \n")

    def test_prompt_that_does_not_fit(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, err = run(capsys, "generate", "word " * 600, *self.FLAGS)
        assert (code, out) == (1, "")
        assert "512" in err
