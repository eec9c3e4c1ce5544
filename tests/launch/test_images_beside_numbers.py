"""Runs whose observations are images and numbers together: as exact, as reusable and as portable as any."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sides
import tensorflow as tf

import tributary_rl as tributary
from launch.cli import main
from learner.checkpoint import checkpoint_paths

SMALL = (
    "--environment.id Sides-v0 --environment.screen-size None --environment.frame-stack 2 --network.name a3c_cnn "
    "--network.observation-scaling running --executor inline --stop-at-return None --stop-measure training "
    "--evaluation.every-frames 0 --actor.environments 4 --actor.unroll-length 8 --optimizer.schedule constant"
)
LSTM = "--network.recurrent lstm"
# The model alone acts as the agent does, in a program that knows nothing of this project.
LOADED_ELSEWHERE = """
import sys
import numpy as np, keras, tensorflow as tf
folder, seen, output = sys.argv[1:]
parts = {name: tf.constant(part) for name, part in np.load(seen).items()}
heads = keras.models.load_model(folder + "/model.keras")(parts)
saved = tf.saved_model.load(folder + "/saved_model")
assert np.allclose(heads["policy"], saved.serve(parts)["policy"], rtol=0, atol=1e-5)
assert not {"actors", "learner", "shared", "launch"} & {name.partition(".")[0] for name in sys.modules}
np.save(output, heads["policy"])
"""


@pytest.fixture(autouse=True)
def few_random_steps(short_random_play: None) -> None:
    """Images are centred on the mean of these."""


def train(arguments: str, run: Path) -> dict[str, np.ndarray]:
    """Run the command, and return all arrays of the newest checkpoint: weights, optimizer's slots, accumulator."""
    assert main(["train", *arguments.split()]) == 0
    reader = tf.train.load_checkpoint(str(checkpoint_paths(run / "checkpoints")[0]))
    arrays = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map() if "py_state" not in name}
    return {name: array for name, array in arrays.items() if "save_counter" not in name}


@pytest.mark.slow
@pytest.mark.parametrize("others", ["", f"{LSTM} --actor.epochs 2 --actor.minibatches 4"])
def test_an_exact_run_that_was_stopped_equals_one_that_was_not(others: str, tmp_path: Path) -> None:
    settings = f"cartpole {SMALL} {others} --checkpoint.exact --actors 2"
    whole = train(f"{settings} --total-frames 800 --run-dir {tmp_path / 'whole'}", tmp_path / "whole")
    run = tmp_path / "run"
    train(f"{settings} --total-frames 400 --run-dir {run}", run)
    resumed = train(f"--resume {run} --total-frames 800", run)
    assert resumed.keys() == whole.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


@pytest.mark.slow
def test_the_exported_model_takes_the_parts_and_does_what_the_agent_does(tmp_path: Path) -> None:
    run, model = tmp_path / "run", tmp_path / "model"
    # The score counts what both tell: 5 of 10 are right by chance.
    reward = "--method.discount 0 --method.entropy-cost 0.01 --optimizer.name adam --optimizer.learning-rate 3e-4"
    reuse = "--actor.epochs 4 --actor.minibatches 4 --actor.environments 8 --actor.unroll-length 32 --actors 1"
    train(f"cartpole {SMALL} {reward} {reuse} --total-frames 8k --run-dir {run}", run)
    assert main(["evaluate", str(run), "--episodes", "20", "--weights", "latest"]) == 0
    assert json.loads((run / "evaluation-training.json").read_text())["mean_return"] > 9.0
    assert main(["export", str(run), "--output", str(model), "--weights", "latest"]) == 0
    described = json.loads((model / "model.json").read_text())["inputs"]
    assert described["named"] == {
        "image_camera": {"shape": [None, 36, 36, 2], "dtype": "uint8"},
        "vector": {"shape": [None, 4], "dtype": "float32"},
    }
    assert "vector: speed (2), turned (2) side by side, choices one-hot" in described["meaning"]
    environment = sides.Sides()
    seen = [environment.reset(seed=1)[0], *(environment.step(0)[0] for _ in range(9))]
    camera = np.stack([np.repeat(one["camera"][..., :1], 2, axis=-1) for one in seen])
    speed = np.stack([one["speed"] for one in seen])
    turned = np.array([one["turned"] for one in seen])
    np.savez(tmp_path / "seen.npz", image_camera=camera, vector=np.c_[speed, np.eye(2)[turned]].astype(np.float32))
    arguments = [str(model), str(tmp_path / "seen.npz"), str(tmp_path / "policy.npy")]
    command = [sys.executable, "-P", "-c", LOADED_ELSEWHERE, *arguments]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    agent = tributary.load(run, weights="latest")
    actions, _ = agent.act({"camera": camera, "speed": speed, "turned": turned}, deterministic=True)
    np.testing.assert_array_equal(actions, np.load(tmp_path / "policy.npy").argmax(axis=-1))
    assert 0 < actions.mean() < 1
