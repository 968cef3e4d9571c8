# Everything a newcomer or a machine needs, in one place. `make` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Slow tests are left out by default; `make test PYTEST_ARGS=` runs all.
PYTEST_ARGS ?= -m "not slow"
WORKERS ?= auto
LOCALE ?= zh
NEO4J_PORT ?= 7687
NOTEBOOKS := $(wildcard notebooks/*.ipynb)

.DEFAULT_GOAL := help
.PHONY: help setup demo neo4j test lint types notebooks bench fixtures wheel clean

help:  ## list the targets
	@grep -E '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[offline]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[offline,lab,mcp,bench,dev]'
	@touch $@ $(VENV)/.demo

setup: $(VENV)/.dev  ## create .venv with everything for development

demo: $(VENV)/.demo  ## build a library from the sample texts and ask it (LOCALE=zh or en)
	$(BIN)/workbench demo --locale $(LOCALE)

neo4j: $(VENV)/.demo  ## start a Neo4j server to play with, until Ctrl-C (NEO4J_PORT=7687)
	$(BIN)/python -m tools.neo4j --port $(NEO4J_PORT)

test: lint types $(VENV)/.dev  ## lint, type-check, validate the notebooks, run the tests
	$(BIN)/python -m pytest --nbval --nbval-sanitize-with notebooks/sanitize.cfg -p no:cacheprovider -q $(NOTEBOOKS)
	$(BIN)/python -m tools.neo4j --fetch
	$(BIN)/python -m pytest -p no:cacheprovider -n $(WORKERS) $(PYTEST_ARGS) tests

lint: $(VENV)/.dev  ## style, docstrings and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pydoclint --quiet workbench
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev  ## mypy --strict
	$(BIN)/mypy

notebooks: $(VENV)/.dev  ## execute the notebooks again and show what changed
	$(BIN)/python tools/run_notebooks.py $(NOTEBOOKS)
	git --no-pager diff --stat -- notebooks

bench: $(VENV)/.dev  ## the benchmarks that need no outside data; benchmarks/README.md has the others
	$(BIN)/python -m benchmarks.latency
	$(BIN)/python -m benchmarks.peers

fixtures: $(VENV)/.dev  ## after editing data/fixtures: quote ranges and shipped embeddings
	$(BIN)/python tools/build_fixtures.py

wheel: $(VENV)/.dev  ## build the wheel and the source archive into dist/
	$(BIN)/python -m build --quiet

clean:  ## remove the environment and what was built; libraries (demo/) stay
	rm -rf $(VENV) build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
