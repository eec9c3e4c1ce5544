"""Damaged files of a run folder: a clear error in one line, or what is left is used. Never a traceback."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.environments import environment_spec
from actors.policy import Policy
from launch.results.report import RunReport
from launch.run.folder import RunFolder, load_weights
from shared.errors import ConfigurationError


def damaged(content: bytes, generator: random.Random) -> bytes:
    """Cut off, emptied, overwritten, with bytes in it that do not belong there, or noise."""
    at, noise = generator.randrange(len(content) + 1), generator.randbytes(generator.randrange(1, 40))
    kinds = (
        content[:at],
        b"",
        content[:at] + noise + content[at + len(noise) :],
        content[:at] + noise + content[at:],
        generator.randbytes(len(content) % 500),
    )
    return generator.choice(kinds)


def damages(run: Path, names: tuple[str, ...], seed: int = 0, count: int = 100) -> Iterator[str]:
    """Damage one of the files at a time. Gives its name, and restores it afterwards."""
    generator, whole = random.Random(seed), {name: (run / name).read_bytes() for name in names}
    for _ in range(count):
        name = generator.choice(names)
        (run / name).write_bytes(damaged(whole[name], generator))
        yield name
        (run / name).write_bytes(whole[name])


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
    folder, refused = RunFolder(run), 0
    spec = environment_spec(folder.read_config().environment)
    for _ in damages(run, ("config.json", "observation_mean.npy"), seed):
        try:
            folder.with_observation_mean(folder.read_config(), spec)
        except ConfigurationError as error:
            in_one_line(error)
            refused += 1
    assert refused > 50


def test_damaged_best_weights(run: Path) -> None:
    folder = RunFolder(run)
    config = folder.read_config()
    policy = Policy(config, folder.with_observation_mean(config, environment_spec(config.environment)))
    parameters = np.arange(policy.layout.size, dtype=np.float32)
    np.savez(folder.best_weights, version=3, parameters=parameters[:50], mean_return=1.0, measure="training")
    with pytest.raises(ConfigurationError, match="another network"):
        load_weights(folder, "best", policy.layout)
    for _ in damages(run, ("best.npz",)):
        with pytest.raises(ConfigurationError) as raised:
            load_weights(folder, "best", policy.layout)
        in_one_line(raised.value)
    np.savez(folder.best_weights, version=3, parameters=parameters, mean_return=1.0, measure="training")
    snapshot, source = load_weights(folder, "auto", policy.layout)
    np.testing.assert_array_equal(snapshot.parameters, parameters)
    assert source == "the weights that were best in training (update 3)"


def test_damaged_manifests_and_metrics_leave_a_report_possible(run: Path) -> None:
    """Only metrics without one whole row refuse it; everything else about a run can be missing."""
    rows, refused = set((run / "metrics.jsonl").read_text().splitlines()), 0
    figures = RunReport(run).figures()
    for name in damages(run, ("manifest.json", "summary.json", "metrics.jsonl"), count=150):
        try:
            reported = RunReport(run).figures()
        except ConfigurationError as error:
            in_one_line(error)
            assert not rows & set((run / "metrics.jsonl").read_text(errors="replace").splitlines())
            refused += 1
            continue
        assert reported["environment"] == figures["environment"]
        if name != "metrics.jsonl":
            of_summary = dict.fromkeys(("status", "startup_seconds", "wall_seconds", "agent_steps_per_second"))
            assert reported | of_summary == figures | of_summary
    # Emptied metrics, or noise in place of them, leave nothing to report.
    assert 0 < refused < 50
