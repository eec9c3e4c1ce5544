"""`tributary zoo`: the list of agents that ship. `python -m launch.commands.zoo` prints the page docs/zoo.md."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from launch import zoo
from launch.output import EXIT_DONE, check_json_file, write_json
from launch.results.evaluate import ProtocolName, mean_and_error, without_episodes
from launch.run.folder import RunFolder, agent_steps_learned

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


@dataclass(frozen=True)
class ZooArguments:
    """List the agents that ship. zoo:NAME can replace a run folder in other commands."""

    json: Path | None = None
    """File to write the list to, with the provenance of each score."""


def list_zoo(arguments: ZooArguments) -> int:
    """Run `tributary zoo`. Returns the exit code."""
    check_json_file(arguments.json)
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
    if arguments.json is not None:
        write_json(arguments.json, agents)
    return EXIT_DONE


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


if __name__ == "__main__":
    print(page(), end="")
