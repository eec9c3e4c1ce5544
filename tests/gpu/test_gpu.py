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

import pytest

from launch.doctor import gpu_shortages
from launch.machine import pretended_gpus
from launch.presets import PRESETS
from launch.processes import module_command, module_environment
from launch.tensorflow_setup import prepare_for
from shared.config import ActorConfig

ACTOR = ActorConfig(environments=16, unroll_length=16, epochs=2, minibatches=2, device="gpu")
CONFIG = replace(PRESETS["pong"].config, actor=ACTOR)

# Options of a pretended GPU.
SHORT = (
    "--executor inline --actors 1 --actor.environments 8 --actor.unroll-length 10 --environment.screen-size 36 "
    "--network.no-centre-observations --evaluation.every-frames 0 --log-every-seconds 0.5"
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]


def differentiate(tf32: str, spread: str) -> None:
    """Print the difference of the GPU's gradient from float64's."""
    prepare_for("actor", CONFIG)
    import tensorflow as tf

    # XLA's own products obey this alone, cuBLAS and cuDNN the variable, too.
    tf.config.experimental.enable_tensor_float_32_execution(tf32 == "1")
    from float64 import difference

    from actors.device_player import DevicePlayer
    from actors.environments import environment_spec

    print(difference(DevicePlayer, CONFIG, environment_spec(CONFIG.environment), float(spread)))


@pytest.fixture(autouse=True, scope="module")
def _gpu(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    file = tmp_path_factory.mktemp("doctor") / "doctor.json"
    command = module_command("launch.cli", "doctor", "--json", str(file))
    subprocess.run(command, env=module_environment(), check=False)
    (node,) = json.loads(file.read_text())["nodes"]
    if node["gpu"] is None:
        pytest.fail("this machine has no GPU; with TRIBUTARY_PRETENDED_GPUS=1 its CPU is taken for one")
    for cause, advice in gpu_shortages(node["gpu"]):
        pytest.fail(f"{cause}: {advice}")


@pytest.mark.parametrize(("tf32", "spread", "tolerance"), [("0", 0.03, 1e-5), ("1", 0.0, 3e-3)])
def test_a_gradient_is_that_of_float64(tf32: str, spread: float, tolerance: float) -> None:
    """With TF32 other ratios would be clipped: there the weights are those that acted."""
    # 0 forbids it; 1 would have TensorFlow decide, as it does by itself.
    variables = module_environment() | ({"NVIDIA_TF32_OVERRIDE": "0"} if tf32 == "0" else {})
    command = [sys.executable, "-P", __file__, tf32, str(spread)]
    printed = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout
    error = float(printed.split()[-1])
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


@pytest.mark.parametrize("network", ["a3c_cnn", "nature_cnn", "impala_resnet"])
def test_rates(network: str, tmp_path: Path) -> None:
    rates, file = {}, tmp_path / "throughput.json"
    for device in ("cpu", "gpu"):
        measure = f"bench throughput pong --network.name {network} --actor.device {device} --seconds 6 --json {file}"
        tributary(measure, tmp_path)
        rates[device] = json.loads(file.read_text())["agent_steps_per_second"]
    print(f"{network}: {rates['cpu']:,.0f} agent steps/s on CPUs, {rates['gpu']:,.0f} on the GPU")
    assert min(rates.values()) > 0


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[1] / "helpers"))
    differentiate(*sys.argv[1:])
