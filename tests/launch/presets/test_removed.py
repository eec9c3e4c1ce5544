"""Settings that earlier versions had, in files of that time."""

import pytest

from launch.presets.removed import REMOVED_SETTINGS, without_removed
from shared.errors import ConfigurationError


@pytest.mark.parametrize("name", REMOVED_SETTINGS)
def test_a_removed_setting_is_read_at_its_default_only(name: str) -> None:
    section, _, field = name.rpartition(".")
    default, version = REMOVED_SETTINGS[name]

    def nested(value: object) -> dict[str, object]:
        return {section: {field: value}, "seed": 1} if section else {field: value, "seed": 1}

    assert without_removed(nested(default)) == ({section: {}, "seed": 1} if section else {"seed": 1})
    with pytest.raises(ConfigurationError, match=rf"--{name.replace('_', '-')} 7: .*removed in version {version}"):
        without_removed(nested(7))


def test_a_removed_value_is_refused() -> None:
    assert without_removed({"aggregation": "node"}) == {"aggregation": "node"}
    with pytest.raises(ConfigurationError, match=r"--aggregation group: .*removed in version"):
        without_removed({"aggregation": "group"})
