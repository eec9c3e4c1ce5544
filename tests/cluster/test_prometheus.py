"""A real Prometheus, by the file that Ray writes for it, reads what a run counts."""

import json
import secrets
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
from waiting import DEADLINE_SECONDS, UNTIL_FRAMES
from watched_processes import Training, Watched

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SETTINGS = (
    f"cartpole {UNTIL_FRAMES} --total-frames 1000M "
    "--log-every-seconds 0.5 --actors 1 --actor.environments 4 --actor.unroll-length 10"
)


class Prometheus(Watched):
    """Debian's `prometheus` on a port of this machine alone, which keeps what it stores in `folder`."""

    def __init__(self, config: Path, folder: Path) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        options = f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder / 'prometheus'}"
        super().__init__(["prometheus", f"--config.file={config}", *options], folder / "prometheus.log")

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
        token = folder / "token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
        ports = {name: free_port() for name in ("port", "dashboard-port", "ray-client-server-port")}
        options = {"num-cpus": 1, "temp-dir": folder, "object-store-memory": 200 * 2**20, **ports}
        options["dashboard-agent-listen-port"] = 0
        command = ["start", "--head", "--block", *(f"--{option}={value}" for option, value in options.items())]
        with Watched([Path(sys.executable).with_name("ray"), *command], folder / "start.log", variables) as ray:
            try:
                ray.wait_for(lambda: "Ray runtime started" in ray.printed(), "Ray")
                yield f"127.0.0.1:{ports['port']}", folder, variables
            finally:
                ray.process.terminate()
                ray.process.wait(DEADLINE_SECONDS)


def test_prometheus_has_the_numbers_of_a_run(head: tuple[str, Path, dict[str, str]], tmp_path: Path) -> None:
    address, folder, variables = head
    run = tmp_path / "counted"
    arguments = f"{SETTINGS} --address {address} --run-dir {run}"
    config = folder / "session_latest" / "metrics" / "prometheus" / "prometheus.yml"
    seen: list[dict[str, float]] = []
    totals = ("frames", "agent_steps", "updates")
    gauges = ("agent_steps_per_second", "mean_return_100", "policy_lag_mean", "policy_lag_max")
    names = {*(f"{name}_total" for name in totals), *gauges, "actors_alive"}

    def another(prometheus: Prometheus) -> bool:
        now = prometheus.values(run.name)
        if names <= now.keys() and (not seen or now["frames_total"] > seen[-1]["frames_total"]):
            seen.append(now)
        return len(seen) >= 3

    with Training(Path(sys.executable).parent, run, arguments, **variables) as training:
        training.wait_for(config.is_file, "Ray's configuration for Prometheus")
        with Prometheus(config, tmp_path) as prometheus:
            training.wait_for(lambda: another(prometheus), "three scrapes")
            training.interrupt()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for values in seen:
        for name in totals:
            assert values[f"{name}_total"] in {row[name] for row in rows}, name
        for name in gauges:
            assert any(values[name] == pytest.approx(row[name], rel=1e-6) for row in rows if row[name] is not None), (
                name
            )
        assert values["actors_alive"] == 1
