"""Instructions of one decode step and one prefill chunk, against a committed baseline.

    instruction_guard.py             count and compare with benchmarks/results/instructions-COMPILER.json
    instruction_guard.py --update    count and write that file (say in the commit why a step costs more)
    instruction_guard.py --show      count and print only

A small model with fixed weights (4-bit matrices, 8-bit table) runs in ``LLMEngine`` under valgrind's
callgrind on one thread; counting is switched on around three steps and nothing else.  Two numbers are kept
for each: the instructions inside of our kernels' module, and those of the whole step (interpreter, torch and
C library too).  A step that needs over MARGIN more than the baseline fails.  One that needs as much less is
told: write the baseline anew then, or the gain can be lost unseen.

Counts depend on the compiler that built the kernels, so each compiler has a file.  Without one this fails and
says how to make it: a guard that compares with nothing guards nothing.  What is outside of the kernels
depends on Python and torch: it is compared only where both are the baseline's.  valgrind knows AVX2 at most,
so the kernels run as INFERX_CPU_ISA=v3.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARGIN = 0.05
KERNELS, WHOLE = "kernels", "whole step"
UPDATE = "make instruction-check ARGS=--update"

PROMPT = 64  # tokens of the prefill chunk
STREAMS = 16
STEPS = (f"prefill {PROMPT}", "decode 1", f"decode {STREAMS}")

Counts = dict[str, dict[str, int]]  # by step, then KERNELS and WHOLE

# Client requests are instructions that only a C compiler can place.
_MARKS = """
#include <valgrind/callgrind.h>
void start_counting(void) { CALLGRIND_START_INSTRUMENTATION; }
void stop_counting(const char *name) {
  CALLGRIND_STOP_INSTRUMENTATION;
  CALLGRIND_DUMP_STATS_AT(name);
}
"""
_TRIGGER = re.compile(r"^desc: Trigger: Client Request: (.+)$", re.M)
_OBJECT = re.compile(r"^(c?)ob=\((\d+)\)(?: (.*))?$")


# ---- counting --------------------------------------------------------------------------------------


def count() -> tuple[Counts, dict[str, str]]:
    """The counts, and what they depend on.  SystemExit where the tools are missing."""
    for tool in ("valgrind", os.environ.get("CC", "cc")):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is not installed; on Debian: apt-get install -y valgrind gcc")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        marks = folder / "marks.c"
        marks.write_text(_MARKS)
        command = [
            os.environ.get("CC", "cc"),
            "-O1",
            "-shared",
            "-fPIC",
            str(marks),
            "-o",
            f"{folder}/marks.so",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"valgrind's headers are needed (package valgrind):\n{done.stderr}")
        write_model(folder / "model.gguf")
        about = _run_child(folder)
        return read_counts(folder.glob("callgrind.out*")), about


def _run_child(folder: Path) -> dict[str, str]:
    command = [
        "valgrind",
        "--tool=callgrind",
        "--instr-atstart=no",
        f"--callgrind-out-file={folder}/callgrind.out",
        sys.executable,
        str(Path(__file__).resolve()),
        "--child",
        str(folder),
    ]
    # One thread, the same hashes and the same kernels each time.
    fixed = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "INFERX_CPU_ISA": "v3", "PYTHONPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **fixed})
    if done.returncode:
        raise SystemExit(f"the run under valgrind failed ({done.returncode}):\n{done.stderr[-3000:]}")
    about: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return about


def read_counts(files: Iterable[Path]) -> Counts:
    """Of the files that callgrind wrote; SystemExit when a step is not among them."""
    found: Counts = {}
    for file in files:
        text = file.read_text()
        trigger = _TRIGGER.search(text)
        if trigger:
            found[trigger[1].strip()] = parse(text)
    missing = [step for step in STEPS if step not in found or not found[step][KERNELS]]
    if missing:
        raise SystemExit(f"callgrind counted nothing for {', '.join(missing)}")
    return {step: found[step] for step in STEPS}


def parse(text: str) -> dict[str, int]:
    """The instructions in a profile of callgrind, each counted where it ran (not in its callers)."""
    names: dict[str, str] = {}
    counts = {KERNELS: 0, WHOLE: 0}
    inside = called = False
    for line in text.splitlines():
        if line.startswith(("ob=", "cob=")):
            match = _OBJECT.match(line)
            if match is None:
                continue
            callee, number, name = match.groups()
            names.setdefault(number, name or "")
            if not callee:
                inside = Path(names[number]).name.startswith("_C.")
        elif line.startswith("calls="):
            called = True  # the next line has what the callee cost
        elif line[:1].isdigit() or line[:1] in "+-*":
            if called:
                called = False
                continue
            cost = int(line.split()[1]) if len(line.split()) > 1 else 0
            counts[WHOLE] += cost
            counts[KERNELS] += cost if inside else 0
    return counts


# ---- the model and its steps -------------------------------------------------------------------------


def write_model(path: Path) -> None:
    """A Llama of three layers with fixed weights; a byte-level vocabulary filled up to 2,048 tokens."""
    import gguf
    import numpy as np

    hidden, intermediate, layers, heads, kv_heads, head_dim, vocabulary = 256, 768, 3, 4, 2, 64, 2048
    random = np.random.RandomState(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(intermediate)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    alphabet = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
    alphabet += [chr(256 + i) for i in range(256 - len(alphabet))]
    words = [*alphabet, "ab", *(f"word{i}" for i in range(vocabulary - 257))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * vocabulary)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(vocabulary - 1)

    def matrix(name: str, rows: int, columns: int, kind: str = "Q4_1") -> None:
        data = (random.standard_normal((rows, columns)) * 0.05).astype(np.float32)
        stored_as = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(data, stored_as), raw_dtype=stored_as)

    matrix("token_embd.weight", vocabulary, hidden, "Q8_0")
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for i in range(layers):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(hidden, np.float32))
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(hidden, np.float32))
        matrix(f"blk.{i}.attn_q.weight", heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_k.weight", kv_heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_v.weight", kv_heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_output.weight", hidden, heads * head_dim)
        matrix(f"blk.{i}.ffn_gate.weight", intermediate, hidden)
        matrix(f"blk.{i}.ffn_up.weight", intermediate, hidden)
        matrix(f"blk.{i}.ffn_down.weight", hidden, intermediate)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run_steps(folder: Path) -> dict[str, str]:
    """The counted steps, under valgrind; without it they run all the same."""
    import ctypes
    import gc

    from inferx import SamplingParams, ops
    from inferx.engine.args import EngineArgs
    from inferx.engine.llm_engine import LLMEngine

    marks = ctypes.CDLL(str(folder / "marks.so"))
    engine = LLMEngine(
        EngineArgs(
            model=str(folder / "model.gguf"),
            device="cpu",
            num_threads=1,
            num_blocks=256,
            max_num_seqs=STREAMS,
            max_num_batched_tokens=PROMPT,
            enable_prefix_caching=False,
            seed=0,
        )
    )

    def add(name: str, length: int, new_tokens: int) -> None:
        prompt = [(37 * i + 11 * len(name)) % 2000 for i in range(length)]
        engine.add_request(
            name, prompt, SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        )

    def step() -> None:
        for _, output in engine.step():
            if isinstance(output, Exception):
                raise output

    def finish() -> None:
        while engine.has_work:
            step()

    def counted(name: str) -> None:
        # A collection in between would count as the step's.
        gc.collect()
        gc.disable()
        marks.start_counting()
        step()
        marks.stop_counting(name.encode())
        gc.enable()

    # Whatever is made on first use is made now.
    for i in range(STREAMS):
        add(f"warm {i}", 20, 6)
    finish()
    add("warm", PROMPT, 6)
    finish()
    add("one", PROMPT, 12)
    counted(STEPS[0])
    step()
    step()
    counted(STEPS[1])
    finish()
    for i in range(STREAMS):
        add(f"many {i}", 20, 24)
    while (
        len(running := engine.core.scheduler.running) < STREAMS
        or min(seq.num_output_tokens for seq in running) < 3
    ):
        step()
    counted(STEPS[2])
    import torch

    return {
        "compiler": str(ops.build_info()["compiler"]),
        "isa": str(ops.build_info()["simd_target"]),
        "python": platform.python_version(),
        "torch": torch.__version__.split("+")[0],
    }


# ---- comparing ---------------------------------------------------------------------------------------


def baseline_path(compiler: str, results: Path = RESULTS) -> Path:
    """Of "gcc 12.2.0": instructions-gcc-12.json; later digits change no code."""
    name, _, version = compiler.partition(" ")
    return results / f"instructions-{name.lower()}-{version.split('.')[0] or 'unknown'}.json"


def compare(
    counts: Counts, about: Mapping[str, str], baseline: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """(problems, remarks).  Problems fail."""
    problems, remarks = [], []
    before = baseline["about"]
    for key in ("compiler", "isa"):
        if about[key] != before[key]:
            problems.append(
                f"{key}: the baseline is of {before[key]}, the kernels are of {about[key]}; counts of "
                f"different ones are not compared: run {UPDATE}"
            )
    if problems:
        return problems, remarks
    kinds = [KERNELS]
    other = [key for key in ("python", "torch") if about[key] != before[key]]
    if other:
        was = ", ".join(f"{key} {before[key]}" for key in other)
        remarks.append(f"whole steps are not compared: the baseline is of {was}; after a change run {UPDATE}")
    else:
        kinds.append(WHOLE)
    known = baseline["instructions"]
    for step in sorted({*counts, *known}):
        if step not in counts or step not in known:
            problems.append(f"{step}: {'not measured' if step in known else 'no baseline'}; run {UPDATE}")
            continue
        for kind in kinds:
            change = counts[step][kind] / known[step][kind] - 1
            text = f"{step}, {kind}: {known[step][kind]:,} -> {counts[step][kind]:,} ({change:+.1%})"
            if change > baseline["margin"]:
                problems.append(f"{text}: dearer than the margin of {baseline['margin']:.0%}")
            elif change < -baseline["margin"]:
                remarks.append(f"{text}: cheaper; keep the gain: run {UPDATE} and commit the file")
    return problems, remarks


def table(counts: Counts) -> str:
    lines = [f"{'step':12} {'kernels':>14} {'whole step':>14}"]
    lines += [f"{step:12} {c[KERNELS]:14,} {c[WHOLE]:14,}" for step, c in counts.items()]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--update", action="store_true")
    mode.add_argument("--show", action="store_true")
    mode.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.child is not None:
        print(json.dumps(run_steps(args.child)))
        return 0
    counts, about = count()
    print(f"{about['compiler']}, {about['isa']}, Python {about['python']}, torch {about['torch']}")
    print(table(counts))
    if args.show:
        return 0
    path = baseline_path(about["compiler"])
    if args.update:
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"about": about, "margin": MARGIN, "instructions": counts}
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"written: {path}")
        return 0
    if not path.exists():
        print(
            f"no baseline for {about['compiler']} ({path.name}); run {UPDATE} where all is well and commit it"
        )
        return 1
    problems, remarks = compare(counts, about, json.loads(path.read_text()))
    print(f"{len(problems)} problems")
    for line in (*problems, *remarks):
        print("  " + line)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
