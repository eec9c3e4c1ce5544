"""The command line: `tributary COMMAND`. Each command imports what it needs, so that help comes at once."""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple, get_type_hints

from launch.output import EXIT_DONE, exit_code
from shared.errors import ConfigurationError


class Command(NamedTuple):
    """What a command takes and is for, and its function as `module:name`.

    What is typed after it is read by the dataclass that the function's one parameter is annotated with; a function that
    takes a sequence reads the line itself.
    """

    operand: str
    help: str
    function: str


# A table of names: a command's imports are those of its own function.
COMMANDS: dict[str, Command] = {
    name: Command(operand, text, function)
    for name, operand, function, text in (
        ("train", "[PRESET]", "launch.commands.train:train_line", "train an agent, from one of tributary presets"),
        ("evaluate", "RUN", "launch.results.evaluate:evaluate", "play whole episodes by an explicit protocol"),
        ("record", "RUN", "launch.film.record:record", "write whole episodes as a video"),
        ("watch", "[RUN]", "launch.film.watch:watch", "watch an agent play in the terminal, zoo:pong by default"),
        (
            "plot",
            "RUN…",
            "launch.results.plot:plot",
            "draw learning curves; several seeds make a median with a band",
        ),
        ("report", "RUN…", "launch.results.report:report", "write one HTML page: what was run, and what came of it"),
        ("runs", "", "launch.commands.runs:list_runs", "list runs: which are running, how far, what they have reached"),
        ("attach", "RUN", "launch.commands.runs:attach", "show the progress of a run that goes on elsewhere"),
        ("stop", "RUN", "launch.commands.detach:stop", "ask a run to finish and save, as Ctrl-C in its terminal does"),
        ("export", "RUN", "launch.results.export:export", "write the network as a Keras model and a SavedModel"),
        ("sweep", "FILE", "launch.sweep.command:sweep", "search settings: many runs, on Ray Tune"),
        ("bench", "WHAT", "launch.cli:bench", "measure: throughput, scaling, learning"),
        ("plan", "[PRESET]", "launch.bench.plan:plan_line", "predict throughput and time with more actors"),
        ("doctor", "", "launch.commands.doctor:doctor", "check this machine, or every node of a cluster"),
        (
            "clusters",
            "[DIR]",
            "launch.commands.clusters:clusters",
            "write files for clusters: ray up, Kubernetes, Docker",
        ),
        ("config", "[PRESET]", "launch.commands.config:config_line", "print all settings as a file for train --config"),
        ("presets", "", "launch.commands.presets:presets", "list the presets"),
        ("zoo", "", "launch.commands.zoo:list_zoo", "list the agents that ship: zoo:NAME stands where RUN does"),
    )
}

_BENCHES: dict[str, Command] = {
    name: Command("", text, function)
    for name, function, text in (
        (
            "throughput",
            "launch.bench.throughput:throughput_line",
            "agent steps per second, beside the bound of the cores",
        ),
        ("scaling", "launch.bench.scaling:scaling_line", "throughput against the number of actors, and what limits it"),
        ("learning", "launch.bench.learning:learning_line", "time and frames to a return, or the return after a time"),
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    typed = arguments if arguments is not None else sys.argv[1:] or ["--help"]
    return exit_code(lambda: _answer(*typed))


def _answer(command: str, *rest: str) -> int:
    if command == "help" and rest:
        command, rest = rest[0], (*rest[1:], "--help")
    if command in ("-h", "--help", "help"):
        print(_help())
        return EXIT_DONE
    if command == "--version":
        return _version()
    return _run(command, COMMANDS, rest, "command")


def bench(arguments: Sequence[str]) -> int:
    """Run `tributary bench WHAT`. Returns the exit code.

    Raises:
        ConfigurationError: there is no such bench, or its arguments are wrong.
    """
    what, *rest = arguments or ["--help"]
    if what in ("-h", "--help"):
        print("usage: tributary bench WHAT [ARGUMENTS]\n\n" + _listed(_BENCHES))
        print("\ntributary bench WHAT --help shows all settings.")
        return EXIT_DONE
    return _run(what, _BENCHES, rest, "bench")


def _run(name: str, table: dict[str, Command], arguments: Sequence[str], kind: str) -> int:
    from launch.arguments import parse
    from launch.commands.help import asks_for_help, print_help
    from launch.output import nearest

    if name not in table:
        raise ConfigurationError(f"unknown {kind} {name}{nearest(name, table)}; see tributary --help")
    module, _, called = table[name].function.partition(":")
    function = getattr(importlib.import_module(module), called)
    takes = get_type_hints(function)["arguments"]
    if not (isinstance(takes, type) and is_dataclass(takes)):
        return function(arguments)
    title = name if table is COMMANDS else f"bench {name}"
    if asks_for_help(arguments):
        print_help(takes, title)
        return EXIT_DONE
    return function(parse(takes, title, arguments)[0])


def _listed(table: dict[str, Command]) -> str:
    return "\n".join(f"  {f'{name} {command.operand}':<16} {command.help}" for name, command in table.items())


def _help() -> str:
    lines = _listed({**COMMANDS, "help": Command("[COMMAND]", "this list, or all settings of a command", "")})
    return (
        f"usage: tributary COMMAND [ARGUMENTS]\n\ncommands:\n{lines}\n\ntributary --version says which version this is."
    )


def _version() -> int:
    from launch.output import revision

    try:
        installed = version("tributary-rl")
    except PackageNotFoundError:
        installed = "not installed"
    print(f"tributary {installed}, revision {revision()}")
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
