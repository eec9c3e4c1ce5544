"""`tributary zoo`: the list of agents that ship; and how a run becomes one.

`python -m launch.commands.zoo` prints the page docs/zoo.md. `python -m launch.commands.zoo pack RUN NAME` adds an
agent. Its folder has the files of a run: weights (as float16 unless the score suffers), settings and manifest without
paths, a hundred rows of metrics, the summary, and evaluations with the commands that repeat them.
"""

import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from rich.console import Console
from rich.table import Table

from launch import zoo
from launch.arguments import Operand, parse
from launch.commands.settings import asks_for_help, print_help
from launch.output import exit_code, replace_folder, revision, to_json, write_json
from launch.presets.settings_files import for_another_run
from launch.results.curves import read_rows
from launch.results.evaluate import (
    EvaluateArguments,
    ProtocolName,
    load_policy,
    mean_and_error,
    score,
    without_episodes,
)
from launch.run.folder import RunFolder, WeightsName, agent_steps_learned, read_summary, write_weights
from launch.run.status import RunPath
from shared.errors import ConfigurationError, setting_error

_PAGE = """\
# Agents that ship

`zoo:NAME` can replace a run folder in `tributary watch`, `evaluate`, `record`, `plot`, `report`, `export` and
`train --start-from`. Their output goes to `runs/zoo-NAME` in the working directory; the agents themselves are
read-only. `tributary zoo` lists them, and `--json FILE` writes the list.

Each score is the mean unclipped return of whole episodes ± its standard error, by the [protocol](scores.md) in the same
row. The command repeats it; on another processor, sampled actions and therefore games may differ. Agent steps include
those of the run that a run started from. The weights are the last ones, or the best of the training.

| agent | environment | agent steps of training | protocol | score | command |
|---|---|---|---|---|---|
"""
_MAKE = """
`make agent RUN=runs/NAME NAME=pong` adds the agent of a run: it stores the weights as float16 unless the score suffers,
runs the evaluations, and writes this page.
"""
_PROGRAM = "python -m launch.commands.zoo"
_MOST_BYTES = 3_500_000
_ROWS = 100
_SIGNIFICANT_DIGITS = 5
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_ABSOLUTE_PATH = re.compile(r"(?<![\w.:/])/(?:[^\s/\"']+/)*([^\s/\"']+)")
# Options with names of files or machines, which do not affect the training.
_OWN_OPTIONS = ("--run-dir", "--json", "--storage", "--address", "--record-arrivals", "--resume")


@dataclass(frozen=True)
class ZooArguments:
    """List the agents that ship. zoo:NAME can replace a run folder in other commands."""

    json: Path | None = None
    """File to write the list to, with the provenance of each score."""


@dataclass(frozen=True)
class PackArguments:
    """Add the agent of a run as zoo:NAME, evaluated by each published protocol of its environment."""

    run: Operand[RunPath]
    """Folder of the run, or latest."""
    name: Operand[str]
    """Name of lower-case letters, digits and hyphens. An existing agent is replaced."""
    weights: WeightsName = "auto"
    """As in tributary evaluate."""
    episodes: int = 100
    """Episodes of each evaluation."""


def list_zoo(arguments: ZooArguments) -> None:
    agents = described_agents()
    # Narrow enough for 80 columns.
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("agent", "environment", "agent steps", "protocol", "score"):
        table.add_column(heading, no_wrap=True, justify="right" if heading == "agent steps" else "left")
    for name, agent in agents.items():
        first = name, agent["environment"], f"{agent['agent_steps']:,}"
        for evaluation in agent["evaluations"]:
            table.add_row(*first, evaluation["protocol"]["name"], mean_and_error(evaluation))
            first = "", "", ""
    console = Console()
    console.print(table, highlight=False)
    console.print("tributary watch AGENT shows one play.", highlight=False)
    write_json(arguments.json, agents)


def described_agents() -> dict[str, dict[str, Any]]:
    """Environment, agent steps and evaluations of each agent, by its zoo:NAME."""
    return {name: _described(RunFolder(zoo.agent_folder(name))) for name in zoo.agents()}


def page() -> str:
    """The text of docs/zoo.md."""
    rows = []
    for name, agent in described_agents().items():
        first = f"`{name}`", agent["environment"], f"{agent['agent_steps']:,}"
        for made in agent["evaluations"]:
            cells = (*first, made["protocol"]["name"], mean_and_error(made), f"`{made['command']}`")
            rows.append(f"| {' | '.join(cells)} |\n")
            first = "", "", ""
    return _PAGE + "".join(rows) + _MAKE


def _described(folder: RunFolder) -> dict[str, Any]:
    files = (folder.path / f"evaluation-{protocol}.json" for protocol in get_args(ProtocolName))
    return {
        "environment": folder.read_settings("run").environment.id,
        "agent_steps": agent_steps_learned(folder),
        "weights_bytes": folder.best_weights.stat().st_size,
        "trained_by": json.loads(folder.manifest.read_text(encoding="utf-8"))["command"],
        "evaluations": [
            without_episodes(json.loads(file.read_text(encoding="utf-8"))) for file in files if file.is_file()
        ],
    }


def pack(arguments: PackArguments, into: Path = zoo.FOLDER) -> Path:
    """Add the agent of a run to the folder `into`. Returns the agent's folder, which is replaced as a whole."""
    if not _NAME.fullmatch(arguments.name):
        raise setting_error("name", arguments.name, "must be of lower-case letters, digits and hyphens")
    from actors.environments import adapter_of, environment_spec

    run = RunFolder(arguments.run)
    config = replace(for_another_run(run.read_config("run")), address="local", trackers=())
    spec = run.with_observation_mean(config, environment_spec(config.environment))
    policy, snapshot, source = load_policy(run, config, spec, arguments.weights)
    rows = _thinned(read_rows(run))
    # On the file system of `into`, for the rename at the end.
    with tempfile.TemporaryDirectory(dir=into, prefix=".pack-") as parent:
        agent = RunFolder(Path(parent) / arguments.name)
        agent.path.mkdir()
        agent.write_config(config)
        if spec.observation_mean is not None:
            np.save(agent.observation_mean, spec.observation_mean, allow_pickle=False)
        write_json(agent.summary, _scrubbed(read_summary(run)))
        agent.metrics.write_text("".join(to_json(row) + "\n" for row in rows), encoding="utf-8")
        first, *others = list(adapter_of(config.environment).protocols) or ["training"]
        means: dict[str, float] = {}
        for dtype in ("float32", "float16"):
            write_weights(agent.best_weights, snapshot, policy.layout, source, dtype)
            result = _evaluated(agent, first, arguments)
            means[dtype] = result["mean_return"]
        if means["float16"] < means["float32"] - 2 * (result["standard_error"] or 0.0):
            dtype = "float32"
            write_weights(agent.best_weights, snapshot, policy.layout, source, dtype)
            _evaluated(agent, first, arguments)
        for protocol in others:
            _evaluated(agent, protocol, arguments)
        made = {"dtype": dtype, "weights": source, "protocol": first, "mean_returns": means, "revision": revision()}
        write_json(agent.manifest, _manifest(run) | {"packed": made})
        size = agent.best_weights.stat().st_size
        if size > _MOST_BYTES:
            raise ConfigurationError(f"{run.path}: its weights are {size:,} bytes, and may be {_MOST_BYTES:,} at most")
        replace_folder(agent.path, into / arguments.name)
        return into / arguments.name


def _evaluated(agent: RunFolder, protocol: Any, arguments: PackArguments) -> dict[str, Any]:
    """Evaluate the agent, and store the result with the command that repeats it."""
    result = score(EvaluateArguments(run=agent.path, episodes=arguments.episodes, protocol=protocol), Console())
    if result is None:
        raise KeyboardInterrupt
    episodes = "" if arguments.episodes == EvaluateArguments.episodes else f" --episodes {arguments.episodes}"
    result["command"] = f"tributary evaluate {zoo.PREFIX}{arguments.name} --protocol {protocol}{episodes}"
    write_json(agent.output(f"evaluation-{protocol}.json"), result)
    return result


def _manifest(run: RunFolder) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(run.manifest.read_text(encoding="utf-8"))
    words = iter(shlex.split(manifest["command"]))
    kept = []
    for word in words:
        if word in _OWN_OPTIONS:
            next(words, None)
        elif word.partition("=")[0] not in _OWN_OPTIONS:
            kept.append(word)
    return _scrubbed(manifest | {"command": shlex.join(kept)})


def _scrubbed(values: Any) -> Any:
    """Plain values, with absolute paths in texts shortened to their last part."""
    return _mapped(values, str, lambda text: _ABSOLUTE_PATH.sub(r"\1", text))


def _mapped(values: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Plain values with each value of one type changed."""
    if isinstance(values, dict):
        return {key: _mapped(value, kind, change) for key, value in values.items()}
    if isinstance(values, list):
        return [_mapped(value, kind, change) for value in values]
    return change(values) if isinstance(values, kind) else values


def _thinned(rows: Sequence[dict[str, Any]]) -> list[Any]:
    """At most `_ROWS` rows, including the first and the last, with rounded numbers."""
    chosen = np.unique(np.linspace(0, len(rows) - 1, _ROWS).round().astype(int))
    return [_mapped(rows[i], float, lambda value: float(f"{value:.{_SIGNIFICANT_DIGITS}g}")) for i in chosen]


def main(*words: str) -> None:
    """Run `python -m launch.commands.zoo` with these words."""
    match words:
        case []:
            print(page(), end="")
        case ["pack", *rest] if asks_for_help(rest):
            print_help(PackArguments, "pack", program=_PROGRAM)
        case ["pack", *rest]:
            print(f"packed: {pack(parse(PackArguments, 'pack', rest, _PROGRAM)[0])}")
        case _:
            raise ConfigurationError(f"{words[0]}: there is only {_PROGRAM} pack RUN NAME, or no word for the page")


if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(*sys.argv[1:])))
