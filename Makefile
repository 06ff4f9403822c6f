# Three commands on a fresh clone: `make demo`, `make test` and `make docs`. Each sets up .venv first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check docs bench clean
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

test: check
	$(BIN)/pytest

# Offline and strict, into site/. The variable silences a notice of the theme that is not about this site.
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/.ready
	$(BIN)/python benchmarks/quantizer.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/augment.py
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/budget.py
	$(BIN)/python benchmarks/deploy.py
	$(BIN)/python benchmarks/approximation.py

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
