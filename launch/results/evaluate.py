"""`tributary evaluate RUN`: scores of whole episodes by an explicit protocol, beside the published ones.

Also the options of the commands that play, their policy, and their lines of scores.
"""

import json
import re
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from launch.files import finite, write_json
from launch.loop.evaluation import independent, return_figures
from launch.machine import usable_cores
from launch.output import EXIT_DONE, EXIT_INTERRUPTED, number, print_line
from launch.provenance import hardware_line, provenance
from launch.run.folder import RunFolder
from launch.run.lookup import RunPath
from launch.run.metrics import missing_info
from launch.run.weights import WeightsName, load_weights
from launch.settings.files import read_value
from launch.settings.parse import Operand
from launch.tensorflow_setup import prepare_tensorflow
from shared.config import EnvironmentConfig, RunConfig
from shared.config.checks import Range, check_values
from shared.errors import counted, setting_error
from shared.seeds import EPISODE_SEED_RULE, Purpose, seed_global_generators
from shared.types import EvaluationPart, EvaluationPolicy, WeightSnapshot, info_means

if TYPE_CHECKING:
    from actors.environments import EnvironmentSpec
    from actors.evaluator import Evaluator
    from actors.policy import Policy

ProtocolName = Literal["training", "noop", "machado"]
PolicyName = Literal["as-trained", "sampled", "greedy"]

_RESAMPLES, _BLOCK = 10_000, 100
_ALE_ID = re.compile(r"ALE/(\w+)-v\d+")


@dataclass(frozen=True, kw_only=True)
class WeightsArguments:
    """The options of the commands that read weights of a run."""

    run: Operand[RunPath]
    """Folder of the run, latest: the newest below runs/, zoo:NAME: an agent that ships, or the URL of a copy."""
    weights: WeightsName = "auto"
    """best: of the best evaluation, or before the first one of the best training return. latest: of the last
    checkpoint. A number: of the checkpoint of this update. auto: best if there is one."""
    trust_imports: bool = False
    """Import the modules that the settings of the run name, and run their code."""


@dataclass(frozen=True, kw_only=True)
class PlayArguments(WeightsArguments):
    """The options of the commands that play whole episodes."""

    protocol: ProtocolName = "training"
    """training: as the run was trained. noop: up to 30 no-ops, no sticky actions, 30 minutes. machado: sticky actions
    of 0.25, no no-ops, 5 minutes. The last two are for Atari."""
    policy: PolicyName = "as-trained"
    """Sample actions from the policy, or take the most probable ones. as-trained: as in the run's evaluations."""
    seed: int | None = None
    """Seed of the episodes. Default: the run's."""
    json: Path | None = None
    """File to write the returns to, with protocol and seeds."""

    def __post_init__(self) -> None:
        check_values(self)
        read_value("policy", PolicyName, self.policy)

    def settings(self, folder: RunFolder) -> tuple[RunConfig, "EnvironmentSpec"]:
        """The settings of a run with this seed, protocol and policy, and the spec of its network."""
        config, spec = run_to_play(folder)
        policy = config.evaluation.policy if self.policy == "as-trained" else self.policy
        config = replace(
            config,
            seed=config.seed if self.seed is None else self.seed,
            environment=by_protocol(config.environment, self.protocol),
            evaluation=replace(config.evaluation, policy=policy),
        )
        return config, spec

    def description(
        self, config: RunConfig, spec: "EnvironmentSpec", version: int, source: str, purpose: Purpose
    ) -> dict[str, Any]:
        """The conditions of the episodes, as --json has them. `source` describes the weights."""
        return {
            "environment": config.environment.id,
            "protocol": describe_protocol(config.environment, self.protocol, spec),
            "policy": config.evaluation.policy,
            "weights": source,
            "version": version,
            "seed": config.seed,
            "seeds": {"purpose": purpose, "are": EPISODE_SEED_RULE},
        }


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(PlayArguments):
    """Play whole episodes with the weights of a run. The result names the protocol of its scores."""

    episodes: Annotated[int, Range(minimum=1)] = 100
    """Number of episodes."""
    json: Path | None = None
    """File to write the result to, besides evaluation-PROTOCOL.json in the run folder, or in runs/zoo-NAME."""


def evaluate(arguments: EvaluateArguments) -> int:
    seed_global_generators(arguments.seed or 0)
    return EXIT_INTERRUPTED if score(arguments, Console()) is None else EXIT_DONE


def score(arguments: EvaluateArguments, console: Console) -> dict[str, Any] | None:
    """Play the episodes, print and write the result, and return it. None after an interrupt, which writes nothing: the
    episodes that end first are the short ones."""
    folder = RunFolder(arguments.run)
    config, spec = arguments.settings(folder)
    prepare_tensorflow(gpu=False, network=config.network)
    from actors.evaluator import Evaluator

    evaluation = replace(config.evaluation, episodes=arguments.episodes)
    # All cores: no actors run beside this evaluation.
    threads = min(usable_cores(), arguments.episodes)
    # Closed last: a fault in `close` of a user's environment costs no result.
    with closing(Evaluator(config, spec, evaluation, "evaluation", threads=threads)) as evaluator:
        snapshot, source = load_weights(folder, arguments.weights, evaluator.policy.layout)
        output = folder.output(f"evaluation-{arguments.protocol}.json")
        environment, log_info = config.environment.id, config.environment.log_info
        episodes = counted(arguments.episodes, "episode")
        print_line(console, f"playing {episodes} of {environment} with {source}")
        parts = _play(evaluator, snapshot, arguments.episodes, console)
        ended = sum(len(part.order) for part in parts)
        if ended < arguments.episodes:
            print_line(console, f"interrupted after {ended} of {episodes}; nothing is written")
            return None
        played = EvaluationPart.joined(parts)
        result = {
            **arguments.description(config, spec, snapshot.version, source, "evaluation"),
            **score_summary(played, environment, config.evaluation.policy),
            **({"info": finite(info_means(played.episodes.info))} if log_info else {}),
            **provenance(),
        }
        result["seeds"]["environments"] = evaluation.environments_in_use
        for line in result_lines(result):
            print_line(console, line)
        # First: the run folder may be another user's.
        write_json(arguments.json, result)
        write_json(output, result)
        if folder.ships:
            print_line(console, f"result: {output}")
        for name in set(log_info) - set(result.get("info", {})):
            print_line(console, missing_info(name, arguments.episodes))
        return result


def run_to_play(folder: RunFolder) -> tuple[RunConfig, "EnvironmentSpec"]:
    """The settings of a run, whose environment may be made, and the spec of its network."""
    from actors.environments import environment_spec

    config = folder.read_config("run")
    return config, folder.as_trained(config, environment_spec(config.environment))


def load_policy(
    folder: RunFolder, config: RunConfig, spec: "EnvironmentSpec", weights: WeightsName, seed: int = 0
) -> tuple["Policy", WeightSnapshot, str]:
    """A policy with weights of a run, these weights, and a description of their source. Imports TensorFlow."""
    prepare_tensorflow(gpu=False, network=config.network)
    from actors.policy import Policy

    policy = Policy(config, spec, seed=seed, training=False)
    snapshot, source = load_weights(folder, weights, policy.layout)
    policy.assign(snapshot.parameters, snapshot.frames)
    return policy, snapshot, source


def _play(evaluator: "Evaluator", snapshot: WeightSnapshot, episodes: int, console: Console) -> list[EvaluationPart]:
    """Play whole episodes, on a terminal with a bar. An interrupt ends it."""
    parts: list[EvaluationPart] = []
    columns = TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task, advice = progress.add_task("", total=episodes), "Ctrl-C ends the evaluation"
        with suppress(KeyboardInterrupt):
            for part in evaluator.run(snapshot, on_wait=lambda line: print_line(console, f"{line}; {advice}")):
                parts.append(part)
                progress.advance(task, len(part.order))
    return parts


def result_lines(result: dict[str, Any]) -> list[str]:
    error, interval = result["standard_error"], result["interval_95"]
    spread = ""
    if error is not None and interval is not None:
        spread = f" ± {error:.2f} (standard error; 95 % {interval[0]:.2f} to {interval[1]:.2f})"
    frames = result["mean_length_agent_steps"] * result["protocol"]["frames_per_agent_step"]
    played, games = result["episodes"], result["distinct_games"]
    lines = [
        f"mean return {number(result['mean_return'], '.2f')}{spread}, median {number(result['median_return'], '.2f')}, "
        f"from {number(result['minimum_return'], '.6g')} to {number(result['maximum_return'], '.6g')}; "
        f"{result['policy']} actions",
        f"{counted(played, 'episode')}, {counted(games, 'distinct game')}"
        + (": error and interval are over these" if 1 < games < played and result["policy"] == "greedy" else ""),
        f"mean length {result['mean_length_agent_steps']:,.0f} agent steps ({frames:,.0f} frames)",
    ]
    if result["mean_return"] is None:
        lines.append(f"{result['returns'].count(None)} returns are not finite: there is no mean")
    if result["human_normalised_percent"] is not None:
        lines.append(f"human-normalised {result['human_normalised_percent']:.0f} % (random play 0, human player 100)")
    lines += [f"{name} {number(value, 'g')}, mean over episodes" for name, value in result.get("info", {}).items()]
    lines.append(protocol_line(result["protocol"]))
    return [*lines, f"made on {hardware_line(result)}"]


def mean_and_error(result: dict[str, Any]) -> str:
    """Mean return and standard error of an evaluation: 18.75 ± 0.54. A confirmation is no score, and marked as such."""
    error = "" if result["standard_error"] is None else f" ± {result['standard_error']:.2f}"
    return number(result["mean_return"], ".2f") + error + (" (confirmation)" if result.get("confirms") else "")


def by_protocol(config: EnvironmentConfig, protocol: ProtocolName) -> EnvironmentConfig:
    """The environment of a run under a protocol.

    `noop`: the starts of Mnih et al. 2015 and the time limit of Hessel et al. 2018. `machado`: Machado et al. 2018,
    section 5, without automatic FIRE. Frame skip, stack and action set stay as in training: Machado et al. require all
    18 actions, which only training can provide.
    """
    from actors.environments import adapter_of

    if protocol == "training":
        return config
    changes = adapter_of(config).protocols.get(protocol)
    if changes is None:
        raise setting_error("protocol", protocol, f"is for Atari; {config.id} is evaluated by training's protocol")
    return replace(config, **changes)


def describe_protocol(config: EnvironmentConfig, protocol: ProtocolName, spec: "EnvironmentSpec") -> dict[str, Any]:
    """All conditions of a score besides weights and seed."""
    from actors.environments import adapter_of

    shared = {"name": protocol, "returns": "unclipped, of whole episodes"}
    return shared | adapter_of(config).score_protocol(spec)


def protocol_line(description: dict[str, Any]) -> str:
    facts = [
        f"{name.replace('_', ' ')} {value}" for name, value in description.items() if name != "name" and value != {}
    ]
    return f"protocol {description['name']}: {'; '.join(facts)}"


def score_summary(played: EvaluationPart, environment_id: str, policy: EvaluationPolicy) -> dict[str, Any]:
    """Statistics of the unclipped returns and the lengths in agent steps of whole episodes.

    The mean is over the episodes. `standard_error` and `interval_95`, the percentile bootstrap of the mean, are over
    the distinct games of greedy play, which adds no information by repeating one; they are None for one game. They do
    not cover the variance between training seeds.
    `human_normalised_percent` is 0 for random play and 100 for a human player, and None without their scores. A figure
    that is not finite is None, as is a return: one NaN among the returns makes the mean None.
    """
    returns, lengths, _, _ = played.episodes
    # One infinity makes a figure None, as a NaN does.
    returns = np.where(np.isfinite(returns), returns, np.nan)
    figures = return_figures(returns, played.games, policy)
    summary = {
        **figures,
        "interval_95": bootstrap_interval(returns, independent(played.games, policy)),
        "minimum_return": float(np.min(returns)),
        "maximum_return": float(np.max(returns)),
        "mean_length_agent_steps": float(np.mean(lengths)),
        "human_normalised_percent": human_normalised(environment_id, figures["mean_return"]),
        "returns": returns.tolist(),
        "lengths_agent_steps": lengths.tolist(),
    }
    return finite(summary)


def bootstrap_interval(returns: npt.NDArray[np.float64], games: npt.NDArray[np.int64]) -> tuple[float, float] | None:
    """95 % percentile bootstrap interval of the mean return (Efron 1979), from a fixed seed.

    Episodes of the same number in `games` int64 [E] are resampled as one, with their weight. None for one game, and
    where a return is not finite.
    """
    _, first, times_played = np.unique(games, return_index=True, return_counts=True)
    if len(first) < 2 or not np.isfinite(returns).all():
        return None
    generator, sums = np.random.default_rng(0), times_played * returns[first]
    means = []
    # In blocks: all at once would take 160 kB a game.
    for _ in range(_RESAMPLES // _BLOCK):
        samples = generator.choice(len(first), (_BLOCK, len(first)))
        means.append(np.sum(sums[samples], axis=1) / np.sum(times_played[samples], axis=1))
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def human_normalised(environment_id: str, score: float) -> float | None:
    """Percent between random play, 0, and a human player, 100, in the game of an id like ALE/Pong-v5; else None.

    From Wang et al. 2016 (arXiv 1511.06581), as in dqn_zoo. Mnih et al. 2015 have others for some games: 6875 for a
    human player of Alien in place of 7127.7. Games of other ids may only be called the same.
    """
    ale = _ALE_ID.fullmatch(environment_id.rpartition(":")[2])
    scores = json.loads(Path(__file__).with_name("human_scores.json").read_text(encoding="utf-8"))
    if ale is None or ale[1] not in scores:
        return None
    human, random = scores[ale[1]]
    return 100 * (score - random) / (human - random)
