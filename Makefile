# Tidemill: everything a person or a machine does here starts with one of these. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

# rustup installs here; a shell that was open before does not know it yet.
export PATH := $(PATH):$(HOME)/.cargo/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# An activated environment elsewhere must not be the one that is built into.
export VIRTUAL_ENV := $(CURDIR)/.venv
unexport PYTHONHOME
unexport PYTHONPATH

PYTHON ?= python3
BIN := .venv/bin
# As maturin builds the bindings (pyproject.toml): what one build compiles, the others need not.
BUILD := --release --locked --workspace --features pyo3/extension-module
RUST_SOURCES := $(shell find crates -name '*.rs' -o -name 'Cargo.toml')
WEB_SOURCES := $(shell find web -name node_modules -prune -o -type f -print)
PAGE := python/tidemill/viz/static/index.html

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: $(PAGE) .venv/.built ## Build everything into .venv (seconds when nothing has changed)

.PHONY: demo
demo: setup ## Set up, then run the main job: a market as a moving map, on two workers (DATA=prices.csv GROUPS=sectors.csv: yours)
	@DATA="$(DATA)" MARKET_GROUPS="$(GROUPS)" VIEW="$(VIEW)" tools/demo

.PHONY: test
test: setup setup-peers setup-servers setup-browser setup-s3 ## Set up, then run every check and test
	@BUILD="$(BUILD)" $(BIN)/python tools/run-tests lint compile tests

.PHONY: test-all
test-all: export PYTEST_ARGS := --all
test-all: export SIMULATION_EFFORT := 1
test-all: test ## As `test`, with slow tests, every case of sampled matrices and all seeds of simulations (before a release)

.PHONY: lint
lint: setup ## Check format, lints and types of Rust, Python and the viewer's page, which is tested too
	cargo fmt --all --check
	cargo clippy $(BUILD) --all-targets -- -D warnings
	$(BIN)/python tools/check-house
	$(BIN)/python tools/check-licences
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	tools/npm run --silent check

.PHONY: format
format: setup ## Format Rust, Python and the viewer's page
	cargo fmt --all
	$(BIN)/ruff format
	$(BIN)/ruff check --fix
	tools/npm run --silent format

# The bindings have no Rust tests: they are tested from Python.
.PHONY: test-rust
test-rust: setup ## Run the Rust tests, documentation included
	@BUILD="$(BUILD)" $(BIN)/python tools/run-tests rust

.PHONY: test-python
test-python: setup setup-s3 ## Run the Python and multi-process tests
	@$(BIN)/python tools/run-tests python

# Not with our configuration, which a package below this folder would have.
.PHONY: test-networkx
test-networkx: setup ## Run networkx's own tests with the backend
	NETWORKX_TEST_BACKEND=tidemill NETWORKX_FALLBACK_TO_NX=True \
		$(BIN)/python -m pytest -c /dev/null -p no:cacheprovider -q -n 4 --pyargs networkx

TARGET ?= $(sort $(basename $(notdir $(wildcard fuzz/fuzz_targets/*.rs))))
SECONDS ?= 60

.PHONY: fuzz
fuzz: ## Feed decoders with what no peer would send (needs nightly Rust and cargo-fuzz; TARGET=frames SECONDS=3600: one, for an hour)
	for target in $(TARGET); do cargo +nightly fuzz run "$$target" -- -max_total_time=$(SECONDS) -rss_limit_mb=4096; done

# Of the package's sources alone: it needs neither Rust nor .venv.
.PHONY: docs
docs: out/site-env/.installed ## Build the documentation site into out/site (needs only Python packages)
	out/site-env/bin/python tools/site/build.py

QUERIES ?= 1000000000

.PHONY: fuzz-sql
fuzz-sql: setup ## Run random queries and chains of DataSets against DuckDB and themselves (SECONDS=3600, or QUERIES=100000 SECONDS=inf)
	PYTHONPATH=tests $(BIN)/python -m sqlfuzz --workers 1,2,3 --queries $(QUERIES) --seconds $(SECONDS)

.PHONY: wheel
wheel: $(PAGE) out/wheel-env/.installed ## Build a wheel and the sdist into dist, and check them (ARCH="x86_64 aarch64": wheels for both)
	PATH="$(CURDIR)/out/wheel-env/bin:$$PATH" out/wheel-env/bin/python tools/wheel $(ARCH)

.PHONY: test-wheel
test-wheel: ## Install dist's wheels into fresh environments and try them (after `make wheel`; FILE=dist/...: one, or the sdist)
	$(PYTHON) tests/wheel/check.py $(FILE)

.PHONY: bench
bench: setup setup-browser ## Measure beside the peers (installs them first)
	bench/setup_peers.sh
	$(BIN)/python bench/run.py

.PHONY: setup-peers
setup-peers: ## Install Open MPI and MPICH where that is possible without asking
	@tools/setup-peers

.PHONY: setup-servers
setup-servers: ## Install Kafka, Redis, RabbitMQ and PostgreSQL where that is possible without asking
	@tools/setup-servers

.PHONY: setup-browser
setup-browser: ## Install the browser that tests of the viewer drive, where that is possible without asking
	@tools/setup-browser

.PHONY: setup-s3
setup-s3: .venv/bin/s3s-fs ## Build the S3 server that tests talk to

.PHONY: clean
clean: ## Remove what was built
	rm -rf .venv out dist target LICENSES-THIRD-PARTY.txt python/tidemill/*.so python/tidemill/viz/static web/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps: a step runs again only when what it depends on has changed.

.venv/.requirements: requirements-dev.txt
	@PYTHON=$(PYTHON) tools/check-tools
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	@touch $@

out/site-env/.installed: requirements-docs.txt
	test -x out/site-env/bin/python || $(PYTHON) -m venv out/site-env
	out/site-env/bin/python -m pip install --quiet -r requirements-docs.txt
	@touch $@

out/wheel-env/.installed: requirements-wheel.txt
	@PYTHON=$(PYTHON) tools/check-tools
	test -x out/wheel-env/bin/python || $(PYTHON) -m venv out/wheel-env
	out/wheel-env/bin/python -m pip install --quiet -r requirements-wheel.txt
	@touch $@

web/node_modules/.installed: web/package-lock.json web/package.json .venv/.requirements
	tools/npm ci --loglevel=error
	@touch $@

# What the browser shows is part of the package, so it comes before the package.
$(PAGE): web/node_modules/.installed $(WEB_SOURCES)
	tools/npm run --silent build
	@touch $@

.venv/.built: .venv/.requirements $(RUST_SOURCES) Cargo.toml Cargo.lock pyproject.toml
	@PYTHON=$(PYTHON) tools/check-tools
	$(BIN)/maturin develop --release --locked -- -C strip=none
	@touch $@

# A server that checks signatures and keeps uploads apart, as real stores do.
S3S_FS := 0.14.1
.venv/bin/s3s-fs: .venv/.requirements
	test -x $@ || cargo install --quiet --locked --version $(S3S_FS) --features binary --root .venv s3s-fs
	@touch $@
