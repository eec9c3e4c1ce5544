"""The page of all settings, and the short help."""

from pathlib import Path

import pytest

from launch.cli import main
from launch.commands.settings import MOST_USED, page, settings
from launch.presets import PRESETS
from shared.config import RunConfig, flat_settings

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


def test_every_setting_has_a_name_and_a_help_text() -> None:
    found = {setting.name: setting.help for setting in settings(RunConfig())}
    assert found.keys() >= flat_settings(RunConfig()).keys()
    assert all(found.values()), [name for name, text in found.items() if not text]


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run make settings"


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_shows_what_most_runs_change_in_any_terminal(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["train", "cartpole", "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= min(columns, 120)
    for name in MOST_USED:
        assert f"--{name.replace('_', '-')} (" in shown
    assert "--supervision" not in shown
    assert "--help-all" in shown
    # The values are the preset's.
    for line in ("--environment.id (CartPole-v1)", "--stop-at-return (475.0)", "--stop-measure (evaluation)"):
        assert line in shown


def test_the_list_of_presets_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    shown = capsys.readouterr().out
    assert "pip install 'tributary-rl[box2d]'" in shown
    for description in (preset.description for preset in PRESETS.values()):
        assert description in shown


def test_help_all_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help-all"]) == 0
    shown = capsys.readouterr().out
    assert "--supervision.max-restarts" in shown
    assert "--exploration.noise" in shown
