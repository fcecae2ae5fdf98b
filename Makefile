# Each target sets up what it needs in .venv by itself; a second run starts at once.

# PYTHON: the interpreter .venv is made with (default: the first one found that is >= 3.10).
# CUDA:   cuda12, cuda13, none, or auto: what the driver can run.
# JAXLS:  what pip installs jaxls from; it is in no package index.
# ARGS:   more arguments for the command of the target, as in `make test ARGS="-n 2 -k schedule"`.
PYTHON ?= python3 python python3.14 python3.13 python3.12 python3.11 python3.10
CUDA ?= auto
ARGS ?=
JAXLS ?= git+https://github.com/brentyi/jaxls

VENV := .venv
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
INSTALL := $(VENV)/bin/python $(PIP_INSTALL)
RUN_READY := $(VENV)/.ready-run-$(CUDA)
TEST_READY := $(VENV)/.ready-test-$(CUDA)
LINT_READY := $(VENV)/.ready-lint-$(CUDA)
BENCH_READY := $(VENV)/.ready-bench-$(CUDA)
PEERS := $(VENV)/peers
DOCS := $(VENV)/docs
DOCS_READY := $(VENV)/.ready-docs

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint ready test-gpu bench docs clean has-gpu

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(RUN_READY)  ## solve a bundle adjustment problem (BAL, 36,455 observations); results in out/
	@mkdir -p out
	$(VENV)/bin/caspar bal data/problem-21-11315-pre.txt.bz2 \
	    --plot out/demo.png --out out/demo.txt $(ARGS)

# Bytecode is kept, whatever the environment says: without it each worker and each child of a test
# compiles all modules.
test: export PYTHONDONTWRITEBYTECODE :=

# A worker for each core. Each begins with its share of the files, which have compiled kernels in
# common; who is done takes half of what another one has left. A test that hangs ends its worker,
# which prints where its threads are.
test: $(TEST_READY)  ## run the tests that need no GPU
	@$(VENV)/bin/python -m pytest -n auto --dist worksteal --durations=15 \
	    --timeout=900 --timeout-method=thread $(ARGS)

test-gpu: has-gpu $(TEST_READY)  ## run the tests that need a CUDA device
	@$(VENV)/bin/python -m pytest -m gpu $(ARGS)

lint: $(LINT_READY)  ## check style (ruff) and types (mypy)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

ready: $(LINT_READY)  ## install what test and lint need

bench: $(BENCH_READY)  ## run the benchmarks beside other libraries; results in out/
	@mkdir -p out
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" \
	    $(VENV)/bin/python -m benchmarks --peers-python $(PEERS)/bin/python $(ARGS)

docs: $(DOCS_READY)  ## build the documentation site, warnings are errors; see out/site/index.html
	@mkdir -p out
	$(DOCS)/bin/sphinx-build --quiet --fail-on-warning --keep-going \
	    -c docs/site -d out/doctrees . out/site $(ARGS)
	$(DOCS)/bin/python docs/site/check.py out/site

clean:  ## remove all that these targets made: .venv, out/, caches
	rm -rf $(VENV) out build dist docs/api .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The CUDA extra for the driver and the oldest GPU, or nothing. CUDA 12 needs driver 525, CUDA 13
# driver 580 and compute capability 7.5.
define DETECT_CUDA
nvidia-smi --query-gpu=driver_version,compute_cap --format=csv,noheader 2>/dev/null | \
    awk -F ', *' '$$1 + 0 >= 525 { found = 1; old = old || $$1 + 0 < 580 || $$2 + 0 < 7.5 } \
                  END { if (found) print old ? "cuda12" : "cuda13" }'
endef

# `extra` becomes cuda12, cuda13 or empty.
CHOOSE_EXTRA = case '$(CUDA)' in auto) extra=$$($(DETECT_CUDA)) ;; none) extra= ;; *) extra='$(CUDA)' ;; esac

has-gpu:
	@nvidia-smi --list-gpus || { echo "make test-gpu needs an NVIDIA GPU" >&2; exit 1; }

$(VENV)/.created:
	@for python in $(PYTHON); do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' \
	      2>/dev/null; then \
	    echo "Making $(VENV) with $$($$python --version) ($$(command -v $$python))"; \
	    $$python -m venv --clear $(VENV) && $(INSTALL) --upgrade pip && touch $@; \
	    exit; \
	  fi; \
	done; \
	echo "caspar needs Python >= 3.10 with the venv module; none of these has it: $(PYTHON)." >&2; \
	echo "Install one (Debian, Ubuntu: apt install python3-venv) or say: make PYTHON=/path/to/python" >&2; \
	exit 1

$(RUN_READY): $(VENV)/.created pyproject.toml
	@$(CHOOSE_EXTRA); \
	echo "Installing caspar[plot$${extra:+,$$extra}] in $(VENV) (a minute or two)"; \
	$(INSTALL) --editable ".[plot$${extra:+,$$extra}]"
	@touch $@

$(TEST_READY): $(RUN_READY)
	@echo "Installing what the tests need in $(VENV)"
	@$(INSTALL) --editable '.[test]'
	@touch $@

# What builds the paper's implementation and, in an environment of their own, so that what they need
# is not what caspar runs with, the other libraries. One that cannot be installed is not measured.
$(BENCH_READY): $(RUN_READY)
	@$(CHOOSE_EXTRA); \
	echo "Installing what the benchmarks need in $(VENV)"; \
	case $$extra in \
	  cuda12) jax='jax[cuda12]'; $(INSTALL) --editable '.[cuda12,bench]' ;; \
	  cuda13) jax='jax[cuda13]'; \
	          $(INSTALL) --editable '.[cuda13,bench]' 'cuda-toolkit[cccl,nvcc]==13.*' ;; \
	  *) jax=jax ;; \
	esac || exit 1; \
	echo "Installing the libraries to compare with in $(PEERS)"; \
	$(VENV)/bin/python -m venv $(PEERS) || exit 1; \
	missing=; \
	for peer in 'gtsam' 'pyceres pycolmap' "$$jax $(JAXLS)"; do \
	  $(PEERS)/bin/python $(PIP_INSTALL) scipy $$peer || \
	      { echo "Cannot be installed, so not measured: $$peer" >&2; missing=yes; }; \
	done; \
	[ -n "$$missing" ] || touch $@

$(DOCS_READY): $(VENV)/.created pyproject.toml
	@echo "Installing what the documentation needs in $(DOCS)"
	@$(VENV)/bin/python -m venv $(DOCS)
	@$(DOCS)/bin/python $(PIP_INSTALL) --editable '.[docs]'
	@touch $@

$(LINT_READY): $(TEST_READY)
	@echo "Installing ruff and mypy in $(VENV)"
	@$(INSTALL) --editable '.[lint]'
	@touch $@
