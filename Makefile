PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests that run at the same time, where they leave each other alone; 0 runs them in one process, as a debugger needs.
JOBS ?= 2
SIDE_BY_SIDE = --numprocesses $(JOBS) --dist worksteal
INSTALLED := $(VENV)/.installed
CLUSTER_EXTRA := $(VENV)/.cluster-extra
SOURCES := actors learner shared launch tests docs tributary_rl.py

.DEFAULT_GOAL := help
.PHONY: help watch train agent test cluster-extra smoke-test nightly slow-test task-test zoo-test chaos cluster-test tracker-test storage-test wheel-test sweep-test parity soak browser-test gpu-test lint format figures scores settings clean

help:
	@echo "make watch    install, and watch an agent play Pong in the terminal (ARGS=zoo:cartpole for another)"
	@echo "make train    install and train Pong, with live progress (ARGS=\"cartpole --seed 2\" for more)"
	@echo "make test     install and run the tests"
	@echo "make smoke-test   a cluster by ray up on hosts of namespaces, and a lost node, as root"
	@echo "make nightly  slow-test, chaos, cluster-, tracker-, storage-, sweep- and zoo-test, as root"
	@echo "make slow-test   further cases of make test on real processes"
	@echo "make chaos    kill and stop every process of a run, as root, and see that nothing is lost"
	@echo "make cluster-test   several Ray nodes, and ray up on hosts of their own, as root"
	@echo "make tracker-test   the real W&B, installed apart"
	@echo "make storage-test   runs kept in S3-compatible storage"
	@echo "make wheel-test   build the wheel, and use it in a new environment"
	@echo "make sweep-test   a search by Ray Tune, as on its page"
	@echo "make parity   experiments about TensorFlow's numbers on this machine: tables and verdicts, in ten minutes"
	@echo "make soak     kill an actor every 20 seconds for half an hour, and see that nothing grows"
	@echo "make task-test   train presets to their returns: hours"
	@echo "make zoo-test    repeat the scores of the agents that ship: a few minutes each"
	@echo "make browser-test   look at the report in a headless Chromium"
	@echo "make gpu-test   on a machine with a GPU: gradients, accounts, rates and a training, in ten minutes"
	@echo "make lint     check style and types"
	@echo "make format   format the code"
	@echo "make agent    pack a run as an agent that ships: RUN=runs/… NAME=pong, for zoo:pong"
	@echo "make figures  write the tables and pictures of results in README and docs from their rows"
	@echo "make scores   train and evaluate the games of the table of scores at this commit, one on each core: days"
	@echo "make settings write docs/settings.md from the docstrings of the settings"
	@echo "make clean    remove the environment and the caches"

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "Python 3.11 to 3.13 is needed: make PYTHON=python3.12 ..."; exit 1; }
	@echo "installing into $(VENV): 3 GB, some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(CLUSTER_EXTRA): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,cluster]'
	@touch $@

watch: $(INSTALLED)
	$(BIN)/tributary watch $(ARGS)

train: $(INSTALLED)
	$(BIN)/tributary train $(ARGS)

agent: $(INSTALLED)
	$(BIN)/python docs/zoo.py $(RUN) $(NAME) $(ARGS)
	$(BIN)/python docs/figures.py

test: $(INSTALLED)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

cluster-extra: $(CLUSTER_EXTRA)

smoke-test: $(CLUSTER_EXTRA)
	$(BIN)/python -m pytest -m smoke tests/cluster $(ARGS)

# Each part runs although one before it failed; the failed ones are named at the end.
NIGHTLY := slow-test chaos cluster-test tracker-test storage-test sweep-test zoo-test
nightly: $(INSTALLED)
	@failed=; for part in $(NIGHTLY); do \
		echo "== make $$part"; $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

slow-test: $(INSTALLED)
	$(BIN)/python -m pytest -m slow $(SIDE_BY_SIDE) $(ARGS)

task-test: $(INSTALLED)
	$(BIN)/python -m pytest -m tasks tests/tasks $(ARGS)

zoo-test: $(INSTALLED)
	$(BIN)/python -m pytest -m zoo tests/launch/zoo $(SIDE_BY_SIDE) $(ARGS)

browser-test: $(INSTALLED)
	$(BIN)/python -m pytest -m browser tests/launch/results $(ARGS)

gpu-test: $(INSTALLED)
	$(BIN)/python -m pytest -m gpu -s tests/gpu $(ARGS)

cluster-test: $(CLUSTER_EXTRA)
	$(BIN)/python -m pytest -m cluster tests/cluster $(SIDE_BY_SIDE) $(ARGS)

sweep-test: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,tune]'
	$(BIN)/python -m pytest -m sweep tests/sweeps $(ARGS)

storage-test: $(INSTALLED)
	$(BIN)/python -m pytest -m storage tests/storage $(ARGS)

wheel-test: $(INSTALLED)
	$(BIN)/python -m pytest -m wheel tests/packaging $(ARGS)

tracker-test: $(INSTALLED)
	$(BIN)/python -m pytest -m trackers tests/trackers $(ARGS)

parity: $(INSTALLED)
	$(BIN)/python docs/studies/parity.py $(ARGS)

soak: $(INSTALLED)
	$(BIN)/python tests/chaos/soak.py 30 20

chaos: $(INSTALLED)
	$(BIN)/python -m pytest -m chaos tests/chaos $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

figures: $(INSTALLED)
	$(BIN)/python docs/figures.py

scores: $(INSTALLED)
	$(BIN)/python docs/studies/atari/campaign.py $(ARGS)

settings: $(INSTALLED)
	$(BIN)/python -m launch.settings.help > docs/settings.md

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
