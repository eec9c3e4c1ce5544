"""Throughput of Tributary against its bound and against three peers, interleaved in one run.

usage: compare.py PEER_PYTHON [REPEATS] [SECONDS] [JSON]

Two cores are needed, all of them. PEER_PYTHON is the interpreter of an environment with `torch`, `stable-baselines3`,
`ale-py` and `opencv-python-headless`. All play Pong with the A3C network. Ours are measured by docs/studies/bound.py,
learning included; a peer prints its own window after its warm-up. The preset is compared with PPO, which
differentiates a rollout as often, and one gradient per rollout with A2C, of which our two actors have twice the
environments. Ratios are taken within a round, and their median is over rounds.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from launch.machine import busy as too_busy
from launch.machine import load_average, usable_cores
from launch.presets import PRESETS
from launch.provenance import provenance

_ACTOR = PRESETS["pong"].config.actor
# As A2C has it.
_ONCE = "--actor.epochs 1 --actor.minibatches 1 --actor.no-fresh-gradients --learner.gradients-per-update 1"
_LONG, _SHORT = (f"--actor.environments {b} --actor.unroll-length {t} {_ONCE}" for b, t in ((32, 20), (16, 5)))
OURS = {
    "tributary, the preset pong": "",
    "tributary, 32 x 20, float32": _LONG,
    "tributary, 16 x 5, float32": _SHORT,
}
PEERS = {
    "torch PPO, the same rollouts, epochs and updates": (
        "torch_ppo.py",
        f"{_ACTOR.total_environments} 2 {_ACTOR.epochs} {_ACTOR.unroll_length}",
    ),
    "torch, 32 environments, 2 threads, float32": ("torch_vec_a2c.py", "32 2"),
    "Stable-Baselines3, 16 x 5, dummy": ("sb3_a2c.py", "16 dummy 5"),
}
# Their names in docs/measurements.jsonl: `python docs/figures.py add peers JSON --cpu …`.
SYSTEMS = dict(zip((*OURS, *PEERS), ("pong", "32x20", "16x5", "torch_ppo", "torch_vec_a2c", "sb3_a2c"), strict=True))
RATIOS = [
    ("tributary, the preset pong", "torch PPO, the same rollouts, epochs and updates"),
    ("tributary, 32 x 20, float32", "torch, 32 environments, 2 threads, float32"),
    ("tributary, 16 x 5, float32", "Stable-Baselines3, 16 x 5, dummy"),
]


def ours(options: str, seconds: str) -> dict:
    """The result of docs/studies/bound.py."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = f"{Path(__file__).parents[1] / 'bound.py'} --seconds {seconds} --json {file.name} {options}"
        subprocess.run([sys.executable, *command.split()], capture_output=True, check=True)
        return json.loads(Path(file.name).read_text())


def peer(python: str, script: str, options: str, seconds: str) -> float:
    """Agent steps per second."""
    command = [python, str(Path(__file__).with_name(script)), seconds, *options.split()]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(output.split("agent_steps_per_s ")[1].split()[0])


def shown(fraction: float | None) -> str:
    """The fraction of the bound; a peer has none."""
    return " " * 5 if fraction is None else f"{fraction:.3f}"


def main() -> None:
    python, *rest = sys.argv[1:]
    repeats, seconds, file = [*rest, *["5", "15", ""][len(rest) :]]
    if usable_cores() != 2:
        sys.exit("peers have two threads: taskset -c 0,1 python compare.py …")
    # Before the first round: a commit meanwhile would label it.
    made = provenance()
    rounds, busy = [], []
    for _ in range(int(repeats)):
        rates, fractions = {}, {}
        for name, options in OURS.items():
            result = ours(options, seconds)
            rates[name], fractions[name] = result["agent_steps_per_second"], result["fraction_of_bound"]
            busy += result["busy"]
        for name, (script, options) in PEERS.items():
            busy += filter(None, [too_busy(load_average())])
            rates[name] = peer(python, script, options, seconds)
        busy += filter(None, [too_busy(load_average())])
        rounds.append({"agent_steps_per_second": rates, "fraction_of_bound": fractions})
        for name, rate in rates.items():
            print(f"{rate:7,.0f}  {shown(fractions.get(name))}  {name}")
        print(flush=True)
    print("medians")
    medians = {
        name: {
            column: statistics.median(r[column][name] for r in rounds)
            for column in rounds[0]
            if name in rounds[0][column]
        }
        for name in SYSTEMS
    }
    for name, figures in medians.items():
        rate, fraction = figures["agent_steps_per_second"], figures.get("fraction_of_bound")
        print(f"{rate:7,.0f}  {shown(fraction)}  {name}")
    for mine, other in RATIOS:
        ratio = statistics.median(
            r["agent_steps_per_second"][mine] / r["agent_steps_per_second"][other] for r in rounds
        )
        print(f"{ratio:7.2f}  {mine} / {other}")
    if file:
        points: list[dict] = [{"system": SYSTEMS[name], **figures} for name, figures in medians.items()]
        points[0] |= {"preset": "pong", "actors": 2}
        Path(file).write_text(json.dumps({"points": points, "rounds": rounds, "busy": busy, **made}, indent=2))


if __name__ == "__main__":
    main()
