"""Flags of vLLM: those that inferx takes in its own way, and those of things that it does not have."""

from __future__ import annotations

from collections.abc import Sequence

# Taken and without effect: what they ask for is so anyway.
NO_EFFECT = ("--enable-auto-tool-choice", "--disable-log-requests", "--no-enable-log-requests")

# flag -> its values there -> ours
VALUES: dict[str, dict[str, str]] = {
    "--tool-call-parser": {
        "llama3_json": "llama3",
        "llama4_json": "llama3",
        "qwen": "hermes",
        "qwen25": "hermes",
    },
    "--reasoning-parser": {"deepseek_r1": "think", "qwen3": "think"},
    "--generation-config": {"vllm": "none"},
    "--dtype": {"half": "float16", "float": "float32"},
}

_ONE_DEVICE = "a model runs on one device; start a server for each and balance between them"
_NO_LORA = "merge the adapter into the checkpoint and serve that"
_ALREADY_QUANTISED = "serve a GGUF file that is quantised already"
_GENERATES = "a server generates, and its /v1/embeddings has the model's hidden states"

# flag -> what to do instead
ABSENT: dict[str, str] = {
    "--tensor-parallel-size": _ONE_DEVICE,
    "-tp": _ONE_DEVICE,
    "--pipeline-parallel-size": _ONE_DEVICE,
    "-pp": _ONE_DEVICE,
    "--data-parallel-size": _ONE_DEVICE,
    "-dp": _ONE_DEVICE,
    "--trust-remote-code": "a model's own code is never run; models of known architectures need none",
    "--enable-lora": _NO_LORA,
    "--lora-modules": _NO_LORA,
    "--quantization": _ALREADY_QUANTISED,
    "-q": _ALREADY_QUANTISED,
    "--chat-template": "the model's own is used; put yours into its tokenizer_config.json",
    "--speculative-config": "leave it out; answers are the same without it",
    "--task": _GENERATES,
    "--runner": _GENERATES,
    "--config": "give the options as flags",
}


def translated(flag: str, value: str) -> str:
    """Our name for a value of ``flag`` under vLLM's."""
    return VALUES[flag].get(value, value)


def absent(option: str, arguments: Sequence[str]) -> str | None:
    """What to say about an option that no command has, when it is one of vLLM's; else None.

    option: as the parser names it, which is ``-t`` for ``-tp``.  arguments: of the command line.
    """
    flag = option.replace("_", "-")
    if flag not in ABSENT and not flag.startswith("--"):
        flag = next((a for a in arguments if a in ABSENT and a.startswith(option)), flag)
    return f"inferx does not have {flag}: {ABSENT[flag]}" if flag in ABSENT else None
