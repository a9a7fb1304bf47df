# Every target that is meant for people carries a `##` comment; `make` lists them.

.DEFAULT_GOAL := help

# Looked up when a recipe runs, because set-up may have just installed it.
UV = $(shell scripts/setup which-uv)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: setup ## the whole product on generated data, nothing else needed
	@$(UV) run tidegate demo

.PHONY: test
test: setup-test check ## set-up, static checks and every test, against real servers
	@$(UV) run pytest -n 4 --dist worksteal

.PHONY: check
check: setup ## static checks only: ruff, mypy, import-linter
	@$(UV) run ruff check
	@$(UV) run ruff format --check
	@$(UV) run mypy
	@$(UV) run lint-imports

.PHONY: format
format: setup ## let ruff fix and format what it can
	@$(UV) run ruff check --fix
	@$(UV) run ruff format

.PHONY: bench
bench: setup-test ## measure Tidegate beside its peers
	@$(UV) run python -m bench
	@$(UV) run python -m bench.readers
	@$(UV) run python -m bench.staging
	@$(UV) run python -m bench.redshift
	@$(UV) run python -m bench.plans
	@$(UV) run python -m bench.archive

.PHONY: servers
servers: setup-test ## start the servers of the tests, print their addresses, stop on Ctrl-C
	@$(UV) run python -m tests.servers

.PHONY: setup
setup: ## install what running needs: uv, the locked environment, Java
	@scripts/setup demo

.PHONY: setup-test
setup-test: ## the same, and the servers that tests start
	@scripts/setup test

.PHONY: clean
clean: ## remove everything that can be made again
	@rm -rf .venv .tools build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@rm -rf artifacts metastore_db spark-warehouse derby.log tidegate-demo
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
