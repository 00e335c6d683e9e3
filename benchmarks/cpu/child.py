"""One measurement in a process of its own: ``python -m benchmarks.cpu.child '{"task": ...}'``.

The parent (``spawn.py``) passes one JSON object and reads one JSON line from standard output.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    # Imported here, so that what the import takes in time and memory is inside of this process's record.
    from benchmarks.cpu import tasks

    print(json.dumps(tasks.TASKS[order["task"]](order)), flush=True)


if __name__ == "__main__":
    main()
