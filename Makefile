# `make demo` and `make test` set everything up on a machine that has Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Compiled modules are kept, also where the environment forbids it: every process would compile torch and Transformers again, ten seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test soak browser docs dist lint typecheck unit clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/unmdpo demo

test: lint typecheck unit

# Debian's Chromium, for the tests that look at the report in a browser; they are skipped without one.
browser:
	command -v chromium || apt-get install --yes --quiet chromium

# The fault matrix in full: some twenty minutes. `make test` has a short version.
soak: $(READY)
	UNMDPO_FUZZ=40 $(BIN)/pytest tests/fuzz --timeout 3600
	$(BIN)/pytest -m soak -n 0 --timeout 3600
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -u -m tests.soak
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -u -m tests.soak.files

# The site in site/, every link checked.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# What is uploaded for a release: a wheel and the source, both looked at.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check twine
	$(BIN)/twine check --strict dist/*

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

typecheck: $(READY)
	$(BIN)/mypy

# Tests that start a cluster or ranks of their own come last and by themselves.
unit: $(READY)
	$(BIN)/pytest -m 'not alone and not soak'
	$(BIN)/pytest -m 'alone and not soak' -n 0

clean:
	rm -rf $(VENV) dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
