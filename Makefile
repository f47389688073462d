# Tasks of hpcfl.  Everything is installed into .venv; nothing else on the machine is touched.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
RUNS := runs/quickstart-fedavg runs/quickstart-fedhbm
# Hundreds of the tests' processes import hpcfl: compile it once, even where a container says no.
unexport PYTHONDONTWRITEBYTECODE

# These start ranks or faults of their own: a file on one worker; the Slurm cluster on none.
# The longest file comes first, or one worker would wait for the other at the end.
RANKS := tests/golden tests/faults tests/parallel
APART := $(RANKS) tests/slurm tests/triton_kernels

# What bfloat16 touches.  On a newer processor these run once more as if it had AVX2 alone.
BFLOAT16 := tests/start/test_device.py tests/models tests/local/test_autocast.py \
  tests/local/test_gradient.py tests/local/test_block_gradients.py tests/jobs/test_miniatures.py

.PHONY: help install quickstart check docs format test suites processes single unit slow avx2 \
  ranks triton slurm gpu long clean

help:  ## Show this list
	@grep -E '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP)  ## Build .venv with hpcfl, mpirun and the tools

# torch by its exact pin and before anything that depends on it: a range may bring a CUDA build.
$(STAMP): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'hpcfl needs Python 3.11 or newer: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/pip install --quiet --no-compile -c constraints.txt torch==2.13.0 setuptools
	$(BIN)/pip install --quiet --no-compile -c constraints.txt --no-build-isolation \
	  -e '.[mpi,demo,plot,images,complete,huggingface,tokenizers,test,dev,docs]'
	@# On all cores; pip takes one.  A few files are written for other Pythons, and fail.
	$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' .venv/lib || true
	touch $@

# mpirun hands its ranks a pipe for stderr; on a terminal rich is told that it may draw its bar.
quickstart: $(STAMP)  ## FedAvg and FedHBM on 2 ranks, then a table and a plot
	rm -rf $(RUNS)
	@if [ -t 2 ]; then \
	  export TTY_COMPATIBLE=1 TTY_INTERACTIVE=1 COLUMNS=$$(tput cols || echo 80); \
	fi; \
	for run in $(RUNS); do \
	  (set -x; $(BIN)/mpirun -n 2 $(BIN)/hpcfl run jobs/quickstart.yaml \
	    "algorithm={name: $${run##*-}}" --out "$$run"); \
	done
	$(BIN)/hpcfl report $(RUNS) --plot

check: $(STAMP)  ## Style, types, import rules, shell scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config .importlinter --no-logo
	$(BIN)/shellcheck .ci/run $(wildcard slurm/*.sh slurm/*/*.sh tests/*/*.sh)
	$(BIN)/yamllint --strict .
	$(BIN)/codespell

docs: $(STAMP)  ## Build the site into site/; a dead link is an error
	$(BIN)/sphinx-build --quiet --nitpicky --fail-on-warning --keep-going --fresh-env docs site
	@echo $(CURDIR)/site/index.html

format: $(STAMP)  ## Let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: check suites  ## The checks and all tests

# Slurm's tests mostly wait for its daemons, so the others run at the same time.
suites: $(STAMP)
	$(MAKE) --no-print-directory --keep-going --jobs=2 slurm processes

processes: $(STAMP)
	@status=0; for tier in single avx2 triton ranks; do \
	  $(MAKE) --no-print-directory $$tier || status=1; \
	done; exit $$status

# Both at once: to collect them takes 20 seconds.
single: $(STAMP)
	$(BIN)/pytest -q -n 2 $(addprefix --ignore=,$(APART))

unit: $(STAMP)  ## Quick tests of one process
	$(BIN)/pytest -q -n 2 -m "not slow" $(addprefix --ignore=,$(APART))

slow: $(STAMP)  ## Slow tests of one process
	$(BIN)/pytest -q -n 2 -m slow $(addprefix --ignore=,$(APART))

avx2: $(STAMP)  ## Tests of bfloat16 on a processor without instructions for it
	ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 $(BIN)/pytest -q -n 2 $(BFLOAT16) \
	  -k "bf16 or bfloat16 or autocast or device or shakespeare"

# Four workers for two cores: many of these tests wait for a signal, a time-out or a dead rank.
ranks: $(STAMP)  ## Tests under mpirun, and the faults
	$(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder $(RANKS)

# A process of their own: Triton reads once whether it interprets its kernels.
triton: $(STAMP)  ## Tests of the Triton kernels, interpreted and compiled
	$(BIN)/pytest -q -n 2 tests/triton_kernels

long: $(STAMP)  ## The checks and all tests in their long form: hours
	HPCFL_HOSTILE=20 $(MAKE) --no-print-directory --keep-going test

slurm: $(STAMP)  ## Tests on a Slurm of their own
	$(BIN)/pytest -q tests/slurm

# Without .venv: the machine's own Python has a torch for its GPU.
gpu:  ## Tests and figures on a machine with a GPU; again continues
	PYTHON="$(PYTHON)" tests/gpu/run.sh $(GPU)

clean:  ## Remove .venv and the caches of the tools
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis *.egg-info
