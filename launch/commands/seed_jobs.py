"""Several seeds at a time on a cluster: each is a Ray job of its own, on its share of the nodes."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from launch.commands.in_turn import PlannedRun
from launch.commands.job import job_name, what_it_said
from launch.on_ray.jobs import Jobs, check_client, server_at
from launch.on_ray.placement import Node
from launch.on_ray.shares import check_nodes_of_run, divide, has_room, nodes_of_run, parts_of, share_line
from launch.output.exit_codes import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from launch.output.lines import print_line
from launch.presets import PRESETS
from launch.run.job_note import JobNote, write_note
from shared.config import RunConfig
from shared.errors import ConfigurationError, setting_error

# A job server is asked about each of many jobs, and may be busy for a while.
_ASK_SECONDS = 2.0
_SILENT_SECONDS = 300.0


class SeedJobs:
    """Starts runs as Ray jobs, each on one of several equal shares of what is free of a cluster.

    Use as a context: meanwhile this process is part of the cluster.

    Args:
        config: of the runs; their `nodes` are what is divided, and by default all.
        count: of the shares.
        settings: the file with the settings of a run that begins.
        typed: settings for those that go on, as typed.
        console: where it says which share is whose.
    """

    def __init__(self, config: RunConfig, count: int, settings: Path, typed: Sequence[str], console: Console) -> None:
        self._config, self._count, self._settings, self._typed = config, count, settings, typed
        self._console, self._stack = console, ExitStack()
        self._shares: list[list[Node]] = []

    def __enter__(self) -> "SeedJobs":
        """Join the cluster and divide it.

        Raises:
            ConfigurationError: there is no cluster, no job server or no client for it, or no room for so many runs.
        """
        config, address = self._config, self._config.address
        check_client()
        # Importing ray takes a second or two.
        from launch.on_ray.cluster import free_nodes, joined

        with ExitStack() as stack:
            try:
                dashboard = stack.enter_context(joined(address))
            except ConnectionError as error:
                raise setting_error("address", address, f"no Ray cluster answers there: {error}") from error
            self._server = server_at(address, dashboard, "--side-by-side")
            self._free_nodes, nodes = free_nodes, free_nodes()
            check_nodes_of_run(config, nodes)
            self._shares = divide(config, nodes_of_run(config, nodes), self._count)
            for number, share in enumerate(self._shares, start=1):
                print_line(self._console, f"share {number}: {share_line(share)}")
            self._jobs = Jobs(self._server)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def has_room(self, place: int) -> bool:
        """See `Starter`. A share that has lost nodes goes on with the others, unless they are too few."""
        share, there = self._shares[place], {node.id for node in self._free_nodes()}
        lost = [node for node in share if node.id not in there]
        if lost:
            self._shares[place] = [node for node in share if node.id in there]
            print_line(self._console, f"share {place + 1}: gone are {share_line(lost)}")
        return has_room(self._config, self._shares[place])

    def start(self, run: PlannedRun, place: int) -> "_SeedJob":
        """See `Starter`."""
        name = job_name(f"{run.folder.absolute().parent.name}-{run.folder.name}")
        where = ["--address", self._config.address, "--nodes", *parts_of(self._shares[place])]
        job = _SeedJob(self._jobs, name, run, self._console)
        try:
            self._jobs.submit(name, "launch.cli", ["train", *self._line(run), *where], Path.cwd())
        except ConfigurationError as error:
            # Others go on; the same command, or --resume, has this one begin later.
            job.failed(f"it could not be submitted: {error}")
            return job
        config = run.config
        write_note(run.folder, JobNote(name, self._server, config.environment.id, config.total_frames))
        print_line(self._console, f"{run.name}: Ray job {name}, on share {place + 1}")
        return job

    def _line(self, run: PlannedRun) -> list[str]:
        """What is typed after `tributary train` for a run, without its place."""
        trust = ["--trust-imports"] if run.config.environment.modules else []
        if run.resume:
            return ["--resume", str(run.folder), *trust, *self._typed]
        preset = [run.preset] if run.preset in PRESETS else []
        start = [] if run.start_from is None else ["--start-from", str(run.start_from)]
        seed = ["--seed", str(run.config.seed), "--run-dir", str(run.folder)]
        return [*preset, "--config", str(self._settings), *seed, *start, *trust]


class _SeedJob:
    """A run as a Ray job. What it prints is in its log when it has ended."""

    def __init__(self, jobs: Jobs, name: str, run: PlannedRun, console: Console) -> None:
        self._jobs, self._name, self._run, self._console = jobs, name, run, console
        self._asked = self._answered = time.monotonic()
        self._stopping = self._left = self._failed = False

    def failed(self, reason: str) -> None:
        """Count it as failed, whatever becomes of its job: `poll` says so from here on."""
        print_line(self._console, f"{self._run.name}: {reason}")
        self._failed = True

    def poll(self) -> int | None:
        """See `StartedRun`."""
        if self._left:
            return EXIT_INTERRUPTED
        if self._failed:
            return EXIT_FAILED
        now = time.monotonic()
        if now - self._asked < _ASK_SECONDS:
            return None
        self._asked = now
        try:
            found = self._jobs.status(self._name)
            if found.ended:
                self._run.log.write_text(what_it_said(self._jobs, self._name))
        except ConfigurationError as error:
            if now - self._answered > _SILENT_SECONDS:
                self.failed(f"{error}; Ray job {self._name} may go on: tributary stop {self._run.folder} ends it")
            return None
        self._answered = now
        if not found.ended:
            return None
        if found.status == "STOPPED":
            return EXIT_INTERRUPTED
        if found.exit_code is None or found.exit_code < 0:
            return EXIT_DONE if found.status == "SUCCEEDED" else EXIT_FAILED
        return found.exit_code

    def interrupt(self) -> None:
        """See `StartedRun`. The second time it is left: it saves by itself."""
        if self._stopping:
            self._left = True
            print_line(self._console, f"{self._run.name}: left; Ray job {self._name} saves and ends")
        self._stopping = True
        try:
            self._jobs.stop(self._name)
        except ConfigurationError as error:
            # The others are asked all the same.
            print_line(self._console, f"{self._run.name}: {error}; tributary stop {self._run.folder} asks again")
