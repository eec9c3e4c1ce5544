"""Settings that are refused before a worker starts; the name of a run."""

import re
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.environments import EnvironmentSpec
from launch.presets import PRESETS
from launch.python.run import resolved_run
from launch.settings.check import check_effects, check_network, may_change, notes_on
from launch.settings.files import KINDS, with_settings
from launch.settings.help import as_toml, settings
from launch.settings.resolve import ResolvedRun, TrainRequest, resolve_request
from shared.config import ActorConfig, EnvironmentConfig, NetworkConfig, RunConfig
from shared.config.checks import For, declared
from shared.errors import ConfigurationError
from shared.registry import METHODS, NETWORKS, SCHEDULES, Entry, MethodEntry, NetworkEntry, import_modules
from shared.types import ActionSpec, ImagePart, ObservationParts


@pytest.mark.parametrize(
    ("preset", "given"),
    [
        ("cartpole", {"method.name": "q_learning", "method.target_interval_agent_steps": 500}),
        ("cartpole", {"environment.id": "ALE/Pong-v5", "environment.max_noops": 3, "environment.frame_stack": 2}),
        ("pendulum", {"exploration.noise_persistence_agent_steps": 8, "exploration.initial_log_std": -2.0}),
        ("lunarlander", {"optimizer.name": "rmsprop", "optimizer.decay": 0.9, "optimizer.epsilon": 0.1}),
        ("cartpole-tutorial", {"method.final_entropy_cost": 0.0, "optimizer.annealing_frames": 900}),
        # The preset's own settings of Q-learning have none, and nobody gave them.
        ("pong-q", {"method.name": "actor_critic", "method.entropy_cost": 0.01}),
    ],
)
def test_a_setting_with_an_effect_is_accepted(preset: str, given: dict[str, Any]) -> None:
    environment = {"environment.id": "CartPole-v1"} if preset == "lunarlander" else {}
    assert resolved_run(preset, {**environment, **given}).config


class Whole:
    """A network of a user that takes images beside numbers as a whole."""


class Headless:
    """A method of a user that names no head for its actions."""


def test_a_method_without_a_head_for_actions_takes_no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "headless", MethodEntry(__name__, "Headless", continuous_actions=True))
    given = {"method.name": "headless", "environment.action_mask": "legal"}
    with pytest.raises(ConfigurationError, match=r"--environment.action-mask legal: method headless supports no masks"):
        check_network(with_settings(PRESETS["cartpole"].config, given), replace(IMAGES, images=False, masked=True))


@pytest.mark.parametrize("body", ["0.5 - progress", "0.995 - progress", "float('nan')"])
def test_a_schedule_without_a_factor(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{tmp_path.name}.py").write_text(f"def bad(progress):\n    return {body}\n")
    monkeypatch.setitem(SCHEDULES, "bad", Entry(tmp_path.name, "bad"))
    config = with_settings(PRESETS["cartpole"].config, {"optimizer.schedule": "bad", "optimizer.annealing_frames": 9})
    check_effects(config, ["optimizer.annealing_frames"])
    with pytest.raises(ConfigurationError, match=r"^--optimizer.schedule bad: must give a finite factor of 0 or more"):
        check_network(config, replace(IMAGES, images=False))
    del sys.modules[tmp_path.name]


def test_the_modules_of_the_working_folder_shadow_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    for folder, name in ((tmp_path, "theirs"), (tmp_path / "installed", "theirs"), (tmp_path, "ours")):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}_{tmp_path.name}.py").touch()
    sys.path.append(str(tmp_path / "installed"))
    import_modules([f"ours_{tmp_path.name}", f"theirs_{tmp_path.name}"])
    ours, theirs = (sys.modules.pop(f"{name}_{tmp_path.name}") for name in ("ours", "theirs"))
    assert (Path(str(ours.__file__)).parent, Path(str(theirs.__file__)).parent) == (tmp_path, tmp_path / "installed")


def test_a_thread_waits_for_the_import_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module is in `sys.modules` before its import has ended."""
    name = f"slow_{tmp_path.name}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text("import threading\nbegun, goes_on = GATES\nbegun.set()\ngoes_on.wait(60)\n")
    gates = threading.Event(), threading.Event()
    monkeypatch.setattr("builtins.GATES", gates, raising=False)
    imported, at_it = list[bool](), threading.Semaphore(0)

    def import_it() -> None:
        at_it.release()
        import_modules([name])
        imported.append(hasattr(sys.modules[name], "goes_on") and gates[1].is_set())

    threads = [threading.Thread(target=import_it) for _ in range(2)]
    threads[0].start()
    assert gates[0].wait(60)
    threads[1].start()
    assert all(at_it.acquire(timeout=60) for _ in threads)
    threads[1].join(0.2)
    gates[1].set()
    for thread in threads:
        thread.join(60)
    assert imported == [True, True]
    del sys.modules[name]


def test_a_file_of_all_settings_is_no_choice(tmp_path: Path) -> None:
    """`tributary config` writes all settings, also those without effect."""
    file = tmp_path / "mine.toml"
    # Without its preset, as from a run's config.json, it is over another one.
    file.write_text(as_toml(PRESETS["cartpole-q"].config, None))
    assert resolve_request(TrainRequest(config=file)).config == PRESETS["cartpole-q"].config
    file.write_text('preset = "cartpole"\nenvironment.max_noops = 7\n')
    line = f"{file}: --environment.max-noops 7: is for Atari; leave it out with CartPole-v1"
    with pytest.raises(ConfigurationError, match=re.escape(line)):
        resolve_request(TrainRequest(config=file))


def test_what_is_declared_is_a_choice_and_agrees_with_the_help() -> None:
    for setting in settings(RunConfig()):
        needed = [mark for mark in declared(RunConfig)[setting.name][1] if isinstance(mark, For)]
        kinds = {value for mark in needed if mark.setting == "environment.id" for value in mark.values}
        assert kinds <= {"Atari", "images", "continuous actions"}
        for mark in needed:
            for value in mark.values if mark.setting != "environment.id" else ():
                with_settings(RunConfig(), {mark.setting: value})
        for kind, prefix in (("Atari", "Atari: "), ("images", "Images: ")):
            assert setting.help.startswith(prefix) == (kind in kinds), setting.name


IMAGES = EnvironmentSpec(
    observation_shape=(84, 84, 4),
    observation_dtype="uint8",
    actions=ActionSpec(2),
    action_set=("0", "1"),
    images=True,
)
PARTS = ObservationParts((("speed", 2),), (ImagePart("image_camera", (84, 84, 4)), ImagePart("image_map", (40, 35, 1))))
BOTH = replace(IMAGES, parts=PARTS, observation_bounds=((-1.0, -1.0), (1.0, float("inf"))))


@pytest.mark.parametrize(
    ("spec", "settings", "line"),
    [
        (
            BOTH,
            {"network": NetworkConfig(name="mlp")},
            "gives images, image_camera (84, 84, 4), image_map (40, 35, 1), and 2 numbers beside",
        ),
        # Without a range there is no deviation to divide by.
        (
            replace(BOTH, observation_bounds=((-1.0, 1.0), (1.0, 1.0))),
            {"network": NetworkConfig(observation_scaling="bounds")},
            "has no finite bounds in observation [1]",
        ),
        (
            BOTH,
            {"network": NetworkConfig(name="whole", observation_scaling="running")},
            "mlp, and the network is whole",
        ),
        (BOTH, {}, "--environment.screen-size 84: must be at least 36 for a3c_cnn, and the images are"),
        (replace(IMAGES, observation_shape=(1080, 1920, 12)), {}, " GiB; use --environment.screen-size 84"),
        # Of all actors together.
        (IMAGES, {"actor": ActorConfig(unroll_length=20, total_environments=10_000)}, " GiB; use --environment.screen"),
    ],
)
def test_what_a_network_cannot_see_is_one_line(
    spec: EnvironmentSpec, settings: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NETWORKS, "whole", NetworkEntry(__name__, "Whole", images=True, whole=True))
    config = RunConfig(environment=EnvironmentConfig(id="Task-v0"), **settings)
    with pytest.raises(ConfigurationError) as raised:
        check_network(config, spec)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_large_numbers_beside_images_that_are_not_scaled_are_named() -> None:
    parts = PARTS._replace(numbers=(("speed", 2), ("pose", 3)))
    spec = replace(BOTH, parts=parts, observation_bounds=((-1.0,) * 4 + (-np.inf,), (1.0,) * 5))
    expected = ["pose: not scaled; for numbers above 10 --network.observation-scaling running"]
    assert list(notes_on(RunConfig(), spec)) == expected
    assert not [*notes_on(RunConfig(network=NetworkConfig(observation_scaling="running")), spec)]
    assert not [*notes_on(RunConfig(), replace(spec, observation_bounds=((-1.0,) * 5, (1.0,) * 5)))]


def test_a_resume_refuses_changes_of_what_weights_and_counts_depend_on() -> None:
    fixed = "environment.frame_skip network.hidden_sizes method.discount exploration.noise optimizer.decay"
    fixed += " method.name method.reduction method.target_network exploration.name exploration.initial_log_std"
    fixed += " optimizer.name optimizer.epsilon optimizer.bias_correction"
    assert not any(map(may_change, fixed.split()))
    assert may_change("optimizer.learning_rate")
    # Those of the task are refused without being named, unless they are listed as harmless.
    assert {name for name in KINDS if name.startswith(("environment.", "network.")) and may_change(name)} == {
        "environment.imports",
        "environment.log_info",
        "environment.vectorization",
    }


@pytest.mark.parametrize(
    ("preset", "environment_id", "name", "expected"),
    [
        ("cartpole", "CartPole-v1", None, "cartpole"),
        ("vectors", "my_module:Picking-v0", None, "Picking-v0"),
        ("pong", "ALE/Seaquest-v5", None, "Seaquest-v5"),
        ("vectors", "my_module:Picking-v0", "night.2", "night.2"),
        # The name of another run.
        ("Picking-v0-20261122-015812", "Picking-v0", None, "Picking-v0-20261122-015812"),
    ],
)
def test_the_name_of_a_run(preset: str, environment_id: str, name: str | None, expected: str) -> None:
    config = RunConfig(environment=EnvironmentConfig(id=environment_id))
    assert ResolvedRun(config, preset, typed_name=name).name == expected
