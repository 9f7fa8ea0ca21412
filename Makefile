# Everything runs from one virtual environment that is made on first use.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

.PHONY: demo test lint soak bench clean

demo: $(READY)
	$(BIN)/python -m tests.demo

test: lint
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/typing/minibroker
	for part in broker cli client protocol testing; do ln -sfn ../../../$$part build/typing/minibroker/$$part; done
	$(BIN)/mypy -p minibroker

soak: $(READY)
	$(BIN)/python -m pytest -m soak

bench: $(READY)
	$(BIN)/python -m tests.bench

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
