"""Fuzz one target with atheris:

    python tests/fuzz/run.py gguf --runs 50000
    python tests/fuzz/run.py tool_calls --seconds 600 --corpus build/fuzz/tool_calls

Ends with status 0 when nothing was found.  A finding ends it at once, with the traceback; libFuzzer writes
the input beside the corpus, and ``--input FILE`` runs that one alone, without atheris.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

INSTRUMENTED = ("inferx.loader.gguf_file", "inferx.loader.safetensors_file", "inferx.server.tools")
SECONDS_EACH = 10  # more for one input is a hang
MEMORY_MIB = 1536


def instrument(atheris: Any) -> None:
    """Coverage of the code under test.  Function by function, because atheris' hook for imports does not see
    what an editable install imports."""
    for name in [n for n in sys.modules if n.startswith(INSTRUMENTED)]:
        for value in list(vars(sys.modules[name]).values()):
            if getattr(value, "__module__", None) != name:
                continue
            functions = vars(value).values() if inspect.isclass(value) else [value]
            for function in functions:
                if inspect.isfunction(function):
                    atheris.instrument_func(function)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--runs", type=int, default=-1)
    parser.add_argument("--seconds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--input", type=Path)
    args = parser.parse_args()
    if args.input is not None:
        from targets import TARGETS

        TARGETS[args.target][0]()(args.input.read_bytes())
        return
    import atheris
    from targets import LONGEST, TARGETS

    instrument(atheris)
    make_target, seeds = TARGETS[args.target]
    with tempfile.TemporaryDirectory() as scratch:
        corpus = args.corpus or Path(scratch) / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds()):
            (corpus / f"seed-{number}").write_bytes(seed)
        options = [
            f"-runs={args.runs}",
            f"-max_total_time={args.seconds}",
            f"-seed={args.seed}",
            f"-timeout={SECONDS_EACH}",
            f"-rss_limit_mb={MEMORY_MIB}",
            f"-max_len={LONGEST[args.target]}",
            "-len_control=0",
            f"-artifact_prefix={corpus.parent}/{args.target}-",
            "-print_final_stats=1",
            str(corpus),
        ]
        atheris.Setup([sys.argv[0], *options], make_target())
        atheris.Fuzz()


if __name__ == "__main__":
    main()
