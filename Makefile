# Needs python3 (3.11 or newer) and make; everything else is fetched into this folder. No root.
#
#   PYTHON=python3.13         the Python to use (default: python3)
#   PYTEST_ARGS='-k wheel'    passed to pytest by `make test`
#   BENCH_ARGS='--quick'      passed to the benchmark by `make bench`

SHELL := /bin/sh
BIN := .venv/bin
READY := .venv/.ready
SOURCES := $(wildcard src tests bench)

# Two processes, because two cores are the least that a machine has; a file is never split, as its tests may share a
# server of their own. The servers of the session are shared by all workers. WORKERS= runs everything in one process.
# Files keep their order: those that take minutes come first, and hundreds that take no time even out the end. In the
# order of pytest-xdist, by the number of tests, long files of a single test came last, and one process waited.
WORKERS ?= -n 2 --dist loadfile --no-loadscope-reorder
PYTEST_ARGS ?=
BENCH_ARGS ?=
LOCK_ARGS ?=

# The environment of this checkout, whatever is active in the caller's shell; and only Pythons that are here already.
export UV_PROJECT_ENVIRONMENT := .venv
export UV_PYTHON_DOWNLOADS := never
unexport VIRTUAL_ENV
unexport PYTHONHOME
unexport PYTHONPATH
ifdef PYTHON
export PYTHON
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test check bench lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv with lapse and all its tools in it

run: $(READY) ## start lapse with embedded backends and an example workspace
	$(BIN)/lapse up --example

test: $(READY) ## run the tests (PYTEST_ARGS='...')
	$(BIN)/python -m pytest $(WORKERS) $(PYTEST_ARGS)

check: $(READY) ## lint, format, types, import contracts, lock file
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports --no-logo
	env -u UV_DEFAULT_INDEX -u UV_INDEX -u UV_INDEX_URL -u UV_EXTRA_INDEX_URL -u UV_FIND_LINKS -u UV_EXCLUDE_NEWER \
		tools/uv lock --check --offline || { echo 'uv.lock does not fit pyproject.toml: run make lock'; exit 1; }

bench: $(READY) ## run the benchmark (BENCH_ARGS='...')
	$(BIN)/python -m bench $(BENCH_ARGS)

lock: ## bring uv.lock in line with pyproject.toml (LOCK_ARGS=--upgrade: all of it)
	tools/uv lock $(LOCK_ARGS)

clean: ## remove everything that was fetched or built here
	rm -rf .venv .tools build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# --frozen: exactly what the lock says, also where the caller's uv settings (an index, a date) would resolve otherwise.
# That the lock fits pyproject.toml is a question for `make check`.
$(READY): pyproject.toml uv.lock tools/uv tools/python
	python=$$(tools/python) && tools/uv sync --frozen --all-extras --python "$$python"
	@touch $@
