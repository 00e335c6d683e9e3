"""Compiler launcher: runs nvcc and keeps, beside the object, what ptxas said and the PTX.

    nvcc_logged.py nvcc ... -o OBJECT      ->  OBJECT.ptxas (text), OBJECT.ptx/*.ptx

Used with -DINFERX_KERNEL_REPORT=ON; tools/kernel_report.py reads the files.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def main(command: list[str]) -> int:
    if "-c" not in command or "-o" not in command:
        return subprocess.call(command)
    target = Path(command[command.index("-o") + 1])
    log, ptx = target.with_name(target.name + ".ptxas"), target.with_name(target.name + ".ptx")
    keep = target.with_name(target.name + ".keep")
    for path in (ptx, keep):
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
    result = subprocess.run(
        [*command, "-Xptxas=-v", "--keep", f"--keep-dir={keep}"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    is_report = ("ptxas info", "    ")
    said = [line for line in result.stderr.splitlines() if not line.startswith(is_report)]
    if said:
        print("\n".join(said), file=sys.stderr)
    log.write_text(result.stderr)
    for file in keep.glob("*.ptx"):
        shutil.move(file, ptx / file.name)
    shutil.rmtree(keep)
    return result.returncode


sys.exit(main(sys.argv[1:]))
