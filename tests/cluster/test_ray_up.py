"""The life of a cluster, as README tells it: `ray up`, doctor, train, a host lost and back, a job, `ray down`."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hosts import Network
from waiting import DEADLINE_SECONDS, UNTIL_FRAMES, wait_for

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
# Ray's autoscaler waits 45 seconds before it starts a lost host again; where that fails it begins anew.
wait = partial(wait_for, seconds=300.0)
TRAIN = (
    f"tributary train cartpole --address auto {UNTIL_FRAMES} "
    "--total-frames 1000M --log-every-seconds 0.5 --actor.environments 4 --actor.unroll-length 10 --run-dir runs/net"
)


class RayCluster:
    """Three hosts and the cluster file for them."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.home = network, folder / "home"
        self.home.mkdir()
        self.file = folder / "onprem.yaml"
        config = yaml.safe_load((ROOT / "launch" / "clusters" / "onprem.yaml").read_text())
        head, *workers = network.hosts
        config["cluster_name"] = f"tributary-{os.getpid()}"
        config["provider"] |= {"head_ip": head.address, "worker_ips": [host.address for host in workers]}
        config["auth"] = {"ssh_user": "root", "ssh_private_key": str(network.key)}
        # Installed once, not three times; the sources are the copies that `ray up` makes on each host.
        installed = [c for c in config["setup_commands"] if ".venv" not in c or "bashrc" in c]
        config["setup_commands"] = [
            f"ln -sfn {Path(sys.prefix)} ~/tributary/.venv",
            *installed,
            "grep -q PYTHONPATH ~/.bashrc || echo 'export PYTHONPATH=~/tributary' >> ~/.bashrc",
        ]
        # Three hosts on one machine: an actor for each.
        start = config["worker_start_ray_commands"]
        config["worker_start_ray_commands"] = [c.replace("ray start", "ray start --num-cpus=1") for c in start]
        self.file.write_text(yaml.safe_dump(config))
        self.environment = os.environ | {
            "HOME": str(self.home),
            "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_UP_enable_autoscaler_v2": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.ray("get-auth-token", "--generate")

    def ray(self, *arguments: str) -> str:
        result = subprocess.run(
            ["ray", *arguments], cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{arguments}\n{result.stdout[-4000:]}{result.stderr[-2000:]}"
        return result.stdout

    def ssh(self, command: str, *options: str, host: int = 0) -> list[str]:
        quiet = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        login = f"ssh {quiet} -i {self.network.key} {' '.join(options)} root@{self.network.hosts[host].address}"
        return [*login.split(), f"bash -ic {shlex.quote('cd ~/tributary && ' + command)}"]

    def on_head(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.ssh(command), capture_output=True, text=True, check=False)

    def row(self) -> dict[str, Any]:
        lines = self.on_head("tail -n 3 runs/net/metrics.jsonl").stdout.splitlines()
        for line in reversed(lines):
            with suppress(ValueError):
                return json.loads(line)
        return {"actors_alive": 0, "updates": 0}

    def logs(self) -> str:
        """What the run says of its actors, and Ray's autoscaler of the hosts."""
        return self.on_head("cat runs/net/log.txt; tail -n 100 /tmp/ray/session_latest/logs/monitor*").stdout

    def alive(self) -> int:
        text = self.on_head("python -c \"import ray; ray.init('auto', logging_level='error'); "
                            "print('nodes', sum(n['Alive'] for n in ray.nodes()))\"").stdout  # fmt: skip
        found = re.search(r"nodes (\d+)", text)
        return int(found[1]) if found else 0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    assert os.geteuid() == 0, "make cluster-test makes hosts of namespaces, and so needs root"
    with Network(tmp_path, 3) as network:
        yield RayCluster(network, tmp_path)


@pytest.mark.smoke
@pytest.mark.timeout(1500)
def test_the_life_of_a_cluster(cluster: RayCluster) -> None:
    cluster.ray("up", "-y", "--no-config-cache", str(cluster.file))
    wait(lambda: cluster.alive() == 3, "three nodes")

    another_revision(cluster)
    checked = cluster.on_head("tributary doctor --address auto --json doctor.json")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    nodes = json.loads(cluster.on_head("cat doctor.json").stdout)["nodes"]
    assert {node["node"] for node in nodes} == {host.address for host in cluster.network.hosts}

    training = subprocess.Popen(
        cluster.ssh(f"exec {TRAIN}", "-tt"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )

    def at_work(actors: int) -> None:
        def seen() -> bool:
            assert training.poll() is None, training.communicate()[0].decode()[-3000:]
            return cluster.row()["actors_alive"] == actors

        wait(seen, f"{actors} actors", shown=lambda: f"{cluster.row()} {cluster.logs()}")
        updates = cluster.row()["updates"]
        wait(lambda: cluster.row()["updates"] > updates, "progress")

    at_work(2)
    lost = cluster.network.hosts[2]
    lost.kill()
    at_work(1)
    lost.boot()
    # The head finds that a host of its list is back without Ray, and starts it there.
    at_work(2)

    cluster.on_head("pkill -INT -f 'tributary train'")
    output = training.communicate(timeout=DEADLINE_SECONDS)[0].decode()
    assert "interrupted after" in output, output
    assert "learner" in output
    assert "Traceback" not in output
    summary = json.loads(cluster.on_head("cat runs/net/summary.json").stdout)
    dropped = sum(summary["agent_steps_dropped"].values())
    assert summary["agent_steps_sampled"] == summary["agent_steps_applied"] + dropped
    assert summary["actor_restarts"] == 0

    job_of_a_run(cluster)

    cluster.ray("down", "-y", str(cluster.file))
    for host in cluster.network.hosts:
        wait(
            lambda host=host: not [p for p in host.processes() if "ray" in p], "no process of Ray", shown=host.processes
        )


def another_revision(cluster: RayCluster) -> None:
    """A worker on which somebody changed a line is named by doctor, and refused by train."""
    changed, undone = ("echo '# changed' >> shared/errors.py", "sed -i '$d' shared/errors.py")
    address = cluster.network.hosts[1].address
    subprocess.run(cluster.ssh(changed, host=1), check=True, capture_output=True)
    found = cluster.on_head("tributary doctor --address auto")
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"{address}: revision" in found.stdout
    refused = cluster.on_head("tributary train cartpole --address auto")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert f"error: node {address}: revision" in refused.stderr
    subprocess.run(cluster.ssh(undone, host=1), check=True, capture_output=True)


def job_of_a_run(cluster: RayCluster) -> None:
    """From outside, through the dashboard's port, which only a login on the head can reach."""
    port = 18265
    tunnel = subprocess.Popen(cluster.ssh("sleep 600", "-L", f"{port}:127.0.0.1:8265"), stdout=subprocess.DEVNULL)
    try:
        wait(
            lambda: (
                not subprocess.run(["bash", "-c", f"echo > /dev/tcp/127.0.0.1/{port}"], capture_output=True).returncode
            ),
            "the tunnel",
        )
        command = TRAIN.replace("1000M", "20k").replace("runs/net", "runs/job")
        entry = f"bash -ic {shlex.quote('cd ~/tributary && ' + command)}"
        output = cluster.ray("job", "submit", "--address", f"http://127.0.0.1:{port}", "--", *shlex.split(entry))
        assert "succeeded" in output, output
        assert json.loads(cluster.on_head("cat runs/job/summary.json").stdout)["status"] == "frames_reached"
    finally:
        tunnel.send_signal(signal.SIGKILL)
        tunnel.wait()
