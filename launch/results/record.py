"""`tributary record RUN`: whole episodes as a video, in colour, at the environment's frame rate."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from actors.environments import environment_spec
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.output import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    check_json_file,
    check_output,
    print_line,
    provenance,
    provenance_text,
    write_json,
)
from launch.results.protocols import PolicyName, ProtocolName, by_protocol, describe_protocol, policy_of
from launch.run.folder import RunFolder
from launch.run.latest import RunPath
from launch.run.weights import WeightsName, load_weights
from shared.errors import setting_error
from shared.seeds import SEEDS_ARE, episode_seeds


@dataclass(frozen=True)
class RecordArguments:
    """Write whole episodes of a run's agent as a video. Ctrl-C keeps what was played."""

    run: Annotated[RunPath, tyro.conf.Positional]
    """Folder of the run, latest: the newest below runs/, or zoo:NAME: an agent that ships."""
    episodes: int = 1
    """Episodes to play, one after another in one video."""
    output: Path | None = None
    """File to write, .mp4 or .gif. Default: videos/update-N.mp4 in the run folder, or in runs/zoo-NAME."""
    format: Literal["mp4", "gif"] = "mp4"
    """Of the default file."""
    overlay: bool = False
    """Write score and the network's value below each frame."""
    protocol: ProtocolName = "training"
    """As in tributary evaluate."""
    policy: PolicyName = "as-trained"
    """As in tributary evaluate."""
    weights: WeightsName = "auto"
    """As in tributary evaluate."""
    seed: int | None = None
    """Seed of the episodes. Default: the run's."""
    trust_imports: bool = False
    """As in tributary evaluate."""
    json: Path | None = None
    """File to write what was played to."""


def record(arguments: RecordArguments) -> int:
    """Run `tributary record`. Returns the exit code.

    Raises:
        ConfigurationError: the folder holds no run, no weights that fit it, or an environment without pictures.
    """
    return EXIT_INTERRUPTED if film(arguments, Console())["interrupted"] else EXIT_DONE


def film(arguments: RecordArguments, console: Console) -> dict[str, Any]:
    """Play, and write the video. Returns what was played; `file` is where it is.

    Raises:
        ConfigurationError: see `record`.
    """
    check_json_file(arguments.json)
    if arguments.episodes < 1:
        raise setting_error("episodes", arguments.episodes, "must be at least 1")
    check_output(arguments.output, (".mp4", ".gif"))
    folder = RunFolder(arguments.run)
    config = folder.read_config("run", trust_imports=arguments.trust_imports)
    if arguments.seed is not None:
        config = replace(config, seed=arguments.seed)
    spec = folder.with_observation_mean(config, environment_spec(config.environment))
    environment = by_protocol(config.environment, arguments.protocol)
    policy_name = policy_of(config, arguments.policy)
    prepare_tensorflow(1, gpu=False)
    from actors.policy import Policy
    from launch.film.stage import make_stage, play_episode
    from launch.film.writer import VideoWriter

    seeds = episode_seeds(config.seed, "recording", arguments.episodes)
    policy = Policy(config, spec, seed=seeds.actions, training=False)
    snapshot, source = load_weights(folder, arguments.weights, policy.layout)
    policy.assign(snapshot.parameters, snapshot.frames)
    stage = make_stage(environment)
    output = arguments.output or folder.output(f"videos/update-{snapshot.version}.{arguments.format}")
    made: dict[str, Any] = {
        "environment": environment.id,
        "protocol": describe_protocol(environment, arguments.protocol, spec),
        "policy": policy_name,
        "weights": source,
        "version": snapshot.version,
        "seed": config.seed,
        "seeds": {"purpose": "recording", "are": SEEDS_ARE},
    }
    print_line(console, f"playing {environment.id} with {source}")
    act = policy.greedy if policy_name == "greedy" else policy.act
    returns: list[float] = []
    interrupted = False
    writer = VideoWriter(output, stage.frames_per_second, provenance_text(**made), stage.enlargement)
    try:
        with writer:
            for episode in range(arguments.episodes):
                for step in play_episode(stage, policy, act, int(seeds.environments[episode])):
                    caption = f"score {step.episode_return:g}   value {step.value:+.2f}" if arguments.overlay else None
                    for frame in step.frames:
                        writer.add(frame, caption)
                returns.append(step.episode_return)
                console.print(f"episode {episode + 1}: return {returns[-1]:g}", highlight=False)
    except KeyboardInterrupt:
        interrupted = True
        console.print(f"interrupted: {len(returns)} whole episodes are in the video, and what followed them")
    finally:
        stage.close()
    result = {**made, "returns": returns, "frames": writer.frames, "seconds": writer.seconds, "file": str(output)}
    result |= {"interrupted": interrupted, **provenance()}
    shown = f"{writer.frames:,} frames, {writer.seconds:.1f} seconds at {stage.frames_per_second} a second"
    print_line(console, f"{shown}: {output}")
    if arguments.json is not None:
        write_json(arguments.json, result)
    return result
