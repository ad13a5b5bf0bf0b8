# Every routine task of this project is a target here. `make` alone lists them.

PYTHON ?= python3
SEEDS ?= 2000
FAULTS ?= 40
BIN := .venv/bin
CODE := src tests bench tools
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup run test test-one check format docs sim chaos bench dist lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-16s%s\n", $$1, $$2 }'

setup: .venv/.dev-ready ## install everything that development needs into .venv

run: .venv/.run-ready ## install what running needs, start the server and run the demo; ARGS='--port 9000'
	$(BIN)/callsheet up --demo $(ARGS)

test: setup ## run all tests, fast layers first, in two processes with one PostgreSQL each
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-one: setup ## run some tests in one process: make test-one T=tests/core/decisions/test_money.py::test_name
	$(BIN)/python -m pytest -n0 $(or $(T),$(error Name the test: make test-one T=tests/core/decisions/test_money.py))

check: setup ## lint, check format, types, import rules and tidiness
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n0 tests/test_tidy.py

format: setup ## apply safe lint fixes and format the code
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

docs: setup ## regenerate every generated page in docs/
	$(BIN)/python -m tools.docs

sim: setup ## run SEEDS=2000 seeded simulations
	$(BIN)/python -m tests.sim --seeds $(SEEDS)

chaos: setup ## kill servers, workers and PostgreSQL FAULTS=40 times under load, and check every acknowledged call
	$(BIN)/python -m tests.chaos --faults $(FAULTS)

bench: setup ## run the benchmarks and write the figures to docs/design/performance.md
	$(BIN)/python -m bench

dist: setup ## build sdist and wheel, install the wheel in an empty environment and run a smoke test
	rm -rf dist
	$(BIN)/python -m hatchling build
	$(BIN)/python -m tools.smoke_test dist/*.whl

lock: setup ## resolve the dependencies in pyproject.toml again and write requirements-dev.lock
	$(PIP) install uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --group dev \
		--custom-compile-command 'make lock' --output-file requirements-dev.lock pyproject.toml

clean: ## delete everything that these targets created
	rm -rf .venv .venv-bootstrap build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp file is newer than the files it was installed from, so an unchanged project installs nothing.
# Running needs the package with its demo extra only; the lock file constrains the versions.
.venv/.run-ready: pyproject.toml requirements-dev.lock | .venv/bin/python
	$(PIP) install --constraint requirements-dev.lock --editable '.[demo]'
	@touch $@

.venv/.dev-ready: .venv/.run-ready requirements-dev.lock
	$(PIP) install --requirement requirements-dev.lock
	@touch $@

# Debian's Python without python3-venv has no ensurepip. virtualenv contains its own pip; it is installed
# next to the project, never into the system.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'Callsheet needs Python 3.11 or newer. Name one: make setup PYTHON=python3.12' >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
		$(PYTHON) -m venv .venv; \
	else \
		$(PYTHON) -m pip install --quiet --target .venv-bootstrap virtualenv && \
		PYTHONPATH=.venv-bootstrap $(PYTHON) -m virtualenv --quiet .venv; \
	fi || { echo 'This Python has neither venv nor pip. Install python3-venv, or set PYTHON to another Python.' >&2; exit 1; }
