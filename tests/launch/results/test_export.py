"""Networks of small real runs, exported to where this project is not."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from spaces import Given, registered
from untrained_runs import policy_of, untrained

import tributary_rl as tributary
from actors.environments import VectorEnvironment, environment_spec
from actors.environments.spaces import random_actions
from launch.cli import main
from launch.run.folder import RunFolder
from launch.run.lookup import run_path

# One process for all of them: to import TensorFlow takes seconds. What a model remembers goes into its next call.
LOADED_ELSEWHERE = """
import json, sys
import numpy as np, keras, tensorflow as tf
for folder in sys.argv[1:]:
    model = keras.models.load_model(folder + "/model.keras")
    saved = tf.saved_model.load(folder + "/saved_model")
    units = json.load(open(folder + "/model.json")).get("memory", {}).get("units", [])
    given, heads = np.load(folder + ".npy"), []
    state = dict(zip(("hidden", "cell"), (np.zeros((given.shape[1], n), np.float32) for n in units)))
    for observations in given:
        inputs = tf.constant(observations)
        if state:
            inputs = {"observations": inputs} | {name: tf.constant(part) for name, part in state.items()}
        output, served = model(inputs), saved.serve(inputs)
        assert output.keys() == served.keys()
        assert all(np.allclose(output[name], served[name], rtol=0, atol=1e-5 if state else 1e-6) for name in output)
        state = {name: np.asarray(output[name]) for name in state}
        heads.append({name: np.asarray(value) for name, value in output.items() if name not in state})
    np.savez(folder + ".npz", **{name: np.stack([step[name] for step in heads]) for name in heads[0]})
ours = {"actors", "learner", "shared", "launch"}
assert not ours & {name.partition(".")[0] for name in sys.modules}, sys.modules
"""
MADE_BY = {"command", "created", "revision", "versions", "hardware"}
# Its moments are those of training.
RUNNING = "pendulum --total-frames 2000 --network.hidden-sizes 8 --network.observation-scaling running"
UNTRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "bounds": ("pendulum", {"network.hidden_sizes": (8,), "network.observation_scaling": "bounds"}),
    "memory": ("cartpole", {"network.recurrent": "lstm"}),
}


@pytest.fixture(scope="module")
def exported(
    pong_run: Path,
    cartpole_runs: list[Path],
    train: Callable[[Path, str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Path, Path]]:
    """Runs by name, and what was exported of each. Beside it lie what it was given, and what it gave elsewhere."""
    parent = tmp_path_factory.mktemp("exported")
    runs = {"pong": pong_run, "cartpole": cartpole_runs[0]}
    runs["running"] = train(parent / "run-running", RUNNING)
    runs |= {name: untrained(parent / f"run-{name}", preset, **more) for name, (preset, more) in UNTRAINED.items()}
    found = {name: (run, parent / name) for name, run in runs.items()}
    random = np.random.default_rng(0)
    for run, folder in found.values():
        assert main(f"export {run} --output {folder}".split()) == 0
        spec = environment_spec(RunFolder(run).read_config().environment)
        values = (
            random.integers(0, 256, (3, 4, *spec.observation_shape))
            if spec.images
            else random.normal(size=(3, 4, *spec.observation_shape))
        )
        np.save(f"{folder}.npy", values.astype(spec.observation_dtype))
    command = [sys.executable, "-P", "-c", LOADED_ELSEWHERE, *(str(folder) for _, folder in found.values())]
    result = subprocess.run(command, cwd=parent, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return found


@pytest.mark.parametrize("name", ["pong", "cartpole", "running", *UNTRAINED])
def test_an_exported_network_gives_the_same_elsewhere(name: str, exported: dict[str, tuple[Path, Path]]) -> None:
    run, folder = exported[name]
    assert json.loads((folder / "model.json").read_text()).keys() >= MADE_BY
    policy, _ = policy_of(run)
    state = tuple(tf.constant(part) for part in policy.first_state(4))
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if state else {"rtol": 1e-6, "atol": 1e-6}
    with np.load(f"{folder}.npz") as loaded:
        for step, observations in enumerate(np.load(f"{folder}.npy")):
            output = policy.network(tf.constant(observations), state)
            state = output.state
            assert set(loaded) == set(output.heads)
            for head, value in output.heads.items():
                np.testing.assert_allclose(loaded[head][step], value, **tolerance)


SIDES = {
    "environment": {"id": "Sides-v0", "imports": ("sides",), "frame_skip": 1, "screen_size": None},
    "network": {"name": "a3c_cnn", "recurrent": "lstm"},
}
LANDER = {"environment.options": {"continuous": True}, "network.observation_scaling": "running"}
FLAT = {"arm": Dict({"joints": Box(-1, 1, (2, 3)), "grip": Discrete(2, start=3)}), "goal": MultiDiscrete([2, 4])}


@pytest.mark.parametrize(
    ("preset", "settings"),
    [("pong", None), ("lunarlander", LANDER), ("cartpole", FLAT), ("images", SIDES)],
    ids=["Pong", "continuous LunarLander", "a flat Dict", "an LSTM on an image in a Dict"],
)
def test_a_graph_of_onnx_gives_what_the_run_s_own_network_gives(preset: str, settings: Any, tmp_path: Path) -> None:
    """On 100 observations of random play, one after another, with the state of a memory as inputs and outputs."""
    if settings is FLAT:
        space = Dict(FLAT)
        space.seed(1)
        registered("Flat-v0", Given(space, Discrete(3), [space.sample() for _ in range(50)]))
        settings = {"environment.id": "Flat-v0"}
    run = Path(f"zoo:{preset}") if settings is None else untrained(tmp_path / "run", preset, **settings)
    arguments = f"export {run} --format onnx --trust-imports --output {tmp_path / 'onnx'}"
    assert main(arguments.split()) == 0
    policy, _ = policy_of(run_path(str(run)))
    config = policy.method.config
    described = json.loads((tmp_path / "onnx" / "model.json").read_text())["inputs"]
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    types = {"float32": "tensor(float)", "uint8": "tensor(uint8)"}
    assert {x.name: (x.shape[1:], x.type) for x in session.get_inputs()} == {
        name: (x["shape"][1:], types[x["dtype"]]) for name, x in described["tensors"].items()
    }
    environments = VectorEnvironment(config.environment, 2)
    spec, random = environments.spec(), np.random.default_rng(0)
    seen = environments.reset(1)
    state = policy.first_state(2)
    for _ in range(50):
        output = policy.network(tf.constant(seen), tuple(map(tf.constant, state)))
        given = dict(zip(("hidden", "cell"), state, strict=False))
        if spec.parts is None:
            given["observations"] = seen
        else:
            given |= {image.name: seen[:, at].reshape(-1, *image.shape) for image, at in spec.parts.image_bytes()}
            given["vector"] = spec.parts.vectors(seen)
        names = [x.name for x in session.get_outputs()]
        found = dict(zip(names, session.run(names, given), strict=True))
        for name, head in output.heads.items():
            np.testing.assert_allclose(found[name], head, rtol=1e-5, atol=1e-5)
        for name, part in zip(("hidden", "cell"), output.state, strict=False):
            np.testing.assert_allclose(found[f"next_{name}"], part, rtol=1e-5, atol=1e-5)
        state = tuple(part.numpy() for part in output.state)
        seen = environments.step(random_actions(spec.actions, 2, random)).observations
    environments.close()
    if "Flat-v0" in gymnasium.registry:
        gymnasium.registry.pop("Flat-v0")
        assert described["positions"] == {"arm.grip": [0, 1], "arm.joints": [2, 7], "goal": [8, 13]}


def test_the_lines_of_the_page_play_an_episode_as_the_agent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", "zoo:pong", "--format", "onnx", "--output", "export"]) == 0
    page = (Path(__file__).parents[3] / "docs" / "runs.md").read_text()
    (lines,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "environment.step" in block)
    agent, played = tributary.load("zoo:pong"), []

    def action_of(observation: np.ndarray, policy: np.ndarray) -> int:
        played.append((int(policy.argmax()), int(agent.act(observation, deterministic=True)[0])))
        return played[-1][0]

    lines = lines.replace("1_000", "60").replace("int(policy.argmax())", "action_of(observation, policy)")
    exec(lines, {"action_of": action_of})
    assert len(played) == 60
    assert len(set(played)) > 1
    assert all(ours == theirs for ours, theirs in played)


def test_the_format_onnx_needs_its_extra(monkeypatch: pytest.MonkeyPatch, refused: Callable[[str], str]) -> None:
    monkeypatch.setattr("launch.results.export.find_spec", lambda _: None)
    line = "--format onnx: needs tf2onnx: pip install 'tributary-rl[onnx]'"
    assert line in refused("export zoo:cartpole --format onnx")
