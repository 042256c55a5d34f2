# The two commands of the README, and what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo-results

.PHONY: demo test lint clean

demo: $(VENV)/ready
	$(BIN)/kvbench run --press all --task ruler-1k:niah_single_1+niah_multikey_2 --limit 4 \
		--budgets 32,64,128,256,512 --results $(DEMO)
	$(BIN)/kvbench table $(DEMO)
	$(BIN)/kvbench plot $(DEMO)

test: $(VENV)/ready
	$(BIN)/python -m pytest

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(DEMO) build dist *.egg-info
