# EdgeVeil. Two commands are enough: `make run` and `make test`. `make help` lists all.
VENV   ?= .venv
PYTHON ?= python3
OUT    ?= out/quickstart
WORKERS ?= 2
SPREAD := --dist loadfile --no-loadscope-reorder  # whole systems first: the short files fill up the end
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
unexport PYTHONDONTWRITEBYTECODE   # a process that compiles all it imports starts a second later
export PATH := $(PATH):/usr/sbin:/usr/local/sbin

.DEFAULT_GOAL := help
ACCEPTED = $(shell grep -v '^\#' tests/acceptance/tests.txt)
.PHONY: help setup run test test-all drills check budgets wheels acceptance mutants fuzz chaos long docs mosquitto postgresql chromium nats rabbitmq promtool rootfs clean

help:            ## list all targets
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

setup: $(VENV)/.all  ## make .venv and install everything
	@echo "Installed. Try: $(BIN)/edgeveil --help"

run: $(VENV)/.tools  ## run the quickstart job: brokers, cloud, proxy, 20 devices
	$(BIN)/edgeveil run configs/jobs/quickstart.yaml --out $(OUT) --force

test: mosquitto postgresql chromium promtool setup run  ## the quickstart, then all tests but the slow ones, on WORKERS=2 cores
	$(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) -m 'not slow and not drill'

test-all: mosquitto postgresql chromium promtool setup run  ## the quickstart, then every test but the drills, on WORKERS=2 cores
	$(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) -m 'not drill'

drills: mosquitto postgresql nats rabbitmq rootfs chromium setup  ## tests of minutes: images, clusters of brokers, another processor, upgrades, chaos
	$(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) -m drill

check: $(VENV)/.all  ## ruff, mypy --strict, import-linter, budgets, spelling; build the documentation strictly
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.budgets
	$(BIN)/python -m tests.drawn
	$(BIN)/codespell edgeveil edge_client cloud_server proxy tools docs configs *.md
	$(BIN)/python -m tests.drawn.site

budgets: $(VENV)/.all  ## lines, files, commands, flags, keys and classes beside what .ci/budgets.toml allows
	$(BIN)/python -m tests.budgets

acceptance: mosquitto postgresql chromium setup run  ## what a restructuring must leave as it is: vectors, models, stores, whole systems, audit, mutants
	$(BIN)/python -m tests.acceptance.golden_jobs
	$(BIN)/python -m pytest -n $(WORKERS) $(SPREAD) $(ACCEPTED)
	$(BIN)/edgeveil audit --quick
	$(MAKE) mutants

wheels: $(VENV)/.all  ## build both distributions, edgeveil and edgeveil-lab, and try them in fresh environments
	$(BIN)/python -m pytest tests/e2e/test_wheel.py

ONLY    ?=
mutants: $(VENV)/.all  ## plant small privacy flaws, one at a time: a test must find each (ONLY=NAME)
	$(BIN)/python -m tests.mutants --workers $(WORKERS) $(if $(ONLY),--only '$(ONLY)')

RUNS   ?= 1000000
fuzz: $(VENV)/.all  ## feed hostile inputs to every decoder and parser (RUNS=1000000 each)
	$(PIP) install -q -c .ci/constraints.txt -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz --runs $(RUNS)

KILLS  ?= 20
CHAOS  ?=
chaos: mosquitto $(VENV)/.all  ## kill, cut and spoil a site while jobs run, then check what was lost (KILLS=20, CHAOS='--secure | --correlated | --cells 3')
	$(BIN)/python -m tests.chaos --kills $(KILLS) $(CHAOS)

long: mosquitto $(VENV)/.all  ## 200 kills without masks, with, and of three cells, a crash at every boundary, 200 rounds of wrong masks, 30 minutes of load, the whole audit
	$(MAKE) chaos KILLS=200
	$(MAKE) chaos KILLS=200 CHAOS='--secure --out out/chaos-secure'
	$(MAKE) chaos KILLS=200 CHAOS='--correlated --out out/chaos-correlated'
	$(MAKE) chaos KILLS=200 CHAOS='--cells 3 --engine ray --out out/chaos-cells'
	EDGEVEIL_CRASH_STEP=1 $(BIN)/python -m pytest --timeout 0 tests/sim/test_crashes_site.py
	EDGEVEIL_ROUNDS=200 $(BIN)/python -m pytest --timeout 0 tests/sim/test_wrong_masks.py
	$(BIN)/edgeveil loadtest --scenario configs/load/soak.yaml --out out/soak
	$(BIN)/edgeveil audit

docs: $(VENV)/.all  ## redraw what docs/ draws from the code, and build the site: out/site/index.html
	$(BIN)/python -m tests.drawn --write
	$(BIN)/python -m tests.drawn.site

mosquitto:
	@command -v mosquitto >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi; \
	  if command -v apt-get >/dev/null 2>&1; then \
	    { $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq mosquitto; } >/dev/null 2>&1; \
	  fi; \
	  command -v mosquitto >/dev/null 2>&1 || { \
	    echo "make test needs the mosquitto broker, which is not there and could not be installed: run 'apt-get install mosquitto' as root" >&2; exit 1; }; }

postgresql:      # where it cannot be installed, the tests of that store are skipped and say so
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi; \
	  { $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq postgresql; } >/dev/null 2>&1; \
	} || echo "PostgreSQL could not be installed: its tests are skipped" >&2

chromium:        # likewise: the browser and its driver, in which pages are tested
	@{ command -v chromium && command -v chromedriver; } >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi; \
	  { $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends \
	    chromium chromium-driver; } >/dev/null 2>&1; \
	} || echo "chromium and chromium-driver could not be installed: tests of pages are skipped" >&2

nats:            # likewise: a broker that forms clusters
	@command -v nats-server >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi; \
	  { $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq nats-server; } >/dev/null 2>&1; \
	} || echo "nats-server could not be installed: the tests of a cluster are skipped" >&2

rabbitmq:        # likewise
	@ls /usr/lib/rabbitmq/bin/rabbitmq-server >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi; \
	  { $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq rabbitmq-server; } >/dev/null 2>&1; \
	} || echo "rabbitmq-server could not be installed: the tests of its cluster are skipped" >&2

promtool:        # likewise: what plays the alert rules; out of its package alone, which would start a server
	@command -v promtool >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi; \
	  { $$sudo apt-get update -qq; at="$$(mktemp -d)" && cd "$$at" && apt-get download -qq prometheus && dpkg-deb -x *.deb . \
	    && $$sudo install usr/bin/promtool /usr/local/bin/promtool; rm -rf "$$at"; } >/dev/null 2>&1; \
	  command -v promtool >/dev/null 2>&1; \
	} || echo "promtool could not be installed: the tests that fire alerts are skipped" >&2

rootfs:          # likewise: what builds images and bare roots, and plays another processor
	@{ command -v debootstrap && command -v buildah && command -v qemu-aarch64-static; } >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ]; then sudo=; else sudo="sudo -n"; fi; \
	  { $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends \
	    debootstrap buildah qemu-user-static; } >/dev/null 2>&1; \
	} || echo "debootstrap, buildah and qemu-user-static could not be installed: tests of images are skipped" >&2

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "EdgeVeil needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.tools: pyproject.toml .ci/constraints.txt | $(BIN)/python
	$(PIP) install -q -c .ci/constraints.txt -e '.[tools]'
	@touch $@

$(VENV)/.all: pyproject.toml tools/edgeveil_lab/pyproject.toml .ci/constraints.txt | $(BIN)/python
	$(PIP) install -q -c .ci/constraints.txt -e '.[all]' -e tools/edgeveil_lab
	@touch $@ $(VENV)/.tools

clean:           ## remove .venv, results and caches
	rm -rf $(VENV) out build .import_linter_cache .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
