"""`tributary watch [RUN]`: an agent plays in the terminal."""

import os
import sys
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import tyro
from rich.console import Console

from actors.environments import environment_spec
from launch import zoo
from launch.film.cells import Painter, terminal_colours
from launch.film.panel import Seen
from launch.film.player import Player
from launch.film.screen import Screen
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.output import EXIT_DONE, EXIT_INTERRUPTED, check_json_file, print_line, provenance, write_json
from launch.results.protocols import PolicyName, ProtocolName, by_protocol, describe_protocol, policy_of
from launch.run.folder import RunFolder
from launch.run.latest import RunPath, run_name
from launch.run.weights import WeightsName, load_weights
from shared.errors import ConfigurationError
from shared.seeds import SEEDS_ARE, episode_seeds

if TYPE_CHECKING:
    from launch.film.stage import PlayedStep

_DEFAULT = zoo.FOLDER / "pong"
_AFTER_EPISODE_SECONDS = 1.5
# Then they begin anew.
_EPISODES = 1000


@dataclass(frozen=True)
class WatchArguments:
    """Watch an agent play in the terminal, at the console's speed. Keys change speed and episode; q ends it."""

    run: Annotated[RunPath, tyro.conf.Positional] = _DEFAULT
    """Folder of the run, latest: the newest below runs/, or zoo:NAME: an agent that ships."""
    protocol: ProtocolName = "training"
    """As in tributary evaluate."""
    policy: PolicyName = "as-trained"
    """As in tributary evaluate."""
    weights: WeightsName = "auto"
    """As in tributary evaluate."""
    seed: int | None = None
    """Seed of the episodes, which are those of tributary record. Default: the run's."""
    trust_imports: bool = False
    """As in tributary evaluate."""
    json: Path | None = None
    """File to write what was played to."""


def watch(arguments: WatchArguments) -> int:
    """Run `tributary watch`. Returns the exit code.

    Raises:
        ConfigurationError: there is no terminal, the folder holds no run, no weights that fit it, or an environment
            without pictures.
    """
    check_json_file(arguments.json)
    folder = RunFolder(arguments.run)
    config = folder.read_config("run", trust_imports=arguments.trust_imports)
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)) or os.environ.get("TERM") in (None, "", "dumb"):
        raise _no_terminal(folder)
    if arguments.seed is not None:
        config = replace(config, seed=arguments.seed)
    spec = folder.with_observation_mean(config, environment_spec(config.environment))
    environment = by_protocol(config.environment, arguments.protocol)
    policy_name = policy_of(config, arguments.policy)
    console = Console()
    print_line(console, f"{run_name(arguments.run)} plays {environment.id}: TensorFlow takes a few seconds to load")
    prepare_tensorflow(1, gpu=False)
    from actors.policy import Policy
    from launch.film.stage import make_stage, play_episode

    seeds = episode_seeds(config.seed, "recording", _EPISODES)
    policy = Policy(config, spec, seed=seeds.actions, training=False)
    snapshot, source = load_weights(folder, arguments.weights, policy.layout)
    policy.assign(snapshot.parameters, snapshot.frames)
    stage = make_stage(environment)
    act = policy.greedy if policy_name == "greedy" else policy.act
    returns: list[float] = []

    def seen(step: "PlayedStep", episode: int) -> Seen:
        return Seen(
            agent=Path(folder.name).name,
            environment_id=environment.id,
            episode=episode,
            score=step.episode_return,
            value=step.value,
            returns=returns,
            action_names=spec.action_set,
            preferences=step.preferences,
            preferences_are=policy.method.preferences_are,
            action=step.action,
        )

    try:
        with _screen(folder) as screen:
            painter = Painter(terminal_colours(os.environ))
            player = Player(screen, painter, stage.frames_per_second, stage.pixel_aspect)
            for episode in count():
                seed = int(seeds.environments[episode % _EPISODES])
                for step in play_episode(stage, policy, act, seed):
                    if not all(player.show(frame, seen(step, episode + 1)) for frame in step.frames):
                        break
                    if step.ended:
                        returns.append(step.episode_return)
                        player.hold(_AFTER_EPISODE_SECONDS)
                if player.over:
                    break
            interrupted = screen.interrupted
    finally:
        stage.close()
    whole = f"{len(returns)} whole episodes, mean return {sum(returns) / len(returns):g}, " if returns else ""
    print_line(console, f"played {whole}with {source}")
    print_line(console, f"a video of it: tributary record {run_name(arguments.run)}")
    if arguments.json is not None:
        made: dict[str, Any] = {
            "environment": environment.id,
            "protocol": describe_protocol(environment, arguments.protocol, spec),
            "policy": policy_name,
            "weights": source,
            "version": snapshot.version,
            "seed": config.seed,
            "seeds": {"purpose": "recording", "are": SEEDS_ARE},
            "returns": returns,
            "interrupted": interrupted,
        }
        write_json(arguments.json, made | provenance())
    return EXIT_INTERRUPTED if interrupted else EXIT_DONE


def _screen(folder: RunFolder) -> Screen:
    try:
        return Screen()
    except OSError as error:
        raise _no_terminal(folder) from error


def _no_terminal(folder: RunFolder) -> ConfigurationError:
    return ConfigurationError(
        f"watch plays in a terminal, and there is none here: tributary record {folder.name} writes a video"
    )


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()
