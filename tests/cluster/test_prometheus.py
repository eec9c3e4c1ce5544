"""A real Prometheus, by the file that Ray writes for it, reads what a run counts."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from waiting import DEADLINE_SECONDS, UNTIL_FRAMES, wait_for
from watched_processes import Training

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SETTINGS = (
    f"cartpole {UNTIL_FRAMES} --total-frames 1000M "
    "--log-every-seconds 0.5 --actors 1 --actor.environments 4 --actor.unroll-length 10"
)


class Prometheus:
    """Debian's `prometheus` on a port of this machine alone.

    Args:
        config: its configuration.
        folder: for what it stores.
    """

    def __init__(self, config: Path, folder: Path) -> None:
        port = free_port()
        self._url, self.log = f"http://127.0.0.1:{port}", folder / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    f"--storage.tsdb.path={folder / 'prometheus'}",
                ],
                stdout=log,
                stderr=log,
            )

    def values(self, run: str) -> dict[str, float]:
        """What it has of a run now, by the names of metrics without what Ray puts before them all."""
        query = urllib.parse.urlencode({"query": f'{{__name__=~"ray_tributary_.+", run="{run}"}}'})
        with suppress(OSError):
            answer = json.load(urllib.request.urlopen(f"{self._url}/api/v1/query?{query}"))
            found: list[dict[str, Any]] = answer["data"]["result"]
            return {one["metric"]["__name__"].removeprefix("ray_tributary_"): float(one["value"][1]) for one in found}
        return {}


@pytest.fixture
def head() -> Iterator[tuple[str, Path, dict[str, str]]]:
    """A Ray of its own, as `ray start --head` makes it: its address, its folder, and what others need to join it."""
    # Short, as paths of sockets must be.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray") as name:
        folder = Path(name)
        log, token = folder / "start.log", folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
        ports = {name: free_port() for name in ("port", "dashboard-port", "ray-client-server-port")}
        options = {"num-cpus": 1, "temp-dir": folder, "object-store-memory": 200 * 2**20, **ports}
        options["dashboard-agent-listen-port"] = 0
        command = ["start", "--head", "--block", *(f"--{option}={value}" for option, value in options.items())]
        with log.open("wb") as output:
            ray = subprocess.Popen(
                [Path(sys.executable).with_name("ray"), *command],
                stdout=output,
                stderr=output,
                env=os.environ | variables,
            )
        try:
            wait_for(lambda: b"Ray runtime started" in log.read_bytes(), "Ray", process=ray, shown=log.read_text)
            yield f"127.0.0.1:{ports['port']}", folder, variables
        finally:
            ray.terminate()
            ray.wait(DEADLINE_SECONDS)


def test_prometheus_has_the_numbers_of_a_run(head: tuple[str, Path, dict[str, str]], tmp_path: Path) -> None:
    address, folder, variables = head
    run = tmp_path / "counted"
    arguments = f"{SETTINGS} --address {address} --run-dir {run}"
    training = Training(Path(sys.executable).parent, run, arguments, **variables)
    config = folder / "session_latest" / "metrics" / "prometheus" / "prometheus.yml"
    training.wait_for(config.is_file, "Ray's configuration for Prometheus")
    prometheus = Prometheus(config, tmp_path)
    seen: list[dict[str, float]] = []
    totals = ("frames", "agent_steps", "updates")
    gauges = ("agent_steps_per_second", "mean_return_100", "policy_lag_mean", "policy_lag_max")
    names = {*(f"{name}_total" for name in totals), *gauges, "actors_alive"}

    def another() -> bool:
        now = prometheus.values(run.name)
        if names <= now.keys() and (not seen or now["frames_total"] > seen[-1]["frames_total"]):
            seen.append(now)
        return len(seen) >= 3

    try:
        training.wait_for(another, "three scrapes")
        training.interrupt()
    finally:
        training.process.kill()
        prometheus.process.kill()
        prometheus.process.wait()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for values in seen:
        for name in totals:
            assert values[f"{name}_total"] in {row[name] for row in rows}, name
        for name in gauges:
            assert any(values[name] == pytest.approx(row[name], rel=1e-6) for row in rows if row[name] is not None), (
                name
            )
        assert values["actors_alive"] == 1
