# Every target does its own set-up, with uv.  It needs Python 3.11 or 3.12 and, the first time only, a network.
.DEFAULT_GOAL := help
.PHONY: help setup demo pipeline site smoke quick test chaos fuzz nightly glue-env sam sam-local planted model lint bench bench-quick definition deploy-artifacts wheel layer lock sbom audit release clean
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
EXTRAS := spark,demo,functions,dev
# The stamp contains a checksum of the files that determine the installation: while they are unchanged, nothing is fetched.
STAMP := $(VENV)/.installed-$(shell cat pyproject.toml constraints.txt | cksum | tr ' ' '-')
# Targets that build for a deployment need only locked packages (rule: deploy-pinned-packages): no Spark, Java or server.
BUILD_VENV := .venv-artifacts
BUILD_STAMP := $(BUILD_VENV)/.installed-$(shell cksum < artifacts/locked/build.txt | tr ' ' '-')
# The tools that list the locked packages and their known vulnerabilities; they are locked, too.
SUPPLY_LOCK := artifacts/locked/supply.txt
SUPPLY := build/supply-chain
SUPPLY_STAMP := $(SUPPLY)/.installed-$(shell cksum < $(SUPPLY_LOCK) | tr ' ' '-')
# Behind a proxy that inspects TLS, only the system's certificates are valid; by default, uv uses its own.
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt),)
export UV_SYSTEM_CERTS ?= true
endif
# Otherwise every run and every child process would compile its imports again.
unexport PYTHONDONTWRITEBYTECODE
SOURCES := layers/icekeeper/src
# SAM CLI and AWS CLI need other versions than ours, so they have a separate environment.
SAM_PACKAGES := aws-sam-cli==1.170.0 awscli==1.46.3
SAM := build/sam-cli
SAM_STAMP := $(SAM)/.installed-$(subst ==,-,$(subst $() ,-,$(SAM_PACKAGES)))
# Packages that Lambda's Python 3.12 contains: AWS's client of the runtime, and another boto3 than ours.
RUNTIME_PACKAGES := awslambdaric==4.2.2 boto3==1.40.4
RUNTIME := build/lambda-runtime
RUNTIME_STAMP := $(RUNTIME)/.installed-$(subst ==,-,$(subst $() ,-,$(RUNTIME_PACKAGES)))
# Readers in Rust, ClickHouse (both check our tables) and DuckDB 2 also need other versions than ours.
JUDGES_PACKAGES := tests/support/judges/packages.txt
JUDGES := build/judges
JUDGES_STAMP := $(JUDGES)/.installed-$(shell cksum < $(JUDGES_PACKAGES) | tr ' ' '-')
# The fuzzer contains a compiled libFuzzer, so it is installed separately from the project's packages.
FUZZER_PACKAGES := atheris==3.0.0
FUZZER := build/fuzzer
FUZZER_STAMP := $(FUZZER)/.installed-$(subst ==,-,$(FUZZER_PACKAGES))

help: ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with everything pinned in constraints.txt

demo: $(STAMP) ## make a messy local table bucket healthy, with proof
	$(BIN)/icekeeper demo

pipeline: $(STAMP) ## run the whole stack on this machine: one compaction fails on purpose, the rest is done
	@$(BIN)/python -m local_stack

site: $(STAMP) ## build the documentation as a site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q

smoke: $(STAMP) ## check a deployed stack with a scratch table: make smoke STACK=icekeeper
	$(BIN)/python -m smoke $(STACK) $(if $(CATALOG),--catalog $(CATALOG))

quick: $(STAMP) ## run rules, properties and contracts, without Java and servers: for every change
	$(BIN)/python -m pytest -q -r fE -n 2 --quick --in-memory tests/unit tests/property tests/contract

# Four workers on two cores: many tests wait for servers and processes.
test: $(STAMP) $(JUDGES_STAMP) ## run all tests
	JUDGES_PYTHON=$(JUDGES)/bin/python $(BIN)/python -m pytest -q -n 4 --dist loadgroup --in-memory tests

chaos: $(STAMP) ## write to a table and kill passes over it for 15 minutes, then prove every row: make chaos SECONDS=900 STORE=sql
	PYTHONPATH=tests $(BIN)/python -m support.chaos $(if $(SECONDS),--seconds $(SECONDS)) $(if $(STORE),--store $(STORE))

fuzz: $(STAMP) $(FUZZER_STAMP) ## fuzz every reader of foreign files by coverage, ten minutes: make fuzz SECONDS=600, RUNS=5000 a format, FORMATS="manifest"
	PYTHONPATH=tests:$(FUZZER) $(BIN)/python -m support.hostile.fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RUNS),--runs $(RUNS)) $(FORMATS)

planted: $(STAMP) ## plant faults in the code, and see that the tests find each of them (part of nightly)
	$(BIN)/python -m planted

model: $(STAMP) ## check the models of commit, expiry and sweep, and without each guard (needs spin; part of nightly)
	$(BIN)/python models/check.py

# With the nightly profile they make more tables, send more signals, and also run their tests of several seconds.
NIGHTLY_TOO := $(addprefix tests/,integration/test_demo.py \
	integration/test_interrupted_command.py interop/test_java_tables.py interop/test_reader_matrix.py \
	workflow/test_pipeline.py workflow/test_rights.py workflow/test_smoke.py)

nightly: $(STAMP) $(JUDGES_STAMP) ## 2,000 random cases of every property, 2,000 histories under fire, planted faults, and what takes minutes
	JUDGES_PYTHON=$(JUDGES)/bin/python $(BIN)/python -m pytest -q -n 2 --dist loadgroup --hypothesis-profile=nightly tests/property tests/nightly $(NIGHTLY_TOO)
	PYTHONPATH=tests $(BIN)/python -m support.model --histories 2000 --record
	PYTHONPATH=tests $(BIN)/python -m support.chaos --seconds 120
	PYTHONPATH=tests $(BIN)/python -m support.hostile.fuzz --again tests/hostile/findings --changes 2000 --first $$(date +%s)
	$(BIN)/python -m planted
	$(BIN)/python models/check.py

glue-env: $(STAMP) ## install the jobs' wheels and the layer into clean Pythons and run them there (part of nightly)
	$(BIN)/python -m pytest -q -rs --hypothesis-profile=nightly tests/nightly/test_clean_glue.py tests/nightly/test_clean_lambda.py

sam: $(STAMP) $(SAM_STAMP) ## let SAM CLI validate, build and resolve the stack, in an environment of its own (30 s)
	SAM_CLI=$(SAM)/bin/sam $(BIN)/python -m pytest -q -r fEs tests/sam

sam-local: $(STAMP) $(SAM_STAMP) $(RUNTIME_STAMP) layer ## send every event to its function as Lambda runs it (as root on Linux)
	SAM_CLI=$(SAM)/bin/sam $(BIN)/python -m pytest -q -r fEs tests/sam_local

lint: $(STAMP) ## check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES) tests benchmarks functions glue_jobs state_machine local_stack smoke artifacts planted models
	$(BIN)/cfn-lint template.yaml

bench: $(STAMP) ## measure everything beside the peers and record it in docs/performance.* (ROWS="..." picks rows; hours)
	$(BIN)/python -m benchmarks --quick --record $(ROWS)
	$(BIN)/python -m benchmarks --record $(ROWS)
	$(BIN)/python -m benchmarks --growth --record $(ROWS)

bench-quick: $(STAMP) ## measure small tables beside the peers, and print ratios beside the last recorded ones (5 minutes)
	$(BIN)/python -m benchmarks --quick $(ROWS)

definition: $(STAMP) ## write the state machine's definition anew, from state_machine/
	$(BIN)/python -m state_machine > functions/maintain_tables.asl.yaml.new
	mv functions/maintain_tables.asl.yaml.new functions/maintain_tables.asl.yaml

deploy-artifacts: $(BUILD_STAMP) ## build all that a deployment copies to AWS, without Spark and Java (ARCHITECTURE=arm64)
	$(BUILD_VENV)/bin/python -m artifacts --architecture $(or $(ARCHITECTURE),x86_64)

wheel: $(BUILD_STAMP) ## build only the package's wheel into dist/
	$(BUILD_VENV)/bin/python -m artifacts wheel

layer: $(BUILD_STAMP) ## build only the functions' layer into build/layer (ARCHITECTURE=arm64 for the other processor)
	$(BUILD_VENV)/bin/python -m artifacts layer --architecture $(or $(ARCHITECTURE),x86_64)

lock: $(BUILD_STAMP) ## write artifacts/locked/ anew from constraints.txt: versions and hashes of all that is deployed
	$(BUILD_VENV)/bin/python -m artifacts.locks

sbom: $(SUPPLY_STAMP) ## write bills of materials of layer and jobs into build/sbom (CycloneDX, needs no network)
	$(SUPPLY)/bin/python -m artifacts.supply_chain sbom

audit: $(SUPPLY_STAMP) ## ask PyPI for known vulnerabilities of all that is locked; what could not be asked for fails
	$(SUPPLY)/bin/python -m artifacts.supply_chain audit

release: sbom $(BUILD_STAMP) ## build a version into build/release: wheel, jobs' wheels, layers, bills, SHA256SUMS
	$(BUILD_VENV)/bin/python -m artifacts.release

clean: ## remove .venv and all caches
	rm -rf $(VENV) $(BUILD_VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	find $(SOURCES) state_machine local_stack artifacts tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(SAM_STAMP): $(STAMP)
	@echo "setting up $(SAM)"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(SAM)
	@$(BIN)/uv pip install --quiet --python $(SAM)/bin/python $(SAM_PACKAGES)
	@touch $@

$(SUPPLY_STAMP): $(BUILD_STAMP)
	@echo "setting up $(SUPPLY)"
	@$(BUILD_VENV)/bin/uv venv --quiet --clear --python $(BUILD_VENV)/bin/python $(SUPPLY)
	@$(BUILD_VENV)/bin/uv pip install --quiet --python $(SUPPLY)/bin/python --require-hashes -r $(SUPPLY_LOCK)
	@touch $@

$(RUNTIME_STAMP): $(STAMP)
	@rm -rf $(RUNTIME)
	@$(BIN)/uv pip install --quiet --target $(RUNTIME) --only-binary :all: --python-version 3.12 \
	  --python-platform $(shell uname -m)-manylinux_2_28 $(RUNTIME_PACKAGES)
	@touch $@

$(JUDGES_STAMP): $(STAMP)
	@echo "setting up $(JUDGES)"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(JUDGES)
	@$(BIN)/uv pip install --quiet --python $(JUDGES)/bin/python -r $(JUDGES_PACKAGES)
	@touch $@

$(FUZZER_STAMP): $(STAMP)
	@rm -rf $(FUZZER)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --target $(FUZZER) $(FUZZER_PACKAGES)
	@touch $@

# $(call new_environment,FOLDER): an environment with what builds (uv, hatchling), of the first Python that fits.
define new_environment
@set -e; \
	python=; \
	for candidate in $(PYTHON) python3.11 python3 python3.12; do \
	  if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then \
	    python=$$candidate; break; fi; done; \
	if [ -z "$$python" ]; then \
	  echo "Python 3.11 or 3.12 is needed: apt install python3.11 python3.11-venv, or name one with make PYTHON=..." >&2; \
	  exit 1; fi; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "This Python cannot create virtual environments: apt install python$$version-venv" >&2; \
	  exit 1; fi; \
	echo "setting up $(1) with $$python"; \
	$$python -m venv $(1); \
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r artifacts/locked/build.txt
endef

$(STAMP):
	$(call new_environment,$(VENV))
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt -e '.[$(EXTRAS)]'
	@rm -f $(VENV)/.installed-*
	@touch $@

$(BUILD_STAMP):
	$(call new_environment,$(BUILD_VENV))
	@rm -f $(BUILD_VENV)/.installed-*
	@touch $@
