"""Which folders a new run takes, and which ones `tributary train --resume` does."""

from pathlib import Path

import pytest

from launch.run.folder import RunFolder
from launch.run.status import is_resumable
from shared.errors import ConfigurationError


def test_a_new_run_takes_a_folder_that_is_free(tmp_path: Path) -> None:
    RunFolder(tmp_path / "new").check_free()
    (tmp_path / "empty").mkdir()
    RunFolder(tmp_path / "empty").check_free()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="is a file; name a folder"):
        RunFolder(tmp_path / "file").check_free()
    with pytest.raises(ConfigurationError, match=f"go on with it: --resume {tmp_path}"):
        RunFolder(tmp_path).check_free()


@pytest.mark.parametrize(("file", "resumable"), [("config.json", True), ("seeds.json", True), ("study.json", False)])
def test_runs_and_several_seeds_are_resumed_and_studies_are_not(tmp_path: Path, file: str, *, resumable: bool) -> None:
    (tmp_path / file).write_text("{}")
    assert is_resumable(tmp_path) is resumable
