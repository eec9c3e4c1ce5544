"""The file that a command's `--output` names."""

from pathlib import Path

import pytest

from launch.output.output_file import check_output
from shared.errors import ConfigurationError


@pytest.mark.parametrize("output", ["film.avi", "film", "nowhere/film.mp4"])
def test_an_output_of_another_kind_or_in_no_folder_is_refused_by_name(output: str, tmp_path: Path) -> None:
    file = tmp_path / output
    with pytest.raises(ConfigurationError) as raised:
        check_output(file, (".mp4", ".gif"))
    assert str(raised.value) == f"--output {file}: must end in .mp4 or .gif, in a folder that exists"


def test_an_output_that_can_be_written_or_is_not_asked_for_passes(tmp_path: Path) -> None:
    check_output(tmp_path / "film.gif", (".mp4", ".gif"))
    check_output(None, (".mp4", ".gif"))
