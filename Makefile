# The project's commands; `make help` lists them. They need make, a POSIX shell, Python 3.11 or newer and a package registry.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEV := $(VENV)/.installed-dev
# Whoever has the development tools has all that the demo and the site need; others need not wait for the tools.
DEMO := $(if $(wildcard $(DEV)),$(DEV),$(VENV)/.installed-demo)
DOCS := $(if $(wildcard $(DEV)),$(DEV),$(VENV)/.installed-docs)

# Options of the demo count only when given on the command line: names as short as ENV may mean something else outside.
given = $(if $(filter command line,$(origin $(1))),$(2) '$($(1))')

.DEFAULT_GOAL := help
.PHONY: help install demo demo-sft test test-all retest lint docs links neighbours test-pythons bench soak fuzz conformance-matrix clean

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

install: $(DEV) ## Make .venv, with everything for development

demo: $(DEMO) ## Watch a tiny model learn: [URL=http://host:port] [ENV=name] [SEED=0] [STEPS=45] [OUTPUT=demo-output]
	@$(BIN)/python -m fixtures.demo $(call given,URL,--url) $(call given,ENV,--env) $(call given,SEED,--seed) \
		$(call given,STEPS,--steps) $(call given,OUTPUT,--output)

demo-sft: $(DEMO) ## Evaluate a weak model, train on what it solved, and see the gain: [SEED=0] [OUTPUT=demo-output]
	@$(BIN)/python -m fixtures.demo.sft $(call given,SEED,--seed) $(call given,OUTPUT,--output)

# Four workers for two cores, since fast tests wait, and three where coverage keeps them busy. A file stays in one, so that
# its servers are started once.
# Where bytecode is forbidden, every one of some hundred servers and commands would be compiled anew.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
TOGETHER := --dist loadfile --no-loadscope-reorder
# In a fresh clone every worker would rewrite the assertions of all tests for itself, at the same time.
WARM := [ -d .pytest_cache ] || $(PYTEST) --collect-only -qq >/dev/null;

# Lint runs beside the tests, and what it says comes behind theirs. Its status is 2, since 1 says that tests failed.
beside_lint = @said=$$(mktemp); $(MAKE) --no-print-directory lint >$$said 2>&1 & lint=$$!; \
	trap 'kill $$lint 2>/dev/null; rm -f $$said' EXIT; trap 'exit 130' INT TERM; \
	status=0; $(1) || status=$$?; \
	wait $$lint || status=2; cat $$said; exit $$status

test: $(DEV) ## Lint, and run the fast tests, in four minutes
	$(call beside_lint,$(WARM) $(PYTEST) -n 4 $(TOGETHER) -m 'not slow' --hypothesis-profile fast)

test-all: $(DEV) ## Lint, run every test and report the coverage, in about seventeen
	$(call beside_lint,$(WARM) $(PYTEST) -n 3 $(TOGETHER) --cov --cov-report term:skip-covered)

# Each has what the client's tests need alone: torch would take gigabytes for each, and is tried on the first.
PYTHONS ?= python3.12 python3.13
test-pythons: ## Run the client's fast tests on each other Python that is here: [PYTHONS="python3.12 python3.13"]
	@for python in $(PYTHONS); do \
		"$$python" -c '' 2>/dev/null || { echo "$$python is not here, and was not tried"; continue; }; \
		venv=.venv-pythons/$$("$$python" -c 'import platform; print(platform.python_version())'); \
		[ "$$venv/.installed" -nt pyproject.toml ] || { \
			echo "installing what the client's tests need into $$venv"; \
			"$$python" -m venv "$$venv" && "$$venv/bin/python" -m pip install -q 'pip>=25.1' && \
			"$$venv/bin/python" -m pip install -q -e '.[cli]' --group client-tests && touch "$$venv/.installed" || exit 1; \
		}; \
		"$$venv/bin/python" -m pytest tests/client -n 2 $(TOGETHER) -m 'not slow' --hypothesis-profile fast || exit 1; \
	done

retest: $(DEV) ## Run once more, one at a time, what failed in the last run, and name what passes now
	@$(PYTEST) --last-failed --last-failed-no-failures none

lint: $(DEV) ## Check style, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright

docs: $(DOCS) ## Write the searchable site, the pages of docs/ and the API reference, to build/docs
	@rm -rf build/docs
	@$(BIN)/python -m tests.packaging.website build/docs

links: $(DEV) ## Ask for every address outside that the pages link to
	@$(BIN)/python tests/readme/outside_links.py

neighbours: $(DEV) ## Resolve the packages beside openreward, ors-sdk and vLLM, and install nothing; some minutes
	@$(BIN)/python tests/packaging/neighbours.py

bench: $(DEV) ## Measure speed, CPU and memory beside the official SDKs and bare aiohttp
	@$(BIN)/python -m tests.benchmarks

soak: $(DEV) ## Run many sessions under random faults: [MINUTES=10]
	@$(BIN)/python -m tests.soak $(call given,MINUTES,--minutes)

fuzz: $(DEV) ## Attack the client with generated answers: [MINUTES=10]
	@$(BIN)/python -m tests.attack $(call given,MINUTES,--minutes)

# Each release is installed once, into .venv-matrix. After that the features take about six minutes, and the conformance
# tests about five for each release.
conformance-matrix: $(DEV) ## Try every feature, then the conformance tests, on seven releases of the official servers
	@$(BIN)/python -m tests.matrix --conformance

clean: ## Remove .venv and everything else that was made
	rm -rf $(VENV) .venv-matrix .venv-pythons build dist demo-output htmlcov .coverage* .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed, and $(PYTHON) is not; name another with PYTHON=..." >&2; exit 1; }
	@echo "making the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@echo "installing the dependency group $* into $(VENV); the first time, this takes some minutes"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input -q 'pip>=25.1'  # older ones know no groups
	@log=$(VENV)/install.log; seconds=0; \
	PYTHONUNBUFFERED=1 $(BIN)/python -m pip install --disable-pip-version-check --no-input --progress-bar off \
		-e . --group '$*' >$$log 2>&1 & pip=$$!; \
	trap 'kill $$pip 2>/dev/null; exit 130' INT TERM; \
	while sleep 1; kill -0 $$pip 2>/dev/null; do \
		seconds=$$((seconds + 1)); \
		if [ $$((seconds % 5)) -eq 0 ]; then \
			echo "  $$seconds s: $$(grep -E '^ *(Collecting|Downloading|Installing|Processing) ' $$log | tail -n 1 | cut -c 1-80)"; \
		fi; \
	done; \
	wait $$pip || { tail -n 20 $$log >&2; echo "The installation failed; all it said is in $$log." >&2; exit 1; }; \
	echo "installed after $$seconds s"
	@touch $@
