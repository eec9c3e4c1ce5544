"""The command line: `tributary COMMAND`. Each command has its own imports, so that help comes at once."""

import importlib
import sys
from collections.abc import Sequence
from typing import get_type_hints

from launch.interrupts import Interrupts

# The operands of each command, its purpose, and its function as `module:name`, the module within `launch`. The words
# after it are read by the dataclass that annotates the function's one parameter. The function returns the exit code, or
# None for 0.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "train": (
        "[PRESET]",
        "train an agent, by a preset or an environment's id; pong by default",
        "commands.train:train_line",
    ),
    "evaluate": ("RUN", "play whole episodes by an explicit protocol", "results.evaluate:evaluate"),
    "record": ("RUN", "write whole episodes as a video", "film.record:record"),
    "watch": ("[RUN]", "watch an agent play in the terminal, zoo:pong by default", "film.watch:watch"),
    "plot": ("RUN…", "draw learning curves; several seeds make a median with a band", "results.plot:plot"),
    "report": ("RUN…", "write one HTML page: what was run, and what came of it", "results.report:report"),
    "runs": ("", "list runs: which are running, how far, what they have reached", "commands.runs:list_runs"),
    "stop": ("RUN", "ask a run to finish and save, as Ctrl-C in its terminal does", "commands.runs:stop"),
    "export": ("RUN", "write the network as a Keras model and a SavedModel", "results.export:export"),
    "bench throughput": ("", "agent steps per second, and where the time goes", "bench.throughput:throughput"),
    "bench scaling": ("", "throughput against the number of actors, measured or rehearsed", "bench.scaling:scaling"),
    "doctor": ("", "check this machine, or every node of a cluster", "commands.doctor:doctor"),
    "config": ("[PRESET]", "print all settings as a file for train --config", "commands.shipped:config_line"),
    "presets": ("", "list the presets", "commands.shipped:presets"),
    "zoo": ("", "list the agents that ship: zoo:NAME stands where RUN does", "commands.shipped:list_zoo"),
}
_HELP = ("-h", "--help", "help")
# EXIT_INTERRUPTED of launch.output, which may not be imported yet.
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    words = arguments if arguments is not None else sys.argv[1:]
    try:
        # Not at the head of this file: this takes half a second, in which Ctrl-C would print a traceback.
        from launch.output import exit_code

        with Interrupts():
            return exit_code(lambda: _run(*(words or ["--help"])))
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(command: str, *rest: str) -> int | None:
    from launch.output import nearest
    from launch.processes import without_collections
    from launch.provenance import revision, versions
    from shared.errors import ConfigurationError

    if command == "help" and rest:
        command, rest = rest[0], (*rest[1:], "--help")
    if command == "bench" and rest and rest[0] not in _HELP:
        command, rest = f"bench {rest[0]}", rest[1:]
    if command in (*_HELP, "bench"):
        print("usage: tributary COMMAND [ARGUMENTS]\n\ncommands:")
        for name, (operands, purpose, _) in COMMANDS.items():
            print(f"  {f'{name} {operands}':<18} {purpose}")
        print(f"  {'help [COMMAND]':<18} this list, or the settings of a command")
        print("\ntributary --version says which version this is.")
        return None
    if command == "--version":
        print(f"tributary {versions()['tributary-rl'] or 'not installed'}, revision {revision()}")
        return None
    with without_collections():
        from launch.run.modules import imports_permitted
        from launch.settings.parse import HELP, parse

        if command not in COMMANDS:
            raise ConfigurationError(f"unknown command {command}{nearest(command, [*COMMANDS, 'bench'])}")
        module, _, name = COMMANDS[command][-1].partition(":")
        function = getattr(importlib.import_module(f"launch.{module}"), name)
    takes = get_type_hints(function)["arguments"]
    if not set(HELP).isdisjoint(rest):
        from launch.settings.help import print_help

        print_help(takes, command, rest)
        return None
    arguments = parse(takes, command, rest)
    with imports_permitted(every=getattr(arguments, "trust_imports", False)):
        return function(arguments)


if __name__ == "__main__":
    sys.exit(main())
