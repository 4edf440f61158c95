# Every target works from a fresh clone: it first makes .venv from the locked, hashed dependencies.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
STAMP := $(VENV)/.installed
DATA ?= ../shared/data
ARGS ?=
JOBS ?= 3

# Python keeps what it has compiled, whatever the shell says: each command that a test starts would compile it all again.
export PYTHONDONTWRITEBYTECODE :=

# The throwaway PostgreSQL calls useradd and runuser, which a bare PATH may leave out.
export PATH := $(PATH):/usr/sbin:/sbin

# python3.11 where there is one, else a python3 that is 3.11.
PYTHON ?= $(shell for candidate in python3.11 python3; do \
	"$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null \
	&& { command -v "$$candidate"; break; }; done)

.PHONY: help setup demo slurm-demo bringup-demo packages real quick swift test nightly coverage chaos docs bench bench-fleet \
	lint style types imports up lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

# uv takes 5 s of CPU for what pip does in 33. It reads none of pip's settings but the index that it is given here:
# where it fails, pip installs all.
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps
UV = $(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python --system-certs --no-deps

setup: $(STAMP) ## make .venv with the locked dependencies and the command .venv/bin/backstop

$(STAMP): requirements-dev.lock pyproject.toml web/console/vendor.json
	@test -n "$(PYTHON)" || { echo "Python 3.11 with its venv module is needed (or: make PYTHON=/path/to/python3.11)" >&2; exit 1; }
	@echo "setup: $(PYTHON) -> $(VENV)"
	@test -x $(VENV)/bin/pip || "$(PYTHON)" -m venv $(VENV)
	@$(PIP) --require-hashes -r <(awk '/^[^ ]/ { wanted = /^uv==/ } wanted' requirements-dev.lock)
	@index=$$($(VENV)/bin/pip config list | sed -nE "s/^(global|install|:env:)\.index-url='(.*)'$$/\2/p" | tail -n 1); \
	UV_HTTP_RETRIES=0 UV_DEFAULT_INDEX="$$index" $(UV) --require-hashes -r requirements-dev.lock 2>/dev/null \
	|| $(PIP) --require-hashes -r requirements-dev.lock
	@$(PIP) --no-build-isolation -e .
	@$(VENV)/bin/python hatch_vendor.py
	@touch $@
	@echo "setup: done; the command is $(VENV)/bin/backstop"

demo: setup ## a whole rollout in fast motion, on made-up clusters
	@$(VENV)/bin/backstop demo $(ARGS)

real: setup ## the same arithmetic on public data: make real DATA=directory
	@$(VENV)/bin/python examples/real.py --data "$(DATA)" $(ARGS)

# Long files come first and each is run by one process (tests/conftest.py). Each process has a
# Temporal server and a PostgreSQL, and waits now and then: two take 526 s on two cores, three 445 s.
PYTEST = $(VENV)/bin/python -m pytest -n $(JOBS) --dist loadscope --no-loadscope-reorder

quick: setup ## in a minute: lint, types, import contracts, unit and replay tests but the slow ones
	@$(MAKE) --jobs=2 --keep-going --output-sync=target swift lint

swift: setup
	$(PYTEST) -n 2 --quiet -m "not slow and not nightly" tests/unit tests/replay $(ARGS)

test: setup packages ## the gate's tests: all but the nightly ones (ARGS="-k name" for some, JOBS=0 for one process)
	$(PYTEST) -m "not nightly" $(ARGS)

# A test that fails is tried twice more; one that passes then is flaky, and fails the night as well.
nightly: setup packages ## by hand: real daemons, chaos, what takes real seconds, all examples of fuzzed tests (an hour)
	TRIES=all $(PYTEST) -p tests.nightly_report --reruns 2 -m "nightly or fuzzed" $(ARGS)

coverage: setup packages ## lines and branches of models and workflows that the gate's tests reach
	$(PYTEST) -m "not nightly" --cov --cov-report= $(ARGS)
	@for room in models workflows; do \
		echo "$$room:"; $(VENV)/bin/coverage report --precision=2 --include="$$room/*" | grep -E '^(Name|TOTAL)'; done

packages: ## Debian's packages of the services that tests start: Slurm, Prometheus (as root; else it says which)
	@tests/packages.sh

slurm-demo: setup packages ## a whole rollout on a real Slurm that it starts on this machine
	@$(VENV)/bin/python -m tests.slurm.story

bringup-demo: setup packages ## a cluster from its entry to retired, on a real Slurm that the recipe starts on this machine
	@$(VENV)/bin/python -m tests.slurm.bringup_story

chaos: setup ## fifty rollouts while everything breaks, and what was lost (ARGS="--seed 7 --rollouts 10")
	$(VENV)/bin/python -m tests.chaos $(ARGS)

bench: setup ## rollouts beside a bare Temporal workflow, half an hour (ARGS="--quick" two minutes)
	$(VENV)/bin/python benchmarks/rollout.py $(ARGS)

bench-fleet: setup ## a fleet rolled out, then up to 10,000 clusters monitored, an hour (ARGS="--quick" five minutes)
	$(VENV)/bin/python benchmarks/fleet.py $(ARGS)

docs: setup ## what docs/ and the help's lists take from the code: commands, tables of fields and rights, schemas, the HTTP API
	@$(VENV)/bin/python -m tests.docs.commands_list cli/commands.json
	@$(VENV)/bin/python -m tests.docs.commands_page docs/commands.md
	@$(VENV)/bin/python -m tests.docs.field_tables docs/fleet-file.md docs/bringup.md docs/access.md
	@$(VENV)/bin/python -m tests.docs.rights_table docs/access.md
	@$(VENV)/bin/backstop schema --write docs/schemas
	@BACKSTOP_WRITE_OPENAPI=1 $(VENV)/bin/python -m pytest -q -n 0 tests/unit/test_openapi.py::test_what_is_published_is_what_the_code_says

lint: setup ## ruff, mypy and the import contracts
	@$(MAKE) --jobs=2 --keep-going --output-sync=target types style imports

style: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# mypy gives the processes that it starts 3 s to come up. A busy machine may take longer: then one process does it all.
types: setup
	@said=$$($(VENV)/bin/mypy --num-workers 2 2>&1) && failed=0 || failed=$$?; \
	case "$$said" in *"establish connection with worker"*) said=$$($(VENV)/bin/mypy 2>&1) && failed=0 || failed=$$?;; esac; \
	echo "$$said"; exit $$failed

imports: setup
	$(VENV)/bin/lint-imports

up: setup ## Temporal, its UI and a worker on this machine
	@$(VENV)/bin/backstop up $(ARGS)

# Hashes are of every published file, so the locks serve every platform; no index is written into them.
COMPILE = $(VENV)/bin/uv pip compile --quiet --system-certs --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(UPGRADE) pyproject.toml

lock: setup ## remake both locks from pyproject.toml (UPGRADE=--upgrade for newer versions)
	$(COMPILE) --group build --group dev -o requirements-dev.lock
	$(COMPILE) --group build -c requirements-dev.lock -o requirements.lock
	@! grep -nE '://|^ *--(index|extra-index|find-links|trusted-host)' requirements.lock requirements-dev.lock

clean: ## remove what the targets made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
