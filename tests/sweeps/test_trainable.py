"""`tributary_rl.trainable` on the real Ray Tune: the page of sweeps, and single trials."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from accounts import account_of
from sessions import QUICK
from watched_processes import output_of

import tributary_rl as tributary
from launch.run.folder import holder_of
from learner.checkpoint import read_state
from shared.errors import ConfigurationError

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(1800)]

PAGE = Path(__file__).parents[2] / "docs" / "sweeps.md"


BEST = r"'optimizer.learning_rate': 0\.\d+.*\} [1-9]\d*\.\d+ [1-9]\d+$"


def output_of_example(number: int, shortened: dict[str, str], home: Path) -> list[str]:
    """The lines that a script of the page prints, with fewer frames and trials."""
    script = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[number]
    for long, short in shortened.items():
        assert long in script
        script = script.replace(long, short)
    (home / "script.py").write_text(f"import os\nos.environ['HOME'] = {str(home)!r}\n{script}")
    return output_of(sys.executable, "script.py", cwd=home, timeout=900).splitlines()


def test_the_example_of_the_document_finds_settings(tmp_path: Path) -> None:
    shortened = {"40_000": "6_000", "10_000": "2_000", "num_samples=4": "num_samples=2"}
    *_, config, score = output_of_example(0, shortened, tmp_path)
    assert re.search(BEST, config), config
    assert float(score) > 0


def test_a_population_continues_as_copies_of_its_best(tmp_path: Path) -> None:
    shortened = {"200_000": "20_000", "50_000": "5_000", "num_samples=4": "num_samples=2"}
    *_, config = output_of_example(1, shortened, tmp_path)
    assert re.search(BEST, config), config
    (results,) = (tmp_path / "ray_results").iterdir()
    # Tune's line for each copy: its number, that of its original, their rows, and the settings of both.
    copies = [json.loads(line) for line in (results / "pbt_global.txt").read_text().splitlines()]
    copy, original, *_, perturbed = copies[-1]
    assert {copy, original} == {"0", "1"}
    (trial,) = results.glob(f"*_0000{copy}_{copy}_*")
    run = max(trial.glob("checkpoint_*"))
    assert account_of(run)["frames"] >= 20_000
    settings = json.loads((run / "config.json").read_text())
    assert settings["optimizer"]["learning_rate"] == perturbed["optimizer.learning_rate"]
    assert settings["method"]["entropy_cost"] == perturbed["method.entropy_cost"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a trial as Tune does in its worker, with Tune's settings."""
    monkeypatch.setattr("ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    trials = []

    def make(config: dict[str, Any], total_frames: int) -> Any:
        kind = tributary.trainable("cartpole", total_frames=total_frames, settings=QUICK)
        trials.append(kind(config))
        return trials[-1]

    yield make
    for trial in trials:
        trial.stop()


def test_a_trial_goes_on_from_the_checkpoint_of_another(made: Any, tmp_path: Path) -> None:
    first = made({"optimizer.learning_rate": 1e-3}, 10**9)
    row = first.train()
    while row["frames"] < 2_000:
        row = first.train()
    assert {"agent_steps", "mean_return_100", "evaluation_return"} < row.keys()
    assert row["evaluation_return"] != row["evaluation_return"], "there was none"
    saved = first.save(str(tmp_path / "saved"))
    run = Path(first.logdir) / "run"
    first.stop()
    assert holder_of(run) is None
    assert account_of(run)["status"] == "interrupted"
    assert not list(Path(saved.checkpoint.path).rglob("*.pkl"))
    copy = Path(saved.checkpoint.path)
    assert tributary.Run(copy).rows()[-1]["frames"] >= row["frames"]
    checkpointed = read_state(copy / "checkpoints")["ledger"]["sampled"]

    second = made({"optimizer.learning_rate": 2e-3}, row["frames"] + 4_000)
    second.restore(saved)
    rows = [second.train()]
    while not rows[-1]["done"]:
        rows.append(second.train())
    run = Path(second.logdir) / "run"
    # Its account is that of the copy, from the last checkpoint on, which may be a row older than the last row.
    assert rows[0]["frames"] > checkpointed > 0
    assert account_of(run)["frames"] == rows[-1]["frames"] >= row["frames"] + 4_000
    assert json.loads((run / "config.json").read_text())["optimizer"]["learning_rate"] == 2e-3


def test_a_mistake_is_told_in_the_words_of_the_command_line(made: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean optimizer\.learning_rate"):
        made({"optimizer.learning_rat": 1e-3}, 1000)
    with pytest.raises(ConfigurationError, match=r"--actors auto: set a number"):
        tributary.trainable("cartpole")
    with pytest.raises(ConfigurationError, match=r"--storage file:///copy: is of one run"):
        tributary.trainable("cartpole", settings={"actors": 1, "storage": "file:///copy"})
    wrong = made({"network.name": "a3c_cnn"}, 1000)
    with pytest.raises(ConfigurationError, match=r"--network.name a3c_cnn"):
        wrong.train()
