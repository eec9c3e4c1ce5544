"""For maintainers: make a run an agent that ships.

    python docs/zoo.py RUN NAME     add the agent of a run to launch/zoo, evaluated by each published protocol

An agent's folder has the files of a run: weights (as float16 unless the score suffers), settings and manifest without
paths, a hundred rows of metrics, the summary, and evaluations with the commands that repeat them.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from actors.environments import adapter_of, environment_spec
from launch import zoo
from launch.files import to_json, write_json
from launch.output import exit_code
from launch.provenance import revision
from launch.results.curves import read_rows
from launch.results.evaluate import EvaluateArguments, load_policy, score
from launch.run.folder import RunFolder, read_object
from launch.run.lookup import run_path
from launch.run.weights import WeightsName, write_weights
from launch.settings.files import read_value
from shared.errors import ConfigurationError

_MAX_BYTES = 3_500_000
_ROWS = 100
# Significant ones.
_DIGITS = 5
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])/(?:[^\s/\"']+/)*([^\s/\"']+)")
# Options with names of files or machines, which do not affect the training.
_OWN_OPTIONS = ("--run-dir", "--json", "--storage", "--address", "--resume")


def pack(
    folder: Path, name: str, *, weights: WeightsName = "auto", episodes: int = 100, into: Path = zoo.FOLDER
) -> Path:
    """Add the agent of a run as zoo:NAME to the folder `into`. Returns its folder, which is replaced as a whole.

    `weights` are as in `tributary evaluate`, and `episodes` those of each evaluation.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name}: a name is of lower-case letters, digits and hyphens")
    run = RunFolder(folder)
    config = replace(run.read_config("run"), storage=None, address="local", trackers=())
    spec = run.as_trained(config, environment_spec(config.environment))
    policy, snapshot, source = load_policy(run, config, spec, weights)
    rows = read_rows(run)
    # On the file system of `into`, for the rename at the end.
    with tempfile.TemporaryDirectory(dir=into, prefix=".pack-") as parent:
        agent = RunFolder(Path(parent) / name)
        agent.path.mkdir()
        agent.create(config, spec, {})
        write_json(agent.summary, _scrubbed(read_object(run.summary)))
        with agent.metrics.open("w", encoding="utf-8") as file:
            for i in np.unique(np.linspace(0, len(rows) - 1, _ROWS).round().astype(int)):
                rounded = json.loads(to_json(rows[i]), parse_float=lambda n: float(f"{float(n):.{_DIGITS}g}"))
                file.write(to_json(rounded) + "\n")
        first, *others = list(adapter_of(config.environment).protocols) or ["training"]
        of_command = f"{zoo.PREFIX}{name}" if into == zoo.FOLDER else shlex.quote(os.path.relpath(into / name))
        means: dict[str, float] = {}
        for dtype in ("float32", "float16"):
            write_weights(agent.best_weights, snapshot, policy.layout, source, dtype)
            result = _evaluated(agent, of_command, first, episodes)
            means[dtype] = result["mean_return"]
        if means["float16"] < means["float32"] - 2 * (result["standard_error"] or 0.0):
            dtype = "float32"
            write_weights(agent.best_weights, snapshot, policy.layout, source, dtype)
            _evaluated(agent, of_command, first, episodes)
        for protocol in others:
            _evaluated(agent, of_command, protocol, episodes)
        made = {"dtype": dtype, "weights": source, "protocol": first, "mean_returns": means, "revision": revision()}
        write_json(agent.manifest, _manifest(run) | {"packed": made})
        size = agent.best_weights.stat().st_size
        if size > _MAX_BYTES:
            raise ConfigurationError(f"{run.path}: its weights are {size:,} bytes, and may be {_MAX_BYTES:,} at most")
        shutil.rmtree(into / name, ignore_errors=True)
        agent.path.rename(into / name)
        return into / name


def _evaluated(agent: RunFolder, name: str, protocol: Any, episodes: int) -> dict[str, Any]:
    """Evaluate the agent, and store the result with the command that repeats it; `name` is what the command names."""
    result = score(EvaluateArguments(run=agent.path, episodes=episodes, protocol=protocol), Console())
    if result is None:
        raise KeyboardInterrupt
    option = "" if episodes == EvaluateArguments.episodes else f" --episodes {episodes}"
    result["command"] = f"tributary evaluate {name} --protocol {protocol}{option}"
    write_json(agent.output(f"evaluation-{protocol}.json"), result)
    return result


def _manifest(run: RunFolder) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(run.manifest.read_text(encoding="utf-8"))
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in _OWN_OPTIONS:
        own.add_argument(option)
    _, kept = own.parse_known_args(shlex.split(manifest["command"]))
    return _scrubbed(manifest | {"command": shlex.join(kept)})


def _scrubbed(values: Any) -> Any:
    """Plain values, with absolute paths in texts shortened to their last part."""
    return json.loads(_ABSOLUTE_PATH.sub(r"\1", to_json(values)))


def main() -> None:
    parser = argparse.ArgumentParser("python docs/zoo.py", description="Add the agent of a run as zoo:NAME.")
    parser.add_argument("run", type=run_path, help="folder of the run, or latest")
    parser.add_argument("name", help="lower-case letters, digits and hyphens; an existing agent is replaced")
    parser.add_argument("--weights", default="auto", help="as in tributary evaluate")
    parser.add_argument("--episodes", type=int, default=EvaluateArguments.episodes, help="of each evaluation")
    parser.add_argument("--into", type=Path, default=zoo.FOLDER, help="another folder than launch/zoo")
    typed = parser.parse_args()
    weights = read_value("weights", WeightsName, typed.weights)
    made = pack(typed.run, typed.name, weights=weights, episodes=typed.episodes, into=typed.into)
    print(f"packed: {made}")


if __name__ == "__main__":
    sys.exit(exit_code(main))
