# Each target is complete by itself in a fresh clone: it needs Python >= 3.11, make, and a network the first time.
#
#   make demo       a spec all the way to a kernel that runs, and the kernel itself on the host where there is a C++ compiler
#   make test       every test but the whole compile matrix; GPU tests where there is a GPU
#   make test-all   the whole compile matrix too: minutes
#   make fuzz       drawn cells and numbers, CPU target and emulated kernels beside an oracle, until Ctrl-C or MINUTES=10
#   make mutate     weaken the templates place by place: do the kernels on the host notice? an hour, goes on where it was left
#   make sanitize   on a GPU: every kernel under compute-sanitizer, of the CUDA toolkit
#   make lint       ruff: rules and layout        make types    mypy --strict
#   make clean      remove what the targets made
#
# CUDA=cuda12 takes the CUDA 12 libraries instead, CUDA= none at all; PYTHON= another interpreter; WORKERS= pytest's processes;
# SANITIZER= where compute-sanitizer is.

VENV ?= .venv
SANITIZER ?= compute-sanitizer
CUDA ?= cuda13
# auto: one process per core; the ceiling, since every process compiles and holds its own libraries.
WORKERS ?= auto --maxprocesses=4
PYTHON ?= $(firstword $(foreach python,python3 python3.14 python3.13 python3.12 python3.11 python,\
	$(shell $(python) -c 'import sys; sys.version_info >= (3, 11) and print("$(python)")' 2>/dev/null)))

BIN := $(VENV)/bin
comma := ,
# An install is repeated when what it was made from changes, or when other CUDA libraries are asked for.
STAMP = $(VENV)/installed-$(1)$(if $(CUDA),-$(CUDA))
INSTALLED_FROM := pyproject.toml constraints.txt hatch_build.py minrnn_gen/native/trip.c minrnn_gen/native/key.h
DEMO := $(call STAMP,demo)
TEST := $(call STAMP,test)
DEV := $(VENV)/installed-dev
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: demo test test-all fuzz mutate sanitize lint types clean
.DEFAULT_GOAL := test
# Two installs into one environment would trip over each other.
.NOTPARALLEL:

demo: $(DEMO)
	$(BIN)/minrnn-gen run examples/min_gru.yaml
	@if command -v "$(firstword $(CXX))" >/dev/null; then echo; $(BIN)/minrnn-gen verify examples/min_gru.yaml --candidates 0; fi

test: $(TEST)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
	@! nvidia-smi -L >/dev/null 2>&1 || $(BIN)/python -m pytest -m alone tests/gpu

test-all: $(TEST)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "matrix_full or not matrix_full" --hypothesis-profile whole

fuzz: $(TEST)
	PYTHONPATH=tests $(BIN)/python tests/fuzz $(if $(MINUTES),--minutes $(MINUTES))

mutate: $(TEST)
	PYTHONPATH=tests $(BIN)/python tests/mutate

sanitize: $(TEST)
	$(BIN)/python tests/gpu/sanitizers.py --sanitizer $(SANITIZER)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(DEMO): $(INSTALLED_FROM) | $(BIN)/python
	$(INSTALL) ".$(if $(CUDA),[$(CUDA)])"
	touch $@

$(TEST): $(INSTALLED_FROM) | $(BIN)/python
	$(INSTALL) ".[test$(if $(CUDA),$(comma)$(CUDA))]"
	touch $@

$(DEV): $(INSTALLED_FROM) | $(BIN)/python
	$(INSTALL) ".[dev]"
	touch $@
