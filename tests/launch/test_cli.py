"""The command line from end to end: its exit codes, its files, its help, and the page of all settings."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from watched_processes import output_of

from launch.cli import main
from launch.presets import PRESET_GROUPS, PRESETS
from launch.run.folder import RunFolder
from launch.settings.check import check_network, check_rules
from launch.settings.help import MOST_USED, page, settings
from shared.config import RunConfig


def test_train_evaluate_resume(tmp_path: Path, capsys: pytest.CaptureFixture, refused: Callable[[str], str]) -> None:
    run, result = tmp_path / "run", tmp_path / "result.json"
    small = ["--executor", "inline", "--total-frames", "1k", "--actor.environments", "4", "--actor.unroll-length", "5"]
    assert main(["train", "cartpole", *small, "--run-dir", str(run), "--json", str(result)]) == 0
    summary = json.loads(result.read_text())
    assert summary.items() >= json.loads((run / "summary.json").read_text()).items()
    assert (summary["run"], summary.keys() >= {"command", "versions", "hardware"}) == (str(run.absolute()), True)
    assert summary["frames"] >= 1000
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["frames"] == summary["frames"]
    assert list(run.glob("events.out.tfevents.*"))
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["environment_protocol"]["id"] == "CartPole-v1"
    assert manifest["versions"]["tensorflow"]
    assert "tributary evaluate" in capsys.readouterr().out

    assert main(["evaluate", str(run), "--episodes", "3", "--json", str(result)]) == 0
    assert len(json.loads(result.read_text())["returns"]) == 3

    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--json", str(result)]) == 0
    said = f"nothing to do: the run has {summary['frames']:,} of 1,000 total frames; to train further, give a larger "
    assert capsys.readouterr().out.startswith(said)
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    of_command = {"command": None, "created": None}
    assert json.loads(result.read_text()) | of_command == summary | of_command

    assert main(["train", "--resume", str(run), "--total-frames=1.5k"]) == 0
    assert "changed:      --total-frames 1000 → 1500" in capsys.readouterr().out
    assert json.loads((run / "summary.json").read_text())["frames"] >= 1500
    for option in ("--network.hidden-sizes 32", "--environment.options max_episode_steps 50"):
        line = refused(f"train --resume {run} --total-frames 3000 {option}")
        assert line.endswith(f"start a new run: --start-from {run}")
    assert RunFolder(run).read_config().network == PRESETS["cartpole"].config.network


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("help", "usage: tributary COMMAND"),
        ("help train", "usage: tributary train [PRESET] [SETTINGS]"),
        ("bench", "usage: tributary COMMAND"),
        ("train pong --seed --help", "usage: tributary train"),
        ("bench scaling --bogus 3 --help", "usage: tributary bench scaling"),
        ("--version", "tributary 0."),
    ],
)
def test_help_and_version(command: str, shown: str, capsys: pytest.CaptureFixture) -> None:
    assert main(command.split()) == 0
    assert capsys.readouterr().out.startswith(shown)


def test_help_and_the_library_import_nothing_that_is_slow() -> None:
    """Neither what learns, nor what plays, measures and draws."""
    check = """
import sys
import tributary_rl
slow = {"tensorflow", "ray", "gymnasium", "asyncio", "matplotlib", "av", "launch.bench"}
assert not {"launch.cli", "launch.commands.train", *slow} & set(sys.modules)
import launch.cli
for command in ("--version", "--help", "help train", "evaluate --help", "runs --help"):
    launch.cli.main(command.split())
    assert not slow & set(sys.modules), (command, slow & set(sys.modules))
"""
    output_of(sys.executable, "-c", check)


def test_ctrl_c_while_the_command_line_is_imported_prints_nothing() -> None:
    script = """
import sys

class CtrlC:
    def find_spec(self, name, *_):
        if name == "rich.console":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from launch.cli import main
sys.exit(main(["--version"]))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_name_environments_that_exist_and_break_no_rule(preset: str) -> None:
    from actors.environments import environment_spec

    config = PRESETS[preset].config
    check_rules(config)
    check_network(config, environment_spec(config.environment))


PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_every_setting_has_a_help_text() -> None:
    assert [setting.name for setting in settings(RunConfig()) if not setting.help] == []


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run make settings"


def test_help_shows_what_most_runs_change_in_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["train", "cartpole", "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 60
    for name in MOST_USED:
        assert f"--{name.replace('_', '-')} (" in shown
    assert "--supervision" not in shown
    assert "--help-all" in shown
    for network in ("a3c_cnn", "nature_cnn", "impala_resnet", "mlp"):
        assert network in shown.partition("--network.name")[2].partition("--")[0]
    # The values are the preset's.
    for line in ("--environment.id (CartPole-v1)", "--stop-at-return (475.0)", "--stop-measure (evaluation)"):
        assert line in shown


def test_the_list_of_presets_says_what_to_install_and_fits_in_80_columns(monkeypatch, capsys) -> None:
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    assert main(["presets"]) == 0
    shown = capsys.readouterr().out
    assert "'tributary-rl[box2d]'" in shown
    assert all(word in shown for preset in PRESETS.values() for word in preset.description.split())
    assert len(shown.splitlines()) <= 2 * len(PRESETS) + len(PRESET_GROUPS) + 1, "a description takes two lines at most"
