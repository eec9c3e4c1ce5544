"""The page of all settings, and the short help."""

from pathlib import Path

import pytest

from launch.cli import main
from launch.commands.settings import MOST_USED, page, settings
from shared.config import RunConfig, flat_settings

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_every_setting_has_a_name_and_a_help_text() -> None:
    found = {setting.name: setting.help for setting in settings(RunConfig())}
    assert found.keys() >= flat_settings(RunConfig()).keys()
    assert all(found.values()), [name for name, text in found.items() if not text]


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run make settings"


def test_help_shows_what_most_runs_change_and_where_the_rest_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "cartpole", "--help"]) == 0
    shown = capsys.readouterr().out
    for name in MOST_USED:
        assert f"--{name.replace('_', '-')} (" in shown
    assert "--supervision" not in shown
    assert "--help-all" in shown
    # The values are the preset's.
    assert "--environment.id (CartPole-v1)" in shown


def test_help_all_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help-all"])
    shown = capsys.readouterr().out
    assert "--supervision.max-restarts" in shown
    assert "--exploration.noise" in shown
