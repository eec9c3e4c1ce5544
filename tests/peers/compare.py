"""Throughput of `tributary train pong` against a synchronous PyTorch A2C, interleaved in one run.

usage: compare.py PEER_PYTHON [REPEATS] [SECONDS]

PEER_PYTHON is the interpreter of an environment with `torch`, `ale-py` and `numpy`. Both play Pong with the A3C
network in float32, 32 environments per process or actor and unroll 20. Ours counts from the first logged row after
warm-up to the last one, sampled agent steps, learning included; the peer prints its own window.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WARM_UP_SECONDS = 8.0


def peer(python: str, seconds: float) -> float:
    script = str(Path(__file__).with_name("torch_vec_a2c.py"))
    output = subprocess.run(
        [python, script, str(seconds), "32", "2"], capture_output=True, text=True, check=True
    ).stdout
    return float(output.split("agent_steps_per_s ")[1].split()[0])


def ours(seconds: float) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        settings = (
            f"train pong --actor.environments 32 --actor.unroll-length 20 --log-every-seconds 1 "
            f"--stop-after-seconds {seconds + WARM_UP_SECONDS} --run-dir {run}"
        )
        subprocess.run([sys.executable, "-m", "launch.cli", *settings.split()], capture_output=True, check=True)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["elapsed_seconds"] >= WARM_UP_SECONDS]
    first, last = rows[0], rows[-1]
    return (last["agent_steps"] - first["agent_steps"]) / (last["elapsed_seconds"] - first["elapsed_seconds"])


def main() -> None:
    python, *numbers = sys.argv[1:]
    repeats = int(numbers[0]) if numbers else 5
    seconds = float(numbers[1]) if len(numbers) > 1 else 20.0
    pairs = []
    for _ in range(repeats):
        pairs.append((ours(seconds), peer(python, seconds)))
        print(f"tributary {pairs[-1][0]:,.0f}  torch {pairs[-1][1]:,.0f} agent steps/s", flush=True)
    medians = [statistics.median(values) for values in zip(*pairs, strict=True)]
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"median    {medians[0]:,.0f}  torch {medians[1]:,.0f} agent steps/s; median ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
