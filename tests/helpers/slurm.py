"""Slurm on this machine: munged, slurmctld, and a slurmd for each node, in namespaces of their own. Linux, as root."""

import os
import re
import secrets
import socket
import subprocess
import time
from pathlib import Path

_START_SECONDS = 60.0
# The address of all nodes, on the namespace's loopback device; like a node's, it is not 127.0.0.1.
_ADDRESS = "10.177.1.1"


class Slurm:
    """A cluster of Slurm whose nodes are all this machine. Use as a context: at its end no process of it is left.

    Args:
        folder: its files. No Slurm and no munge that runs here already is touched.
        nodes: number of nodes, `node1` and so on.
        cpus: of each node, independent of this machine's.
    """

    def __init__(self, folder: Path, nodes: int, cpus: int) -> None:
        self._folder = folder
        self._names = [f"node{number}" for number in range(1, nodes + 1)]
        host = socket.gethostname().partition(".")[0]
        described = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr={_ADDRESS} Port={7000 + number} CPUs={cpus} RealMemory=16000"
            for number, name in enumerate(self._names)
        )
        (folder / "slurm.conf").write_text(
            f"""
ClusterName=tributary
SlurmctldHost={host}({_ADDRESS})
SlurmUser=root
# A job that was requeued waits until its credential has expired, two minutes by default.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/%n.pid
# No control groups: a container may have none.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
# Seconds to save in after a SIGTERM, 30 by default: this machine may be slow.
KillWait=60
{described}
PartitionName=all Nodes=ALL Default=YES
"""
        )
        (folder / "munge.key").touch(mode=0o600)
        (folder / "munge.key").write_bytes(secrets.token_bytes(64))
        (folder / "state").mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Slurm":
        munge = f"{self._folder}/munge"
        script = (
            f"ip link set lo up && ip address add {_ADDRESS}/32 dev lo; "
            f"munged --foreground --force --socket={munge}.socket --key-file={munge}.key --pid-file={munge}.pid "
            f"--seed-file={munge}.seed --log-file={munge}.log & "
            f"until [ -S {munge}.socket ]; do sleep 0.1; done; slurmctld -D & "
            + "".join(f"slurmd -D -N {name} & " for name in self._names)
            # It waits for the end of the pipe, which comes however this process ends; and as the first one of its
            # process namespace it takes all others with it.
            + "read"
        )
        with (self._folder / "daemons.log").open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "bash", "-c", script],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_SECONDS
        while self.states() != ["idle"] * len(self._names):
            assert time.monotonic() < deadline, (self._folder / "daemons.log").read_text()
            time.sleep(0.5)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def run(self, *command: str, check: bool = True, **variables: str) -> str:
        """What a command of Slurm prints, which may see these further variables."""
        result = subprocess.run(
            ["nsenter", f"--target={self._process.pid}", "--net", *command],
            env=self._environment() | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or result.returncode == 0, f"{command}\n{result.stdout}{result.stderr}"
        return result.stdout

    def states(self) -> list[str]:
        """The state of each node."""
        return self.run("sinfo", "--noheader", "--Node", "--format=%t", check=False).split()

    def job(self, number: int) -> dict[str, str]:
        """What Slurm says of a job: JobState, Restarts, ExitCode, and so on."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "show", "job", str(number))))

    def _environment(self) -> dict[str, str]:
        return os.environ | {"SLURM_CONF": str(self._folder / "slurm.conf")}
