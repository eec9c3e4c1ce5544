"""The life of a cluster, as README tells it: `ray up`, doctor, train, a host lost and back, a job, `ray down`."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import DEADLINE_SECONDS, UNTIL_FRAMES, wait_for
from watched_processes import output_of

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
# Ray's autoscaler waits 45 seconds before it starts a lost host again; where that fails it begins anew.
wait = partial(wait_for, seconds=300.0)
TRAIN = (
    f"tributary train cartpole --address auto {UNTIL_FRAMES} "
    "--total-frames 1000M --log-every-seconds 0.5 --actor.environments 4 --actor.unroll-length 10 --run-dir runs/net"
)


_BRIDGE = "tributary0"
_NETWORK = "10.177.0"


def run(command: str) -> str:
    return output_of("bash", "-c", command)


def listens(address: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((address, port), 5):
        return True
    return False


class Host:
    """One host. Its home is its own, and until it ends its /tmp and /dev/shm; other files are this machine's."""

    def __init__(self, number: int, folder: Path, public_key: Path) -> None:
        self.name, self.address = f"tributary-host{number}", f"{_NETWORK}.{number}"
        self._folder = folder / self.name
        (self._folder / "home").mkdir(mode=0o700, parents=True)
        self._public_key = public_key
        self._process: subprocess.Popen[bytes] | None = None
        run(
            f"ip netns add {self.name} && ip link add veth{number} type veth peer name eth0 netns {self.name} && "
            f"ip link set veth{number} master {_BRIDGE} up && ip -n {self.name} link set lo up && "
            f"ip -n {self.name} address add {self.address}/24 dev eth0 && ip -n {self.name} link set eth0 up"
        )
        run(f"ssh-keygen -q -t ed25519 -N '' -f {self._folder}/host_key")

    def boot(self) -> None:
        script = (
            f"set -e; key=$(cat {self._folder}/host_key); {_own_files(self._folder / 'home')}; "
            "mkdir -p /run/sshd /root/.ssh; touch /root/.bashrc; "
            f'hostname {self.name}; cat > /root/.ssh/authorized_keys; echo "$key" > /root/host_key; '
            "chmod -R go= /root; exec /usr/sbin/sshd -D -e -h /root/host_key -o PidFile=none -o UsePAM=no "
            "-o PermitRootLogin=yes -o StrictModes=no -o MaxStartups=100 -o MaxSessions=100"
        )
        log = (self._folder / "sshd.log").open("ab")
        self._process = subprocess.Popen(
            [*f"ip netns exec {self.name} unshare --mount --pid --uts --fork --mount-proc bash -c".split(), script],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self._process.stdin.write(self._public_key.read_bytes())
        self._process.stdin.close()
        wait_for(lambda: listens(self.address, 22), "sshd", shown=(self._folder / "sshd.log").read_text)

    def kill(self) -> None:
        if self._process is None:
            return
        # The first process of its own process namespace takes all others with it.
        for pid in self._children(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._process = None

    def processes(self) -> list[str]:
        """Command lines of what runs in it, sshd left out."""
        found, waiting = [], self._children(self._process.pid)
        while waiting:
            pid = waiting.pop()
            waiting += self._children(pid)
            with suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if command and "sshd" not in command:
                    found.append(command)
        return found

    def remove(self) -> None:
        self.kill()
        run(f"ip netns delete {self.name}")

    @staticmethod
    def _children(pid: int) -> list[int]:
        with suppress(OSError):
            return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []


def _own_files(home: Path) -> str:
    """Shell commands for a home, /tmp and /dev/shm of its own. The Python that runs stays, wherever it lies."""
    hidden = ("/root", "/tmp")
    python = dict.fromkeys((sys.base_prefix, sys.prefix))
    kept = [path for path in python if any(Path(path).is_relative_to(folder) for folder in hidden)]
    before = [f"mkdir -p /run/kept{i} && mount --bind {path} /run/kept{i}" for i, path in enumerate(kept)]
    own = [f"mount --bind {home} /root", "mount -t tmpfs tmpfs /tmp", "mount -t tmpfs -o size=2g tmpfs /dev/shm"]
    after = [f"mkdir -p {path} && mount --move /run/kept{i} {path}" for i, path in enumerate(kept)]
    return "; ".join([*before, *own, *after])


class Network:
    """A bridge with hosts on it, reachable from this machine. Use as a context."""

    def __init__(self, folder: Path, hosts: int) -> None:
        self.key = folder / "key"
        self._folder, self._count = folder, hosts
        self.hosts: list[Host] = []

    def __enter__(self) -> "Network":
        subprocess.run(["ip", "link", "delete", _BRIDGE], capture_output=True, check=False)
        run(f"ip link add {_BRIDGE} type bridge && ip address add {_NETWORK}.254/24 dev {_BRIDGE}")
        run(f"ip link set {_BRIDGE} up && ssh-keygen -q -t ed25519 -N '' -f {self.key}")
        for number in range(1, self._count + 1):
            for left in (f"netns delete tributary-host{number}", f"link delete veth{number}"):
                subprocess.run(["ip", *left.split()], capture_output=True, check=False)
            self.hosts.append(Host(number, self._folder, self.key.with_suffix(".pub")))
            self.hosts[-1].boot()
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.hosts:
            host.remove()
        run(f"ip link delete {_BRIDGE}")


class RayCluster:
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
        return output_of("ray", *arguments, cwd=ROOT, env=self.environment)

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
    assert f"{address}: sources" in found.stdout
    refused = cluster.on_head("tributary train cartpole --address auto")
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert f"error: node {address}: sources" in refused.stderr
    subprocess.run(cluster.ssh(undone, host=1), check=True, capture_output=True)


def job_of_a_run(cluster: RayCluster) -> None:
    """From outside, through the dashboard's port, which only a login on the head can reach."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tunnel = subprocess.Popen(cluster.ssh("sleep 600", "-L", f"{port}:127.0.0.1:8265"), stdout=subprocess.DEVNULL)
    try:
        wait(lambda: listens("127.0.0.1", port), "the tunnel")
        command = TRAIN.replace("1000M", "20k").replace("runs/net", "runs/job")
        entry = f"bash -ic {shlex.quote('cd ~/tributary && ' + command)}"
        output = cluster.ray("job", "submit", "--address", f"http://127.0.0.1:{port}", "--", *shlex.split(entry))
        assert "succeeded" in output, output
        assert json.loads(cluster.on_head("cat runs/job/summary.json").stdout)["status"] == "frames_reached"
    finally:
        tunnel.send_signal(signal.SIGKILL)
        tunnel.wait()
