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
DEMO ?= demo
.PHONY: help install demo models browser web page test test-all lint types imports spelling doctest unit bundles check-bundles notebooks docs format bench relbench clean

help:  ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(VENV)/.installed  ## make the virtual environment and install everything into it

# What a user needs; the demo takes no more.
$(VENV)/.package: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt pip setuptools wheel
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.installed: $(VENV)/.package
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

# Everything that the demo writes is below $(DEMO); repeated, it does only what is not done yet. The model of a bundle that
# you trained stays as it is.
demo: export VMFSEG_CACHE := $(or $(VMFSEG_CACHE),$(CURDIR)/$(DEMO)/cache)
demo: export OMP_NUM_THREADS := $(shell nproc 2>/dev/null || echo 2)
demo: export MKL_NUM_THREADS := $(OMP_NUM_THREADS)
demo: $(VENV)/.package  ## train on the phantom, segment a scanner never seen, write a report: a few minutes
	$(BIN)/python -m monai.bundle run training --config_file bundles/vmfnet_mnms/configs/train.json \
	  --output_dir $(DEMO)/run --ckpt_dir $(DEMO)/run/models
	scan="$$($(BIN)/python docs/unseen.py bundles/vmfnet_mnms $(DEMO)/run/models/model.pt)" && \
	$(BIN)/vmfseg segment bundles/vmfnet_mnms "$$scan" --checkpoint $(DEMO)/run/models --frames ED,ES --overlay png \
	  -o $(DEMO)/segmentation --overwrite
	$(BIN)/vmfseg report $(DEMO)/run -o $(DEMO)/report.html --overwrite
	@echo
	@echo "Look at  $(DEMO)/report.html          the run: worst cases first, scores, kernels, curves"
	@echo "         $(DEMO)/segmentation/        label maps and a picture of a subject of the scanner that was held back"
	@echo "         $(DEMO)/run/metrics.json     every figure, volume by volume"

# From the seeds of the configs to the files in bundles/*/models; an interrupted training goes on where it stopped. The
# options are those of the models that are committed; their manifests say what they cost.
MODELS ?= runs/models
HEARTS_OPTIONS ?= --max_iterations 6000
CORDS_OPTIONS ?= --max_iterations 4000
models: $(VENV)/.package  ## train the models that are shipped again, hearts and cords: hours
	$(BIN)/vmfseg train bundles/hearts -o $(MODELS)/hearts --resume $(HEARTS_OPTIONS)
	$(BIN)/vmfseg train bundles/hearts -o $(MODELS)/hearts_2 --resume --init $(MODELS)/hearts --seed 2 --learning_rate 0.0008
	$(BIN)/vmfseg bundle ship $(MODELS)/hearts_2 --average $(MODELS)/hearts -o bundles/hearts/models --overwrite
	$(BIN)/vmfseg train bundles/cords -o $(MODELS)/cords --resume $(CORDS_OPTIONS)
	$(BIN)/vmfseg bundle ship $(MODELS)/cords -o bundles/cords/models --overwrite

test: lint types imports spelling check-bundles doctest unit  ## everything that CI runs

test-all: lint types imports spelling check-bundles doctest browser page  ## the same with the slow tests
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

# The page of `vmfseg serve`. Third-party code is built into the package and never committed.
PAGE := vmfseg/serving/assets/index.html
web: $(PAGE)  ## build the page of vmfseg serve (needs npm)

$(PAGE): web/package-lock.json web/package.json web/build.mjs $(wildcard web/src/*)
	cd web && npm ci --no-audit --no-fund --loglevel error && npm run --silent build

# Where there is no npm, the tests of the page skip and say so.
page:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory web; else echo "no npm: the page is not built"; fi

unit: install browser page  ## the tests, without the slow ones
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

notebooks: install  ## execute the tutorials
	$(BIN)/python -m pytest tests/tutorials

docs: install  ## build the documentation, with the tutorials executed; warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

format: install  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: install  ## print the ratios of benchmarks/
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

relbench: install  ## 180 faults for vmfseg and plain MONAI: score and gates
	$(BIN)/python -m benchmarks.relbench --against monai

clean:  ## remove what the verbs made (not your data)
	rm -rf $(VENV) demo docs/_build docs/tutorials docs/command_line.md build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
