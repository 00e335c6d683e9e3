"""A soak: hours of traffic in minutes, on a server with far too little KV cache.

    python tools/soak.py --minutes 30 --output soak.json

Starts ``inferx serve`` on the default model with a pool of 40 blocks, so that requests preempt each other
all the time, and lets many clients ask on every endpoint at once: whole and streamed, several samples,
shared prefixes, long prompts, bad requests, slow readers, clients that leave at any moment, some before
their headers are out.  What it checks, and what the JSON summary says (exit code 0 only if all holds):

- an answer that was asked for alone at the start is the same, bit for bit, whatever runs beside it, streamed
  or whole, and again at the end;
- no 5xx, and no refusal of a good request but 429;
- memory of both processes is flat: see ``soak_measures.Series.trend``;
- afterwards nothing runs or waits, every KV block is free or cached, and descriptors, threads and child
  processes are no more than after the first requests;
- SIGTERM ends the server with exit code 0, without a traceback in its log, and no process is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from soak_cards import BAD_REQUESTS, BAD_STRUCTURED, Answer, Card, all_cards
from soak_measures import Processes, idle_faults, parse_metrics
from soak_rudeness import RUDE, read_slowly

START_SECONDS = 120
ANSWER_SECONDS = 300
MAX_FAULTS = 50  # in the summary; all are counted
LATE_THREADS = 8
SERVER_FLAGS = (
    *("--num-gpu-blocks-override", "40", "--max-model-len", "640", "--max-num-seqs", "16"),
    *("--max-num-batched-tokens", "128", "--threads", "1"),
)


class Server:
    """``inferx serve`` as users start it, with its log in a file."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the server)
        command = [sys.executable, "-m", "inferx.cli.main", "serve", "--port", "0", *SERVER_FLAGS]
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        self.url = self._wait_for_url()

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def _wait_for_url(self) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in self.log().splitlines():
                if line.startswith("inferx serves "):
                    return line.split()[2]
            time.sleep(0.1)
        self.process.kill()
        raise RuntimeError(f"the server did not start:\n{self.log()}")

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Soak:
    """Cards, clients, and what was seen."""

    def __init__(self, url: str, args: argparse.Namespace) -> None:
        self.url = url
        self.args = args
        self.http = httpx.AsyncClient(
            base_url=url,
            timeout=ANSWER_SECONDS,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=args.clients),
        )
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []
        self.num_faults = 0
        self.cards: list[Card] = []
        self.absent: dict[str, str] = {}  # kind -> why it is not part of this soak
        self.alone: dict[int, Answer] = {}
        self.bad = list(BAD_REQUESTS)
        self.deadline = 0.0

    def fault(self, text: str) -> None:
        self.num_faults += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(text[:600])
            print(f"FAULT {text[:600]}", file=sys.stderr, flush=True)

    # ---- asking ----------------------------------------------------------------------------------

    async def learn_answers(self) -> None:
        """Ask every card alone.  A kind that the server does not know is left out, and named."""
        for card in all_cards(self.args.cards, self.args.seed):
            if card.kind in self.absent:
                continue
            response = await self.http.post(card.path, json=card.body)
            if response.status_code != 200:
                self.absent[card.kind] = f"{response.status_code} {response.text[:200]}"
                continue
            self.alone[len(self.cards)] = card.whole(response.json())
            self.cards.append(card)
        if any(card.kind == "completions, structured" for card in self.cards):
            self.bad += BAD_STRUCTURED

    async def ask(self, number: int, stream: bool) -> None:
        card = self.cards[number]
        stream = stream and card.events is not None
        self.counts[f"{card.kind}{', streamed' if stream else ''}"] += 1
        body = card.streamed_body() if stream else card.body
        response = await self.http.post(card.path, json=body)
        if self._refused(response, card.kind):
            return
        if stream:
            assert card.events is not None
            answer = card.events(events_of(response.text))
        else:
            answer = card.whole(response.json())
        self.compare(number, answer, "streamed" if stream else "whole")

    def compare(self, number: int, answer: Answer, how: str) -> None:
        expected = self.alone[number]
        if answer != expected:
            card = self.cards[number]
            self.fault(
                f"{card.kind}, {how}: another answer than alone: {answer} instead of {expected}; {card.body}"
            )

    def _refused(self, response: httpx.Response, what: str) -> bool:
        status = response.status_code
        self.statuses[str(status)] += 1
        if status == 200:
            return False
        if status == 429 and "retry-after" in response.headers:
            self.counts["refused: queue full"] += 1
        else:
            self.fault(f"{what}: status {status}: {response.text[:300]}")
        return True

    async def ask_badly(self, rng: random.Random) -> None:
        path, body = rng.choice(self.bad)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = await self.http.post(path, content=content, headers={"content-type": "application/json"})
        self.counts["bad request"] += 1
        self.statuses[str(response.status_code)] += 1
        if not 400 <= response.status_code < 500:
            self.fault(f"{path} {content[:100]!r}: status {response.status_code}: {response.text[:300]}")
        elif not isinstance(response.json().get("error"), dict):
            self.fault(f"{path} {content[:100]!r}: not the shape of an error: {response.text[:300]}")

    async def leave_while_reading(self, number: int, rng: random.Random) -> None:
        """Take some of a stream, or wait a while for a whole answer, and hang up."""
        card = self.cards[number]
        stream = card.events is not None and rng.random() < 0.7
        self.counts["left while streaming" if stream else "left while waiting"] += 1
        body = card.streamed_body() if stream else card.body
        lines = rng.randrange(1, 20)

        async def take_some() -> None:
            async with self.http.stream("POST", card.path, json=body) as response:
                if response.status_code not in (200, 429):
                    self.fault(f"{card.kind}: status {response.status_code} to one that would leave")
                number = 0
                async for _ in response.aiter_lines():
                    number += 1
                    if number > lines:
                        break

        patience = rng.choice([0.001, 0.01, 0.05, 0.2, 0.5, 1.0])
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(take_some(), patience)

    async def read_slowly(self, number: int, rng: random.Random) -> None:
        card = self.cards[number]
        if card.events is None:
            return
        self.counts["slow reader"] += 1
        text = await read_slowly(self.url, card.path, card.streamed_body(), rng)
        if text is not None:
            self.compare(number, card.events(events_of(text)), "read slowly")

    async def look_around(self, rng: random.Random) -> None:
        path = rng.choice(["/health", "/metrics", "/v1/models", "/version"])
        response = await self.http.get(path)
        self.counts[f"GET {path}"] += 1
        self.statuses[str(response.status_code)] += 1
        if response.status_code != 200:
            self.fault(f"GET {path}: status {response.status_code}: {response.text[:200]}")

    # ---- the clients -----------------------------------------------------------------------------

    async def client(self, number: int) -> None:
        rng = random.Random(f"{self.args.seed}-client-{number}")
        while time.monotonic() < self.deadline:
            card = rng.randrange(len(self.cards))
            what = rng.random()
            try:
                if what < 0.55:
                    await self.ask(card, stream=rng.random() < 0.5)
                elif what < 0.75:
                    await self.leave_while_reading(card, rng)
                elif what < 0.82:
                    name = rng.choice(sorted(RUDE))
                    self.counts[name] += 1
                    await RUDE[name](self.url, self.cards[card].path, self.cards[card].body, rng)
                elif what < 0.86:
                    await self.read_slowly(card, rng)
                elif what < 0.96:
                    await self.ask_badly(rng)
                else:
                    await self.look_around(rng)
            except Exception as error:
                self.fault(f"{self.cards[card].kind}: {type(error).__name__}: {error}")
                await asyncio.sleep(1)  # a dead server: no flood of messages

    async def sample_memory(self, processes: Processes) -> None:
        interval = max(0.25, min(10.0, self.args.minutes * 60 / 240))
        while True:
            processes.sample()
            await asyncio.sleep(interval)

    async def run(self) -> None:
        self.deadline = time.monotonic() + self.args.minutes * 60
        await asyncio.gather(*(self.client(i) for i in range(self.args.clients)))

    async def metrics(self) -> dict[str, float]:
        return parse_metrics((await self.http.get("/metrics")).text)

    async def wait_idle(self, seconds: float = 15.0) -> list[str]:
        """What is still wrong when nothing should run any more."""
        deadline = time.monotonic() + seconds
        while (faults := idle_faults(await self.metrics())) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)
        return faults

    async def quiet_counts(self, processes: Processes) -> dict[str, int]:
        """Descriptors and threads once every connection of ours but one is closed."""
        await self.http.aclose()
        await asyncio.sleep(2.0)
        self.http = httpx.AsyncClient(base_url=self.url, timeout=ANSWER_SECONDS)
        await self.http.get("/health")
        return processes.counts()


def events_of(text: str) -> list[dict[str, Any]]:
    """The JSON of a stream's events; each stream has to end as its protocol says."""
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    if data and data[-1] == "[DONE]":
        data.pop()
    events = [json.loads(item) for item in data]
    for event in events:
        if event.get("error"):
            raise RuntimeError(f"an error in the stream: {event['error']}")
    return events


def leaked(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """What there is more of.  Pools of threads start their threads late, but are bounded."""
    late = {name: LATE_THREADS if name.endswith("threads") else 0 for name in before}
    return [f"{n}: {before[n]} before, {after[n]} after" for n in before if after[n] > before[n] + late[n]]


async def soak(server: Server, args: argparse.Namespace) -> dict[str, Any]:
    started = time.monotonic()
    run = Soak(server.url, args)
    await run.learn_answers()
    # Pools and threads exist from here on; what comes on top later is a leak.
    await asyncio.gather(*(run.ask(i % len(run.cards), stream=i % 2 == 0) for i in range(args.clients)))
    processes = Processes(server.process.pid)
    before = await run.quiet_counts(processes)
    traffic_started = time.monotonic()
    sampler = asyncio.create_task(run.sample_memory(processes))
    await run.run()
    sampler.cancel()
    traffic_seconds = time.monotonic() - traffic_started
    idle = await run.wait_idle()
    after = await run.quiet_counts(processes)
    for i in range(len(run.cards)):
        await run.ask(i, stream=i % 2 == 1)
    metrics = await run.metrics()
    await run.http.aclose()
    memory = {name: series.trend() for name, series in processes.series.items()}
    steps_that_failed = server.log().count("Traceback")
    exit_code = server.stop()
    left = [p.pid for p in (processes.server, processes.engine) if p.is_running()]
    checks = {
        "same answers, no 5xx": run.num_faults == 0,
        "memory flat": all(trend["flat"] for trend in memory.values()),
        "idle afterwards": not idle,
        "nothing leaked": not leaked(before, after),
        "requests were preempted": metrics["vllm:num_preemptions_total"] > 0,
        "no traceback in the log": steps_that_failed == 0,
        "exit code 0, no process left": exit_code == 0 and not left,
    }
    return {
        "passed": all(checks.values()),
        "checks": checks,
        "seconds": {"traffic": round(traffic_seconds, 1), "all": round(time.monotonic() - started, 1)},
        "arguments": vars(args) | {"output": None},
        "server_flags": list(SERVER_FLAGS),
        "kinds": sorted({card.kind for card in run.cards}),
        "absent": run.absent,
        "requests": dict(sorted(run.counts.items())),
        "statuses": dict(sorted(run.statuses.items())),
        "engine": {k: v for k, v in metrics.items() if k in ENGINE_METRICS},
        "faults": run.num_faults,
        "first_faults": run.faults,
        "idle_faults": idle,
        "leaked": leaked(before, after),
        "counts_before": before,
        "counts_after": after,
        "memory": memory,
        "series": {name: series.as_dict() for name, series in processes.series.items()},
        "python": platform.python_version(),
    }


ENGINE_METRICS = (
    "vllm:num_preemptions_total",
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "inferx:engine_steps_total",
    "inferx:num_kv_blocks",
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--cards", type=int, default=72, help="different requests whose answers are known")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="where the JSON summary goes; standard output otherwise")
    return parser.parse_args()


def main() -> int:
    args = parse_arguments()
    server = Server()
    try:
        summary = asyncio.run(soak(server, args))
    finally:
        server.stop()
    text = json.dumps(summary, indent=1)
    if args.output is None:
        print(text)
    else:
        args.output.write_text(text + "\n")
    for name, good in summary["checks"].items():
        print(f"{'ok  ' if good else 'FAIL'} {name}", file=sys.stderr)
    return 0 if summary["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
