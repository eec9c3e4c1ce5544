"""A Ray head on this machine with a job server and a token, and what is seen of the jobs on it."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ports import free_port

from launch.machine.import_path import project_folder
from launch.run.job_note import JobNote

DEADLINE_SECONDS = 600
SMALL = (
    "--actors 1 --actor.environments 4 --actor.unroll-length 10 --network.hidden-sizes 8 --stop-at-return None "
    "--stop-measure training --evaluation.every-frames 0 --log-every-seconds 0.2 --total-frames 1000M"
)
# A head that ends with its standard input. In a process of its own, as Ray reads its token once in a process.
HEAD = """
import sys
from ray.cluster_utils import Cluster
port, *cores = map(int, sys.argv[1:])
store = {"object_store_memory": 200 * 2**20}
dashboard = {"include_dashboard": True, "dashboard_host": "127.0.0.1", "dashboard_port": port}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cores[0], **store, **dashboard})
for count in cores[1:]:
    cluster.add_node(num_cpus=count, **store)
print("address", cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


class Head:
    """A Ray head on this machine, whose job server listens on localhost, and the commands of one who has its token.

    Args:
        folder: that it stands in.
        cores: of the head, and of further nodes.
    """

    def __init__(self, folder: Path, cores: Sequence[int] = (2,)) -> None:
        port = free_port()
        self.environment = os.environ | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(project_folder()), os.environ.get("PYTHONPATH")])),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEAD, str(port), *map(str, cores)],
            env=self.environment,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = next(line.split()[1] for line in self.process.stdout if line.startswith("address "))

    def start(self, line: str, folder: Path | None = None) -> subprocess.Popen[str]:
        # In a session of its own: whoever typed it may go.
        return subprocess.Popen(
            [sys.executable, "-m", "launch.cli", *line.split()],
            env=self.environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, line: str, folder: Path | None = None, code: int = 0) -> str:
        process = self.start(line, folder)
        output, _ = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == code, output
        return output

    def submit(self, settings: str, run: Path, code: int = 0) -> str:
        line = f"train cartpole {settings} --address {self.address} --detach --run-dir {run.name}"
        return self.run(line, run.parent, code)

    def listed(self, run: Path) -> dict[str, Any]:
        file = run.parent / "runs.json"
        self.run(f"runs {run.parent} --json {file}")
        (found,) = json.loads(file.read_text())["runs"]
        return found

    def status(self, note: JobNote) -> str:
        script = "import sys; from launch.on_ray.jobs import Jobs; print(Jobs(sys.argv[1]).status(sys.argv[2]).status)"
        command = [sys.executable, "-c", script, note.server, note.job]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout.strip()


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} was not seen"
        time.sleep(0.2)
    return found


def has_rows(run: Path) -> bool:
    file = run / "metrics.jsonl"
    return file.is_file() and any(json.loads(line)["frames"] for line in file.read_text().splitlines()[:-1])
