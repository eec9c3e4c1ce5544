"""The real MLflow with a store in SQLite, on this machine, to be killed and started again."""

import json
import os
import signal
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import URLError

from ports import free_port
from waiting import wait_for


class MlflowServer:
    """`mlflow server` on a port of its own. What it stored outlives it.

    Args:
        program: of the full package.
        folder: for its store and its log.
    """

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [self._program, "server", "--host", "127.0.0.1", "--port", str(self._port), "--workers", "1"]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--backend-store-uri", "sqlite:///store.db"],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                # Its scheduler of jobs is seven more processes, which nobody here needs.
                env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                start_new_session=True,
            )
        log_file = self._folder / "server.log"
        wait_for(self._answers, "an answer of the server", process=self._process, shown=log_file.read_text)

    def kill(self) -> None:
        """Kill it with its workers, if it runs."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def runs(self) -> list[dict[str, Any]]:
        """Its runs of the experiment `tributary`: info and data, as its interface gives them."""
        experiment = self._get("experiments/get-by-name", experiment_name="tributary")["experiment"]
        body = json.dumps({"experiment_ids": [experiment["experiment_id"]]}).encode()
        request = urllib.request.Request(
            f"{self.url}/api/2.0/mlflow/runs/search", body, {"Content-Type": "application/json"}
        )
        return json.load(urllib.request.urlopen(request)).get("runs", [])

    def steps(self, run_id: str) -> list[int]:
        """The frames of the rows that arrived, in order."""
        return [step for step, _ in self.metric(run_id, "speed/frames_per_second")]

    def metric(self, run_id: str, name: str) -> list[tuple[int, float]]:
        """Frames and values of a metric, by frames."""
        history = self._get("metrics/get-history", run_id=run_id, metric_key=name, max_results="25000")
        return sorted((int(point["step"]), float(point["value"])) for point in history.get("metrics", []))

    def files(self, run_id: str, folder: str) -> list[str]:
        """The files of a run in a folder of its artifacts."""
        listed = self._get("artifacts/list", run_id=run_id, path=folder)
        return sorted(Path(file["path"]).name for file in listed.get("files", []))

    def _get(self, what: str, **parameters: str) -> dict[str, Any]:
        query = urllib.parse.urlencode(parameters)
        return json.load(urllib.request.urlopen(f"{self.url}/api/2.0/mlflow/{what}?{query}"))

    def _answers(self) -> bool:
        try:
            return urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200
        except (URLError, OSError):
            return False
