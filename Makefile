# `make demo` and `make test` work in a bare clone: they set up .venv first, once.
#
#   PYTHON       the interpreter for .venv, 3.11 or newer
#   TORCH_INDEX  a package index to take torch from, e.g. PyTorch's own for its CPU build

PYTHON ?= python3
TORCH_INDEX ?=

BIN := .venv/bin
TORCH := $(shell grep '^torch==' constraints.txt)
WORKERS := 2
OLDEST := transformers==5.14.0

.PHONY: demo test test-all test-slow check format results clean help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

demo: .venv/installed  ## uniform against Prism on the embedded corpus: train, evaluate, compare
	$(BIN)/prism demo

test: .venv/installed  ## the tests, under five minutes on two cores
	$(BIN)/python -m pytest -n $(WORKERS)

test-all: test test-slow  ## the tests and the slow ones

test-slow: .venv/installed .venv/oldest/installed  ## what takes longer: compilers, the oldest transformers
	$(BIN)/python -m pytest -n $(WORKERS) -m slow
	.venv/oldest/bin/python -m pytest -n $(WORKERS) -m "slow or not slow" tests/hf

check: .venv/installed  ## style, types, spelling, structure
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs src tests
	$(BIN)/python -m pytest --quiet tests/test_structure.py

results: .venv/installed  ## rewrite docs/results.md and the README's results from results/
	$(BIN)/prism report --docs .

format: .venv/installed  ## rewrite the style
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:  ## remove everything that was built
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis studies/demo

# torch comes first and alone, so that its index serves nothing else and nothing else picks it.
.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	@test -x $(BIN)/python || { echo "creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "installing $(TORCH)"
	@$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	@echo "installing prism-transformer and its tools"
	@$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The oldest transformers we support, in an environment that finds everything else in .venv.
SITE := -c 'import site; print(site.getsitepackages()[0])'
.venv/oldest/installed: .venv/installed
	@echo "installing the oldest supported transformers"
	@$(PYTHON) -m venv .venv/oldest
	@{ $(BIN)/python $(SITE); echo $(CURDIR)/src; } > "$$(.venv/oldest/bin/python $(SITE))/rest.pth"
	@.venv/oldest/bin/pip install --quiet $(OLDEST)
	@touch $@
