"""`tributary config`, `presets` and `zoo`: the settings of a preset, and the presets and agents that ship."""

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from launch import zoo
from launch.files import write_json
from launch.output import plain_table, wide_console
from launch.presets import DEFAULT_PRESET, PRESET_GROUPS, PRESETS
from launch.results.evaluate import ProtocolName, mean_and_error
from launch.run.folder import RunFolder, agent_steps_learned, read_object
from launch.settings.help import as_toml
from launch.settings.resolve import PresetArguments, resolve_request


@dataclass(frozen=True)
class ConfigArguments(PresetArguments):
    """Print all settings of a preset, with the changes that are typed, as a file for tributary train --config."""

    config: Path | None = None
    """File of settings to start from, as in tributary train."""
    json: Path | None = None
    """File to write the settings to besides, as a run's config.json has them."""


def config_line(arguments: ConfigArguments) -> None:
    # An environment that is made, or a module of the user, may print.
    with redirect_stdout(sys.stderr):
        run = resolve_request(arguments.request())
    print(as_toml(run.config, run.preset if run.preset in PRESETS else None), end="")
    write_json(arguments.json, msgspec.to_builtins(run.config))


@dataclass(frozen=True)
class PresetsArguments:
    """List the presets."""

    json: Path | None = None
    """File to write all their settings to."""


def presets(arguments: PresetsArguments) -> None:
    # One line for each preset.
    console = wide_console(240)
    names = {name: name + " (default)" * (name == DEFAULT_PRESET) for name in PRESETS}
    for title, group in PRESET_GROUPS.items():
        table = Table.grid("preset", "description", padding=(0, 2, 0, 0))
        table.title, table.title_justify = title, "left"
        table.columns[0].no_wrap, table.columns[0].min_width = True, max(map(len, names.values()))
        for name, preset in group.items():
            # Extras like [box2d] would be read as markup.
            table.add_row(names[name], escape(preset.description))
        console.print(table)
    write_json(arguments.json, {name: msgspec.to_builtins(preset.config) for name, preset in PRESETS.items()})


@dataclass(frozen=True)
class ZooArguments:
    """List the agents that ship. zoo:NAME can replace a run folder in other commands."""

    json: Path | None = None
    """File to write the list to, with the provenance of each score."""


def list_zoo(arguments: ZooArguments) -> None:
    agents = described_agents()
    console = Console()
    rows = []
    for name, agent in agents.items():
        first = {"agent": name, "environment": agent["environment"], "agent steps": f"{agent['agent_steps']:,}"}
        for evaluation in agent["evaluations"]:
            rows.append(first | {"protocol": evaluation["protocol"]["name"], "score": mean_and_error(evaluation)})
            first = dict.fromkeys(first, "")
    left, spare = ("agent", "environment", "protocol", "score"), ("environment", "agent steps")
    # One space between columns, for 80 columns in all.
    console.print(plain_table(rows, console.width, left=left, spare=spare, gap=1), highlight=False)
    console.print("tributary watch AGENT shows one play.", highlight=False)
    write_json(arguments.json, agents)


def described_agents() -> dict[str, dict[str, Any]]:
    """Environment, agent steps and evaluations of each agent, by its zoo:NAME."""
    by_name = {}
    for name in zoo.agents():
        folder = RunFolder(zoo.agent_folder(name))
        played = [read_object(folder.path / f"evaluation-{protocol}.json") for protocol in get_args(ProtocolName)]
        by_name[name] = {
            "environment": folder.read_settings("run").environment.id,
            "agent_steps": agent_steps_learned(folder),
            "weights_bytes": folder.best_weights.stat().st_size,
            "trained_by": read_object(folder.manifest)["command"],
            "evaluations": [evaluation for evaluation in played if evaluation],
        }
    return by_name
