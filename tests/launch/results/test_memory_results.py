"""A run with a memory, evaluated, watched from the inside, and exported to where this project is not."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from actors.environments import environment_spec
from actors.policy import Policy
from launch.cli import main
from launch.run.folder import RunFolder
from launch.run.weights import load_weights

LOADED_ELSEWHERE = """
import json, sys
import numpy as np, keras, tensorflow as tf
folder, observations, output = sys.argv[1:]
units = json.load(open(folder + "/model.json"))["memory"]["units"]
model = keras.models.load_model(folder + "/model.keras")
saved = tf.saved_model.load(folder + "/saved_model")
hidden, cell = (np.zeros((3, n), np.float32) for n in units)
heads = []
for step in np.load(observations):
    inputs = {"observations": tf.constant(step), "hidden": tf.constant(hidden), "cell": tf.constant(cell)}
    output_, same = model(inputs), saved.serve(inputs)
    assert all(np.allclose(output_[name], same[name], rtol=0, atol=1e-5) for name in output_)
    hidden, cell = (np.asarray(output_[name]) for name in ("hidden", "cell"))
    heads.append(np.asarray(output_["policy"]))
assert not {"actors", "learner", "shared", "launch"} & {name.partition(".")[0] for name in sys.modules}
np.save(output, np.stack(heads))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory") / "run"
    settings = (
        "--executor inline --actors 1 --total-frames 3000 --network.recurrent lstm --network.recurrent-units 5 "
        "--evaluation.every-frames 0 --stop-measure training --stop-at-return None"
    )
    assert main(["train", "cartpole", "--run-dir", str(folder), *settings.split()]) == 0
    return folder


def test_it_is_evaluated_and_recorded(run: Path, tmp_path: Path) -> None:
    figures = tmp_path / "evaluation.json"
    assert main(f"evaluate {run} --episodes 3 --policy greedy --json {figures}".split()) == 0
    assert json.loads(figures.read_text())["episodes"] == 3
    assert main(f"record {run} --output {tmp_path / 'film.gif'} --episodes 1".split()) == 0
    assert (tmp_path / "film.gif").stat().st_size > 1_000


def test_the_exported_model_goes_on_from_the_state_that_it_gave(run: Path, tmp_path: Path) -> None:
    export = tmp_path / "export"
    assert main(f"export {run} --output {export}".split()) == 0
    observations = np.random.default_rng(0).normal(size=(4, 3, 4)).astype(np.float32)
    np.save(tmp_path / "observations.npy", observations)
    arguments = [str(export), str(tmp_path / "observations.npy"), str(tmp_path / "heads.npy")]
    command = [sys.executable, "-P", "-c", LOADED_ELSEWHERE, *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    folder = RunFolder(run)
    config = folder.read_config()
    policy = Policy(config, environment_spec(config.environment), training=False)
    policy.assign(load_weights(folder, "latest", policy.layout)[0].parameters)
    state = policy.first_state(3)
    for step, heads in zip(observations, np.load(tmp_path / "heads.npy"), strict=True):
        # Softmax of the exported logits, as what is watched has it.
        weights = np.exp(heads - heads.max(axis=-1, keepdims=True))
        expected = policy.preferences(step, state)
        np.testing.assert_allclose(weights / weights.sum(axis=-1, keepdims=True), expected, rtol=1e-4, atol=1e-5)
        state = policy.greedy(step, state).state
