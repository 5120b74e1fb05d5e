# The ways in. `make demo` and `make test` need Python 3.11 or newer and a package index, nothing else.
# Another interpreter: `make test PYTHON=python3.12` (it gets an environment of its own).

SHELL := /bin/bash
.DEFAULT_GOAL := help

old_enough = -c 'import sys; sys.exit(sys.version_info < (3, 11))'
version = import sys; print("%d.%d" % sys.version_info[:2])
PYTHON ?= $(shell for one in python3 python3.13 python3.12 python3.11 python; do \
	if $$one $(old_enough) >/dev/null 2>&1; then echo $$one; break; fi; done)
ifeq ($(origin PYTHON),file)
VENV ?= .venv
else
VENV ?= .venv-$(notdir $(PYTHON))
endif
BIN := $(VENV)/bin
# Empty: pytest's own output; `make test PYTEST_ARGS="-x -k page_pool"` narrows it down.
PYTEST_ARGS ?=
# Processes that share the test files out; each compiles its own programs (2 to 3 GB of memory each).
WORKERS ?= 2
SOURCES := jaxinfer pallas_kernels tests bench

# Without an NVIDIA device jax is told so; otherwise an installed CUDA plugin prints a traceback.
ifeq ($(wildcard /dev/nvidia0),)
export JAX_PLATFORMS ?= cpu
endif
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help demo test test-all check lint format types imports tests docs bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

demo: $(VENV)/.installed ## install, fetch the demo model, answer eight prompts
	@$(BIN)/jaxinfer demo

test: check ## lint, types, import contracts, then the fast tests
	@$(MAKE) --no-print-directory tests SELECT='not slow and not gpu'

# Names to try for the second Python, or `none` to go without one.
SECOND_PYTHON ?= python3.13 python3.12 python3.11
test-all: check ## everything but gpu tests, then the fast tests on a second Python
	@$(MAKE) --no-print-directory tests SELECT='not gpu'
	@if [ "$(SECOND_PYTHON)" = none ]; then exit 0; fi; \
	first=$$($(BIN)/python -c '$(version)'); \
	for one in $(SECOND_PYTHON); do \
	  second=$$($$one $(old_enough) >/dev/null 2>&1 && $$one -c '$(version)') || continue; \
	  if [ "$$second" = "$$first" ]; then continue; fi; \
	  echo "A second Python: $$one"; \
	  exec $(MAKE) --no-print-directory tests PYTHON=$$one VENV=.venv-$$(basename $$one); \
	done; \
	echo "No second Python was found: only $$first has run (tried $(SECOND_PYTHON))." >&2; \
	echo "Name one: make test-all SECOND_PYTHON=/path/to/python3.12 (none: go without)." >&2; \
	exit 1

check: ## lint, types and import contracts
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory imports

lint: $(VENV)/.installed-test
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: $(VENV)/.installed-test ## write the format and the fixes that are safe
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

types: $(VENV)/.installed-test
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: $(VENV)/.installed-test
	$(BIN)/lint-imports --no-cache

SELECT ?= not slow and not gpu
tests: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m '$(SELECT)' -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)

docs: $(VENV)/bin/python ## build the pages of docs/ into build/site; every warning is an error
	@$(BIN)/python -m pip install --quiet -e '.[docs]' || $(no_index)
	$(BIN)/python -m mkdocs build --strict

bench: $(VENV)/.installed ## tokens/s on the mixed48 workload, as one JSON line
	$(BIN)/python bench/throughput.py --model smollm2-135m --workload mixed48

clean: ## remove environments and caches (demo models stay)
	rm -rf .venv .venv-* build *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find jaxinfer pallas_kernels tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@if ! $(if $(PYTHON),$(PYTHON),false) $(old_enough) >/dev/null 2>&1; then \
	  echo "jaxinfer needs Python 3.11 or newer; PYTHON='$(PYTHON)' is missing or older." >&2; \
	  echo "Here python3 is: $$(python3 --version 2>&1)." >&2; \
	  echo "Install a newer one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	  exit 1; fi
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) could not make a virtual environment." >&2; \
	  echo "On Debian and Ubuntu the package python3-venv is missing." >&2; exit 1; }

no_index = { echo "Installing failed: see pip's message above." >&2; \
	echo "Most often the network or the package index cannot be reached: check the connection, or" >&2; \
	echo "name an index with PIP_INDEX_URL (a proxy with HTTPS_PROXY), then run make again." >&2; exit 1; }

# The plugin must have jax's own version, or jax refuses it. Without it tests skip, with the reason.
jax_version = from importlib.metadata import version; print(version("jax"))
aot = $(BIN)/python -m pip install --quiet -e '.[aot]' \
	"jax-cuda12-plugin==$$($(BIN)/python -c '$(jax_version)')"

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	@echo "Installing jaxinfer into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet -e . || $(no_index)
	@touch $@

$(VENV)/.installed-test: $(VENV)/bin/python pyproject.toml
	@echo "Installing jaxinfer and its test tools into $(VENV) (once)"
	@$(BIN)/python -m pip install --quiet -e '.[test]' || $(no_index)
	@$(aot) || echo "The compiler for GPUs (extra aot, 1.2 GB) cannot be had: its tests skip." >&2
	@touch $@ $(VENV)/.installed
