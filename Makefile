# make install   into .venv
# make demo   install into .venv, train on six node processes, kill two of them, check every bit
# make test   what `make check` does, then all tests but the long ones
# make test-long   the tests that `make test` leaves out: chaos, benchmarks, seeded bugs, the live page in a browser
# make screenshots   the pictures of the live page in docs/screenshots, made anew in a real browser
# make sim    the simulator for longer: SEEDS schedules, every rare path, every seeded bug within 300 seeds
# make fuzz   hostile input for longer: FUZZ times the tests of `make test`, RUNS of each fuzz target
# make check  ruff, mypy --strict, the architecture test
# make clean  remove .venv and what tests leave behind

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SOURCES := $(wildcard ecstore admin tests examples benchmarks)
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: help install demo test test-long screenshots sim fuzz check clean redis chromium

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

install: $(VENV)/installed
	@echo "next: . $(VENV)/bin/activate"

demo: $(VENV)/installed
	$(BIN)/ecstore demo

# Files are shared out among as many processes; much of a test's time is waiting for others to notice a failure.
TEST_PROCESSES ?= 2

test: check redis
	$(BIN)/python -m ecstore.warmup
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile -m "not long"

test-long: $(VENV)/installed-dev chromium
	$(BIN)/python -m ecstore.warmup
	$(BIN)/python -m pytest -m long

# The pictures of the documentation, as a side effect of the tests of the dashboard.
screenshots: $(VENV)/installed-dev chromium
	$(BIN)/python -m ecstore.warmup
	ECSTORE_SCREENSHOTS=docs/screenshots $(BIN)/python -m pytest -m long tests/dashboard

SEEDS ?= 0:2000

sim: $(VENV)/installed-dev
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --require-markers
	$(BIN)/python -m tests.sim --mutations --tries 300

# The targets are guided by coverage where atheris is installed (it has no wheel for every Python), else they get
# mutants of a seed.
FUZZ ?= 20
RUNS ?= 200000

fuzz: $(VENV)/installed-dev
	$(PIP) atheris || echo "atheris is not available for this Python: the fuzz targets go on without it"
	$(BIN)/python -m tests.fuzz.fuzz_wire -runs=$(RUNS)
	$(BIN)/python -m tests.fuzz.fuzz_node_messages -runs=$(RUNS)
	ECSTORE_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/hostile tests/fuzz tests/admin/test_admin_openapi.py

check: $(VENV)/installed-dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_architecture.py

$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "ecstore needs Python 3.11 or later: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV)"
	$(PIP) -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) -e '.[dev]'
	@touch $@

# One test measures beside Redis. Where it is missing and cannot be installed, that test says so and is skipped.
redis:
	@command -v redis-server >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && export DEBIAN_FRONTEND=noninteractive \
	       && apt-get -qq update && apt-get -qq install -y --no-install-recommends redis-server >/dev/null; } \
	  || echo "redis-server is not here: the test that measures beside it will be skipped"

# The live page is tried in a real browser. Where there is none and none can be installed, those tests say so.
chromium:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || [ -n "$$ECSTORE_CHROMIUM" ] \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	       && export DEBIAN_FRONTEND=noninteractive \
	       && apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
	  || echo "chromium is not here: the tests of the live page in a browser will be skipped"

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .fuzz-corpus dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
