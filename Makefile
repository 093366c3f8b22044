# Needs make and Python 3.11 or later, nothing else. Everything is installed into .venv, at the versions in constraints.txt.
#   make test ARGS="-k alignment -x"      make demo PYTHON=python3.12

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
ARGS   ?=

WORKERS := --numprocesses auto --maxprocesses 8

SOURCES := pyproject.toml constraints.txt
PIN     := --constraint constraints.txt --build-constraint constraints.txt
SHIPPED := build/dist/bin
INSTALL := $(BIN)/python -m pip install -qq --no-input --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo demo-real bench docs test test-all test-browser test-real test-vllm test-sglang test-tgi test-llama-cpp-python test-evaluators check fix lock clean dist wire

# Without its caches every worker, and every command that a test runs, would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

help:  ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "make %-21s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMPS)/demo  ## Start two small models on llama.cpp and fuse their answers
	@$(BIN)/cosd demo $(ARGS)

demo-real: $(STAMPS)/demo  ## The same with a real model and two specialists of it (the first time fetches 98 MB)
	@$(BIN)/cosd demo --real $(ARGS)

bench: $(STAMPS)/bench  ## Measure what a fusion costs (ARGS=--quick for two minutes; --help lists the sections)
	@$(BIN)/python -m benchmarks $(ARGS)

docs: $(STAMPS)/docs  ## Write the tables of docs/ from the code and benchmarks/results; build the site into build/site, links checked
	@$(BIN)/python docs/generate_methods.py
	@$(BIN)/python docs/generate_fields.py
	@$(BIN)/python -m benchmarks --page
	@$(BIN)/python docs/generate_site.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --config-file build/mkdocs.yml
	@echo "build/site is ready: $(BIN)/python -m http.server --directory build/site"

test: $(STAMPS)/test  ## Run the tests, on live llama.cpp servers too (about four minutes on two cores)
	@$(BIN)/python -m pytest $(WORKERS) -m "not extended" $(ARGS)

test-all: $(STAMPS)/test  ## Run all tests, the extended ones too, each drawing twice the examples (as CI does)
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-ci} $(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-browser: $(STAMPS)/browser  ## Run the tests of the report in a headless Chromium (installs Debian's where it may)
	@chromium=$$($(BIN)/python tests/browser/install.py) && \
	    COSD_CHROMIUM="$$chromium" $(BIN)/python -m pytest tests/browser $(ARGS)

test-real: $(STAMPS)/test  ## Run the tests on two real language models (the first time fetches 330 MB into ~/.cache; 13 minutes)
	@folder=$$($(BIN)/python tests/smollm2/install.py) && { gemma=$$($(BIN)/python tests/gemma3/install.py) || true; } && \
	    COSD_REAL_MODEL="$$folder" COSD_GEMMA_FILE="$$gemma" $(BIN)/python -m pytest tests/live_real -s $(ARGS)

test-vllm: $(STAMPS)/test  ## Run the tests on live vLLM servers (Linux; the first time installs 3.4 GB into ~/.cache)
	@folder=$$($(BIN)/python tests/environments.py vllm) && \
	    COSD_VLLM_ENV="$$folder" $(BIN)/python -m pytest tests/live_vllm $(ARGS)

test-sglang: $(STAMPS)/test  ## Run the tests on live SGLang servers (Linux; the first time installs 2.5 GB into ~/.cache)
	@folder=$$($(BIN)/python tests/environments.py sglang) && \
	    COSD_SGLANG_ENV="$$folder" $(BIN)/python -m pytest tests/live_sglang $(ARGS)

test-tgi: $(STAMPS)/test  ## Run the tests on TGI's model server; COSD_TGI_SOURCE is a checkout of TGI (Linux; the first time installs 1.4 GB)
	@if [ -z "$$COSD_TGI_SOURCE" ]; then \
	    echo "test-tgi is skipped: COSD_TGI_SOURCE names no checkout of TGI's source, v3.3.6 or later"; exit 0; fi; \
	    folder=$$($(BIN)/python tests/environments.py tgi) && \
	    COSD_TGI_ENV="$$folder" $(BIN)/python -m pytest tests/live_tgi $(ARGS)

test-llama-cpp-python: $(STAMPS)/test  ## Run the tests on live llama-cpp-python servers (Linux; the first time compiles, 8 minutes)
	@folder=$$($(BIN)/python tests/environments.py llama-cpp-python) && \
	    COSD_LLAMA_CPP_PYTHON_ENV="$$folder" $(BIN)/python -m pytest tests/live_llama_cpp_python $(ARGS)

test-evaluators: $(STAMPS)/test  ## Run the tests under lm-eval and inspect-ai themselves (Linux; the first time installs 1 GB)
	@folder=$$($(BIN)/python tests/environments.py evaluators) && \
	    COSD_EVALUATORS_ENV="$$folder" $(BIN)/python -m pytest tests/live_evaluators $(ARGS)

wire: $(STAMPS)/test  ## Accept what the adapters send now: rewrite the requests pinned in tests/wire
	@COSD_WIRE=write $(BIN)/python -m pytest -q tests/wire $(ARGS)

check: $(STAMPS)/check  ## Lint, formatting, types (mypy and pyright; of the wheel too), the layers and the budget of lines
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@echo "$(BIN)/pyright"; PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q tests/typed tests/test_house.py
	$(BIN)/python tests/house.py

fix: $(STAMPS)/check  ## Format, and mend what ruff can mend by itself
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lock: $(STAMPS)/lock  ## Rewrite constraints.txt from pyproject.toml (ARGS=--upgrade for the newest of everything)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --no-emit-index-url \
	    --all-extras --group dev --group clients --group dist --group docs --group lock --no-annotate \
	    --custom-compile-command 'make lock' $(ARGS) pyproject.toml --output-file constraints.txt

dist: $(STAMPS)/dist  ## Build sdist and wheel into dist/, and run what needs no server, and the README's program, from them alone
	rm -rf dist build/dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	set -e; for built in dist/*.tar.gz dist/*.whl; do echo "Installing $$built into a fresh environment ..."; \
	    $(PYTHON) -m venv --clear build/dist; $(SHIPPED)/pip install -qq --constraint constraints.txt "$$built"; \
	    $(SHIPPED)/cosd --version; $(SHIPPED)/cosd fuse --help; \
	    $(SHIPPED)/cosd train-tree examples/samples.jsonl -o build/dist/tree.json; done
	$(SHIPPED)/pip install -qq --constraint constraints.txt "$$(ls dist/*.whl)[demo]"
	$(SHIPPED)/python -P tests/readme_program.py README.md

clean:  ## Remove .venv, builds and caches
	rm -rf $(VENV) dist build .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each set of packages, so that the demo needs no test tools and nothing is installed twice.

$(STAMPS)/demo: $(STAMPS)/venv $(SOURCES)
	@echo "Installing what the demo needs into $(VENV) (only this once) ..."
	@$(INSTALL) $(PIN) --editable '.[demo]'
	@touch $@

$(STAMPS)/bench: $(STAMPS)/venv $(SOURCES)
	@echo "Installing what the benchmark needs into $(VENV) (only this once) ..."
	@$(INSTALL) $(PIN) --editable '.[demo,gateway]' --group plots
	@touch $@

$(STAMPS)/test: $(STAMPS)/venv $(SOURCES)
	@echo "Installing what the tests need into $(VENV) (only this once) ..."
	@$(INSTALL) $(PIN) --editable '.[all]' --group test
	@touch $@

$(STAMPS)/browser: $(STAMPS)/test
	@echo "Installing what the tests in a browser need into $(VENV) (only this once) ..."
	@$(INSTALL) $(PIN) --group browser
	@touch $@

$(STAMPS)/check: $(STAMPS)/test
	@echo "Installing what the checks need into $(VENV) (only this once) ..."
	@$(INSTALL) $(PIN) --group check
	@touch $@

$(STAMPS)/docs: $(STAMPS)/test
	@echo "Installing what the site needs into $(VENV) (only this once) ..."
	@$(INSTALL) $(PIN) --group docs
	@touch $@

$(STAMPS)/dist: $(STAMPS)/venv $(SOURCES)
	@$(INSTALL) $(PIN) --group dist
	@touch $@

$(STAMPS)/lock: $(STAMPS)/venv $(SOURCES)
	@$(INSTALL) $(PIN) --group lock
	@touch $@

# A virtual environment starts with the pip of its Python, which may be too old for --group: bring it to the pinned one.
$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    found=$$($(PYTHON) --version 2>/dev/null || echo "not to be found"); \
	    echo "cosd-api needs Python 3.11 or later, and '$(PYTHON)' is $$found." >&2; \
	    echo "Name another one, such as: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "Making a virtual environment in $(VENV) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(INSTALL) --constraint constraints.txt --upgrade pip
	@mkdir -p $(STAMPS) && touch $@
