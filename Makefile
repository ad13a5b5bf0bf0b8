# Everything a person or a machine does here, one target each. `make` alone lists them.

PYTHON ?= python3
SEEDS ?= 2000
BIN := .venv/bin
CODE := $(wildcard src tests bench)

.DEFAULT_GOAL := help
.PHONY: help setup run test check sim bench lock clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-14s%s\n", $$1, $$2 }'

setup: .venv/.ready ## make .venv with the locked dependencies and this project

run: setup ## start Callsheet and make a picture, a tone and two videos in front of you; ARGS='--port 9000'
	$(BIN)/callsheet up --demo $(ARGS)

test: setup ## run all tests, the fast layers first, in two processes with a PostgreSQL each
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

check: setup ## lint, format, types, layers, tidiness
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py

sim: setup ## simulate SEEDS=2000 seeded lives
	$(BIN)/python -m tests.sim --seeds $(SEEDS)

bench: setup ## measure
	$(BIN)/python -m bench

lock: setup ## resolve pyproject.toml anew into requirements-dev.lock
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --group dev \
		--custom-compile-command 'make lock' --output-file requirements-dev.lock pyproject.toml

clean: ## remove what the targets above made
	rm -rf .venv .venv-bootstrap build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp makes this quick when nothing changed. Without ensurepip (Debian without python3-venv),
# virtualenv brings its own pip; it is installed beside the project, never into the system.
.venv/.ready: pyproject.toml requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo 'Callsheet needs Python 3.11 or newer: make setup PYTHON=python3.12' >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
		$(PYTHON) -m venv .venv; \
	else \
		$(PYTHON) -m pip install --quiet --target .venv-bootstrap virtualenv && \
		PYTHONPATH=.venv-bootstrap $(PYTHON) -m virtualenv --quiet .venv; \
	fi || { echo 'No venv and no pip here: install python3-venv, or set PYTHON to a full Python' >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
