"""`tributary zoo`: the list of agents that ship. docs/zoo.py adds one."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.table import Table

from launch import zoo
from launch.output import write_json
from launch.results.evaluate import ProtocolName, mean_and_error, without_episodes
from launch.run.folder import RunFolder, agent_steps_learned


@dataclass(frozen=True)
class ZooArguments:
    """List the agents that ship. zoo:NAME can replace a run folder in other commands."""

    json: Path | None = None
    """File to write the list to, with the provenance of each score."""


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
