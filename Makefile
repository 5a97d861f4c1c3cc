# Everything sets itself up: a virtual environment in .venv with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?= 0
STAMP := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.PHONY: help quickstart test lint docs slow bench mutants wheel clean

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

quickstart: $(STAMP)  ## Train a tiny model by SFT, then RL; a report at the end (SEED=1 for another seed)
	$(BIN)/reinlm quickstart --seed $(SEED) --overwrite

test: $(DEV)  ## Run the tests with coverage (no GPU, no network)
	.ci/test

lint: $(DEV)  ## Style, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/lint-imports

docs: $(DEV)  ## Build the docs site into site/ (no network)
	PYTHONPATH=docs $(BIN)/zensical build --strict

slow: $(DEV)  ## The tests that take minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist load --timeout 3600 --durations 20

bench: $(STAMP)  ## Ratios of speeds against those in benchmarks/ratios.json (minutes)
	$(BIN)/python benchmarks/guard.py

mutants: $(DEV)  ## Mutation tests of the mathematics (minutes)
	OMP_NUM_THREADS=1 $(BIN)/mutmut run --max-children 1

wheel: $(DEV)  ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --sdist

clean:  ## Remove the environment and what builds left
	rm -rf $(VENV) dist build site .coverage* htmlcov mutants

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "reinlm needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $(STAMP)

$(DEV): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(DEV)
