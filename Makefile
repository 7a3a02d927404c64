# Every target sets up what it needs: a fresh clone and python3 are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Processes of pytest; auto: as many as this process may use cores, at most 8. A file stays in one of them.
JOBS ?= auto
# Python keeps what it compiles, and pytest the tests that it rewrites, also where the environment forbids it: hundreds of
# processes import src.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

# A cross-section of the suite: every rule about arguments, the bits, the precision, each framework once.
QUICK := lngrad/tests/core/test_problem.py lngrad/tests/core/test_golden_bits.py lngrad/tests/core/test_reference.py lngrad/tests/core/test_precision.py \
  tests/meta/test_imports.py tests/meta/test_documents.py lngrad/tests/core/test_backends.py \
  lngrad-ascend/tests/aclnn/test_aclnn.py lngrad-ascend/tests/device lngrad/tests/check/test_formats.py lngrad/tests/core/test_threads.py

.PHONY: demo quick quick-tests test test-lngrad test-ascend slow soak wheel wheel-prebuilt wheel-here arm matrix site lint fmt types docs bench check clean

demo: $(VENV)/.demo
	$(BIN)/lngrad demo

quick: $(VENV)/.dev
	$(MAKE) -j3 lint types quick-tests

quick-tests: $(VENV)/.dev
	$(PYTEST) -q $(QUICK) -k "not ctrl_c"

test: $(VENV)/.dev
	$(MAKE) -j2 lint types
	$(PYTEST) --warm

# One package's tests alone.
test-lngrad: $(VENV)/.dev
	$(PYTEST) --warm lngrad/tests

test-ascend: $(VENV)/.dev
	$(PYTEST) lngrad-ascend/tests

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow

# How long, and from which seed: make soak SOAK="--calls 20000 --seed 3"
SOAK ?= --seconds 60
soak: $(VENV)/.dev
	PYTHONPATH=lngrad/tests $(BIN)/python -m soak $(SOAK)

wheel: $(VENV)/.dev
	$(BIN)/python -m pytest tests/meta/test_wheel.py

# Wheels for Linux with all kernels and torch's native code, for x86-64 and aarch64: 30 minutes of processor time.
WHEEL_DIR ?= dist
wheel-prebuilt: $(VENV)/.dev
	$(BIN)/python lngrad/scripts/prebuilt.py --wheels $(WHEEL_DIR) --torch $(PREBUILT)
	$(BIN)/python -m build --no-isolation --wheel --outdir $(WHEEL_DIR) lngrad-ascend

# Wheels for machines like this one: its kernels alone, two minutes of processor time.
wheel-here: $(VENV)/.dev
	$(BIN)/python lngrad/scripts/prebuilt.py --wheels $(WHEEL_DIR) here
	$(BIN)/python -m build --no-isolation --wheel --outdir $(WHEEL_DIR) lngrad-ascend

# The aarch64 wheel on an emulated machine: golden bits, precision, threads, the pool.
arm: $(VENV)/.dev
	$(BIN)/python scripts/arm.py --wheels $(WHEEL_DIR) $(ARM)

matrix: $(VENV)/.matrix
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python scripts/matrix.py $(MATRIX)

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

site: $(VENV)/.site
	$(BIN)/python scripts/site.py

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/bench.py

check: $(VENV)/.dev
	$(BIN)/python -m pytest tests/test_examples.py

# What the demo needs: no torch.
$(VENV)/.demo: lngrad/pyproject.toml lngrad-ascend/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e './lngrad[demo]' -e ./lngrad-ascend
	touch $@

# What tests and linters need. Torch comes first and pinned, so that nothing below asks for another build of it.
$(VENV)/.dev: pyproject.toml lngrad/pyproject.toml lngrad-ascend/pyproject.toml constraints-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --help | grep --quiet -e --group || $(BIN)/python -m pip install --quiet 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r constraints-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e ./lngrad -e ./lngrad-ascend --group dev
	touch $@

# What the documentation site needs.
$(VENV)/.site: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-dev.txt -e ./lngrad -e ./lngrad-ascend --group site
	touch $@

# What resolves the lowest and the highest versions of the matrix.
$(VENV)/.matrix: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.5'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
