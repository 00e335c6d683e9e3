"""Opens many damaged copies of a checkpoint; run as a process of its own by test_fuzz.

    python fuzz_child.py (gguf|hf) PATH SEED COUNT

Prints one JSON line: how many copies loaded, how many were refused, and by how many MB the peak memory grew.
Any other outcome, an exception that is no LoadError or a crash, ends the process with a non-zero status.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from pathlib import Path

from inferx.errors import LoadError
from inferx.loader import load_tokenizer, open_checkpoint

EXTREMES = [
    0,
    1,
    0x7F,
    0xFF,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 63) - 1,
    (1 << 64) - 1,
]
SECONDS_EACH = 20.0


def exercise(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    for name in checkpoint.tensors:
        try:
            checkpoint.read(name).data.sum()
        except LoadError:
            continue
    load_tokenizer(checkpoint).encode("hello <|im_end|> 12")
    checkpoint.close()


def mutate(rng: random.Random, data: bytes, header: int) -> bytes:
    """One to four random changes, most of them in the first ``header`` bytes."""
    result = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        if len(result) < 16:
            break
        at = rng.randrange(min(header, len(result) - 8))
        kind = rng.randrange(8)
        if kind <= 1:
            result[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            result[at] = rng.randrange(256)
        elif kind == 3:
            result[at : at + 8] = rng.choice(EXTREMES).to_bytes(8, "little")
        elif kind == 4:
            result[at : at + 4] = (rng.choice(EXTREMES) & 0xFFFFFFFF).to_bytes(4, "little")
        elif kind == 5:
            del result[at : at + rng.randrange(1, 40)]
        elif kind == 6:
            result[at:at] = result[at : at + rng.randrange(1, 40)]
        else:
            del result[rng.randrange(len(result)) :]
    return bytes(result)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    kind, root, seed, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    targets = [root] if kind == "gguf" else sorted(p for p in root.iterdir() if p.is_file())
    originals = {path: path.read_bytes() for path in targets}
    exercise(root)
    # Address space for everything loaded by now and half a GB: a runaway allocation fails instead of
    # swapping.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (512 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    before, outcome = peak_mb(), {"loaded": 0, "refused": 0}
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        path = rng.choice(targets)
        data = originals[path]
        # JSON files are header throughout; in the others the data begins after a few KB.
        path.write_bytes(mutate(rng, data, len(data) if path.suffix == ".json" else 6000))
        started = time.monotonic()
        try:
            exercise(root)
            outcome["loaded"] += 1
        except LoadError:
            outcome["refused"] += 1
        except BaseException:
            print(f"number {number} (seed {seed}), file {path.name}", file=sys.stderr)
            raise
        assert time.monotonic() - started < SECONDS_EACH, f"number {number} took too long"
        path.write_bytes(data)
    print(json.dumps({**outcome, "grown_mb": peak_mb() - before}))


if __name__ == "__main__":
    main()
