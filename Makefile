# Each target sets up what it needs: `make demo` on a fresh clone is enough.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

.PHONY: demo check test-fast test test-all studio screenshots

demo: .venv/installed-runtime
	@$(BIN)/keel demo

# Within a minute.
check: .venv/installed-dev
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/pyright src
	@$(BIN)/lint-imports

# Within three minutes: no real data, no whole runs.
test-fast: .venv/installed-dev
	@$(PYTEST) -m "not slow and not multi and not data and not browser" --ignore tests/golden --ignore tests/test_claims.py \
		--ignore tests/test_demo.py --deselect tests/test_docs.py::test_blocks_run

# Within ten minutes on two cores.
test: check
	@$(BIN)/pyright tests benchmarks
	@$(PYTEST) -m "not slow and not multi"

# Adds several processes, faults and long runs, one at a time.
test-all: test $(if $(shell command -v npm),frontend/node_modules)
	@$(BIN)/python -m pytest -m "slow or multi"

# The pages of keel studio, which are committed as they are built; needs node 20.19 or newer.
studio: frontend/node_modules
	@cd frontend && npm run --silent check && npm run --silent build

# Pictures of all views of keel studio, light and dark, wide and narrow, in build/screenshots; needs chromium.
screenshots: .venv/installed-dev frontend/node_modules
	@KEEL_SCREENSHOTS=build/screenshots $(BIN)/python -m pytest -q tests/studio/test_browser.py -k every_view

frontend/node_modules: frontend/package-lock.json
	@cd frontend && npm ci --silent --no-audit --no-fund && touch node_modules

.venv/installed-runtime: EXTRAS :=
.venv/installed-dev: EXTRAS := [dev]

# constraints.txt pins torch: an unpinned torch brings gigabytes of CUDA packages.
.venv/installed-%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "Keel needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Setting up .venv (once, some minutes)" >&2
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.$(EXTRAS)'
	@touch $@
