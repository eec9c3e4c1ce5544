"""What a sweep keeps of its trials, and goes on from. No Ray, and no Optuna."""

from pathlib import Path

import pytest

from launch.presets import PRESETS
from launch.run.exploit import offer_weights, offered_number
from launch.run.folder import RunFolder
from launch.sweep.book import Exploit, Trial, TrialBook, trial_name
from launch.sweep.bookkeeper import Bookkeeper
from launch.sweep.file import Pbt, Plan, Space, Sweep
from launch.sweep.search import Listed
from shared.errors import ConfigurationError


def test_a_book_is_read_as_it_was_written_but_for_a_line_that_was_cut_off(tmp_path: Path) -> None:
    book = TrialBook(tmp_path)
    for number in range(3):
        book.start(number, {"optimizer.learning_rate": 0.1 / 3, "seed": number})
    done = Trial(0, book.trials[0].settings, "done", 40_000, 123.4)
    book.end(done)
    book.end(Trial(2, book.trials[2].settings, "failed", reason="it was"))
    book.end(done._replace(ended="stopped", score=0.0))
    assert book.trials[0] == done, "a trial ends once"
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write('{"trial": 1, "ended": "do')
    again = TrialBook(tmp_path)
    assert again.trials == book.trials
    again.end(again.trials[1]._replace(ended="done"))
    assert TrialBook(tmp_path).trials == again.trials


def test_a_line_that_is_no_event_is_named(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_text('{"trial": 0, "ended": "done"}\n')
    with pytest.raises(ConfigurationError, match=r"trials.jsonl has a line that is no event"):
        TrialBook(tmp_path)


def test_what_a_trial_took_from_another_one_is_read_as_it_was_written(tmp_path: Path) -> None:
    book = TrialBook(tmp_path)
    for number in range(2):
        book.start(number, {"optimizer.learning_rate": 0.1 ** (number + 1)})
    exploits = [Exploit(1, 0, {"optimizer.learning_rate": 0.1 / n}, 1000 * n, 10.0, 1001 * n, 20.0) for n in (1, 2)]
    for exploit in exploits:
        book.exploit(exploit)
    book.end(book.trials[1]._replace(ended="done", frames=3000, score=30.0))
    again = TrialBook(tmp_path)
    assert again.trials == book.trials
    assert again.trials[1] == Trial(1, {"optimizer.learning_rate": 0.05}, "done", 3000, 30.0, exploits=2)
    assert again.exploits == exploits
    assert again.history(1) == [
        (0, {"optimizer.learning_rate": 0.1**2}),
        (1000, {"optimizer.learning_rate": 0.1}),
        (2000, {"optimizer.learning_rate": 0.05}),
    ]


def keeper_of(found: Sweep, folder: Path, said: list[str]) -> Bookkeeper:
    return Bookkeeper(found, TrialBook(folder), Listed(found), lambda: False, said.append)


def test_weights_that_come_when_a_trial_has_ended_are_not_in_its_record(tmp_path: Path) -> None:
    """Its settings are those that it ended with. What it took before stays, and so does what others took."""
    space: Space = {"method.discount": [0.9, 0.95, 0.99]}
    plan = Plan(space={}, search="grid", pbt=Pbt(1000))
    found, said = Sweep("cartpole", PRESETS["cartpole"].config, plan, space, 3), list[str]()
    keeper = keeper_of(found, tmp_path, said)
    keeper.members(tmp_path)
    for trial, frames, discount in ((0, 1000, 0.95), (1, 1000, 0.97), (0, 2000, 0.99)):
        keeper.exploited(Exploit(trial, 2, {"method.discount": discount}, frames, 10.0, 1000, 20.0))
    keeper.completed(0, {"frames": 3000, "score": 9.0, "ended": True, "exploits": 1}, error=False)
    keeper.completed(1, {"frames": 3000, "score": 9.0, "ended": True, "exploits": 1}, error=False)
    for book in (keeper.book, TrialBook(tmp_path)):
        assert [(exploit.trial, exploit.frames) for exploit in book.exploits] == [(0, 1000), (1, 1000)]
        assert book.trials[0] == Trial(0, {"method.discount": 0.95}, "done", 3000, 9.0, exploits=1)
        assert book.trials[1] == Trial(1, {"method.discount": 0.97}, "done", 3000, 9.0, exploits=1)
    assert "trial-00: had reached its frames before that; its settings are method.discount 0.95" in said


def test_a_population_begins_together_and_weights_that_were_not_written_down_are_taken_back(tmp_path: Path) -> None:
    """The sweep was killed in between: a trial goes on as its line in the book says."""
    space: Space = {"method.discount": [0.9, 0.95, 0.99, 2.0]}
    plan = Plan(space={}, search="grid", pbt=Pbt(1000))
    found, said = Sweep("cartpole", PRESETS["cartpole"].config, plan, space, 4), list[str]()
    keeper = keeper_of(found, tmp_path, said)
    assert [trial.number for trial in keeper.members(tmp_path)] == [0, 1, 2], "the last cannot be trained"
    assert keeper.book.trials[3].ended == "refused"
    for number in range(2):
        folder = RunFolder(tmp_path / trial_name(number))
        folder.checkpoints.mkdir(parents=True)
        (folder.checkpoints / "update-3.index").touch()
        offer_weights(folder, folder.checkpoints, 1, "trial-02")
    keeper.exploited(Exploit(0, 2, {"method.discount": 0.95}, 1000, 10.0, 1000, 20.0))
    keeper.completed(2, {"frames": 2000, "score": 20.0, "ended": True}, error=False)
    again = keeper_of(found, tmp_path, said)
    assert [trial.number for trial in again.members(tmp_path)] == [0, 1]
    assert [offered_number(RunFolder(tmp_path / trial_name(number))) for number in range(2)] == [1, 0]
    assert again.book.trials[0].settings == {"method.discount": 0.95}
    assert "trial-00: goes on with the weights of trial-02 (return 20.00, its own 10.00), method.discount 0.95" in said
