# Every target sets up what it needs: a fresh clone and python3 are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test slow lint fmt types docs bench check clean

demo: $(VENV)/.demo
	$(BIN)/lngrad demo

test: $(VENV)/.dev lint types
	$(BIN)/python -m pytest

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

fmt: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py

bench: $(VENV)/.dev
	$(BIN)/lngrad bench

check: $(VENV)/.dev
	for example in examples/*.py; do echo "== $$example"; $(BIN)/python $$example || exit 1; done

# What the demo needs: no torch.
$(VENV)/.demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[demo]'
	touch $@

# What tests and linters need. Torch comes first and pinned, so that nothing below asks for another build of it.
$(VENV)/.dev: pyproject.toml constraints-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r constraints-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
