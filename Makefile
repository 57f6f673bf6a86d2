# Two commands do all the set-up on a fresh machine:
#
#   make demo    make .venv, install the runtime, play the example agent
#   make test    the same environment plus the test tools; lint, types, the tests that need
#                nothing or torch, and of those with a server the commonest
#
# make test-all runs every test but those of published clients: servers that are killed, attacked
# and cut off, campaigns, the benchmarks, the default model's training. CI has `make test` run them,
# by PYTEST_OPTIONS. Both share the tests among two processes.
#
# make test-clients runs published clients (docs/clients.md) against a server, each in an
# environment of its own under .venv-clients, pinned with hashes. It needs pip's and npm's
# registries the first time; a client that cannot be had is skipped by name, with the reason.
#
# make sanitize runs the tests of the compiled CPU kernels, and wrong frames against an engine, with
# AddressSanitizer in the kernels: some minutes, with a C++ compiler that has libasan.
#
# make release prepares a release of the commit that is checked out, and stops before publishing.
#
# Variables, on make's command line or in the environment:
#   PYTHON       interpreter that makes .venv, 3.11 or newer (default: python3)
#   PIP_OPTIONS  passed to every `pip install`. Use it where the choice of build is yours: where
#                pip knows no other index, torch for Linux is the CUDA build (several GB); for
#                the CPU build give the index that PyTorch's installation page names for it,
#                make demo PIP_OPTIONS='--extra-index-url URL'
#   DEMO_OPTIONS passed to the demo, see `make demo DEMO_OPTIONS=--help`; it asks nothing and ends
#                after ten minutes at the latest
#   PYTEST_OPTIONS passed to pytest, e.g. PYTEST_OPTIONS='-k radix -x'
#
# make kernels checks the GPU kernels on a machine without a GPU, in an environment of its own
# (.venv-kernels, versions in kernels-constraints.txt): under Triton's interpreter against their
# torch references, then compiled for sm_90. The interpreter takes its time: some minutes a file.

#
# make gpu-wheels fetches into .gpu-wheels what a GPU machine with Python 3.12, torch and Triton
# lacks to run tools/gpu_run.sh, and make gpu-rehearsal plays the five parts of that script on a
# CPU, in an environment of its own (.venv-rehearsal): fifteen minutes. A GPU machine of our plans
# has Python 3.12 and torch 2.11.0; REHEARSAL_PYTHON and REHEARSAL_TORCH play it with those:
#   make gpu-rehearsal REHEARSAL_PYTHON=python3.12 REHEARSAL_TORCH=torch==2.11.0

PYTHON ?= python3
PIP_OPTIONS ?=
DEMO_OPTIONS ?=
PYTEST_OPTIONS ?=
REHEARSAL_PYTHON ?= $(PYTHON)
# Two processes, a file each at a time; what PYTEST_OPTIONS says goes before.
SHARED := -n 2 --dist loadfile
# What `make test` leaves to `make test-all`.
QUICK := -m 'not tail'
REHEARSAL_TORCH ?=

# Tests start servers hundreds of times; compiled modules are kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check $(PIP_OPTIONS) -c constraints.txt
KERNELS_VENV := .venv-kernels
REHEARSAL_VENV := .venv-rehearsal
MANIFESTS := pyproject.toml constraints.txt

.PHONY: demo test test-all test-clients lint types ledger kernels gpu-wheels gpu-rehearsal sanitize release clean

demo: $(VENV)/.server
	$(BIN)/keepwarm demo $(DEMO_OPTIONS)

test: lint types
	$(BIN)/python -m pytest $(SHARED) $(QUICK) $(PYTEST_OPTIONS)

test-all: lint types
	$(BIN)/python -m pytest $(SHARED) $(PYTEST_OPTIONS) --ignore=tests/clients tests

test-clients: $(VENV)/.dev
	$(BIN)/python -m pytest $(SHARED) $(PYTEST_OPTIONS) tests/clients

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

ledger:
	@$(PYTHON) -m tools.line_ledger
	@$(PYTHON) -m tools.name_ledger

kernels: $(KERNELS_VENV)/.ready
	$(KERNELS_VENV)/bin/python -m pytest $(PYTEST_OPTIONS) tests/gpu
	$(KERNELS_VENV)/bin/python -m tools.compile_kernels

# AddressSanitizer for the kernels of kernels/native: their own tests, and wrong frames against an
# engine. Python and torch are as ever, so leaks are not looked for.
SANITIZED_TESTS ?= tests/model/test_native_library.py tests/model/test_cpu_attention.py tests/model/test_shared_contexts.py \
	tests/model/test_tiled_matrix.py tests/model/test_coded_matrix.py tests/model/test_masked_sampling.py tests/model/test_qkv.py \
	tests/model/test_norm.py tests/model/test_kv_write.py tests/model/test_token_choice.py tests/campaigns/test_frames_fuzz.py

sanitize: $(VENV)/.dev
	CXX=$(CURDIR)/tools/sanitizing_cxx XDG_CACHE_HOME=$(CURDIR)/.sanitize \
	  LD_PRELOAD=$$(c++ -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0:halt_on_error=1 \
	  $(BIN)/python -m pytest --timeout 1800 $(PYTEST_OPTIONS) $(SANITIZED_TESTS)

gpu-wheels:
	mkdir -p .gpu-wheels
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
	  --python-version 3.12 --implementation cp --abi cp312 --abi abi3 --abi none \
	  --platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 \
	  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
	  --dest .gpu-wheels $(PIP_OPTIONS) -r gpu-wheels.txt

gpu-rehearsal: $(REHEARSAL_VENV)/.ready
	for part in 1 2 3 4 5; do PYTHON=$(REHEARSAL_VENV)/bin/python tools/gpu_run.sh $$part build/gpu-rehearsal-$$part --rehearse || exit 1; done

# Wheel, source distribution, SBOM, notes and checksums of the commit that is checked out, in
# dist/VERSION; nothing is published, PUBLISH.txt there says what is left to do.
release: lint types
	$(BIN)/python -m tools.release dist

clean:
	rm -rf $(VENV) $(KERNELS_VENV) $(REHEARSAL_VENV) .gpu-wheels .peer-wheels .peer-parts .venv-clients .sanitize build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The stamps say which extra is installed; they are older than a changed manifest, and then the
# install runs again. The dev extra contains the server extra, so its stamp makes both.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "keepwarm needs Python 3.11 or newer; set PYTHON")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.server: $(MANIFESTS) | $(VENV)/bin/python
	$(PIP_INSTALL) -e '.[server]'
	@touch $@

$(VENV)/.dev: $(MANIFESTS) | $(VENV)/bin/python
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.server

$(KERNELS_VENV)/.ready: kernels-constraints.txt
	$(PYTHON) -m venv $(KERNELS_VENV)
	$(KERNELS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_OPTIONS) -r kernels-constraints.txt
	@touch $@

$(REHEARSAL_VENV)/.ready: kernels-constraints.txt gpu-wheels.txt
	$(REHEARSAL_PYTHON) -m venv $(REHEARSAL_VENV)
	$(REHEARSAL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_OPTIONS) -c constraints.txt -r gpu-wheels.txt tokenizers prometheus-client uvloop pytest-xdist transformers
	$(REHEARSAL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_OPTIONS) $(if $(REHEARSAL_TORCH),$(REHEARSAL_TORCH) pytest pytest-timeout triton==3.6.0 numpy==2.3.5,-r kernels-constraints.txt)
	@touch $@
