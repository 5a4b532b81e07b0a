# Needs python3 (3.11 or newer) and make; everything else is fetched into this folder. No root.
#
#   PYTHON=python3.13         the Python to use (default: python3)
#   DOMAIN=history            the part that `make test` and the other tests run; a name that is none lists them
#   PYTEST_ARGS='-k wheel'    passed to pytest by `make test` and the other tests
#   BENCH_ARGS='--quick'      passed to the benchmark by `make bench`

SHELL := /bin/sh
BIN := .venv/bin
SOURCES := $(wildcard src tests bench tools)

# What is installed in .venv, by who needs it: Lapse with its backends, the packages of the quick tests, those of the
# documentation, everything. Each adds to what is there, except the last, which makes it exactly that.
FOR_RUN := .venv/.for-run
FOR_TEST := .venv/.for-test
FOR_DOCS := .venv/.for-docs
READY := .venv/.ready
EXAMPLE := .venv/.example-domain

# Two processes, because two cores are the least that a machine has. Quick tests go wherever there is time.
#
# Of the others a file is never split, as its tests may share a server of their own; the servers of the session are shared
# by all workers. Files keep their order: those that take minutes come first, and hundreds that take no time even out the
# end. In the order of pytest-xdist, by the number of tests, long files of a single test came last, and one process waited.
# WORKERS= runs everything in one process.
WORKERS ?= -n 2
QUICK_WORKERS := $(WORKERS) $(if $(WORKERS),--dist worksteal)
REST_WORKERS := $(WORKERS) $(if $(WORKERS),--dist loadfile --no-loadscope-reorder)
DOMAIN ?=
CHOICE = $(if $(DOMAIN),--domain '$(DOMAIN)')
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
.PHONY: help setup run test test-rest test-all check bench docs docs-serve lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## make .venv with lapse and all its tools in it

run: $(FOR_RUN) $(EXAMPLE) ## start lapse with embedded backends and a demo that you see lapse
	$(BIN)/lapse up --demo

test: export LAPSE_EXAMPLES ?= few
test: $(FOR_TEST) ## run the tests that need nothing but Python (DOMAIN=... PYTEST_ARGS='...')
	$(BIN)/python -m pytest --quick $(QUICK_WORKERS) $(CHOICE) $(PYTEST_ARGS)

test-rest: $(READY) ## run the tests that `make test` leaves out: servers, processes, browsers
	$(BIN)/python -m pytest --rest $(REST_WORKERS) $(CHOICE) $(PYTEST_ARGS)

test-all: $(READY) ## run all tests
	$(BIN)/python -m pytest $(REST_WORKERS) $(CHOICE) $(PYTEST_ARGS)

check: $(READY) ## lint, format, types, import contracts, lock file
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports --no-logo
	env -u UV_DEFAULT_INDEX -u UV_INDEX -u UV_INDEX_URL -u UV_EXTRA_INDEX_URL -u UV_FIND_LINKS -u UV_EXCLUDE_NEWER \
		tools/uv lock --check --offline || { echo 'uv.lock does not fit pyproject.toml: run make lock'; exit 1; }

bench: $(READY) ## run the benchmark (BENCH_ARGS='...')
	$(BIN)/python -m bench $(BENCH_ARGS)

docs: $(FOR_DOCS) ## build the documentation as a site: open site/index.html
	$(BIN)/python tools/site/build.py site

docs-serve: docs ## the same, at http://127.0.0.1:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory site 8000

lock: ## bring uv.lock in line with pyproject.toml (LOCK_ARGS=--upgrade: all of it)
	tools/uv lock $(LOCK_ARGS)

clean: ## remove everything that was fetched or built here
	rm -rf .venv .tools build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# --frozen: exactly what the lock says, also where the caller's uv settings (an index, a date) would resolve otherwise.
# That the lock fits pyproject.toml is a question for `make check`.
SYNC = python=$$(tools/python) && tools/uv sync --frozen --python "$$python"
LOCKED := pyproject.toml uv.lock tools/uv tools/python

$(FOR_RUN): $(LOCKED)
	$(SYNC) --inexact --all-extras --no-default-groups
	@touch $@

# The example of a domain, for the files of the demo. What makes the environment exact removes it.
INSTALL_EXAMPLE := tools/uv pip install --quiet --no-deps --reinstall --python $(BIN)/python ./examples/domain

$(EXAMPLE): $(FOR_RUN) $(wildcard examples/domain/*)
	$(INSTALL_EXAMPLE)
	@touch $@

$(FOR_TEST): $(LOCKED)
	$(SYNC) --inexact --extra kubernetes --no-default-groups --group test
	@touch $@

$(FOR_DOCS): $(LOCKED)
	$(SYNC) --inexact --only-group docs
	@touch $@

$(READY): $(LOCKED)
	$(SYNC) --all-extras
	@if [ -e $(EXAMPLE) ]; then $(INSTALL_EXAMPLE); fi # a `lapse up --demo` may run with it
	@touch $(FOR_RUN) $(FOR_TEST) $(FOR_DOCS) $@
