"""What nvcc made of the kernels, against what is expected of it.

    kernel_report.py BUILD_DIR             compare with csrc/kernels/resources.json
    kernel_report.py BUILD_DIR --update    write that file anew (look at its diff before committing)
    kernel_report.py BUILD_DIR --show      print the table

Three things fail: a kernel that needs more registers, stack or spills on some architecture than the committed
baseline says; a kernel without a baseline, or a baseline without a kernel; and a kernel whose PTX lacks an
instruction that it was written for, or holds one that it should not (tools/kernel_instructions.py).

BUILD_DIR was configured with -DINFERX_KERNEL_REPORT=ON.  Architectures that were not built are not looked at.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from kernel_instructions import problems_of, stale_names

ROOT = Path(__file__).resolve().parents[1]
BASELINE = ROOT / "csrc" / "kernels" / "resources.json"
FIELDS = ("registers", "stack", "spill_stores", "spill_loads", "static_smem")

ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>[^']+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")

Resources = dict[str, int]


def read_logs(build: Path) -> dict[str, dict[str, Resources]]:
    """By mangled kernel name, then architecture."""
    kernels: dict[str, dict[str, Resources]] = defaultdict(dict)
    for log in sorted(build.rglob("*.ptxas")):
        name = arch = ""
        frame = (0, 0, 0)
        for line in log.read_text().splitlines():
            if entry := ENTRY.search(line):
                name, arch = entry["name"], entry["arch"]
            elif found := FRAME.search(line):
                frame = tuple(map(int, found.groups()))
            elif name and (used := USED.search(line)):
                values = (int(used[1]), *frame, int(used[2] or 0))
                kernels[name][arch] = dict(zip(FIELDS, values, strict=True))
                name = ""
    return kernels


def demangle(names: list[str]) -> dict[str, str]:
    """Short readable names: no parameter list, no namespaces of ours."""
    text = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout
    short = {}
    for mangled, full in zip(names, text.splitlines(), strict=True):
        name = full.removeprefix("void ").replace("(anonymous namespace)::", "").replace("inferx::cuda::", "")
        depth = 0
        for at, char in enumerate(name):  # cut at the first parenthesis outside of template arguments
            depth += (char == "<") - (char == ">")
            if char == "(" and depth == 0:
                name = name[:at]
                break
        short[mangled] = name
    return short


def ptx_of(build: Path) -> dict[tuple[str, str], str]:
    """The body of each entry function by (mangled name, architecture)."""
    bodies = {}
    for file in sorted(build.rglob("*.ptx/*.ptx")):
        text = file.read_text()
        target = re.search(r"^\.target (sm_\w+)", text, re.M)
        arch = target[1] if target else "?"
        for part in re.split(
            r"^(?=\.(?:visible |weak )?\.?entry )|^(?=\.visible \.entry|\.entry)", text, flags=re.M
        )[1:]:
            if match := re.search(r"\.entry (\w+)", part):
                bodies[match[1], arch] = part
    return bodies


def compare(now: dict[str, dict[str, Resources]], baseline: dict[str, dict[str, Resources]]) -> list[str]:
    problems = []
    built = {arch for by_arch in now.values() for arch in by_arch}
    for name, by_arch in sorted(now.items()):
        for arch, values in sorted(by_arch.items()):
            before = baseline.get(name, {}).get(arch)
            if before is None:
                problems.append(f"{name} {arch}: no baseline")
                continue
            for field in FIELDS:
                if values[field] > before.get(field, 0):
                    problems.append(
                        f"{name} {arch}: {field} {values[field]}, baseline {before.get(field, 0)}"
                    )
    for name, by_arch in sorted(baseline.items()):
        problems += [
            f"{name} {a}: in the baseline only"
            for a in sorted(by_arch)
            if a in built and a not in now.get(name, {})
        ]
    return problems


def to_json(kernels: dict[str, dict[str, Resources]]) -> str:
    """One line a kernel and architecture; zeros are left out."""
    lines = []
    for name, by_arch in sorted(kernels.items()):
        rows = [
            f"    {json.dumps(arch)}: {json.dumps({k: v for k, v in values.items() if v})}"
            for arch, values in sorted(by_arch.items())
        ]
        lines.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n  }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    mangled = read_logs(args.build)
    if not mangled:
        print(
            f"{args.build}: no reports of ptxas; configure with -DINFERX_KERNEL_REPORT=ON and a CUDA compiler"
        )
        return 1
    names = demangle(sorted(mangled))
    now = {names[m]: by_arch for m, by_arch in mangled.items()}
    if len(now) != len(mangled):
        print("two kernels have one name")
        return 1
    archs = sorted({arch for by_arch in now.values() for arch in by_arch})
    if args.show:
        for name, by_arch in sorted(now.items()):
            print(name, {a: tuple(v.values()) for a, v in sorted(by_arch.items())})
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    if args.update:
        kept = {n: {a: v for a, v in by.items() if a not in archs} for n, by in baseline.items() if n in now}
        BASELINE.write_text(to_json({n: {**kept.get(n, {}), **by} for n, by in now.items()}))
        baseline = json.loads(BASELINE.read_text())
    problems = compare(now, baseline)
    problems += [
        f"{name}: tools/kernel_instructions.py names it, no kernel is called so" for name in stale_names(now)
    ]
    for (name, arch), body in sorted(ptx_of(args.build).items()):
        problems += [
            f"{names.get(name, name)} {arch}: {p}" for p in problems_of(names.get(name, name), arch, body)
        ]
    print(f"{len(now)} kernels for {', '.join(archs)}: {len(problems)} problems")
    for problem in problems:
        print("  " + problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
