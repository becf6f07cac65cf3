# `make` alone lists what can be done. Everything runs from .venv, which is made and refreshed from the lock files.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed

# All calls of the editor that need a statement.
EDITOR_TESTS := $(addprefix tests/api/test_,$(addsuffix .py,execute following results scripts parameters sessions idempotency \
	logs history download reuse metadata_rules faults stalls upkeep_commands passed_tokens network_breaks bodies \
	conventions api_token_statements sqlstates read_scope tracing)) tests/api/importer tests/api/token/test_api_tokens.py
# With coverage the tests take half as much processor time again, so CI measures only those that take little. The folders
# that are left out start servers and programs, whose code runs in processes that are not measured.
UNCOVERED_UNITS := $(addprefix tests/unit/,platform/embedded cli engines/process engines/test_storage_watch.py)
COVERED_TESTS := tests/unit $(addprefix --ignore=,$(UNCOVERED_UNITS))
OTHER_TESTS := $(filter-out tests/unit/ tests/__pycache__/,$(wildcard tests/*/)) $(UNCOVERED_UNITS)
# In percent: what CI measured last, rounded down. Raise it with the measurement, never lower it.
COVERAGE_FLOOR := 67
SOURCES := src tests scripts alembic clients typings
RUNTIME_LOCKS := $(addprefix requirements/,build.lock service.lock embedded.lock)
# Tests start Python many times: byte code that is kept saves each start a second, also where the shell says not to.
unexport PYTHONDONTWRITEBYTECODE
DEV_LOCKS := $(addprefix requirements/,ldap.lock dev.lock)
# The Python that a person calls python3 comes first, then the newest. PYTHON=/path/to/python chooses another.
PYTHONS := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { print "\n" substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Run

.PHONY: run
run: $(RUNTIME) ## Serve on embedded defaults at 127.0.0.1:8888 (PORT=..., QUERYSERVER_DATA_DIR=...)
	@exec env $(if $(QUERYSERVER_DATA_DIR),QUERYSERVER__DESKTOP__DATA_DIR='$(QUERYSERVER_DATA_DIR)') \
		$(BIN)/queryserver serve --embedded $(if $(PORT),--port '$(PORT)')

##@ Test

.PHONY: test
test: $(if $(COVERAGE),coverage,$(DEV)) ## Run all tests except the slow ones and those on real engines, in four processes (ARGS="tests/unit -k splitter"; COVERAGE=1 includes make coverage)
	$(BIN)/pytest -n 4 --dist worksteal -m "not slow" $(if $(COVERAGE),$(OTHER_TESTS)) $(ARGS)

.PHONY: test-slow
test-slow: $(DEV) ## Run the slow tests: many processes, kill -9, hostile users, large data, fuzzing
	$(BIN)/pytest -n 4 --dist worksteal -m slow $(ARGS)

.PHONY: test-fleet
test-fleet: $(DEV) ## Run the editor tests with the task server enabled, so that statements run in workers
	$(BIN)/pytest -n 4 --dist worksteal -m "not slow" --task-server $(or $(ARGS),$(EDITOR_TESTS))

.PHONY: test-engines
test-engines: $(DEV) ## Run the tests on real engines, three engines at a time (E=hive for one)
	$(if $(E),QUERYSERVER_ENGINES=$(E)) $(BIN)/pytest --engine=$(or $(E),all) $(if $(E),,-n 3 --dist loadgroup) $(ARGS)

.PHONY: properties
properties: $(DEV) ## Run the property tests with four times as many examples as make test
	$(BIN)/pytest -n 2 --dist worksteal -m hypothesis --hypothesis-profile thorough $(ARGS)

.PHONY: coverage
coverage: $(DEV) ## Measure the branch coverage of the unit tests; fails below the minimum
	$(BIN)/pytest -n 4 --dist worksteal -m "not slow" --cov --cov-report= $(COVERED_TESTS) $(ARGS)
	@printf 'Branch coverage of the unit tests, in percent: '
	@$(BIN)/coverage report --format=total --fail-under=$(COVERAGE_FLOOR)

.PHONY: dialects
dialects: $(DEV) ## Run SQLAlchemy's dialect suite on duckdb, mariadb, postgresql and sqlite; make test-slow runs it on duckdb
	SQLALCHEMY_SUITE=engines $(BIN)/pytest -n 2 -m slow tests/client/test_sqlalchemy.py -k test_the_dialect_suite $(ARGS)
	SQLALCHEMY_SUITE=engines $(BIN)/pytest --engine=mariadb tests/client/test_sqlalchemy_engines.py -k test_the_dialect_suite $(ARGS)

.PHONY: downloads
downloads: $(DEV) ## Download the programs of all engines; otherwise make test-engines downloads them
	$(BIN)/python -m tests.engines.downloads

.PHONY: fuzz
fuzz: $(DEV) ## Fuzz all operations of the API description for ten minutes (ARGS="60" for a minute, ARGS="60 SEED" to repeat a run)
	$(BIN)/python -m tests.fuzz $(ARGS)

.PHONY: chaos
chaos: $(DEV) ## Disturb a fleet under load and check its responses for contradictions; writes chaos-results/
	$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: load
load: $(DEV) ## Simulate 1,000 users for ten minutes (ARGS="--servers 2 --workers 2"); writes bench-results/
	$(BIN)/python -m tests.load $(ARGS)

.PHONY: smoke
smoke: $(DEV) ## Install and use the server with each Python version on this machine
	$(BIN)/python -m tests.smoke

.PHONY: bench
bench: $(DEV) ## Measure speed and memory; writes bench-results/
	$(BIN)/python -m tests.bench $(ARGS)

##@ Check

.PHONY: check
check: lint typecheck in-sync web-check test ## Run all checks that must pass before a commit is shared

.PHONY: lint
lint: $(DEV) ## Check style, import rules and size budgets
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/check_budgets.py

.PHONY: format
format: $(DEV) ## Format the code
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

.PHONY: typecheck
typecheck: $(DEV) ## Check the types of src, strictly
	$(BIN)/pyright

.PHONY: web-check
web-check: $(DEV) ## Check the types, style and components of the web console
	$(BIN)/python -m scripts.web check

.PHONY: in-sync
in-sync: $(DEV) ## Compare the generated files with their sources
	$(BIN)/python -m scripts.web build --check
	$(BIN)/python -m scripts.generate_models --check
	$(BIN)/python -m scripts.export_openapi --check
	$(BIN)/python -m scripts.document --check

##@ Generate

.PHONY: models
models: $(DEV) ## Generate the wire models from openapi/resources.yaml
	$(BIN)/python -m scripts.generate_models

.PHONY: openapi
openapi: models ## Write openapi/openapi.json from the routes
	$(BIN)/python -m scripts.export_openapi

.PHONY: web
web: $(DEV) ## Build the web console from web/
	$(BIN)/python -m scripts.web build

.PHONY: web-types
web-types: $(DEV) ## Write the types of the API that the web console uses
	$(BIN)/python -m scripts.web types

.PHONY: web-dev
web-dev: $(DEV) ## Serve the sources of the console for development (QUERYSERVER_URL=http://127.0.0.1:8888)
	$(BIN)/python -m scripts.web dev

.PHONY: web-format
web-format: $(DEV) ## Format the sources of the web console
	$(BIN)/python -m scripts.web format

.PHONY: docs
docs: models openapi ## Regenerate all generated files: models, API description, tables and diagrams in docs/
	$(BIN)/python -m scripts.document

.PHONY: lock
lock: $(DEV) ## Update the lock files from pyproject.toml (ARGS=--upgrade for newer packages, --wheels to check)
	$(BIN)/python scripts/lock.py $(ARGS)

.PHONY: clean
clean: ## Remove the environment and the caches, but not the data directories
	rm -rf $(VENV) .ruff_cache .import_linter_cache .hypothesis
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps, so that an unchanged lock file costs nothing. The build tools are in the lock, so that pip has no reason to
# fetch anything that no hash guards.

$(BIN)/python:
	@for python in $(PYTHONS); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			if $$python -c 'import ensurepip, venv' 2>/dev/null; then \
				echo "Making $(VENV) with $$($$python --version)."; \
				$$python -m venv $(VENV) || { rm -rf $(VENV); exit 1; }; exit 0; \
			fi; found=$$python; \
		fi; \
	done; \
	if [ -n "$$found" ]; then echo "make: $$found has no venv; on Debian and Ubuntu: apt install python3-venv" >&2; \
	else echo "make: Python 3.11 or newer is needed" >&2; fi; exit 1

$(RUNTIME): $(RUNTIME_LOCKS) pyproject.toml | $(BIN)/python
	@$(BIN)/python scripts/install_locked.py $(RUNTIME_LOCKS)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index --editable .
	@touch $@

$(DEV): $(DEV_LOCKS) clients/python/pyproject.toml $(RUNTIME)
	@$(BIN)/python scripts/install_locked.py $(DEV_LOCKS)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index \
		--editable clients/python
	@touch $@
