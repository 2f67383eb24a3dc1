# `make demo` and `make test` are all that a new clone needs: both set up .venv first.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# One worker more than the cores of CI: a quarter of the time of tests against daemons is waiting.
JOBS ?= 3
# tests/conftest.py says what runs first.
WORKERS := -n $(JOBS) --dist loadgroup --no-loadscope-reorder
# ALL=1: also the tests that tests/long_tests.txt leaves to CI.
ALL ?=
SELECTED := not slow and not frameworks$(if $(ALL),, and not long)
# Minor version of the control plane: 1.36 is the one before the default (tools/controlplane/build.py).
KUBERNETES ?=
export KUBERNETES
ON := $(if $(KUBERNETES), on Kubernetes $(KUBERNETES))
# Runs a command, and writes the row of a target in docs/measured.md.
MEASURED := $(BIN)/python -m tools.measured

.PHONY: check demo dist docs test test-frameworks lint unit e2e e2e-kubernetes soak bench schemas controlplane alluxio clean

$(STAMP): pyproject.toml requirements.lock
	@echo "setting up $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(STAMP)  ## validate, render, draw and diff examples/ava
	@$(BIN)/python -m tools.demo

dist: $(STAMP)  ## build wheel and source archive
	@rm -rf dist build
	@$(BIN)/python -m build --outdir dist . > dist.log 2>&1 || { cat dist.log; exit 1; }
	@rm dist.log && ls dist/*

docs: $(STAMP)  ## build the documentation site into out/site; every warning is an error, as in tests/test_site.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

check: $(STAMP)  ## lint, types and quick tests of what changed, or of P=scheduler, in under ten CPU seconds
	@$(BIN)/python -m tools.check $(P)

test: lint unit  ## everything that must hold before a commit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(STAMP) controlplane alluxio
	@pods=$$($(BIN)/python -m tools.realnode --permitted) && set -x && $(BIN)/python -m pytest $(WORKERS) \
		-m "$(SELECTED) and (not e2e$${pods:+ or short})"

controlplane: $(STAMP)  ## build the Kubernetes control plane of the tests, once
	@$(BIN)/python -m tools.controlplane build --optional

alluxio: $(STAMP)  ## fetch the Alluxio of the tests, once
	@$(BIN)/python -m tools.alluxio build --optional > /dev/null

test-frameworks: $(STAMP)  ## train with PyTorch, TensorFlow, JAX and Open MPI
	@$(BIN)/python -m tools.frameworks build > /dev/null
	$(MEASURED) test-frameworks $(BIN)/python -m pytest -n 0 -m frameworks

e2e: $(STAMP)  ## tests with real pods, as root
	$(MEASURED) "e2e$(ON)" $(BIN)/python -m pytest -n 0 -m e2e tests/e2e

e2e-kubernetes: $(STAMP)  ## Kubernetes' own tests of scheduling and DRA on real nodes, as root
	KUBERNETES=1.36 $(BIN)/python -m benchmarks.kubernetes_e2e

soak: $(STAMP) controlplane alluxio  ## the long forms of the tests; KUBERNETES=1.36: on that version
	HYPOTHESIS_PROFILE=soak $(MEASURED) "soak$(ON)" $(BIN)/python -m pytest $(WORKERS) -m "not e2e and not frameworks"

bench: $(STAMP)  ## every figure, peers beside it
	$(BIN)/python -m benchmarks

schemas: $(STAMP)  ## write schemas/ anew
	$(BIN)/avactl schema -o schemas

clean:
	rm -rf $(VENV) out build
