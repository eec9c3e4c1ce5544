"""Checkpoints that are damaged are passed over, and never raise anything but a clear error."""

import errno
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

from launch.run.folder import RunFolder
from launch.run.weights import load_weights
from learner.checkpoint import CheckpointError, Checkpoints, checkpoint_paths, read_checkpoint
from shared.errors import ConfigurationError
from shared.layout import ParameterLayout

LAYOUT = ParameterLayout(("w",), ((40,),))
_CORRUPTIONS = 100


class Run:
    """As much of a run as a checkpoint needs."""

    def __init__(self, folder: Path) -> None:
        self.parameters = tf.Variable(tf.zeros(40))
        self.version = 0
        self.checkpoints = Checkpoints(folder, 3, {"parameters": self.parameters}, self._state, self._restore)

    def save(self, version: int) -> None:
        self.version = version
        self.parameters.assign(tf.fill((40,), float(version)))
        self.checkpoints.save(version)

    def _state(self) -> dict:
        return {"layout_fingerprint": LAYOUT.fingerprint, "ledger": {"updates": self.version}}

    def _restore(self, state: dict) -> None:
        self.version = state["ledger"]["updates"]


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def data_of(folder: Path, version: int) -> Path:
    return folder / f"update-{version}.data-00000-of-00001"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    run = Run(tmp_path)
    for version in (5, 10, 100):
        run.save(version)
    return tmp_path


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (lambda folder: data_of(folder, 100).write_bytes(flipped(data_of(folder, 100).read_bytes(), 10)), 10),
        (lambda folder: data_of(folder, 100).unlink(), 10),
        (lambda folder: (folder / "update-100.index").write_bytes(b""), 10),
        # The list of checkpoints is not needed.
        (lambda folder: (folder / "checkpoint").write_bytes(b"\xff\x00nothing"), 100),
    ],
    ids=["bit", "no data", "empty index", "list"],
)
def test_a_damaged_newest_checkpoint_is_passed_over(saved: Path, damage: Callable[[Path], object], kept: int) -> None:
    damage(saved)
    run = Run(saved)
    messages = run.checkpoints.restore()
    assert len(messages) == (kept == 10)
    assert all(re.fullmatch("checkpoint update-100 is damaged and was passed over: .+", line) for line in messages)
    assert run.version == read_checkpoint(saved, LAYOUT)[0] == kept
    np.testing.assert_array_equal(run.parameters.numpy(), np.full(40, float(kept)))


def test_a_checkpoint_is_read_by_its_updates(saved: Path) -> None:
    version, parameters = read_checkpoint(saved, LAYOUT, 10)
    assert version == 10
    np.testing.assert_array_equal(parameters, np.full(40, 10.0))
    with pytest.raises(ConfigurationError, match="is of another network: it has 40 parameters"):
        read_checkpoint(saved, ParameterLayout(("v",), ((40,),)))
    (run := saved.parent / "run").mkdir()
    saved.rename(run / "checkpoints")
    line = "--weights 60: no checkpoint is of this update; the nearest are of 10 and 100"
    with pytest.raises(ConfigurationError, match=f"^{line}$"):
        load_weights(RunFolder(run), 60, LAYOUT)


def test_a_checkpoint_of_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    Run(tmp_path).save(1)
    parameters, other = {"parameters": tf.Variable(tf.zeros(40))}, {"mean_square": tf.Variable(tf.zeros(40))}

    def restore(state: dict[str, Any]) -> None:
        state["a later key"]

    line = r"^checkpoint update-1 in .* is of another version of Tributary \({}\); train --start"
    for variables, reason in ((parameters | other, "other tensors"), (parameters, "KeyError: 'a later key'")):
        with pytest.raises(ConfigurationError, match=line.format(reason)):
            Checkpoints(tmp_path, 3, variables, dict, restore).restore()


def test_when_all_are_damaged_each_is_named(saved: Path) -> None:
    for version in (5, 10, 100):
        data_of(saved, version).write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"update-100 .*update-10 .*update-5 "):
        Run(saved).checkpoints.restore()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_checkpoint(saved, LAYOUT)


def test_any_corruption_gives_an_older_checkpoint_or_a_clear_error(tmp_path: Path) -> None:
    source = tmp_path / "source"
    run = Run(source)
    for version in (1, 2):
        run.save(version)
    whole = {file.name: file.read_bytes() for file in source.iterdir()}
    target = tmp_path / "target"
    target.mkdir()
    reader, draws = Run(target), random.Random(3)
    changes: list[Callable[[bytes], bytes]] = [
        lambda content: flipped(content, draws.randrange(len(content))),
        lambda content: content[: draws.randrange(len(content))],
        lambda _: draws.randbytes(draws.randrange(200)),
    ]
    restored = []
    for _ in range(_CORRUPTIONS):
        for name, content in whole.items():
            (target / name).write_bytes(content)
        for name in draws.sample(sorted(whole), draws.randint(1, 3)):
            # Changed, or deleted.
            if change := draws.choice([*changes, None]):
                (target / name).write_bytes(change(whole[name]))
            else:
                (target / name).unlink()
        try:
            reader.checkpoints.restore()
        except ConfigurationError:
            restored.append(0)
        else:
            np.testing.assert_array_equal(reader.parameters.numpy(), np.full(40, float(reader.version)))
            restored.append(reader.version)
    assert set(restored) == {0, 1, 2}


def test_a_folder_that_cannot_be_listed_is_a_failed_save(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(saved)
    monkeypatch.setattr(Path, "glob", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
    with pytest.raises(CheckpointError, match=r"update 300 could not be written: .*Stale file handle"):
        run.save(300)


def test_what_a_failed_save_left_is_removed_and_the_others_stay(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(saved.iterdir())
    # Left by a process that was killed.
    (saved / "update-300_temp").mkdir()
    (saved / "update-300_temp" / "part-00000-of-00001.index").touch()
    run = Run(saved)
    assert sorted(saved.iterdir()) == before

    def fail(_: tf.train.CheckpointManager, checkpoint_number: int) -> str:
        (saved / f"update-{checkpoint_number}_temp").mkdir()
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    monkeypatch.setattr(tf.train.CheckpointManager, "save", fail)
    # A run that saves again before its next update writes the version that it has.
    for version in (200, 100, 10):
        with pytest.raises(CheckpointError, match=f"update {version} could not be written: No space left"):
            run.save(version)
        assert sorted(saved.iterdir()) == before


@pytest.mark.parametrize("name", ["lr[1e-3]", "*", "a?", "back\\slash", "{} %s 'q' \"d\" new\nline"])
def test_any_folder_keeps_its_newest_checkpoints_and_gives_them_back(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name / "checkpoints"
    run = Run(folder)
    for version in (1, 2, 3, 4, 5):
        run.save(version)
    assert [path.name for path in checkpoint_paths(folder)] == ["update-5", "update-4", "update-3"]
    version, parameters = read_checkpoint(folder, LAYOUT)
    assert (version, parameters[0]) == (5, 5.0)
    resumed = Run(folder)
    assert resumed.checkpoints.restore() == []
    assert (resumed.version, resumed.parameters[0].numpy()) == (5, 5.0)
