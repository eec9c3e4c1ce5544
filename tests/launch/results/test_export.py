"""Networks of small real runs, exported to where this project is not."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from spaces import Given
from untrained_runs import policy_of, untrained
from watched_processes import output_of

import tributary_rl as tributary
from actors.environments import VectorEnvironment
from actors.environments.spaces import random_actions
from launch.cli import main
from launch.run.lookup import run_path

# One process for all of them: to import TensorFlow takes seconds.
LOADED_ELSEWHERE = """
import sys
import numpy as np, keras, tensorflow as tf
for folder in sys.argv[1:]:
    model = keras.models.load_model(folder + "/keras/model.keras")
    saved = tf.saved_model.load(folder + "/keras/saved_model")
    found = {}
    for step in range(STEPS):
        with np.load(f"{folder}/given-{step}.npz") as given:
            inputs = {name: tf.constant(given[name]) for name in given}
        inputs = inputs if len(inputs) > 1 else inputs["observations"]
        for kind, output in (("keras", model(inputs)), ("saved model", saved.serve(inputs))):
            found |= {f"{kind} {step} {name}": np.asarray(value) for name, value in output.items()}
    np.savez(folder + "/elsewhere.npz", **found)
ours = {"actors", "learner", "shared", "launch"}
assert not ours & {name.partition(".")[0] for name in sys.modules}, sys.modules
"""
STEPS = 10
FLAT = Dict({"arm": Dict({"joints": Box(-1, 1, (2, 3)), "grip": Discrete(2, start=3)}), "goal": MultiDiscrete([2, 4])})
SIDES = {"id": "Sides-v0", "imports": ("sides",), "frame_skip": 1, "screen_size": None}


def masked(**options: bool) -> dict[str, Any]:
    names = {"id": "Picky-v0", "imports": ("masked_tasks",), "action_mask": "action_mask", "options": options}
    return {f"environment.{name}": value for name, value in names.items()}


# A preset and settings of a run with its first weights.
UNTRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "bounds": ("pendulum", {"network.observation_scaling": "bounds"}),
    "a flat Dict": ("cartpole", {"environment.id": "Flat-v0"}),
    "a memory and an image in a Dict": (
        "images",
        {"environment": SIDES, "network": {"name": "a3c_cnn", "recurrent": "lstm"}},
    ),
    "a mask and Q-learning": ("vectors", masked() | {"method.name": "q_learning"}),
    "masks and a memory": ("vectors", masked(several=True, in_observation=True) | {"network.recurrent": "lstm"}),
    "a mask and images": ("images", masked(in_observation=True, images=True)),
}
# Its moments are those of training.
RUNNING = "pendulum --total-frames 2000 --network.hidden-sizes 8 --network.observation-scaling running"


class Exported(NamedTuple):
    """A run, the folder of what was exported, and the inputs and outputs of its own network at some steps."""

    run: Path
    folder: Path
    given: list[dict[str, np.ndarray]]
    expected: list[dict[str, np.ndarray]]


def played(run: Path) -> tuple[list[dict[str, np.ndarray]], list[dict[str, np.ndarray]]]:
    """Named inputs and outputs of a run's network in random play, one step after another."""
    policy, _ = policy_of(run)
    environments, random = VectorEnvironment(policy.method.config.environment, 2), np.random.default_rng(0)
    spec, given, expected = environments.spec(), [], []
    rows, state = environments.reset(1), policy.first_state(2)
    for _ in range(STEPS):
        output = policy.network(tf.constant(rows), tuple(map(tf.constant, state)))
        seen, masks = spec.split(rows)
        inputs = dict(zip(("hidden", "cell"), state, strict=False))
        if spec.parts is None:
            inputs["observations"] = seen
        else:
            inputs |= {image.name: seen[:, at].reshape(-1, *image.shape) for image, at in spec.parts.image_bytes()}
            inputs |= {"vector": spec.parts.vectors(seen)} if spec.parts.vector_size else {}
        if masks is not None:
            inputs["action_mask"] = masks.astype(bool)
            head = output.heads[policy.method.action_head].numpy()
            assert (head[~inputs["action_mask"]] == np.float32(-1e9)).all()
        state = tuple(part.numpy() for part in output.state)
        given.append({name: value.copy() for name, value in inputs.items()})
        heads = {name: value.numpy() for name, value in output.heads.items()}
        expected.append(heads | dict(zip(("hidden", "cell"), state, strict=False)))
        rows = environments.step(random_actions(spec.actions, 2, random, masks)).observations
    environments.close()
    return given, expected


@pytest.fixture(scope="module")
def exported(train: Callable[[Path, str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """Runs by name, exported in both formats, and loaded where this project is not."""
    parent = tmp_path_factory.mktemp("exported")
    FLAT.seed(1)
    seen = [FLAT.sample() for _ in range(50)]
    gymnasium.register("Flat-v0", lambda: Given(FLAT, Discrete(3), list(seen)), disable_env_checker=True)
    runs = {"Pong": run_path("zoo:pong"), "running": train(parent / "running", RUNNING)}
    runs |= {name: untrained(parent / f"run {name}", preset, **more) for name, (preset, more) in UNTRAINED.items()}
    found = {name: Exported(run, parent / name, *played(run)) for name, run in runs.items()}
    for run, folder, given, _ in found.values():
        for more in (["--output", f"{folder}/keras"], ["--output", f"{folder}/onnx", "--format", "onnx"]):
            assert main(["export", str(run), "--trust-imports", *more]) == 0
        for step, inputs in enumerate(given):
            np.savez(f"{folder}/given-{step}.npz", **inputs)
    script = f"STEPS = {STEPS}\n{LOADED_ELSEWHERE}"
    output_of(sys.executable, "-P", "-c", script, *(one.folder for one in found.values()), cwd=parent)
    yield found
    gymnasium.registry.pop("Flat-v0")


def test_exported_networks_give_the_same_elsewhere(exported: dict[str, Exported]) -> None:
    """As Keras layers, as a SavedModel and as a graph of ONNX, with the state of a memory as inputs and outputs.

    In one test: two processes would each export all of them.
    """
    for name, (_, folder, given, expected) in exported.items():
        description = json.loads((folder / "onnx" / "model.json").read_text())
        assert description.keys() >= {"command", "created", "revision", "versions", "hardware"}
        session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
        assert description["outputs"].keys() == {x.name for x in session.get_outputs()}, name
        types = {"float32": "tensor(float)", "uint8": "tensor(uint8)", "bool": "tensor(bool)"}
        tensors = description["inputs"]["tensors"]
        assert tensors.keys() == given[0].keys(), name
        assert {x.name: (x.shape[1:], x.type) for x in session.get_inputs()} == {
            name: (x["shape"][1:], types[x["dtype"]]) for name, x in tensors.items()
        }
        if name == "a flat Dict":
            assert description["inputs"]["positions"] == {"arm.grip": [0, 1], "arm.joints": [2, 7], "goal": [8, 13]}
        with np.load(folder / "elsewhere.npz") as elsewhere:
            for step, outputs in enumerate(expected):
                onnx = dict(zip([x.name for x in session.get_outputs()], session.run(None, given[step]), strict=True))
                for output, value in outputs.items():
                    tolerance = {"rtol": 1e-4, "atol": 1e-5, "err_msg": name}
                    for kind in ("keras", "saved model"):
                        np.testing.assert_allclose(elsewhere[f"{kind} {step} {output}"], value, **tolerance)
                    state = output in ("hidden", "cell")
                    np.testing.assert_allclose(onnx[f"next_{output}" if state else output], value, **tolerance)


def test_the_lines_of_the_page_play_an_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "runs.md").read_text()
    (command,) = re.findall(r"`tributary (export zoo:pong [^`]*onnx[^`]*)`", page)
    assert main(command.split()) == 0
    inside = json.loads(Path("export-onnx/model.json").read_text())["inputs"]["in_the_file"]
    assert inside == {"images": "minus their mean in random play, times 4 / 255"}
    (lines,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "environment.step" in block)
    agent, played = tributary.load("zoo:pong"), []
    own, _ = policy_of(run_path("zoo:pong"))

    def action_of(observation: np.ndarray, policy: np.ndarray) -> int:
        logits = own.network(tf.constant(observation[np.newaxis])).heads["policy"]
        np.testing.assert_allclose(policy, logits, rtol=1e-5, atol=1e-5)
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
