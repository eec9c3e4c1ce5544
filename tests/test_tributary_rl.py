"""The public Python API, from end to end: what the documents show is what runs."""

import functools
import inspect
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints
from unittest.mock import MagicMock

import pytest
from sessions import QUICK
from watched_processes import output_of

import tributary_rl as tributary
from launch.python.run import PlayOptions, Run
from launch.results.evaluate import PlayArguments

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


def python_blocks() -> dict[str, str]:
    """The blocks of Python in the page, each by the heading that it is under."""
    text = PAGE.read_text()
    return dict(re.findall(r"## ([^\n]+)\n(?:(?!\n## ).)*?```python\n(.*?)```", text, re.S))


def test_the_ten_lines_of_the_page_train_an_agent_that_plays(tmp_path: Path) -> None:
    """As somebody types them who comes from Stable-Baselines3; for a shorter time only, which its number says."""
    script = python_blocks()["Ten lines"]
    assert len([line for line in script.splitlines() if line.strip()]) <= 12
    shorter, changed = re.subn(r"total_frames=300_000", "total_frames=3_000", script)
    assert changed == 1
    (tmp_path / "script.py").write_text(shorter)
    printed = output_of(sys.executable, "script.py", cwd=tmp_path, timeout=280)
    (run,) = (tmp_path / "runs").iterdir()
    assert tributary.Run(run).summary["status"] == "frames_reached"
    assert tributary.Run(run).config.optimizer.learning_rate == 1e-3
    assert (run / "evaluation-training.json").is_file()
    # `on_row=print`.
    assert re.search(r"'frames': 3\d\d\d,", printed)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tributary.Run:
    folder, file = tmp_path_factory.mktemp("api") / "run", tmp_path_factory.mktemp("file") / "mine.toml"
    # What is given comes before the file.
    file.write_text("total_frames = 9_999_999\nnetwork.hidden_sizes = [8]\n")
    # A module that only this program finds, as after `sys.path.append("../envs")` in a notebook.
    (file.parent / "of_the_caller.py").touch()
    sys.path.append(str(file.parent))
    rows: list[dict[str, Any]] = []
    quick = {name: value for name, value in QUICK.items() if not name.startswith("network")}
    quick |= {"environment.imports": ["of_the_caller"]}

    def on_event(event: Any, training: Any) -> None:
        if isinstance(event, tributary.Row):
            training.record({"twice": 2 * event.values["frames"], 7: 0.5})

    trained = tributary.train(
        "cartpole",
        seed=3,
        total_frames=1_500,
        settings=quick,
        config=file,
        run_dir=folder,
        on_row=rows.append,
        on_event=on_event,
        progress=False,
    )
    assert (trained.path, trained.config.seed, trained.config.total_frames) == (folder, 3, 1_500)
    assert trained.config.network.hidden_sizes == (8,)
    assert rows[-1]["frames"] == trained.rows()[-1]["frames"] == trained.summary["frames"] >= 1_500
    return trained


def test_a_run_tells_its_rows_and_makes_its_files(run: tributary.Run) -> None:
    rows = [(row["frames"], row["elapsed_seconds"]) for row in run.rows()]
    assert rows == sorted(set(rows))
    result = tributary.evaluate(run, episodes=4, seed=5, policy="greedy")
    assert (len(result["returns"]), result["policy"], result["seed"]) == (4, "greedy", 5)
    with pytest.raises(tributary.ConfigurationError, match="deterministic: must be as-trained"):
        tributary.evaluate(run, policy="deterministic")
    plot, video = run.plot(), run.video(format="gif")
    assert Path(plot).read_bytes().startswith(b"\x89PNG")
    assert Path(video).read_bytes().startswith(b"GIF8")
    shown = plot._repr_mimebundle_()
    assert shown.keys() == {"image/png"}
    # Another picture in the same file, which a notebook displays beside it.
    assert run.plot("entropy")._repr_mimebundle_() != shown == plot._repr_mimebundle_()
    assert video._repr_mimebundle_().keys() == {"image/gif"}
    assert repr(run) == f"Run('{run.path}')"
    assert tributary.Run(run).config == run.config


def test_the_lines_for_mlflow_log_every_row(run: tributary.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: Any, on_row: Callable, **__: Any) -> tributary.Run:
        for row in run.rows():
            on_row(row)
        return run

    monkeypatch.setitem(sys.modules, "mlflow", mlflow := MagicMock())
    monkeypatch.setattr(tributary, "train", train)
    exec(python_blocks()["MLflow"], {})
    mlflow.log_artifacts.assert_called_once_with(run.path)
    for call, row in zip(mlflow.log_metrics.call_args_list, run.rows(), strict=True):
        assert call.kwargs["step"] == row["frames"]
        assert call.args[0].items() <= row.items()
        assert all(isinstance(value, int | float) for value in call.args[0].values())
    assert "mean_return_100" in call.args[0]


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ({"preset": "pnog"}, "train pnog"),
        ({"preset": "cartpole", "seed": -1}, "train cartpole --seed -1"),
        ({"preset": "cartpole", "settings": {"environment.id": "ALE/Pong-v5"}}, "train cartpole --env ALE/Pong-v5"),
        ({"start_from": "no-such-folder"}, "train --start-from no-such-folder"),
    ],
)
def test_a_mistake_is_the_line_of_the_command(arguments: dict, command: str, refused, working_folder: Path) -> None:
    with pytest.raises(tributary.ConfigurationError) as raised:
        tributary.train(**arguments)
    assert str(raised.value) == refused(command)
    assert not list(working_folder.iterdir()), "no folder is left behind"


@pytest.mark.parametrize(("start", "prints"), [(tributary.train, True), (tributary.start, False)])
def test_train_and_start_have_the_same_arguments(start: Callable, prints: bool, monkeypatch) -> None:
    monkeypatch.setattr("launch.python.run.Training", made := MagicMock())
    assert inspect.signature(start).parameters == inspect.signature(tributary.train).parameters
    for given, shown in (({}, prints), ({"progress": True}, True), ({"progress": False}, False)):
        start("cartpole", seed=7, run_dir="here", on_row=print, on_event=repr, **given)
        run, *others = made.call_args.args
        assert (run.config.seed, others, made.call_args.kwargs) == (7, ["here", print, repr], {"progress": shown})
    with pytest.raises(TypeError, match="unexpected keyword argument 'sed'"):
        start("cartpole", sed=7)


def test_evaluations_and_videos_have_the_options_of_the_commands() -> None:
    options = get_type_hints(PlayOptions)
    assert options.keys() == {field.name for field in fields(PlayArguments)} - {"run", "json"}
    assert options == {name: kind for name, kind in get_type_hints(PlayArguments).items() if name in options}
    play: Any
    for play in (functools.partial(tributary.evaluate, "zoo:cartpole"), Run("zoo:cartpole").video):
        with pytest.raises(TypeError, match="unexpected keyword argument 'episode'"):
            play(episode=3)


@pytest.mark.slow
def test_a_run_is_started_followed_and_stopped_from_any_thread(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Signals have handlers in the main thread only. And two runs of one program do not meet."""
    ended: list[tributary.Run] = []

    def in_a_thread() -> None:
        many = {"total_frames": 100_000_000, "settings": QUICK, "progress": False}
        first = tributary.start("cartpole", run_dir=tmp_path / "first", **many)
        second = tributary.start("cartpole", run_dir=tmp_path / "second", on_row=lambda row: row["frames"] < 1, **many)
        ended.append(second.wait(200))
        assert first.running
        first.stop()
        ended.append(first.wait(200))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join(280)
    assert [run.path.name for run in ended] == ["second", "first"]
    assert {run.summary["status"] for run in ended} == {"interrupted"}
    assert capsys.readouterr().out == ""


def test_numbers_of_a_callback_are_in_the_next_row(run: tributary.Run) -> None:
    rows = [row for row in run.rows() if "own/twice" in row]
    assert rows
    assert all(0 < row["own/twice"] <= 2 * row["frames"] for row in rows)
    assert {row["own/7"] for row in rows} == {0.5}


@pytest.mark.slow
def test_a_task_of_rays_trains_on_its_cluster(tmp_path: Path) -> None:
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="error")
    try:
        address = ray.get_runtime_context().gcs_address

        # The task runs in another folder than this program, whose folders Ray gives to the task alone.
        (tmp_path / "of_the_task.py").touch()

        @ray.remote(num_cpus=0)
        class Trainer:
            def train(self, folder: Path) -> tuple[str, str, int]:
                quick = {name: value for name, value in QUICK.items() if name != "executor"}
                quick |= {"actors": 1, "address": ray.get_runtime_context().gcs_address}
                quick |= {"environment.imports": ["of_the_task"]}
                sys.path.append(str(folder.parent))
                trained = tributary.train("cartpole", total_frames=2_000, run_dir=folder, settings=quick)
                action, _ = tributary.load(trained).act([0, 0, 0, 0])
                return trained.config.address, trained.summary["status"], int(action)

        joined, status, action = ray.get(Trainer.remote().train.remote(tmp_path / "run"))
        assert (joined, status) == (address, "frames_reached")
        assert action in (0, 1)
    finally:
        ray.shutdown()


def printed_by(script: Path, text: str, *first: Path) -> str:
    """What a script prints with the project last on the path, as it is where a wheel is installed."""
    script.write_text(text)
    path = os.pathsep.join(map(str, (*first, Path(__file__).parents[1])))
    return output_of(sys.executable, script, variables={"PYTHONPATH": path})


@pytest.mark.parametrize("name", ["launch", "shared"])
def test_a_script_may_have_the_name_of_a_package(name: str, tmp_path: Path) -> None:
    text = "import tributary_rl\nprint(tributary_rl.Run, tributary_rl.TrainingFailedError)\n"
    assert "TrainingFailedError" in printed_by(tmp_path / f"{name}.py", text)


def test_another_package_launch_on_the_path(tmp_path: Path) -> None:
    """ROS 2 has one, and puts it on PYTHONPATH."""
    (tmp_path / "ros" / "launch").mkdir(parents=True)
    (tmp_path / "ros" / "launch" / "__init__.py").touch()
    text = """
import subprocess, sys
from tributary_rl import main
from launch.processes import module_command
subprocess.run(module_command("launch.cli", "--version"), check=True)
sys.argv.append("--version")
sys.exit(main())
"""
    assert printed_by(tmp_path / "tributary.py", text, tmp_path / "ros").count("tributary ") == 2


def test_a_module_that_is_imported_already_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("X = 1\n")
    text = "import shared\ntry:\n    import tributary_rl\nexcept ImportError as error:\n    print(error)\n"
    expected = f"the module shared of {tmp_path}/shared.py has the name of a package of"
    assert printed_by(tmp_path / "script.py", text).startswith(expected)


def test_another_system_is_refused() -> None:
    script = "import sys; sys.platform = 'darwin'; import tributary_rl"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stderr.endswith("\nImportError: Tributary needs Linux: use a container, or WSL on Windows\n")
