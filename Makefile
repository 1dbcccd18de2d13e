# One verb a job. `make` alone lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Two threads on busy cores make tiny networks tens of times slower, so tests run on one thread a process.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Some C++ libraries reset the locale of the process; text is UTF-8 all the same.
export PYTHONUTF8 = 1
JOBS ?= 2

.DEFAULT_GOAL := help
.PHONY: help install browser test test-all lint types imports spelling doctest unit bundles check-bundles format bench clean

help:  ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(VENV)/.installed  ## make the virtual environment and install everything into it

$(VENV)/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt pip setuptools wheel
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

test: lint types imports spelling check-bundles doctest unit  ## everything that CI runs

test-all: lint types imports spelling check-bundles doctest browser  ## the same with the slow tests
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile tests

lint: install  ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install  ## mypy --strict on the package
	$(BIN)/mypy

imports: install  ## the import contract of setup.cfg
	$(BIN)/lint-imports --config setup.cfg

spelling: install  ## codespell
	$(BIN)/codespell

doctest: install  ## the examples in the docstrings
	$(BIN)/python -m pytest -q --doctest-modules vmfseg

unit: install browser  ## the tests, without the slow ones
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "not slow" tests

bundles: install  ## write bundles/ from the layers in vmfseg/bundle/layers
	$(BIN)/python -m vmfseg.bundle build

check-bundles: install  ## compare bundles/ with the layers
	$(BIN)/python -m vmfseg.bundle check

# The report is tested in a real browser; where none can be installed, those tests skip and say so.
browser:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  { apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; }; } || true

format: install  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install  ## print the ratios of benchmarks/
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

clean:  ## remove what the verbs made (not your data)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
