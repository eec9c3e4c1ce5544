"""The folder of a run: what is there before is kept, what could not start leaves none, and other versions are named."""

import errno
import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from actors.environments import environment_spec
from launch.presets import PRESETS
from launch.provenance import revision, versions
from launch.run.folder import RunFolder
from launch.run.lock import lock_folder
from launch.settings.check import resume_lines
from shared.errors import ConfigurationError


def test_a_new_run_takes_a_folder_that_is_free(tmp_path: Path) -> None:
    RunFolder(tmp_path / "new").check_free()
    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "empty").check_free()
    # All that a process leaves that is killed before it writes the settings.
    lock_folder(tmp_path / "empty").close()
    RunFolder(tmp_path / "empty").make().close()
    (tmp_path / "file").touch()
    # Without a checkpoint it cannot be resumed.
    (tmp_path / "config.json").touch()
    for path in (tmp_path / "file", tmp_path):
        with pytest.raises(ConfigurationError, match=r"exists; name another folder$"):
            RunFolder(path).check_free()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint-1.index").touch()
    with pytest.raises(ConfigurationError, match=f"go on with it: --resume {tmp_path}"):
        RunFolder(tmp_path).check_free()


def test_what_was_learned_is_not_discarded(tmp_path: Path) -> None:
    spec = environment_spec(PRESETS["cartpole"].config.environment)
    for name, sampled in (("made/below", 0), ("other/learned", 7)):
        folder = RunFolder(tmp_path / name)
        folder.make()
        folder.create(PRESETS["cartpole"].config, spec, {})
        folder.checkpoints.mkdir()
        folder.summary.write_text(json.dumps({"agent_steps_sampled": sampled}))
        folder.discard()
    assert not (tmp_path / "made" / "below").exists()
    assert (tmp_path / "other" / "learned" / "config.json").is_file()


def test_a_folder_of_another_program_is_not_discarded(tmp_path: Path) -> None:
    """Whose settings are in a config.json, too."""
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    RunFolder(tmp_path).discard_without_checkpoint()
    assert tmp_path.is_dir()
    RunFolder(tmp_path).write_config(PRESETS["cartpole"].config)
    RunFolder(tmp_path).discard_without_checkpoint()
    assert not tmp_path.exists()


def test_settings_that_are_refused_today_name_their_run(tmp_path: Path) -> None:
    RunFolder(tmp_path).write_config(PRESETS["cartpole"].config)
    text = RunFolder(tmp_path).settings_file.read_text()
    RunFolder(tmp_path).settings_file.write_text(text.replace('"keep": ', '"keep": -'))
    with pytest.raises(ConfigurationError, match=f"^--resume {tmp_path}: config.json .* --checkpoint.keep -"):
        RunFolder(tmp_path).read_settings()


def test_a_resume_by_another_version_is_one_line(tmp_path: Path) -> None:
    run, config = RunFolder(tmp_path), PRESETS["cartpole"].config
    run.write_config(config)
    now = {"revision": revision(), "versions": versions()}
    before = {"revision": "0123abc", "versions": versions() | {"ray": "2.1"}}
    line = f"changed:      since the run began: revision 0123abc → {revision()}, ray 2.1 → {versions()['ray']}"
    for manifest, lines in ((now, []), (before, [line]), ({}, [])):
        run.manifest.write_text(json.dumps(manifest))
        assert resume_lines(config, run) == lines


def test_a_file_system_that_does_not_respond_has_removed_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path / "run")
    assert run.was_removed
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
        assert not run.was_removed
