# One command for each habit. Nothing is needed beforehand but Python 3.11+; a C compiler is used where there is one.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# The suite starts hundreds of Python processes, and each would compile every module again without its cache.
unexport PYTHONDONTWRITEBYTECODE

# What is compiled: every .py with a .pxd beside it, and every .pyx. The stamp keeps the list, so that a deleted file is
# noticed too.
PXD    := $(sort $(shell find src -name '*.pxd' -o -name '*.pyx'))
FORM   := $(VENV)/.form
ifneq ($(PXD),$(strip $(shell cat $(FORM) 2>/dev/null)))
.PHONY: $(FORM)
endif

.DEFAULT_GOAL := help
.PHONY: help run demo test check bench build clean

help:  ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

run: $(FORM)  ## install into .venv and start the service, with a demo limit and a demo gate under gentle traffic
	@$(BIN)/headway try

demo: $(FORM)  ## watch headway keep a strict limit, and a token bucket break it
	@$(BIN)/headway demo

test: $(VENV)/.test $(FORM)  ## the whole suite, then what is compiled once more in the interpreted form
	@failed=0; echo "headway: tests, $$($(COMPILED) && echo compiled || echo interpreted) form"; \
	$(PYTEST) || failed=1; \
	if $(COMPILED); then \
		echo "headway: tests, interpreted form"; HEADWAY_PURE=1 $(PYTEST) -m both_forms || failed=1; fi; \
	exit $$failed

check: $(VENV)/.check $(FORM)  ## lint (also of Lua), types, layers, public names, plain English, examples in docstrings and docs
	@echo "headway: lint" && $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "headway: types" && $(BIN)/mypy --strict src && $(BIN)/mypy $(LAX) tests
	@if [ -d tests/typing ]; then $(BIN)/mypy --strict tests/typing; fi
	@echo "headway: layers, public names, docs, English"
	@$(BIN)/python -m pytest -q tests/test_layers.py tests/test_public_api.py tests/test_docs.py \
		tests/test_english.py tests/test_limit_strings.py tests/test_readme.py
	@echo "headway: Lua" && $(BIN)/python -m pytest -q tests/redis/test_lua.py
	@# Django's modules are not imported without settings; those of a module that has none will do.
	@echo "headway: docstrings" && HEADWAY_PURE=1 DJANGO_SETTINGS_MODULE=headway $(BIN)/python -m pytest -q --doctest-modules src

bench: $(VENV)/.bench $(FORM)  ## measure against the peers
	@$(BIN)/python -m bench

build: $(FORM)  ## wheels in dist/: compiled where a C compiler is, and pure
	@rm -rf build/lib* build/bdist* dist
	@echo "headway: wheels" && $(WHEEL) && HEADWAY_NO_EXT=1 $(WHEEL) && ls dist

clean:  ## remove all that was made here
	@rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find src -name '*.so' -delete
	@find . -name __pycache__ -prune -exec rm -rf {} +

# True when the last build made binaries; the interpreted form of a test suite is then a second run.
COMPILED = find src -name '*.so' | grep -q .
# More workers than most machines have cores: tests of shared engines mostly wait for servers.
WORKERS ?= 7
PYTEST   = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal
WHEEL    = $(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
# Tests are checked for wrong types, not for missing ones; tests/typing is checked in full.
LAX      = --allow-untyped-defs --allow-incomplete-defs --allow-untyped-calls --disable-error-code import-not-found

# Stamps: each tier is installed once, and again when its list of requirements changes.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "headway needs Python 3.11 or newer, '$(PYTHON)' is not; try: make PYTHON=python3.12"; exit 1; }
	@echo "headway: making $(VENV)" && $(PYTHON) -m venv $(VENV) && touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt
	@echo "headway: installing (run)"
	@$(PIP) setuptools Cython
	@HEADWAY_NO_EXT=1 $(PIP) --no-build-isolation --editable '.[cli,server,embedded]' && touch $@

$(VENV)/.test $(VENV)/.check $(VENV)/.bench: $(VENV)/.%: $(VENV)/.run
	@echo "headway: installing ($*)"
	@HEADWAY_NO_EXT=1 $(PIP) --no-build-isolation --editable '.[$*]' && touch $@

$(FORM): $(VENV)/.run setup.py $(PXD) $(wildcard $(PXD:.pxd=.py))
	@echo "headway: building"
	@$(BIN)/python setup.py --quiet build_ext --inplace && echo "$(PXD)" > $@
