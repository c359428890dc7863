# One place for every task. `make run` shows a ticking table, `make test` runs the tests; both set themselves up.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PORT ?= 10000

.DEFAULT_GOAL := help
.PHONY: help run test test-further property sim interleavings fuzz interop interop-secured bench bench-interop bench-spark generated web test-web pictures references web-soak test-ucx test-npm test-spark test-spark-secured test-spark-oldest spark-demo test-connectors chaos slow busy restless night proto flatbuf fmt check coverage clean

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(VENV)/.run: pyproject.toml
	@echo "setting up $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --editable '.[frames]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "installing the test tools ..."
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(VENV)/.spark: $(VENV)/.dev
	@echo "installing Spark (about 500 MB) ..."
	@$(BIN)/python -m pip install --quiet --editable '.[dev,spark,lake,plots]'
	@$(BIN)/python -m spark_sink.java_runtime >/dev/null || $(BIN)/python -m pip install --quiet --editable '.[dev,spark,lake,plots,java]'
	@touch $@

$(VENV)/.interop: $(VENV)/.dev
	@echo "installing a real Deephaven server and clients (test dependencies only) ..."
	@$(BIN)/python -m pip install --quiet --editable '.[dev,interop]'
	@touch $@

$(VENV)/.ucx: $(VENV)/.dev
	@echo "installing UCX ..."
	@$(BIN)/python -m pip install --quiet --editable '.[dev,ucx]'
	@touch $@

run: $(VENV)/.run ## start a server with live tables of this machine and watch one tick
	@$(BIN)/barrage demo --port $(PORT)

# The tests of a file go to one process, which makes what they share once; the long files come first.
WORKERS ?= 4
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.dev ## the default test suite
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(SHARED)

test-further: $(VENV)/.dev ## more seeds, shapes and broken builds of the default suite's tests
	$(BIN)/python -m pytest $(SHARED) -m "further and not slow"

property: $(VENV)/.dev ## property tests with many more examples
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n 2 tests/property
	HYPOTHESIS_PROFILE=ci $(BIN)/python -m pytest -n 2 -m "hypothesis and not interop and not spark and not ucx and not web and not chaos" tests/unit tests/end_to_end

sim: $(VENV)/.dev ## the seeded simulator: 100 seeds
	$(BIN)/python -m tests.sim --seeds 100

interleavings: $(VENV)/.dev ## random orders of tasks and threads: 200 seeds for each object with more than one caller
	$(BIN)/python -m tests.interleaving --canaries
	$(BIN)/python -m tests.interleaving --seeds 200

fuzz: $(VENV)/.dev ## decoders against mutated and random bytes
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n 2 tests/fuzz

interop: $(VENV)/.interop ## both servers with every client: ours and Deephaven 42.7 (needs Java 17)
	$(BIN)/python -m pytest -m interop tests/interop

# What of the two suites has a server that can ask who calls: docs/security.md says what is left out.
SECURED_INTEROP := $(patsubst %,tests/interop/test_%.py,matrix storms refusals pydeephaven_operations pydeephaven_inputs pydeephaven_rules pydeephaven_tls spark_source_journals)

interop-secured: $(VENV)/.interop ## the same clients on our server with TLS, tokens and rules
	SECURED_SUITE=1 $(BIN)/python -m pytest -m interop $(SECURED_INTEROP)

# Node's packages are for building and testing alone; the built page lies in barrage/web/static.
web/node_modules/.done: web/package.json web/package-lock.json
	cd web && npm ci --silent --no-audit --no-fund
	@touch $@

web: web/node_modules/.done ## build the page into barrage/web/static (needs Node 20)
	cd web && npm run --silent build

$(VENV)/.web: $(VENV)/.interop
	@$(BIN)/python -m pip install --quiet --editable '.[dev,interop,browser]'
	@command -v chromium >/dev/null || { apt-get -q update && apt-get -q -y install chromium; } >/dev/null
	@touch $@

test-web: $(VENV)/.web web/node_modules/.done ## the page in Chromium, its door with Deephaven's JavaScript API (needs Node 20; Chromium, which root gets from apt)
	cd web && npm run --silent check && npm test --silent
	cd tests/web/node_transport && npm ci --no-audit --no-fund --silent
	$(BIN)/python -m pytest -n 2 --dist loadfile -m web tests/web

pictures: $(VENV)/.web web/node_modules/.done ## take the pictures of the page that the documents show
	BARRAGE_PICTURES=$(abspath docs/images) $(BIN)/python -m pytest -m web tests/web -k pictures

references: $(VENV)/.web web/node_modules/.done ## take the pictures anew that the tests of the page hold it against
	BARRAGE_REFERENCES=1 $(BIN)/python -m pytest -m web tests/web/page/test_looks.py

MINUTES ?= 30
web-soak: $(VENV)/.web web/node_modules/.done ## a page open for MINUTES (30) on tables that tick; fails when anything grows
	$(BIN)/python -m tests.web.soaking --minutes $(MINUTES)

test-ucx: $(VENV)/.ucx ## bodies over UCX: once with the library from PyPI, once with that of the system, where there is one
	$(BIN)/python -m tests.ucx

test-npm: $(VENV)/.dev ## a Flight client in JavaScript against our server (needs Node.js 18 or newer)
	cd tests/flight_js && npm ci --no-audit --no-fund --silent
	$(BIN)/python -m pytest -m npm tests/flight_js

test-spark: $(VENV)/.spark ## the Spark source and sink in a real Spark (Java 17 or newer; one from PyPI where there is none)
	JAVA_HOME=$$($(BIN)/python -m spark_sink.java_runtime) $(BIN)/python -m pytest -m spark tests/spark

test-spark-secured: $(VENV)/.spark ## the same over TLS, with users and rules
	SECURED_SUITE=1 JAVA_HOME=$$($(BIN)/python -m spark_sink.java_runtime) $(BIN)/python -m pytest -m spark tests/spark

test-spark-oldest: $(VENV)/.spark ## the same and the kills of Spark on the oldest supported PySpark, in an environment of its own
	$(PYTHON) -m venv $(VENV)-oldest
	$(VENV)-oldest/bin/python -m pip install --quiet --editable '.[dev,spark,lake,plots]' 'pyspark[connect]>=4.2,<4.3'
	JAVA_HOME=$$($(BIN)/python -m spark_sink.java_runtime) OLDEST_SPARK=1 $(VENV)-oldest/bin/python -m pytest -m spark tests/spark
	JAVA_HOME=$$($(BIN)/python -m spark_sink.java_runtime) $(VENV)-oldest/bin/python -m pytest -m chaos tests/chaos/test_spark_source_kills.py tests/chaos/test_spark_sink_kills.py

spark-demo: $(VENV)/.spark ## orders and fills through Spark and back while the server is killed; fails unless all is equal
	$(BIN)/python examples/spark_pipeline/pipeline.py

test-connectors: $(VENV)/.dev ## the connectors that ship against PostgreSQL, Redis and mosquitto (installs them where it may)
	@command -v redis-server mosquitto >/dev/null && ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { [ "$$(id -u)" != 0 ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql redis-server mosquitto; }; }
	$(BIN)/python -m pytest -m connectors tests/connectors

chaos: $(VENV)/.spark ## kill servers, Spark drivers and executors at random points; nothing may be lost (under 15 minutes)
	JAVA_HOME=$$($(BIN)/python -m spark_sink.java_runtime) $(BIN)/python -m pytest -m chaos tests/chaos

slow: $(VENV)/.dev ## the tests that are too long for the default suite, among them all ends and failures of a journal's calls
	$(BIN)/python -m pytest -n 2 -m slow tests

busy: $(VENV)/.dev ## the default suite, twenty times in a row beside six busy loops (hours)
	$(BIN)/python -m scripts.busy_suite --rounds 20

restless: $(VENV)/.dev ## the default suite on servers that do all the time what they do now and then
	RESTLESS_SUITE=1 $(BIN)/python -m pytest $(SHARED)

NIGHT ?= --kills 1000 --cuts 2000 --calls 500 --inputs 10000000 --seeds 10000 --interleavings 2000 --soak 60
night: $(VENV)/.dev ## the machines of docs/reliability.md for hours; puts their figures into the page
	$(BIN)/python -m tests.chaos.night $(NIGHT) --update docs/reliability.md

bench: $(VENV)/.dev ## every benchmark; prints the table and writes build/bench/*.json
	$(BIN)/python -m benchmarks --update docs/performance.md

bench-spark: $(VENV)/.spark ## the Spark source and sink beside Spark's own Parquet source and sink
	JAVA_HOME=$$($(BIN)/python -m spark_sink.java_runtime) $(BIN)/python -m benchmarks spark_source spark_snapshot spark_latency spark_sink --update docs/performance.md

bench-interop: $(VENV)/.interop ## Deephaven's ticking client on our server and on a real one (needs Java 17)
	$(BIN)/python -m benchmarks ticking_client --update docs/performance.md

proto: $(VENV)/.dev ## compile the .proto files
	PYTHON=$(BIN)/python proto_schemas/generate.sh

generated: $(VENV)/.dev ## write the methods of operators, and the synchronous forms of asynchronous classes
	$(BIN)/python -m scripts.generated

flatbuf: ## generate the flatbuffers code (needs flatc)
	flatbuf_schemas/generate.sh

fmt: $(VENV)/.dev ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The tests that are about the core itself; what only larger tests reach does not count.
CORE_TESTS := $(addprefix tests/unit/,connector rowset model wire engine proto relay server/deephaven server/exchange) \
	$(patsubst %,tests/property/test_%.py,row_ids row_set_forms row_set_machine connector_sessions storage_columns resumed_subscriptions derivations view_frames producer_spans)

coverage: $(VENV)/.dev ## branch coverage of the core by its own tests; fails below the floor in pyproject.toml
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not slow" $(CORE_TESTS) --cov

check: $(VENV)/.dev ## lint, types, layers, spelling, branch coverage of the core
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports
	$(BIN)/codespell barrage spark_sink pyspark_barrage scripts examples tests benchmarks docs flatbuf_schemas *.md
	@$(MAKE) --no-print-directory coverage

clean: ## remove the environment and build products
	rm -rf $(VENV) build *.egg-info
