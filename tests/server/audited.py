"""``inferx`` with every access to a file written down: ``python audited.py REPORT serve ...``.

The names go to REPORT, one a line, as Python's audit events have them; what native code opens beside Python
(the model's mapped files) is not seen.
"""

from __future__ import annotations

import os
import sys

EVENTS = (
    "open",
    "os.",
    "shutil.",
    "pathlib.",
    "glob.",
    "import",
    "subprocess.",
    "socket.getaddrinfo",
    "urllib.",
)


def main() -> int:
    report = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event.startswith(EVENTS):
            os.write(report, f"{event} {arguments!r:.2000}\n".encode(errors="replace"))

    sys.addaudithook(note)
    from inferx.cli.main import app

    return app(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
