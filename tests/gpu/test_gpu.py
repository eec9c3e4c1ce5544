"""What only a machine with a GPU can show: `make gpu-test`. With TRIBUTARY_PRETENDED_GPUS=1 its CPU is taken for one.

This process computes on the CPU: conftest.py hides GPUs from it. What a GPU computes is in processes of their own.
The most important tests come first: a machine may be lent for five minutes.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launch.doctor import gpu_shortages, probe_gpus
from launch.machine import module_environment, pretended_gpus
from launch.presets import PRESETS
from launch.tensorflow_setup import prepare_for_actors
from shared.config import ActorConfig
from shared.types import Rollout

ACTOR = ActorConfig(environments=16, unroll_length=16, epochs=2, minibatches=2, device="gpu")
CONFIG = replace(PRESETS["pong"].config, actor=ACTOR)

# Options of a pretended GPU.
SHORT = (
    "--executor inline --actors 1 --actor.environments 8 --actor.unroll-length 10 --environment.screen-size 36 "
    "--network.no-centre-observations --evaluation.every-frames 0 --log-every-seconds 0.5"
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]


def parts_with(weights: np.ndarray) -> tuple[Any, ...]:
    """The first arguments of a `DevicePlayer`, whose network has these weights."""
    from actors.device_player import DevicePlayer
    from actors.environments import environment_spec
    from actors.gradient import gradients_of

    spec = environment_spec(CONFIG.environment)
    policy = DevicePlayer.make_policy(CONFIG, spec, 1)
    policy.assign(weights)
    return CONFIG, spec, policy, gradients_of(CONFIG, spec, policy, 1)


def play(weights: str, file: str) -> None:
    """Play two rollouts on the GPU, and write the last one with the first gradient of it."""
    prepare_for_actors(CONFIG)
    from actors.device_player import DevicePlayer

    parts, kept = parts_with(np.load(weights)), []
    gradients = parts[-1]
    keep_rollout = gradients.keep_rollout
    gradients.keep_rollout = lambda *acted: (keep_rollout(*acted), kept.append(acted))
    player = DevicePlayer(*parts, np.arange(ACTOR.environments), emulator_threads=4)
    player.play()
    rollout = player.play().rollout
    gradients.begin(rollout)
    gradient = gradients.next().vector
    np.savez(file, *(np.asarray(values) for values in (gradient, *kept[-1], *rollout[:6])))
    player.close()


@pytest.fixture(autouse=True, scope="module")
def _gpu() -> None:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    found = probe_gpus()
    if found is None:
        pytest.skip("this machine has no GPU; with TRIBUTARY_PRETENDED_GPUS=1 its CPU is taken for one")
    for cause, advice in gpu_shortages(found):
        pytest.skip(f"{cause}: {advice}")


@pytest.mark.parametrize(("tf32", "tolerance"), [("0", 1e-4), ("1", 3e-3)])
def test_a_gradient_is_that_of_the_cpu(tf32: str, tolerance: float, tmp_path: Path) -> None:
    """Both differentiate the same rollout: with TF32 another action may be sampled, after which the game differs."""
    from rollouts import first_weights

    weights, file = first_weights(CONFIG, spread=0.02), tmp_path / "played.npz"
    np.save(tmp_path / "weights.npy", weights)
    command = [sys.executable, "-P", __file__, tmp_path / "weights.npy", file]
    # 0 forbids it; 1 would have TensorFlow decide, as it does by itself.
    variables = module_environment() | ({"NVIDIA_TF32_OVERRIDE": "0"} if tf32 == "0" else {})
    subprocess.run(command, env=variables, check=True)
    gradient, values, log_probs, *rollout = np.load(file).values()
    _, spec, policy, gradients = parts_with(weights)
    on_cpu = policy.values(rollout[0][:-1].reshape(-1, *spec.observation_shape)).reshape(values.shape)
    np.testing.assert_allclose(values, on_cpu, rtol=0.0, atol=tolerance * np.abs(on_cpu).max())
    gradients.keep_rollout(values, log_probs)
    gradients.begin(Rollout(*rollout))
    expected = gradients.next().vector
    error = np.abs(gradient - expected).max() / np.abs(expected).max()
    print(f"largest difference of a gradient, TF32 {tf32}: {error:.1e} of its largest number")
    assert error < tolerance


def tributary(words: str, folder: Path) -> None:
    """Run a command, small and in one process on a pretended GPU."""
    short = SHORT if pretended_gpus() else ""
    print(f"\n$ tributary {words} {short}", flush=True)
    # XLA's work for one command serves the next.
    variables = {"TF_XLA_FLAGS": f"--tf_xla_persistent_cache_directory={folder.parent}"}
    command = [sys.executable, "-P", "-m", "launch.cli", *f"{words} {short}".split()]
    subprocess.run(command, env=module_environment() | variables, check=True)


def print_rates(network: str, folder: Path) -> None:
    rates, file = {}, folder / "throughput.json"
    for device in ("cpu", "gpu"):
        measure = f"bench throughput pong --network.name {network} --actor.device {device} --seconds 6 --json {file}"
        tributary(measure, folder)
        rates[device] = json.loads(file.read_text())["agent_steps_per_second"]
    print(f"{network}: {rates['cpu']:,.0f} agent steps/s on CPUs, {rates['gpu']:,.0f} on the GPU")
    assert min(rates.values()) > 0


def test_rates(tmp_path: Path) -> None:
    print_rates("a3c_cnn", tmp_path)


def test_pong_is_trained(tmp_path: Path) -> None:
    """Two minutes at most. What is to be seen on an H100 is a confirmed 18 within one."""
    seconds, began, file = 5 if pretended_gpus() else 120, time.monotonic(), tmp_path / "summary.json"
    tributary(
        f"train pong --actor.device gpu --stop-after-seconds {seconds} --run-dir {tmp_path}/run --json {file}", tmp_path
    )
    ended = json.loads(file.read_text())
    print(f"{ended['status']} {time.monotonic() - began:.0f} s after the command, at {ended['confirmed_crossing']}")
    assert ended["agent_steps_sampled"] > 0


def test_a_run_goes_on_on_the_cpu_and_back(tmp_path: Path) -> None:
    from accounts import account_of

    run, (frames, actors) = tmp_path / "run", (2_000, "") if pretended_gpus() else (80_000, "--actors 2")
    for part, device in enumerate(("gpu", "cpu", "gpu"), 1):
        which = f"--resume {run}" if part > 1 else f"pong --run-dir {run} {actors}"
        tributary(f"train {which} --actor.device {device} --total-frames {part * frames}", tmp_path)
        account = account_of(run)
        assert account["frames"] >= part * frames
        assert account["actor_restarts"] == 0


@pytest.mark.parametrize("network", ["nature_cnn", "impala_resnet"])
def test_rates_of_larger_networks(network: str, tmp_path: Path) -> None:
    print_rates(network, tmp_path)


if __name__ == "__main__":
    play(*sys.argv[1:])
