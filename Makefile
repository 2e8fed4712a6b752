# `make demo` and `make test` work in a bare clone: they set up .venv first, once.
#
#   PYTHON       the interpreter for .venv, 3.11 or newer
#   TORCH_INDEX  a package index to take torch from, e.g. PyTorch's own for its CPU build

PYTHON ?= python3
TORCH_INDEX ?=

BIN := .venv/bin
TORCH := $(shell grep '^torch==' constraints.txt)
WORKERS := 2

.PHONY: demo test test-all check format clean help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

demo: .venv/installed  ## draw the paper's schedules, build its small pair, prove neutrality
	$(BIN)/prism demo

test: .venv/installed  ## the tests, under five minutes on two cores
	$(BIN)/python -m pytest -n $(WORKERS)

test-all: .venv/installed  ## the tests and the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) -m ''

check: .venv/installed  ## style, types, spelling
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs src tests

format: .venv/installed  ## rewrite the style
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

clean:  ## remove everything that was built
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis prism-demo

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
