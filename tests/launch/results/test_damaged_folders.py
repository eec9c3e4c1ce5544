"""Damaged files of a run folder: a clear error in one line, or what is left is used. Never a traceback."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from actors.environments import environment_spec
from actors.policy import Policy
from launch.results.report import RunReport
from launch.run.folder import RunFolder, load_weights
from shared.errors import ConfigurationError


def damaged(content: bytes, generator: random.Random) -> bytes:
    """Cut off, overwritten, emptied, or with bytes in it that do not belong there."""
    kind = generator.randrange(5)
    where = generator.randrange(len(content) + 1)
    if kind == 0:
        return content[:where]
    if kind == 1:
        return b""
    noise = generator.randbytes(generator.randrange(1, 40))
    if kind == 2:
        return content[:where] + noise + content[where + len(noise) :]
    if kind == 3:
        return content[:where] + noise + content[where:]
    return generator.randbytes(len(content) % 500)


@pytest.fixture
def run(pong_run: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "run"
    shutil.copytree(pong_run, copy)
    return copy


def in_one_line(error: ConfigurationError) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 1_500


@pytest.mark.parametrize("seed", range(3))
def test_damaged_settings_and_means(run: Path, seed: int) -> None:
    folder, generator = RunFolder(run), random.Random(seed)
    whole = {name: (run / name).read_bytes() for name in ("config.json", "observation_mean.npy")}
    spec = environment_spec(folder.read_config().environment)
    refused = 0
    for _ in range(100):
        name = generator.choice(sorted(whole))
        (run / name).write_bytes(damaged(whole[name], generator))
        try:
            folder.with_observation_mean(folder.read_config(), spec)
        except ConfigurationError as error:
            in_one_line(error)
            refused += 1
        (run / name).write_bytes(whole[name])
    assert refused > 50


def test_damaged_best_weights(run: Path) -> None:
    folder, generator = RunFolder(run), random.Random(0)
    config = folder.read_config()
    policy = Policy(config, folder.with_observation_mean(config, environment_spec(config.environment)))
    parameters = np.arange(policy.layout.size, dtype=np.float32)
    np.savez(folder.best_weights, version=3, parameters=parameters[:50], mean_return=1.0, measure="training")
    with pytest.raises(ConfigurationError, match="another network"):
        load_weights(folder, "best", policy.layout)
    whole = folder.best_weights.read_bytes()
    for _ in range(150):
        folder.best_weights.write_bytes(damaged(whole, generator))
        with pytest.raises(ConfigurationError) as raised:
            load_weights(folder, "best", policy.layout)
        in_one_line(raised.value)
    np.savez(folder.best_weights, version=3, parameters=parameters, mean_return=1.0, measure="training")
    snapshot, source = load_weights(folder, "auto", policy.layout)
    np.testing.assert_array_equal(snapshot.parameters, parameters)
    assert source == "the weights that were best in training (update 3)"


def test_damaged_manifests_and_metrics_leave_a_report_possible(run: Path) -> None:
    """Only metrics without one whole row refuse it; everything else about a run can be missing."""
    generator = random.Random(0)
    whole = {name: (run / name).read_bytes() for name in ("manifest.json", "summary.json", "metrics.jsonl")}
    rows = set(whole["metrics.jsonl"].decode().splitlines())
    figures = RunReport(run).figures()
    refused = 0
    for _ in range(150):
        name = generator.choice(sorted(whole))
        (run / name).write_bytes(damaged(whole[name], generator))
        lines = (run / "metrics.jsonl").read_text(errors="replace").splitlines()
        try:
            reported = RunReport(run).figures()
        except ConfigurationError as error:
            in_one_line(error)
            assert not rows & set(lines)
            refused += 1
        else:
            assert reported["environment"] == figures["environment"]
            if name != "metrics.jsonl":
                of_summary = dict.fromkeys(("status", "startup_seconds", "wall_seconds", "agent_steps_per_second"))
                assert reported | of_summary == figures | of_summary
        (run / name).write_bytes(whole[name])
    # Emptied metrics, or noise in place of them, leave nothing to report.
    assert 0 < refused < 50
