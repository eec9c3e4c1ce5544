"""`tributary evaluate RUN`: whole episodes with a run's weights, their returns unclipped, the protocol explicit."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from actors.environments import environment_spec
from launch.machine.tensorflow_process import prepare_tensorflow
from launch.output import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    check_json_file,
    hardware_line,
    print_line,
    provenance,
    usable_cores,
    write_json,
)
from launch.results.protocols import PolicyName, ProtocolName, by_protocol, describe_protocol, policy_of, protocol_line
from launch.results.scores import paper_score, reference_score, score_summary
from launch.run.folder import RunFolder
from launch.run.latest import RunPath
from launch.run.weights import WeightsName, load_weights
from shared.config import EvaluationConfig
from shared.errors import setting_error
from shared.seeds import SEEDS_ARE
from shared.types import info_means


@dataclass(frozen=True)
class EvaluateArguments:
    """Play whole episodes with the weights of a run. Every score comes with the protocol that it was made by."""

    run: Annotated[RunPath, tyro.conf.Positional]
    """Folder of the run, latest: the newest below runs/, or zoo:NAME: an agent that ships."""
    episodes: int = 100
    """Episodes to play."""
    protocol: ProtocolName = "training"
    """training: as the run was trained. noop: up to 30 no-ops, no sticky actions, 30 minutes. machado: sticky actions
    of 0.25, no no-ops, 5 minutes. The last two are for Atari."""
    policy: PolicyName = "as-trained"
    """Actions sampled from the policy, or its most probable ones. as-trained: as the run's evaluations did."""
    weights: WeightsName = "auto"
    """best: of the best evaluation, or without evaluations of the best training return. latest: of the last checkpoint.
    auto: best if there is one."""
    seed: int | None = None
    """Seed of the episodes. Default: the run's."""
    trust_imports: bool = False
    """Import the modules that the settings of the run name, and run their code."""
    json: Path | None = None
    """File to write the result to, besides evaluation-PROTOCOL.json in the run folder, or in runs/zoo-NAME."""


def evaluate(arguments: EvaluateArguments) -> int:
    """Run `tributary evaluate`. Returns the exit code.

    Raises:
        ConfigurationError: the folder holds no run, or no weights that fit it.
    """
    return EXIT_INTERRUPTED if score(arguments, Console()) is None else EXIT_DONE


def score(arguments: EvaluateArguments, console: Console) -> dict[str, Any] | None:
    """Play, show and write. Returns what was written; None if it was interrupted, and nothing was.

    Raises:
        ConfigurationError: see `evaluate`.
    """
    check_json_file(arguments.json)
    if arguments.episodes < 1:
        raise setting_error("episodes", arguments.episodes, "must be at least 1")
    folder = RunFolder(arguments.run)
    config = folder.read_config("run", trust_imports=arguments.trust_imports)
    output = folder.output(f"evaluation-{arguments.protocol}.json")
    if arguments.seed is not None:
        config = replace(config, seed=arguments.seed)
    spec = folder.with_observation_mean(config, environment_spec(config.environment))
    environment = by_protocol(config.environment, arguments.protocol)
    # Nothing else runs, as actors do beside an evaluation in training.
    actor = replace(config.actor, environment_threads=min(usable_cores(), arguments.episodes))
    config = replace(config, environment=environment, actor=actor)
    policy = policy_of(config, arguments.policy)
    evaluation = EvaluationConfig(
        episodes=arguments.episodes, environments=config.evaluation.environments, policy=policy
    )
    prepare_tensorflow(1, gpu=False)
    from actors.evaluator import Evaluator

    evaluator = Evaluator(config, spec, evaluation, "evaluation")
    snapshot, source = load_weights(folder, arguments.weights, evaluator.layout)
    print_line(console, f"playing {arguments.episodes} episodes of {environment.id} with {source}")
    columns = TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=arguments.episodes)
        try:
            played = evaluator.run(snapshot, on_ended=lambda ended: progress.advance(task, ended))
        except KeyboardInterrupt:
            # Those that end first are the short ones: their mean would say something else.
            ended = int(progress.tasks[task].completed)
            console.print(f"interrupted after {ended} of {arguments.episodes} episodes; nothing is written")
            return None
        finally:
            evaluator.close()
    protocol = describe_protocol(environment, arguments.protocol, spec)
    result = {
        "environment": environment.id,
        "protocol": protocol,
        "policy": policy,
        "weights": source,
        "version": snapshot.version,
        "seed": config.seed,
        "seeds": {"purpose": "evaluation", "environments": evaluator.environments, "are": SEEDS_ARE},
        **score_summary(played.episodes.returns, played.episodes.lengths, environment.id, played.games),
        **({"info": info_means(played.episodes.info)} if config.environment.log_info else {}),
        "published": published_scores(environment.id),
        **provenance(),
    }
    for line in result_lines(result):
        print_line(console, line)
    write_json(output, result)
    if folder.ships:
        print_line(console, f"result: {output}")
    if arguments.json is not None:
        write_json(arguments.json, result)
    return result


def published_scores(environment_id: str) -> dict[str, Any]:
    """Scores of the same game from the literature, each with what it was made by."""
    reference, paper = reference_score(environment_id), paper_score(environment_id)
    scores: dict[str, Any] = {}
    if reference is not None:
        scores["human"] = {"score": reference.human, "protocol": "human player, Wang et al. 2016 (arXiv 1511.06581)"}
        scores["random"] = {
            "score": reference.random,
            "protocol": "uniformly random play, Wang et al. 2016 (arXiv 1511.06581)",
        }
    if paper is not None:
        scores["a3c_ff"] = {
            "score": paper,
            "protocol": "A3C feed-forward, Nature network (not a3c_cnn), human starts, 4 days on 16 cores, Mnih et al. "
            "2016, Table S3",
        }
    return scores


def result_lines(result: dict[str, Any]) -> list[str]:
    """What is shown of a result."""
    error, interval = result["standard_error"], result["interval_95"]
    spread = "" if error is None else f" ± {error:.2f} (standard error; 95 % {interval[0]:.2f} to {interval[1]:.2f})"
    frames = result["mean_length_agent_steps"] * result["protocol"]["frames_per_agent_step"]
    played, games = result["episodes"], result["distinct_games"]
    lines = [
        f"mean return {result['mean_return']:.2f}{spread}, median {result['median_return']:.2f}, from "
        f"{result['minimum_return']:.0f} to {result['maximum_return']:.0f}; {result['policy']} actions",
        f"{played} episodes, {games} distinct games{'' if games == played else ': error and interval are over these'}",
        f"mean length {result['mean_length_agent_steps']:,.0f} agent steps ({frames:,.0f} frames)",
    ]
    if result["human_normalised_percent"] is not None:
        lines.append(f"human-normalised {result['human_normalised_percent']:.0f} % (random play 0, human player 100)")
    lines += [f"{name} {value:g}, mean over episodes" for name, value in result.get("info", {}).items()]
    lines.append(protocol_line(result["protocol"]))
    lines += [f"published, not comparable: {p['score']:g}, {p['protocol']}" for p in result["published"].values()]
    return [*lines, f"made on {hardware_line(result)}"]
