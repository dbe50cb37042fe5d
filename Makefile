# Every target does its own set-up: system packages by apt where missing, and .venv.
BACKEND ?= nft
PYTEST_ARGS ?=
BIN := .venv/bin

.PHONY: help setup demo test lint format clean

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: ## only the set-up for everything below
	@hack/setup.sh test

demo: ## show it: a small cluster in network namespaces (BACKEND=legacy|nft; root)
	@hack/setup.sh run
	@$(BIN)/onenth demo --backend $(BACKEND)

test: ## all tests; as root also those with real rules and packets
	@hack/setup.sh test
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: ## ruff, mypy, import-linter, codespell, shellcheck
	@hack/setup.sh test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/codespell
	@if command -v shellcheck >/dev/null; then shellcheck hack/*.sh .ci/run; fi

format: ## let ruff write the code as it likes it
	@hack/setup.sh test
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## remove what the targets made
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
