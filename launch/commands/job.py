"""`tributary train --detach --address …`: the run is a Ray job, a process of the cluster's head."""

import re
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console

from launch.on_ray.jobs import Jobs, check_client, server_at
from launch.output.exit_codes import EXIT_DONE, EXIT_FAILED
from launch.output.lines import print_line
from launch.run.job_note import JobNote, remove_note, write_note
from launch.run.lock import holder_of
from shared.config import RunConfig

_POLL_SECONDS = 0.5
# What cannot be in a job's name.
_NO_NAME = re.compile(r"[^\w.-]")
# What the run prints once it has its folder.
_BEGUN = re.compile(r"^(run folder:|seed \d+:)", re.M)
# Lines of Ray's own, in what a job prints.
_OF_RAY = re.compile(r"^(Running entrypoint for job |\d{4}-\d\d-\d\d [\d:,]+\t(INFO|WARNING) ).*\n", re.M)


def train_as_job(arguments: Sequence[str], folder: Path, config: RunConfig, *, several: bool) -> int:
    """Submit `tributary train ARGUMENTS` as a Ray job, and wait until it has its folder or has failed.

    Args:
        arguments: as typed, without `--detach`; the job reads and checks them as any other does.
        folder: of the run, or of the runs of `several` seeds.
        config: of the run, as far as it is known here.

    Returns:
        The exit code: 0 when the run has begun, else that of the job, whose output is shown.

    Raises:
        ConfigurationError: there is no cluster, no job server, or no client for it.
        ConnectionError: something else listens at the address.
    """
    check_client()
    # Importing ray takes a second or two.
    from launch.on_ray.cluster import joined

    with joined(config.address) as dashboard:
        server = server_at(config.address, dashboard, "--detach")
    jobs, name = Jobs(server), job_name(folder.name)
    jobs.submit(name, "launch.cli", ["train", *arguments], Path.cwd())
    write_note(folder, JobNote(name, server, config.environment.id, config.total_frames))
    elsewhere = False
    while holder_of(folder) is None and not elsewhere:
        found = jobs.status(name)
        if found.ended:
            # It had nothing to do, was faster than this, or found a mistake.
            print(what_it_said(jobs, name), end="")
            if not folder.exists():
                remove_note(folder)
            return EXIT_FAILED if found.exit_code is None else found.exit_code
        elsewhere = not folder.exists() and _BEGUN.search(jobs.log(name)) is not None
        time.sleep(_POLL_SECONDS)
    where = ", on the cluster's head" if elsewhere else ""
    print(f"running:      {folder}{where} (Ray job {name})")
    print(f"look at it:   tributary attach {'latest' if several and not elsewhere else folder}; tributary runs")
    print(f"end it:       tributary stop {folder}")
    return EXIT_DONE


def job_name(run: str) -> str:
    """A name for a job that trains a run."""
    return f"tributary-{_NO_NAME.sub('-', run)}-{datetime.now():%Y%m%d-%H%M%S}"


def attach_to_job(note: JobNote, folder: Path, console: Console) -> int:
    """Show what a job prints, where the folder of its run is on another machine. Returns the exit code: see `attach`.

    Raises:
        ConfigurationError: nobody answers.
    """
    jobs = Jobs(note.server)
    print_line(console, f"Ray job {note.job} at {note.server}; Ctrl-C leaves it running")
    shown = 0
    try:
        while True:
            found, said = jobs.status(note.job), what_it_said(jobs, note.job)
            for line in said[shown:].splitlines():
                print_line(console, line)
            shown = len(said)
            if found.ended:
                print_line(console, f"the job has ended: {found.status.lower()}")
                return EXIT_FAILED if found.status == "FAILED" else EXIT_DONE
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        print_line(console, f"left; it goes on: tributary stop {folder} ends it")
        return EXIT_DONE


def what_it_said(jobs: Jobs, name: str) -> str:
    """What a job has printed, without Ray's own lines, and only whole ones."""
    said = jobs.log(name)
    return _OF_RAY.sub("", said[: said.rfind("\n") + 1])
