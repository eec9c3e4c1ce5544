"""Hosts on one machine: network, process and mount namespaces of their own, each with an address and an sshd. Linux,
as root."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from waiting import wait_for

_BRIDGE = "tributary0"
_NETWORK = "10.177.0"


def run(command: str) -> str:
    """Run a shell command; its output, or an AssertionError with it."""
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
    return result.stdout


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
        """Start it: a home, empty at first, with the key in it, and sshd."""
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
        knock = ["bash", "-c", f"echo > /dev/tcp/{self.address}/22"]
        wait_for(
            lambda: subprocess.run(knock, capture_output=True).returncode == 0,
            "sshd",
            shown=(self._folder / "sshd.log").read_text,
        )

    def kill(self) -> None:
        """End it like a power cut: everything in it is killed."""
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
        """Kill it, and take its network away."""
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
