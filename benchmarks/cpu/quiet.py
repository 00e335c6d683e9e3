"""Whether other processes disturb a measurement: their use of the processors, and what a hypervisor takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# Cores that others may use during a run that still counts as undisturbed.
QUIET = 0.25


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since the machine's start: everybody's, what was stolen, and this process's ended children's
    and its own."""

    busy: float
    stolen: float
    own: float
    wall: float

    @classmethod
    def now(cls, stat: Path = Path("/proc/stat")) -> CpuTimes:
        user, nice, system, _, _, irq, soft, steal = map(int, stat.read_text().split("\n", 1)[0].split()[1:9])
        mine = os.times()
        own = mine.user + mine.system + mine.children_user + mine.children_system
        return cls((user + nice + system + irq + soft) / _TICKS, steal / _TICKS, own, time.monotonic())

    def others_since(self, before: CpuTimes) -> float:
        """Cores that others used between the two, stolen time included."""
        seconds = max(self.wall - before.wall, 1e-3)
        foreign = (self.busy - before.busy) - (self.own - before.own) + (self.stolen - before.stolen)
        return max(0.0, foreign / seconds)


def wait_until_quiet(
    most_seconds: float,
    now: Callable[[], CpuTimes] = CpuTimes.now,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until others leave the machine alone for two seconds in a row; False if they do not in time."""
    quiet, waited = 0, 0.0
    while waited < most_seconds:
        before = now()
        sleep(1.0)
        waited += 1.0
        quiet = quiet + 1 if now().others_since(before) < QUIET else 0
        if quiet == 2:
            return True
    return False
