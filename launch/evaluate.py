"""`tributary evaluate RUN`: whole episodes with a run's weights, their returns unclipped."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import Console

from actors.environments import environment_spec
from launch.process import prepare_tensorflow
from launch.run_folder import RunFolder, check_json_file, write_json
from shared.config import EvaluationConfig, RunConfig
from shared.errors import ConfigurationError, setting_error
from shared.types import WeightSnapshot


@dataclass(frozen=True)
class EvaluateArguments:
    """Play whole episodes with the weights of a run, in the environment and by the protocol it was trained with."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    episodes: int = 100
    """Episodes to play."""
    policy: Literal["as-trained", "sampled", "greedy"] = "as-trained"
    """Actions sampled from the policy, or its most probable ones. as-trained: as the run's evaluations did."""
    weights: Literal["auto", "best", "latest"] = "auto"
    """best: of the best evaluation during training. latest: of the last checkpoint. auto: best if there is one."""
    seed: int | None = None
    """Seed of the episodes. Default: the run's."""
    json: Path | None = None
    """File to write the result to."""


def evaluate(arguments: EvaluateArguments) -> int:
    """Run `tributary evaluate`. Returns the exit code.

    Raises:
        ConfigurationError: the folder holds no run, or no weights that fit it.
    """
    check_json_file(arguments.json)
    if arguments.episodes < 1:
        raise setting_error("episodes", arguments.episodes, "must be at least 1")
    folder = RunFolder(arguments.run)
    config = folder.read_config("run")
    if arguments.seed is not None:
        config = replace(config, seed=arguments.seed)
    policy = config.evaluation.policy if arguments.policy == "as-trained" else arguments.policy
    evaluation = EvaluationConfig(
        episodes=arguments.episodes,
        environments=config.evaluation.environments,
        policy=policy,
    )
    spec = folder.with_observation_mean(config, environment_spec(config.environment))
    prepare_tensorflow(1, gpu=False)
    from actors.evaluator import Evaluator

    evaluator = Evaluator(config, spec, evaluation)
    snapshot, source = _load(folder, arguments.weights, evaluator)
    console = Console()
    console.print(f"playing {arguments.episodes} episodes of {config.environment.id} with {source}", highlight=False)
    episodes = evaluator.run(snapshot).episodes
    evaluator.close()
    result = _result(config, evaluation, source, snapshot.version, episodes.returns, episodes.lengths)
    error = "" if result["standard_error"] is None else f" ± {result['standard_error']:.2f} (standard error)"
    console.print(
        f"mean return {result['mean_return']:.2f}{error}, median {result['median_return']:.2f}, from "
        f"{result['minimum_return']:.0f} to {result['maximum_return']:.0f}; mean length "
        f"{result['mean_length_agent_steps']:.0f} agent steps; {policy} actions, {_protocol(config, spec.is_atari)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if arguments.json is not None:
        write_json(arguments.json, result)
    return 0


def _load(folder: RunFolder, weights: str, evaluator: Any) -> tuple[WeightSnapshot, str]:
    from learner.checkpoint import read_checkpoint

    if weights == "best" and not folder.best_weights.is_file():
        raise setting_error("weights", "best", f"{folder.path} has no evaluated weights; use --weights latest")
    if weights == "latest" or not folder.best_weights.is_file():
        version, parameters = read_checkpoint(folder.checkpoints, evaluator.layout)
        return WeightSnapshot(version, parameters), f"the last checkpoint (update {version})"
    try:
        with np.load(folder.best_weights, allow_pickle=False) as best:
            version, parameters = int(best["version"]), best["parameters"].astype(np.float32)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{folder.best_weights} cannot be read: {error}; use --weights latest") from error
    if parameters.shape != (evaluator.layout.size,):
        raise ConfigurationError(f"{folder.best_weights} is of another network than the run's config.json")
    return WeightSnapshot(version, parameters), f"the best evaluated weights (update {version})"


def _result(
    config: RunConfig, evaluation: EvaluationConfig, source: str, version: int, returns: np.ndarray, lengths: np.ndarray
) -> dict[str, Any]:
    return {
        "environment": config.environment.id,
        "weights": source,
        "version": version,
        "policy": evaluation.policy,
        "episodes": len(returns),
        "mean_return": float(np.mean(returns)),
        "median_return": float(np.median(returns)),
        "standard_error": float(np.std(returns, ddof=1) / np.sqrt(len(returns))) if len(returns) > 1 else None,
        "minimum_return": float(np.min(returns)),
        "maximum_return": float(np.max(returns)),
        "mean_length_agent_steps": float(np.mean(lengths)),
        "returns": returns.tolist(),
    }


def _protocol(config: RunConfig, is_atari: bool) -> str:
    environment = config.environment
    if not is_atari:
        return "returns unclipped"
    return (
        f"returns unclipped, frame skip {environment.frame_skip}, sticky actions "
        f"{environment.sticky_action_probability:g}, fewer than {environment.max_noops} no-ops"
    )
