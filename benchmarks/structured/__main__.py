"""Measure one grammar library, in the environment it is installed in.

    python -m benchmarks.structured vocabulary smollm2-135m-instruct smollm2.msgpack
    python -m benchmarks.structured cost llguidance smollm2.msgpack results.json
    python -m benchmarks.structured hostile llguidance smollm2.msgpack results.json

``vocabulary`` needs inferx; the others only numpy, msgspec and the library.  Times are CPU time, which other
work on the machine disturbs little.  Results are merged into the file.  Each hostile grammar is compiled and
gives its first mask in a child process of its own: 4 s of CPU time, 8 GiB of address space.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
from benchmarks.structured.cases import CASES, HOSTILE
from benchmarks.structured.libraries import LIBRARIES

ROUNDS = 5
HOSTILE_SECONDS = 4
HOSTILE_BYTES = 8 << 30


def write_vocabulary(model: str, path: Path) -> None:
    """The tokens of a model, and the answers of the cases in them."""
    from inferx.engine.structured.vocabulary import Vocabulary
    from inferx.loader import load_tokenizer, open_checkpoint

    checkpoint = open_checkpoint(model)
    tokenizer = load_tokenizer(checkpoint)
    vocabulary = Vocabulary(tokenizer, tokenizer.eos_token_ids, checkpoint.config.vocab_size)
    content = {
        "tokens": vocabulary.tokens,
        "special": vocabulary.special,
        "eos": vocabulary.end_ids,
        "answers": {name: tokenizer.encode_inside(case.answer) for name, case in CASES.items()},
    }
    path.write_bytes(msgspec.msgpack.encode(content))


def measure_cost(library: str, vocabulary: dict[str, Any]) -> dict[str, Any]:
    start = time.process_time()
    lib = LIBRARIES[library](vocabulary)
    results: dict[str, Any] = {"build_ms": round((time.process_time() - start) * 1e3, 1), "cases": {}}
    for name, case in CASES.items():
        results["cases"][name] = _measure_case(lib, case, vocabulary["answers"][name])
        print(name, results["cases"][name], flush=True)
    return results


def _measure_case(lib: Any, case: Any, answer: list[int]) -> dict[str, Any]:
    compiles, first, masks, takes = [], [], [], []
    forced = 0
    for number in range(ROUNDS):
        start = time.process_time_ns()
        compiled = lib.compile(case.kind, case.grammar)
        compiles.append(time.process_time_ns() - start)
        matcher = lib.start(compiled)
        for place, token in enumerate(answer):
            if number == 0:
                forced += matcher.num_forced() > 0
            start = time.thread_time_ns()
            matcher.fill()
            middle = time.thread_time_ns()
            if not matcher.take(token):
                raise ValueError(f"token {place} of the answer is refused")
            takes.append(time.thread_time_ns() - middle)
            (masks if place else first).append(middle - start)
    return {
        "compile_ms": round(sorted(compiles)[ROUNDS // 2] / 1e6, 2),
        "first_mask_us": round(sorted(first)[ROUNDS // 2] / 1e3, 1),
        "mask_us": {f"p{p}": _percentile(masks, p) for p in (50, 90, 99)}
        | {"max": round(max(masks) / 1e3, 1)},
        "take_us": {f"p{p}": _percentile(takes, p) for p in (50, 99)},
        "tokens": len(answer),
        "positions_with_forced_bytes": forced,
    }


def _percentile(values: list[int], percent: int) -> float:
    return round(sorted(values)[min(len(values) - 1, len(values) * percent // 100)] / 1e3, 1)


def try_hostile(library: str, vocabulary: dict[str, Any]) -> dict[str, Any]:
    lib = LIBRARIES[library](vocabulary)
    lib.start(lib.compile("regex", "warm")).fill()
    results = {}
    for name in HOSTILE:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _hostile_child(lib, name, writing)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            text = pipe.read()
        _, status, usage = os.wait4(child, 0)
        if text:
            results[name] = json.loads(text)
        else:
            by = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"code {status}"
            outcome = f"more than {HOSTILE_SECONDS} s" if by in ("SIGXCPU", "SIGKILL") else f"died by {by}"
            results[name] = {"outcome": outcome}
        results[name]["peak_MiB"] = usage.ru_maxrss // 1024
        print(f"{name:30}", results[name], flush=True)
    return results


def _hostile_child(lib: Any, name: str, writing: int) -> None:
    kind, grammar = HOSTILE[name]
    resource.setrlimit(resource.RLIMIT_AS, (HOSTILE_BYTES, HOSTILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A forked process starts to count anew.
    resource.setrlimit(resource.RLIMIT_CPU, (HOSTILE_SECONDS, HOSTILE_SECONDS + 1))
    start = time.process_time()
    try:
        lib.start(lib.compile(kind, grammar)).fill()
        outcome = "accepted"
    except MemoryError:
        outcome = "refused: out of memory"
    except Exception as error:
        first = (str(error).strip().splitlines() or [repr(error)])[0]
        outcome = f"refused: {first[:80]}"
    result = {"outcome": outcome, "cpu_s": round(time.process_time() - start, 3)}
    os.write(writing, json.dumps(result).encode())
    os._exit(0)


def main() -> None:
    """See the module's docstring."""
    action, *rest = sys.argv[1:]
    if action == "vocabulary":
        write_vocabulary(rest[0], Path(rest[1]))
        return
    library, path = rest[0], Path(rest[1])
    vocabulary = msgspec.msgpack.decode(path.read_bytes())
    results = (measure_cost if action == "cost" else try_hostile)(library, vocabulary)
    out = Path(rest[2])
    known = json.loads(out.read_text()) if out.exists() else {}
    entry = known.setdefault(library, {"version": importlib.metadata.version(library)})
    key = f"cost, {len(vocabulary['tokens'])} tokens" if action == "cost" else "hostile"
    entry[key] = results
    out.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
