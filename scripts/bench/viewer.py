"""Measure the server of `dbloader view`: requests about ten million records in LMDB.

python scripts/bench/viewer.py BENCH [--records 10000000] [--place STORE]

The store is made in BENCH by many_records.py, if it is not there. Each request is the first of its kind to a fresh
server. Seconds are from the request to the last byte. CPU is the server's CPU time, which other programs hardly change.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from machine import describe_machine
from many_records import write_many

QUERIES = (
    ('class:"class 007"', "a class"),
    ("width<256", "width"),
    ("bytes>=1e5 bytes<2e5", "bytes, two bounds"),
    ("aspect>1.4", "aspect"),
    ("name:_0001234", "part of a name, rare"),
    ("harbor", "part of a name, 1 of 8"),
    ('-class:"class 001"', "not a class: nearly all"),
    ("damaged", "an event"),
    ("width>300 -harbor", "a size and a name"),
)


class Server:
    """A viewer in a separate process, and a browser's cookie for it."""

    def __init__(self, place: str) -> None:
        command = [sys.executable, "-m", "dbloader", "view", place, "--port", "0", "--no-open"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        url = urlsplit(next(line.split()[-1] for line in self.process.stdout if "token=" in line))
        self.address = url.netloc
        self.cookie = ""
        self.cookie = self.get(f"{url.path}?{url.query}")[1]["Set-Cookie"].partition(";")[0]

    def get(self, path: str) -> tuple[bytes, Any]:
        connection = http.client.HTTPConnection(self.address, timeout=300)
        connection.request("GET", path, headers={"Cookie": self.cookie})
        response = connection.getresponse()
        body = response.read()
        connection.close()
        assert response.status in (200, 303, 307), (path, response.status, body)
        return body, response.headers

    def timed(self, path: str) -> tuple[float, float, Any]:
        """Return the seconds until the response, the server's CPU seconds, and the response."""
        started, cpu = time.perf_counter(), self.cpu()
        body, _ = self.get(path)
        return time.perf_counter() - started, self.cpu() - cpu, json.loads(body)

    def pids(self) -> list[int]:
        pids = [self.process.pid]
        for pid in pids:
            pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return pids

    def cpu(self) -> float:
        """Return the seconds that the server's processes have used of the CPUs."""
        stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self.pids())
        return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> str:
        """Return the server's resident memory in MB: the current sum, and the peak of the largest process."""
        found = []
        for pid in self.pids():
            facts = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            found.append([int(facts[name].split()[0]) / 1000 for name in ("VmRSS", "RssAnon", "VmHWM")])
        resident, private, most = zip(*found, strict=True)
        return f"{sum(resident):.0f} MB ({sum(private):.0f} private; at most {max(most):.0f})"

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def measure(place: str) -> None:
    started = time.perf_counter()
    server = Server(place)
    print(f"\nthe server answers after {time.perf_counter() - started:.2f} s")
    print("\n| what | seconds | CPU | |\n| --- | ---: | ---: | --- |")

    def show(what: str, path: str) -> Any:
        seconds, cpu, answer = server.timed(path)
        found = f"{answer['count']:,} records" if "count" in answer else ""
        print(f"| {what} | {seconds:.3f} | {cpu:.2f} | {found} |", flush=True)
        return answer

    try:
        with ThreadPoolExecutor(3) as browser:
            started, cpu = time.perf_counter(), server.cpu()
            paths = ("/api/stores", "/api/0/rows?q=&start=0&count=200", "/api/0/summary?q=")
            (seconds, _, stores), (rows, *_), (facts, *_) = browser.map(server.timed, paths)
            total = time.perf_counter() - started
        parts = f"{seconds:.3f}, {rows:.3f} and {facts:.3f} s; {server.memory()}"
        print(f"| the first page: stores, rows and facts at once | {total:.3f} | {server.cpu() - cpu:.2f} | {parts} |")
        show("the last 200 rows", f"/api/0/rows?q=&start={stores[0]['records'] - 200}&count=200")
        show("facts again", "/api/0/summary?q=")
        for query, what in QUERIES:
            text = quote(query)
            found = show(f"`{query}` ({what})", f"/api/0/select?q={text}")
            show("- its histograms and counts", f"/api/0/summary?q={text}")
            show("- its last 200 rows", f"/api/0/rows?q={text}&start={max(0, found['count'] - 200)}&count=200")
        print(f"\nmemory of the server: {server.memory()}")
    finally:
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the viewer's server.")
    parser.add_argument("bench", type=Path)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--place", help="An LMDB store of many_records.py, to make none.")
    options = parser.parse_args()
    print(describe_machine())
    place = options.place or str(options.bench / f"many-{options.records}.lmdb")
    if not Path(place).exists():
        write_many(place, options.records)
    print(f"\n## {place}: {options.records:,} records, {Path(place).stat().st_size / 1e9:.1f} GB")
    measure(place)


if __name__ == "__main__":
    main()
