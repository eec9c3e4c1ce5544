"""Several seeds of one setting, and runs that cannot start: one line, exit code 2, and no folder."""

import errno
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from accounts import account_of
from namesakes import write_namesakes
from rich.console import Console
from waiting import UNTIL_FRAMES
from watched_processes import Watched

from actors.environments import environment_spec
from launch.cli import main
from launch.commands.seeds import parse_seeds, seeds_table, summarise_seeds
from launch.presets import PRESETS
from launch.run.folder import SEEDS_FILE, RunFolder, SeveralSeeds, holder_of, read_seeds
from shared.errors import ConfigurationError

SMALL = f"train cartpole --executor inline --actors 1 {UNTIL_FRAMES}"


def test_seeds_are_a_list_or_a_range() -> None:
    assert parse_seeds("3,1") == [3, 1]
    assert parse_seeds("1-3, 7") == [1, 2, 3, 7]
    for wrong in ("", "a", "1-", "3-1", "1,5-3", "-4"):
        with pytest.raises(ConfigurationError, match=r"--seeds .*: must be seeds like 1,2,3 or 1-10"):
            parse_seeds(wrong)
    with pytest.raises(ConfigurationError, match="--seeds 1,1: must name each seed once"):
        parse_seeds("1,1")


def test_seeds_remember_the_run_that_they_start_from(working_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunFolder(Path("first")).make()
    RunFolder(Path("first")).write_config(PRESETS["cartpole"].config)
    monkeypatch.setattr("launch.commands.seeds.train_in_turn", lambda *_: [])
    assert main(["train", "--start-from", "first", "--seeds", "1", "--run-dir", "seeds"]) == 0
    several = read_seeds(Path("seeds"))
    assert several is not None
    assert several.start_from == str(working_folder / "first")


@pytest.mark.slow
def test_a_killed_run_is_a_failure_and_the_others_are_trained(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    with start(folder, "--total-frames 100M --side-by-side 2") as seeds:
        for seed, number in ((1, signal.SIGKILL), (2, signal.SIGINT)):
            checkpoints = folder / f"seed-{seed}" / "checkpoints"
            seeds.wait_for(lambda checkpoints=checkpoints: list(checkpoints.glob("*.index")), "a checkpoint")
            os.kill(holder_of(checkpoints.parent).pid, number)
        seeds.end(130)
    assert "seed 1: ended with exit code 1\n" in seeds.printed()
    assert "seed 2: ended with exit code 130\n" in seeds.printed()
    assert account_of(folder / "seed-2")["status"] == "interrupted"


def start(folder: Path, settings: str = "") -> Watched:
    line = f"{SMALL} --seeds 1,2 --run-dir {folder} {settings}"
    return Watched([sys.executable, "-m", "launch.cli", *line.split()], folder.with_suffix(".log"))


def test_seeds_go_on_after_an_interrupt_and_share_a_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """And files with the names of our packages, where the user stands, are not in the way."""
    folder, file = tmp_path / "runs", tmp_path / "summary.json"
    with start(folder) as seeds:
        seeds.wait_for(lambda: list(folder.glob("seed-1/checkpoints/*.index")), "a checkpoint")
        seeds.process.send_signal(signal.SIGINT)
        seeds.end(130)
    output = seeds.printed()
    assert "Traceback" not in output
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["seeds"]["1"]["status"] == "interrupted"
    assert summary["seeds"]["2"] == {"status": "not run"}
    assert f"tributary train --resume {folder}" in output.replace("\n", "")

    # The seeds that are not done go on, with the settings that are typed now, and each is done once.
    frames = summary["seeds"]["1"]["frames"] + 100
    write_namesakes(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(f"train --resume {folder} --total-frames {frames} --side-by-side 2 --json {file}".split()) == 0
    again = json.loads(file.read_text())
    assert again == json.loads((folder / "summary.json").read_text())
    assert again.keys() >= {"command", "hardware", "versions"}
    played = [account_of(folder / f"seed-{seed}")["frames"] for seed in (1, 2)]
    assert again["over_seeds"]["frames"]["median"] == sum(played) / 2
    for seed in (1, 2):
        assert json.loads((folder / f"seed-{seed}" / "config.json").read_text())["seed"] == seed
        assert again["seeds"][str(seed)]["status"] == "frames_reached"
        assert played[seed - 1] >= frames
    written = (folder / "seed-1" / "summary.json").stat().st_mtime_ns
    assert main(["train", "--resume", "latest"]) == 0
    assert "2 of 2 seeds are done" in capsys.readouterr().out
    assert (folder / "seed-1" / "summary.json").stat().st_mtime_ns == written


def test_a_seed_that_misses_the_target_takes_longer_than_any_other(tmp_path: Path) -> None:
    for seed, seconds in enumerate((300.0, 240.0, None), start=1):
        crossing = None if seconds is None else {"seconds": seconds, "frames": 4_000, "agent_steps": 1_000}
        figures = {"mean_return_100": 1.0, "frames": 8_000, "wall_seconds": 900.0, "agent_steps_per_second": 9.0}
        summary = figures | {"status": "frames_reached", "evaluation": None, "confirmed_crossing": crossing}
        (tmp_path / f"seed-{seed}").mkdir()
        (tmp_path / f"seed-{seed}" / "summary.json").write_text(json.dumps(summary))
    spread = summarise_seeds(tmp_path, [1, 2, 3, 4])["over_seeds"]
    assert spread["seconds_to_target"] == {"median": 300.0, "lower_quartile": 270.0, "upper_quartile": None, "seeds": 2}
    # Between a time and none there is no median.
    assert summarise_seeds(tmp_path, [1, 3])["over_seeds"]["seconds_to_target"]["median"] is None
    assert "seconds_to_target" not in summarise_seeds(tmp_path, [3])["over_seeds"]


def test_the_table_of_seeds_has_whole_words_in_80_columns(capsys: pytest.CaptureFixture) -> None:
    evaluation = {"mean_return": 17_622.25, "standard_error": 362.05}
    run = {"status": "frames_reached", "evaluation": evaluation, "confirmed_crossing": {"seconds": 600.0}}
    run |= {"mean_return_100": 17_000.5, "frames": 40_000_000, "wall_seconds": 9e5, "agent_steps_per_second": 1_234.0}
    result = {"seeds": {"1": run, "10": {"status": "not run"}}}
    Console(width=80).print(seeds_table(result, 80))
    headings, *shown = (line.split("  ") for line in capsys.readouterr().out.splitlines())
    words = ["seed", "status", "return", "evaluation", "frames", "minutes to target"]
    assert [word.strip() for word in headings if word] == words
    values = ["1", "frames reached", "17000.50", "17622.25 ± 362.05", "40,000,000", "10.0"]
    assert [[word.strip() for word in line if word.strip()] for line in shown] == [values, ["10", "not run"]]
    Console(width=120).print(seeds_table(result, 120))
    assert "agent steps/s" in capsys.readouterr().out


def test_a_command_for_one_run_names_the_folders_of_seeds(tmp_path: Path, refused: Callable[[str], str]) -> None:
    (tmp_path / SEEDS_FILE).touch()
    for command in ("evaluate", "record", "export"):
        line = f"RUN {tmp_path}: has several seeds: name the folder of one, seed-N in it"
        assert refused(f"{command} {tmp_path}") == line


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--environment.id NoSuch-v0", "--environment.id NoSuch-v0: the run has CartPole-v1"),
        # The seeds that have not begun would be of another study.
        ("--method.discount 0.5", "--method.discount 0.5: the run has 0.99"),
        ("--seed 4", "--seed 4: is of one run"),
        ("--actors 1000", "there is room for"),
    ],
)
def test_a_resume_that_cannot_start_keeps_the_files_of_the_seeds(
    options: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("seeds").mkdir()
    file = Path("seeds") / SEEDS_FILE
    file.write_bytes(before := msgspec.json.encode(SeveralSeeds(PRESETS["cartpole"].config, (1, 2), "cartpole", None)))
    assert main(["train", "--resume", "seeds", *options.split()]) == 2
    assert line in capsys.readouterr().err
    assert file.read_bytes() == before


@pytest.mark.usefixtures("working_folder")
def test_a_resume_that_cannot_write_its_file_leaves_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Path("seeds").mkdir()
    file = Path("seeds") / SEEDS_FILE
    file.write_bytes(msgspec.json.encode(SeveralSeeds(PRESETS["cartpole"].config, (1, 2), "cartpole", None)))
    before = file.stat().st_mtime_ns
    monkeypatch.setattr("launch.commands.seeds.write_json", fails)
    assert main(["train", "--resume", "seeds"]) != 0
    # On a full disk a file that is opened to be written again may stay empty.
    assert file.stat().st_mtime_ns == before


def test_what_was_there_before_and_what_was_learned_is_not_discarded(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    spec = environment_spec(PRESETS["cartpole"].config.environment)
    for name, sampled in (("empty", 0), ("made/below", 0), ("other/learned", 7)):
        folder = RunFolder(tmp_path / name)
        folder.make()
        folder.create(PRESETS["cartpole"].config, spec, {})
        folder.checkpoints.mkdir()
        folder.summary.write_text(json.dumps({"agent_steps_sampled": sampled}))
        folder.discard()
    assert {entry.name for entry in tmp_path.iterdir()} == {"empty", "other"}
    assert not list((tmp_path / "empty").iterdir())
    assert (tmp_path / "other" / "learned" / "config.json").is_file()


@pytest.mark.usefixtures("working_folder")
def test_a_seed_that_cannot_start_leaves_those_that_were_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: object) -> None:
        RunFolder(Path("seeds/seed-1")).make()
        raise ConfigurationError("seed 2 could not start: no licence")

    monkeypatch.setattr("launch.commands.seeds.train_in_turn", train)
    assert main(["train", "cartpole", "--seeds", "1,2", "--run-dir", "seeds"]) == 2
    assert {entry.name for entry in Path("seeds").iterdir()} >= {"seed-1", SEEDS_FILE}


@pytest.mark.parametrize("side_by_side", [1, 2])
def test_bad_seeds_leave_no_folder(side_by_side: int, working_folder: Path, capsys: pytest.CaptureFixture) -> None:
    bad = "--environment.id NoSuchThing-v0"
    assert main(f"{SMALL} --seeds 1,2 --side-by-side {side_by_side} --run-dir runs {bad}".split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"could not start: {bad}: no such environment" in line
    assert not list(working_folder.iterdir())
