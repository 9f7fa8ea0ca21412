# Everything runs from one virtual environment, which is made on first use.
#
#   make demo    the whole story in two minutes: produce, kill -9, restart, consume, compare, audit
#   make demo-etcd    the same with the metadata in an etcd of three members
#   make demo-audit   damages copies of what the demo left, and has the audit find it
#   make check   ruff, mypy and the short tests that start no process: before each commit
#   make test    ruff, mypy, pyright, then every test but the soak ones
#   make soak    long random runs        make bench   figures beside their yardsticks
#   make bench-kafka    the same clients against Apache Kafka, which needs Java and Maven
#
# Needs Python 3.11 or newer, with its venv module, and nothing else; `make PYTHON=...` names one.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
BUILDER := build/builder
VERSION = $(shell sed -n 's/^__version__.*= "\(.*\)"$$/\1/p' package/__init__.py)
# What mypy looks at.
TYPED := minibroker
# Containers often set it. The suite starts hundreds of Pythons, and without compiled files each
# would compile all modules again: more than half of what the start of a broker takes.
unexport PYTHONDONTWRITEBYTECODE

QUICK := quick-1 quick-2 quick-3 quick-4
SIDE_BY_SIDE = $(MAKE) --no-print-directory -j 2 --output-sync=target
LOCK = $(BIN)/python -m uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-annotate --no-header

# The first interpreter that is new enough.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	"$$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$name"; break; }; done)

NO_PYTHON = minibroker needs Python 3.11 or newer with its venv module (on Debian: apt install \
	python3.11-venv); or say make PYTHON=/path/to/python

.PHONY: demo demo-etcd demo-audit check test lint style types mypy pyright quick $(QUICK) soak bench bench-kafka wheel \
	release-check images images-check locks \
	installed clean

demo: installed
	$(BIN)/python -m tests.demo

demo-etcd: installed
	$(BIN)/python -m tests.demo --etcd

demo-audit: installed
	$(BIN)/python -m tests.demo_audit

# Without pyright, which alone takes most of a minute.
check: installed
	$(SIDE_BY_SIDE) style mypy $(QUICK)

quick: installed
	$(SIDE_BY_SIDE) $(QUICK)

# A quarter of the files each, so that both processors have work to the end.
$(QUICK): installed
	$(BIN)/python -m pytest -p tests.quick --share $(@:quick-%=%)/4

test: lint
	$(BIN)/python -m pytest -p tests.beside

# Each takes one processor: by turns they would leave the other one idle for a minute.
lint: installed
	$(SIDE_BY_SIDE) style mypy pyright

style: installed
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: mypy pyright

pyright: installed
	$(BIN)/python -m basedpyright --level error

mypy: installed
	$(BIN)/python -m mypy -p $(TYPED)

soak: installed
	$(BIN)/python -m pytest -m soak

bench: installed
	$(BIN)/python -m tests.bench

bench-kafka: installed
	$(BIN)/python -m tests.bench.against_kafka

# In an environment of its own, without the libraries of tests and audit, of which Spark and Java
# take most.
wheel: $(BUILDER)/ready
	rm -rf dist
	$(BUILDER)/bin/python -m build --no-isolation

$(BUILDER)/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 1; }
	rm -rf $(BUILDER)
	"$(PYTHON)" -m venv $(BUILDER)
	$(BUILDER)/bin/pip install --quiet --disable-pip-version-check build 'setuptools>=77'
	touch $@

# What .github/workflows/release.yml checks before it publishes; `make release-check TAG=v0.1.0`
# also says whether that tag may be set.
release-check: installed
	$(BIN)/python -m tests.release $(if $(TAG),--tag $(TAG))

images:
	docker build --tag minibroker:$(VERSION) .
	docker build --tag minibroker-audit:$(VERSION) --target audit .

images-check: installed
	$(BIN)/python -m tests.release --images

# The versions and hashes of the libraries in the images: the newest that pyproject.toml takes.
locks: installed
	printf 'setuptools>=77\n' | $(LOCK) - --output-file docker/build.lock.txt
	$(LOCK) pyproject.toml --output-file docker/libraries.lock.txt
	$(LOCK) pyproject.toml --extra audit --constraint docker/libraries.lock.txt \
		--output-file docker/audit.lock.txt

# Type checkers and editors see the package by links, one a file (tests/installed.py).
installed: $(READY)
	@$(BIN)/python -m tests.installed

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "$(NO_PYTHON)" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip
	@# setuptools warns of folders named like packages; here they are the packages.
	PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --config-settings editable_mode=strict \
		--editable '.[dev,audit]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
