"""The queue against its limits and a case that is solved by hand."""

import heapq
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from launch.bench.division import bills, cores_of, divisions
from launch.bench.plan import PlanArguments, Way, cluster_ways, divided
from launch.bench.plan_result import show
from launch.bench.queueing import Costs, Prediction, Tree, group_tree, policy_lag, predict, saturation
from launch.cli import main


def test_one_actor_never_queues() -> None:
    assert predict(Costs(0.2, 0.05), 1).gradients_per_second == pytest.approx(1 / 0.25)


def test_two_actors_by_hand() -> None:
    """Mean value analysis: with one, X = 4 and its queue is 4 · 0.05 = 0.2; the second waits 0.05 · 1.2 = 0.06."""
    found = predict(Costs(0.2, 0.05), 2)
    assert found.gradients_per_second == pytest.approx(2 / 0.26)
    assert found.policy_lag == 1.0
    assert found.learner_utilisation == pytest.approx(2 / 0.26 * 0.05)
    assert found.held_back_by == "actors"


def test_many_actors_reach_the_rate_of_the_slower_of_learner_and_link() -> None:
    assert predict(Costs(0.2, 0.005), 1_000).gradients_per_second == pytest.approx(200.0, rel=1e-3)
    assert predict(Costs(0.2, 0.005), 1_000).held_back_by == "learner"
    network = predict(Costs(0.2, 0.005, network=0.01), 1_000)
    assert network.gradients_per_second == pytest.approx(100.0, rel=1e-3)
    assert network.learner_utilisation == pytest.approx(0.5, rel=1e-2)
    assert network.held_back_by == "network"


def test_what_the_learners_process_takes_by_itself_is_gone_for_gradients() -> None:
    found = predict(Costs(0.2, 0.005, idle=0.2), 1_000)
    assert found.gradients_per_second == pytest.approx(0.8 / 0.005, rel=1e-3)
    assert found.learner_utilisation == pytest.approx(1.0, rel=1e-3)
    assert saturation(Costs(0.3, 0.004, idle=0.2)) == pytest.approx(61.0)
    assert predict(Costs(0.2, 0.05, idle=0.1), 1).learner_utilisation == pytest.approx(0.05 / (0.2 + 0.05 / 0.9) + 0.1)


def test_a_second_call_hides_the_wait_and_adds_lag() -> None:
    one, two = predict(Costs(0.1, 0.02), 3), predict(Costs(0.1, 0.02), 3, calls_in_flight=2)
    assert one.gradients_per_second < two.gradients_per_second <= 3 / 0.1
    assert (one.policy_lag, two.policy_lag) == (2.0, 5.0)
    assert predict(Costs(0.1, 0.02), 5, gradients_per_update=2).policy_lag == 2.0


def test_a_second_call_hides_as_much_of_a_wait_as_its_actor_computes() -> None:
    """0.18 s for an aggregator and the learner, of which an actor's other call hides 0.1: one gradient in 0.18 s."""
    found = predict(Costs(0.1, 0.06, head=0.12), 1, calls_in_flight=2, tree=Tree(1))
    assert found.gradients_per_second == pytest.approx(1 / 0.18)


def test_throughput_never_falls_with_actors_and_never_passes_a_bound() -> None:
    costs = Costs(0.3, 0.004)
    rates = [predict(costs, n).gradients_per_second for n in range(1, 200)]
    assert all(later >= earlier - 1e-9 for earlier, later in itertools.pairwise(rates))
    assert all(rate <= min(n / 0.304, 1 / 0.004) + 1e-9 for n, rate in enumerate(rates, start=1))
    assert saturation(costs) == pytest.approx(76.0)


LEARNER = {
    "objects": {"float32": 4e-3, "bfloat16": 5e-3},
    "sums": {"float32": 5e-4, "bfloat16": 6e-4},
    "heads": {"float32": 1e-3, "bfloat16": 3e-3},
    "idle": 0.01,
    "parameters": 1_000_000,
}


def test_gradients_that_are_added_have_the_costs_of_sums_and_a_part_of_the_link() -> None:
    arguments = PlanArguments(gradients_per_update=4, gigabits=8.0, envs=10, unroll=10)
    ways = cluster_ways(arguments, 1e-3, LEARNER)
    assert ways["float32"].costs == pytest.approx(Costs(0.1, 4e-3, 4e-3, idle=0.01))
    assert ways["float32, added by node"].costs == pytest.approx(Costs(0.1, 5e-4, 1e-3, idle=0.01))
    # A node's sum is of two: the link of the group's node takes half a gradient for one, and here that is more.
    assert ways["float32, in two levels"].costs == pytest.approx(Costs(0.1, 5e-4, 1e-3, 2e-3, 0.01))
    assert ways["bfloat16, in two levels"].costs == pytest.approx(Costs(0.1, 6e-4, 5e-4, 3e-3, 0.01))
    assert ways["bfloat16"].costs == pytest.approx(Costs(0.1, 5e-3, 2e-3, idle=0.01))
    assert set(cluster_ways(PlanArguments(), 1e-3, LEARNER)) == {"float32", "bfloat16"}


def test_slices_hold_back_where_they_take_longer_than_the_process_that_calls_them() -> None:
    learner = LEARNER | {
        "slices": {"learner": {"float32": 2e-3, "bfloat16": 3e-3}, "slice": {"float32": 6e-3, "bfloat16": 1e-3}}
    }
    arguments = PlanArguments(shards=4, gigabits=8.0, envs=10, unroll=10)
    ways = cluster_ways(arguments, 1e-3, learner)
    assert ways["float32, in 4 slices"].costs == pytest.approx(Costs(0.1, 2e-3, 4e-3, idle=0.01, slice=6e-3))
    assert ways["bfloat16, in 4 slices"].costs == pytest.approx(Costs(0.1, 3e-3, 2e-3, idle=0.01, slice=1e-3))
    full = ways["float32, in 4 slices"].predict(arguments, 1_000)
    assert full.gradients_per_second == pytest.approx(1 / 6e-3, rel=1e-3)
    assert full.held_back_by == "slices"
    assert full.learner_utilisation == pytest.approx(2 / 6 + 0.01, rel=1e-2)
    assert ways["bfloat16, in 4 slices"].predict(arguments, 1_000).held_back_by == "learner"


def test_each_gradient_of_a_reused_rollout_costs_the_learner_what_one_does() -> None:
    """Two epochs of five minibatches: a gradient has a tenth of the rollout's agent steps, and of its time."""
    arguments = PlanArguments(gigabits=8.0, envs=10, unroll=10, epochs=2, minibatches=5)
    assert arguments.agent_steps_per_gradient == 10.0
    assert cluster_ways(arguments, 1e-3, LEARNER)["float32"].costs == pytest.approx(Costs(0.01, 4e-3, 4e-3, idle=0.01))


def test_a_tree_has_its_lag_by_hand() -> None:
    """32 actors on 4 nodes in 2 groups, K = 16, sums of 4 on nodes."""
    arguments = PlanArguments(gradients_per_update=16, actors_per_node=8)
    ways = cluster_ways(arguments, 1e-3, LEARNER)
    assert group_tree(32, 8, 4) == Tree(8, 4, 2)
    # 2 updates while a gradient is computed, 3/4 in sums of nodes and old weights there, and of each of two groups
    # 3/4; less its own.
    assert ways["float32, in two levels"].predict(arguments, 32).policy_lag == pytest.approx(2 + 0.75 + 2 * 0.75 - 1)
    assert ways["float32, added by node"].predict(arguments, 32).policy_lag == pytest.approx(2 + 4 * (1 - 1 / 16) - 1)
    assert ways["float32"].predict(arguments, 32).policy_lag == pytest.approx(31 / 16)
    # Fewer than a node has room for are all there: between an actor's reports each other one reports once.
    for actors in (1, 2, 5):
        assert ways["float32, in two levels"].predict(arguments, actors).policy_lag == pytest.approx((actors - 1) / 16)
    # With a second call each group, or node without groups, is asked once more in its cycle.
    for way, heads in (("float32, in two levels", 2), ("float32, added by node", 4)):
        one, two = (ways[way].predict(replace(arguments, calls_in_flight=n), 32).policy_lag for n in (1, 2))
        assert two - one == pytest.approx(heads)
    # One node whose actors make an update together.
    assert predict(Costs(1.0, 1e-3), 8, 8, tree=Tree(8)).policy_lag == pytest.approx(1 - 1 / 8)


@pytest.mark.parametrize(
    ("actors", "tree", "count"),
    [(32, Tree(8, 4, 2), 16), (72, Tree(8, 4, 3), 24), (256, Tree(16, 4, 4), 32), (32, Tree(8), 16)],
)
def test_the_lag_of_a_tree_is_that_of_simulated_reports(actors: int, tree: Tree, count: int) -> None:
    assert policy_lag(actors, count, 1, tree) == pytest.approx(simulated_lag(actors, tree, count), rel=0.01)


def simulated_lag(actors: int, tree: Tree, count: int) -> float:
    """Mean lag where rollouts take about the same time, and messages none: each report of each actor is followed."""
    random = np.random.default_rng(0)
    nodes = actors // tree.actors_per_node
    group_of = [node // tree.nodes_per_group for node in range(nodes)]
    version, in_group, in_node = [0] * nodes, [[] for _ in range(nodes)], [[] for _ in range(nodes)]
    # What a node's actors start with, and what its group has: that of the calls that they were last asked by.
    newest = [0] * nodes
    update, lags = 0, list[int]()
    reports = [(random.uniform(), actor, 0) for actor in range(actors)]
    heapq.heapify(reports)
    for _ in range(actors * 150):
        now, actor, acted_with = heapq.heappop(reports)
        node = actor // tree.actors_per_node
        group = group_of[node]
        in_node[node].append(acted_with)
        if len(in_node[node]) == tree.node_gradients:
            in_group[group] += in_node[node]
            in_node[node] = []
            if len(in_group[group]) == count:
                lags += [update - acted for acted in in_group[group]]
                in_group[group] = []
                update += 1
                newest[group] = update
            version[node] = newest[group]
        heapq.heappush(reports, (now + random.uniform(0.9, 1.1), actor, version[node]))
    return float(np.mean(lags[len(lags) // 3 :]))


def test_groups_hold_back_where_they_are_fewer_than_their_work() -> None:
    costs = Costs(0.1, 1e-5, head=5e-3)
    few = predict(costs, 1_000, 32, tree=Tree(100, 4, 5))
    assert few.gradients_per_second == pytest.approx(2 / 5e-3, rel=1e-2)
    assert few.held_back_by == "groups"
    many = predict(costs._replace(head=5e-4), 1_000, 32, tree=Tree(10, 4, 2))
    assert many.gradients_per_second > 0.9 * 1_000 / 0.1005
    assert many.held_back_by == "actors"


def test_many_actors_are_one_run_or_several() -> None:
    """A learner that is full at 100 gradients/s, and actors of one gradient a second: of 640 agent steps each."""
    costs = Costs(1.0, 0.01)
    found = divisions(lambda actors: predict(costs, actors), 1_024, 15, 640.0)
    assert [(row.runs, row.prediction.actors) for row in found] == [(1, 1_024), (4, 256), (16, 64), (64, 16)]
    rates = [row.agent_steps_per_second for row in found]
    assert rates[:2] == pytest.approx([64_000.0, 256_000.0], rel=1e-3)
    # From where no learner is full all give nearly what the actors can.
    assert rates == sorted(rates)
    assert rates[2] > 0.95 * 1_024 * 640 / 1.01
    assert [row.prediction.policy_lag for row in found] == [1_023, 255, 63, 15]
    assert [(row.runs, row.prediction.actors) for row in divisions(lambda n: predict(costs, n), 7, 15, 1.0)] == [(1, 7)]


@pytest.mark.parametrize(
    ("actors", "each", "cores"),
    [(15, 15, 16), (16, 15, 18), (64, 15, 69), (3, 3, 4), (6, 3, 7), (14, 7, 16)],
)
def test_nodes_keep_a_core_where_placement_leaves_them_one(actors: int, each: int, cores: int) -> None:
    assert cores_of(actors, each) == cores


def test_the_bill_by_hand() -> None:
    """Actors of an agent step a second each, and a learner that is full at ten of them."""
    found = bills(lambda actors: predict(Costs(1.0, 0.1), actors), 16.0, 1.0, 15, core_hour=0.5)
    # One run cannot, however many actors it has; two can, by a queue that is almost full.
    assert [(row.runs, row.prediction.actors) for row in found] == [(2, 11), (4, 5)]
    for row in found:
        one = predict(Costs(1.0, 0.1), row.prediction.actors)
        assert row.prediction == one
        assert row.agent_steps_per_second == pytest.approx(row.runs * one.gradients_per_second)
        assert row.agent_steps_per_second >= 16.0
        # One actor fewer would not do.
        assert row.runs * predict(Costs(1.0, 0.1), one.actors - 1).gradients_per_second < 16.0
        assert row.cores == row.runs * cores_of(one.actors, 15)
        assert row.per_hour == pytest.approx(0.5 * row.cores)
        hours = 1e7 / row.agent_steps_per_second / 3600
        assert row.per_10_million_agent_steps == pytest.approx(hours * row.per_hour)


def test_an_idle_learner_is_no_reason_for_a_second_run() -> None:
    (only,) = bills(lambda actors: predict(Costs(1.0, 1e-4), actors), 30.0, 1.0, 15, core_hour=1.0)
    assert (only.runs, only.prediction.actors, only.cores) == (1, 31, 34)


def test_a_bill_is_of_the_fewest_actors_also_where_more_of_them_are_slower() -> None:
    """With one node more the groups are larger and fewer, and their heads hold back."""

    def run_of(actors: int) -> Prediction:
        return predict(Costs(0.25, 4e-4, 2e-5, head=3e-3), actors, 16, tree=group_tree(actors, 15, 15))

    rates = [run_of(actors).gradients_per_second for actors in range(1, 800)]
    asked = max(rates[:735])
    assert run_of(736).gradients_per_second < 0.98 * asked, "the case that this is about"
    (first, *_) = bills(run_of, asked, 1.0, 15, core_hour=1.0)
    assert first.prediction.actors == 1 + next(i for i, rate in enumerate(rates) if rate >= asked) <= 735


def test_a_plan_is_divided_by_each_way_that_it_shows() -> None:
    arguments = PlanArguments(gradients_per_update=4, envs=10, unroll=10, agent_steps_per_second=5e4, core_hour=0.04)
    ways = cluster_ways(arguments, 1e-3, LEARNER)
    found = divided(arguments, ways)
    shown = {"float32", "float32, added by node", "float32, in two levels"}
    assert found["divisions"].keys() == found["bills"].keys() == shown
    row = found["divisions"]["float32"][1]
    one = Way(ways["float32"].costs).predict(arguments, 256)
    assert (row["runs"], row["actors"], row["policy_lag"]) == (4, 256, one.policy_lag)
    assert row["agent_steps_per_second"] == pytest.approx(4 * one.gradients_per_second * 100)
    assert not divided(PlanArguments(), cluster_ways(PlanArguments(), 1e-3, LEARNER))["bills"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("--core-hour 0.05", "--core-hour 0.05: makes a bill together with --agent-steps-per-second"),
        ("--agent-steps-per-second 1M", "makes a bill together with --core-hour"),
        ("--check 1,0", "--check 1,0: must be numbers like 1,2,4"),
        ("--core-hour 0 --agent-steps-per-second 5", "--core-hour 0.0: must be greater than 0"),
    ],
)
def test_half_a_bill_and_other_mistakes_are_refused(settings: str, problem: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["plan", *settings.split()]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1


def test_the_plan_advises_options_that_it_has(capsys: pytest.CaptureFixture) -> None:
    row: dict[str, object] = {
        "actors": 1_024,
        "agent_steps_per_second": 1_228_186.0,
        "policy_lag": 1.0,
        "learner_utilisation": 0.5,
        "held_back_by": "x",
    }
    ways = ("", ", in 4 slices", ", added by node", ", in two levels")
    learner = {way: {"float32": 1e-3, "bfloat16": 1e-3} for way in ("shared_memory", "objects")}
    result = {
        "step_seconds_alone": 1e-4,
        "step_seconds_on_busy_cores": 1e-4,
        "learner_seconds_per_gradient": learner,
        "checks": [],
        "curves": {f"{precision}{way}": [row] for precision in ("float32", "bfloat16") for way in ways},
        "saturation_actors": {f"{precision}{way}": 76.0 for precision in ("float32", "bfloat16") for way in ways},
        "divisions": {},
        "bills": {},
        "settings": {"cluster_actors": (1_024,)},
    }
    show(Console(width=80), result)
    shown = capsys.readouterr().out
    # Each way has a table of its own, in which nothing is cut short.
    assert shown.count("1,228,186") == 2 * len(ways)
    for words in ("one by one, between", "in 4 slices, between", "added by node, between", "in two levels, between"):
        assert words in shown
    advised = re.findall(r"--([a-z.-]+)", shown)
    assert advised
    assert set(advised) <= {name.replace("_", "-") for name in vars(PlanArguments())}
