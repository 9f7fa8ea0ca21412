# Everything runs from one virtual environment, which is made on first use.
#
#   make demo    the whole story in two minutes: produce, kill -9, restart, consume, compare, audit
#   make demo-etcd    the same with the metadata in an etcd of three members
#   make demo-audit   damages copies of what the demo left, and has the audit find it
#   make test    ruff, mypy, then every test but the soak ones
#   make soak    long random runs        make bench   figures beside their yardsticks
#
# Needs Python 3.11 or newer, with its venv module, and nothing else; `make PYTHON=...` names one.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready

# The first interpreter that is new enough.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	"$$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$name"; break; }; done)

.PHONY: demo demo-etcd demo-audit test lint soak bench wheel clean

demo: $(READY)
	$(BIN)/python -m tests.demo

demo-etcd: $(READY)
	$(BIN)/python -m tests.demo --etcd

demo-audit: $(READY)
	$(BIN)/python -m tests.demo_audit

test: lint
	$(BIN)/python -m pytest -p tests.beside

# mypy sees the folders under the name they are installed by.
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p build/typing/minibroker
	for part in audit broker cli client protocol testing; do \
		ln -sfn ../../../$$part build/typing/minibroker/$$part; done
	$(BIN)/mypy -p minibroker

soak: $(READY)
	$(BIN)/python -m pytest -m soak

bench: $(READY)
	$(BIN)/python -m tests.bench

wheel: $(READY)
	$(BIN)/python -m build --wheel --no-isolation

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "minibroker needs Python 3.11 or newer with its venv module" \
		"(on Debian: apt install python3.11-venv); or say make PYTHON=/path/to/python" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	@# setuptools warns of folders named like packages; here they are the packages.
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --editable '.[test,audit]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
