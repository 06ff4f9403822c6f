# Three commands on a fresh clone: `make demo`, `make test` and `make docs`. Each sets up .venv first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo quick test fuzz check docs results notebooks wheels test-lowest bench clean
.DEFAULT_GOAL := test

# Constraints pin torch to the CPU build the project is tested with.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.ready
	$(BIN)/lehr demo

check: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright --level error

# Unit tests alone, in a minute and a half: none that starts programs, trains by recipe, compiles with torch or takes seconds.
# tests/uses.py finds out what a test uses and gives it its marks.
QUICK := not browser and not process and not training and not command and not compiler and not fuzz and not slow
quick: $(VENV)/.ready
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n auto --dist worksteal -m '$(QUICK)' tests

# On all cores, one thread each: processes that each take all cores would only wait for each other.
test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist worksteal

# The tests that look for trouble at random, which take seconds in `make test`, for minutes each.
fuzz: $(VENV)/.ready
	@seed=$${LEHR_FUZZ_SEED:-$$(date +%s)}; echo "LEHR_FUZZ_SEED=$$seed"; \
	LEHR_FUZZ_SECONDS=$${LEHR_FUZZ_SECONDS:-600} LEHR_FUZZ_SEED=$$seed \
	$(BIN)/pytest -q --timeout=0 tests/test_fuzz_*.py tests/test_limits.py

# Offline and strict, into site/. The variable silences a notice of the theme that is not about this site.
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Writes the figures of docs/results.yaml into the pages, pictures and recipes that show them.
results: $(VENV)/.ready
	PYTHONPATH=src $(BIN)/python benchmarks/results.py

# Writes the notebooks of examples/ from its scripts.
notebooks: $(VENV)/.ready
	$(BIN)/jupytext --quiet --update --to ipynb $$(grep -l '^# %%' examples/*.py)

# The unit tests with the lowest versions that pyproject.toml admits, in an environment of its own: make test-lowest PYTHON=python3.10.
# The highest are those of constraints.txt, which `make test` uses. Warnings are no errors here: old packages warn of what came later.
LOWEST := .venv-lowest
test-lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet -c constraints-lowest.txt -e '.[train,deploy,imagenet]' hypothesis pytest pytest-timeout pytest-xdist scipy
	OMP_NUM_THREADS=1 $(LOWEST)/bin/pytest -q -n auto --dist worksteal -m '$(QUICK)' -W ignore --ignore tests/test_examples.py tests

# A wheel for each platform, with the C runtime compiled in: no compiler is needed where it is installed.
# Linux by gcc and Debian's gcc-aarch64-linux-gnu, macOS and Windows by ziglang.
WHEELS := linux-x86_64 linux-aarch64 macos-arm64 macos-x86_64 windows-x86_64
wheels: $(VENV)/.ready
	$(BIN)/pip install --quiet 'build>=1.2' 'hatchling>=1.24' 'ziglang>=0.13'
	for target in $(WHEELS); do LEHR_WHEEL=$$target $(BIN)/python -m build --wheel --no-isolation . || exit 1; done

bench: $(VENV)/.ready
	$(BIN)/python benchmarks/quantizer.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/augment.py
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/budget.py
	$(BIN)/python benchmarks/deploy.py
	$(BIN)/python benchmarks/vectors.py
	$(BIN)/python benchmarks/approximation.py

clean:
	rm -rf $(VENV) $(LOWEST) build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
