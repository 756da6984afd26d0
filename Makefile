# Everything a checkout can do.  Needs Python 3.10 or newer (with venv) and make, nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
comma := ,
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Without a C compiler on the machine, one comes from PyPI (ziglang, 100 MB).
COMPILER := $(shell for c in $$TILEWRIGHT_CC cc gcc clang; do command -v $$c >/dev/null 2>&1 && echo found && break; done)

.DEFAULT_GOAL := help
.PHONY: help demo test proof clients docs format clean

help: ## list what make can do
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: $(VENV)/.demo ## install, then run a quantised matrix multiplication on the best device here
	@$(BIN)/tilewright demo

test: $(VENV)/.test ## install, then run every check and test that needs no GPU
	@failed=""; \
	run() { name=$$1; shift; echo "== $$name"; "$$@" || failed="$$failed $$name"; }; \
	run ruff $(BIN)/ruff check .; \
	run format $(BIN)/ruff format --check .; \
	run mypy $(BIN)/mypy; \
	run pytest $(BIN)/python -m pytest -n auto --dist worksteal; \
	if [ -n "$$failed" ]; then echo "== failed:$$failed"; exit 1; fi; \
	echo "== all passed"

proof: $(VENV)/.test ## install, then run the long proofs (SLICE=2/8: the second of eight parts)
	@$(BIN)/python -m pytest -m "proof and not gpu" -n auto --dist worksteal --slice $(or $(SLICE),1/1)

clients: $(VENV)/.clients ## install transformers, accelerate and PEFT, then run the tests with them (PYTHONS="...": with other environments' too)
	@failed=""; \
	for python in $(BIN)/python $(PYTHONS); do \
		echo "== $$python"; $$python -m pytest -m clients tests/clients || failed="$$failed $$python"; \
	done; \
	if [ -n "$$failed" ]; then echo "== failed:$$failed"; exit 1; fi; \
	echo "== all passed"

docs: $(VENV)/.docs ## install Sphinx, then build the documentation into docs/_build
	@$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build && echo "see docs/_build/index.html"

format: $(VENV)/.test ## lay the sources out
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist docs/_build *.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "tilewright needs Python 3.10 or newer; set PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "making the environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "$(PYTHON) has no venv module; on Debian: apt install python3-venv" >&2; exit 1; }

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "installing tilewright$(if $(COMPILER),, and a C compiler)"
	@$(PIP) -e '.$(if $(COMPILER),,[compiler])'
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	@echo "installing tilewright and what its tests need$(if $(COMPILER),, and a C compiler)"
	@$(PIP) -e '.[test$(if $(COMPILER),,$(comma)compiler)]'
	@touch $@

$(VENV)/.clients: pyproject.toml $(VENV)/.test
	@echo "installing the libraries that people use models in"
	@$(PIP) -e '.[test,clients]'
	@touch $@

$(VENV)/.docs: pyproject.toml | $(BIN)/python
	@echo "installing tilewright and what its documentation needs"
	@$(PIP) -e '.[docs]'
	@touch $@
