# Every target sets up .venv first: see scripts/set_up.py. PYTHON= chooses the interpreter it is made with.
PYTHON ?= python3
BIN := .venv/bin
# These start many processes; after the others they have ended a worker of pytest-xdist without a word.
ALONE := tests/torch/checkpoint tests/artifact

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full coverage lint format bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Make .venv, or bring it up to date
	@$(PYTHON) scripts/set_up.py

demo: setup ## Tune a real sentence encoder on this machine and show the table
	$(BIN)/python examples/demo.py

test: lint ## Run lint, types, layers and all tests, two files at a time
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ALONE)
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=10 $(ALONE:%=--ignore=%)

coverage: setup ## Run the tests that need no compiler, one after the other, and show what they cover
	$(BIN)/python -m pytest -m "not slow" --cov --cov-report=term

test-full: test ## Run all tests, and the whole matrix of models and backends besides
	$(BIN)/python -m pytest -m full

lint: setup ## Check format, lint, types and layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## Format the code and make the fixes that are safe
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: setup ## Run every benchmark for hours; BENCH=--quick shows that they work
	$(BIN)/python benchmarks/run_all.py $(BENCH)

clean: ## Remove .venv and every cache that the tools leave here
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov build dist
	rm -rf src/*.egg-info
	find src tests scripts examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
