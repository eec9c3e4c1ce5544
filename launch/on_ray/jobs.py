"""Runs as Ray jobs: they are processes of the cluster, and outlive whoever submitted them. By Ray's own client."""

import shlex
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from launch.machine.import_path import module_command, module_environment
from shared.errors import ConfigurationError, one_line, setting_error

_INSTALL = "pip install 'tributary-rl[cluster]'"
_ANSWER_SECONDS = 5.0
# In what Ray says of a job that it does not know: a cluster that was started anew has forgotten them.
_UNKNOWN = "status code 404"
# Read by the process of Ray's that watches over a job: a run that is stopped has so long to save.
_STOPPING = {"RAY_JOB_STOP_WAIT_TIME_S": "3600"}


class JobStatus(NamedTuple):
    """What Ray says of a job: PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED; UNKNOWN if it does not know it.

    `exit_code` is that of its process, None if it is not known.
    """

    status: str
    exit_code: int | None

    @property
    def ended(self) -> bool:
        """Whether it goes on no more."""
        return self.status not in ("PENDING", "RUNNING")


def check_client() -> None:
    """Refuse to go on without Ray's job client.

    Raises:
        ConfigurationError: it is not installed.
    """
    # Its modules are there without the extra, and cannot be imported.
    if find_spec("aiohttp") is None or find_spec("pydantic") is None:
        raise ConfigurationError(f"a Ray job needs Ray's job client: {_INSTALL}")


def server_at(address: str, dashboard: str | None, wanted_for: str) -> str:
    """The URL of the job server of a cluster, given where the cluster's dashboard listens.

    Raises:
        ConfigurationError: it has none.
    """
    if not dashboard:
        raise setting_error(
            "address", address, f"the cluster has no job server, so {wanted_for} cannot be: on its head, {_INSTALL}"
        )
    return f"http://{dashboard}"


class Jobs:
    """The job server of a cluster.

    Args:
        server: its URL.

    Raises:
        ConfigurationError: nobody answers there, or it takes another token; so do all methods.
    """

    def __init__(self, server: str) -> None:
        check_client()
        self._server = server
        parts = urlsplit(server)
        with self._told():
            # The client itself would wait for minutes.
            socket.create_connection((parts.hostname or "", parts.port or 80), _ANSWER_SECONDS).close()
            from ray.job_submission import JobSubmissionClient

            self._client = JobSubmissionClient(server)

    def submit(self, name: str, module: str, arguments: Sequence[str], folder: Path) -> None:
        """Have one of the project's modules run on the cluster's head, in the same folder as here.

        Args:
            name: of the job.
            module: like `launch.cli`.
            arguments: of the module.
            folder: where its process stands.
        """
        path = module_environment().get("PYTHONPATH", "")
        command = shlex.join(["env", f"PYTHONPATH={path}", *module_command(module, *arguments)])
        with self._told():
            self._client.submit_job(
                entrypoint=f"cd {shlex.quote(str(folder))} && exec {command}",
                submission_id=name,
                runtime_env={"env_vars": _STOPPING},
            )

    def status(self, name: str) -> JobStatus:
        """How a job stands."""
        with self._told():
            try:
                info = self._client.get_job_info(name)
            except RuntimeError as error:
                if _UNKNOWN not in str(error):
                    raise
                return JobStatus("UNKNOWN", None)
            return JobStatus(info.status.value, info.driver_exit_code)

    def log(self, name: str) -> str:
        """What a job has printed."""
        with self._told():
            return str(self._client.get_job_logs(name))

    def stop(self, name: str) -> None:
        """Ask a job to end. It has an hour to save."""
        with self._told():
            self._client.stop_job(name)

    @contextmanager
    def _told(self) -> Iterator[None]:
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as error:
            raise ConfigurationError(
                f"the job server at {self._server} refuses this token: {one_line(error)}"
            ) from error
        except (OSError, RuntimeError) as error:
            raise ConfigurationError(f"no answer from the job server at {self._server}: {one_line(error)}") from error
