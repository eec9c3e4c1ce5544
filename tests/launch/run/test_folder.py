"""The folder of a new run: what is there before is kept, and what could not start leaves none."""

import json
import resource
from pathlib import Path

import pytest

from actors.environments import environment_spec
from launch.presets import PRESETS
from launch.run.folder import RunFolder
from launch.run.lock import lock_folder
from shared.errors import ConfigurationError


def test_two_runs_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = PRESETS["cartpole"].config
    spec = environment_spec(config.environment)
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with first.make():
        first.create(config, spec, {})
    # The second process has found the folder free before.
    monkeypatch.setattr(second, "check_free", lambda: None)
    with pytest.raises(ConfigurationError, match="has the run of another process; name an"):
        second.make()
    assert first.read_settings() == config
    lock_folder(first.path).close()


def test_a_full_disk_leaves_no_folder(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # No file may have a byte: the lock can be made, and not written.
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(ConfigurationError, match=f"^folder {tmp_path}/runs/new cannot be locked and written to: "):
            RunFolder(tmp_path / "runs" / "new").make()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_new_run_takes_a_folder_that_is_free(tmp_path: Path) -> None:
    RunFolder(tmp_path / "new").check_free()
    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "empty").check_free()
    # All that a process leaves that is killed before it writes the settings.
    lock_folder(tmp_path / "empty").close()
    RunFolder(tmp_path / "empty").make().close()
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path):
        with pytest.raises(ConfigurationError, match=r"exists; name another folder$"):
            RunFolder(path).check_free()
    (tmp_path / "config.json").touch()
    with pytest.raises(ConfigurationError, match=f"go on with it: --resume {tmp_path}"):
        RunFolder(tmp_path).check_free()


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
