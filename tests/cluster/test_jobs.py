"""Runs that outlive whoever submitted them: `train --detach --address` on a Ray head with a job server and a token."""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from accounts import account_of
from head import DEADLINE_SECONDS, SMALL, Head, has_rows, wait_for

from launch.run.job_note import JobNote, note_of, write_note
from launch.run.lock import holder_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    made = Head(tmp_path_factory.mktemp("head"))
    yield made
    made.process.communicate(timeout=240)


def test_a_job_is_listed_watched_stopped_and_saved_by_the_words_of_any_run(head: Head, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.parent.mkdir()
    assert "(Ray job tributary-one-" in head.submit(SMALL, run)
    note = note_of(run)
    assert note is not None
    wait_for(lambda: has_rows(run), "a row")
    found = head.listed(run)
    assert (found["status"], found["job"]) == ("running", note.job)
    assert head.status(note) == "RUNNING"

    # Nobody without the token is answered.
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{note.server}/api/jobs/")
    assert refused.value.code in (401, 403)

    attached = head.start(f"attach {run}")
    assert attached.stdout is not None
    next(line for line in attached.stdout if "frames" in line and "lag" in line)
    attached.send_signal(signal.SIGINT)
    assert "it goes on" in attached.communicate(timeout=DEADLINE_SECONDS)[0]
    assert attached.returncode == 0
    assert holder_of(run) is not None

    assert f"asked Ray job {note.job} to finish and save" in head.run(f"stop {run}")
    assert head.status(note) == "STOPPED"
    summary = account_of(run)
    assert summary["status"] == head.listed(run)["status"] == "interrupted"
    assert "nothing runs there" in head.run(f"stop {run}", code=2)

    # From a machine that has only the note, the same words go by the job server.
    elsewhere = tmp_path / "elsewhere" / "one"
    elsewhere.parent.mkdir()
    write_note(elsewhere, note)
    assert head.listed(elsewhere)["status"] == "stopped"
    shown = head.run(f"attach {elsewhere}")
    assert "run folder:" in shown
    assert "the job has ended: stopped" in shown

    # A job goes on with the run, too.
    head.run(f"train --resume {run} --total-frames {summary['frames'] + 500} --detach")
    wait_for(lambda: json.loads((run / "summary.json").read_text())["status"] == "frames_reached", "its end")
    again = note_of(run)
    assert again is not None
    assert again.job != note.job
    assert account_of(run)["frames"] >= summary["frames"] + 500


def test_seeds_are_saved_though_ray_asks_each_of_their_processes_and_so_does_the_first_one(
    head: Head, tmp_path: Path
) -> None:
    runs = tmp_path / "seeds"
    head.submit(f"{SMALL} --seeds 1,2 --side-by-side 2", runs)
    folders = [runs / f"seed-{seed}" for seed in (1, 2)]
    wait_for(lambda: all(map(has_rows, folders)), "both seeds at work")
    head.run(f"stop {runs}")
    for folder in folders:
        assert account_of(folder)["status"] == "interrupted"


def test_what_cannot_be_is_said_here(head: Head, tmp_path: Path) -> None:
    said = head.submit(f"{SMALL} --network.name a3c_cnn", tmp_path / "run", code=2)
    assert "--network.name a3c_cnn: " in said
    assert "Running entrypoint" not in said
    assert not list(tmp_path.iterdir())
    write_note(tmp_path / "gone", JobNote("tributary-gone", "http://127.0.0.1:1", "CartPole-v1", 1000))
    for command in ("stop", "attach"):
        assert "no answer from the job server at http://127.0.0.1:1" in head.run(f"{command} {tmp_path}/gone", code=2)
    assert head.listed(tmp_path / "gone")["status"] == "unknown"
