# Every target does its own set-up: system packages by apt where missing, and .venv.
BACKEND ?= nft
PYTEST_ARGS ?=
BENCH_ARGS ?=
PROVIDER ?= local
KILLS ?= 200
MINUTES ?= 60
SERVICES ?= 2000
RECONNECTS ?= 0
TIME ?= 60
RUNS ?= 20
CHILDREN ?= $(shell nproc)
BIN := .venv/bin
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' agent/__init__.py)

.PHONY: help setup demo test kill fuzz mutants faults faults-check soak flood e2e bench bench-quick image install-yaml lock lint audit format clean

help: ## what there is
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## only the set-up for everything below
	@hack/setup.sh test

demo: ## show it: a small cluster in network namespaces (BACKEND=legacy|nft; root)
	@hack/setup.sh run
	@$(BIN)/onenth demo --backend $(BACKEND)

test: ## all tests; as root also those with real rules and packets
	@hack/setup.sh test
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

kill: ## 200 kills of the agent and of what it runs, in the middle of full syncs, over live traffic (root)
	@hack/setup.sh test
	@ONENTH_KILLS=$(KILLS) $(BIN)/python -m pytest -n 2 tests/kernel/test_kill.py $(PYTEST_ARGS)

fuzz: ## hostile objects by atheris, guided by coverage, for TIME seconds (default 60)
	@hack/setup.sh test
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --group fuzz
	@$(BIN)/python -m tests.grammar.fuzz -max_total_time=$(TIME) $(FUZZ_ARGS)

mutants: ## changes of state/ and rules/ that no test notices (mutmut): few, each explained; MUTANTS="agent.state.*"
	@hack/setup.sh test
	@$(BIN)/python -c 'import mutmut' 2>/dev/null || $(BIN)/python -m pip install --quiet --group mutants
	@PYTHONDONTWRITEBYTECODE= $(BIN)/mutmut run --max-children $(CHILDREN) \
	  $(if $(AGAIN),$$($(BIN)/python -m tests.mutants --names $(MUTANTS)),$(MUTANTS))
	@$(BIN)/python -m tests.mutants $(MUTANTS)

soak: ## an hour of churn, then does anything grow? MINUTES=60 SERVICES=2000, or RECONNECTS=1000; root
	@hack/setup.sh test
	@$(BIN)/python -m tests.soak --backend $(BACKEND) --services $(SERVICES) \
	  --minutes $(MINUTES) --reconnects $(RECONNECTS)

flood: ## flood every port of an agent: how much later is a change in the kernel? root
	@hack/setup.sh test
	@$(BIN)/python -m tests.soak.flood --backend $(BACKEND)

faults-check: ## does the fault machine notice an agent that is broken on purpose? (root)
	@hack/setup.sh test
	@$(BIN)/python -m tests.faults.broken

faults: ## a live agent under random faults, each run replayable: SEED=n RUNS=n (root)
	@hack/setup.sh test
	@$(BIN)/python -m tests.faults --runs $(RUNS) $(if $(SEED),--seed $(SEED)) $(FAULTS_ARGS)

e2e: ## the image in a cluster: PROVIDER=local (default, needs no registry), kind, minikube, external
	@hack/setup.sh e2e
	@$(BIN)/python -m pytest e2e -p no:randomly --durations 10 --provider $(PROVIDER) $(PYTEST_ARGS)

bench: ## how fast it is, in ratios, at up to 10,000 Services: a table, and JSON in bench-results/ (root)
	@hack/setup.sh test
	@$(BIN)/python -m bench $(BENCH_ARGS)

bench-quick: ## the same at 1,000 Services in under 50 s; fails when a target is missed (root)
	@hack/setup.sh test
	@$(BIN)/python -m bench --quick $(BENCH_ARGS)

image: ## the image, with Docker
	@docker build --tag onenth:$(VERSION) --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) .

install-yaml: ## deploy/install.yaml, the dashboard and the chart's copies anew, after a change of deploy/ or their scripts
	@hack/setup.sh run
	@$(BIN)/python hack/dashboard.py
	@$(BIN)/python hack/render.py --write

lock: ## the image's lock files anew, with the newest versions
	@hack/lock.sh

lint: ## ruff, mypy, import-linter, codespell, bandit, shellcheck
	@hack/setup.sh test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/codespell
	@$(BIN)/bandit --quiet --recursive --configfile pyproject.toml agent hack
	@if command -v shellcheck >/dev/null; then shellcheck hack/*.sh .ci/run; fi

audit: ## known vulnerabilities of the locked libraries; needs the index's data, and fails without
	@hack/setup.sh test
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --group audit
	@for lock in requirements.lock requirements-build.lock; do \
	  $(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement $$lock || exit 1; done

format: ## let ruff write the code as it likes it
	@hack/setup.sh test
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove what the targets made
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist mutants
