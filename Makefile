# The README's commands, and what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo-results

.PHONY: demo kvp test lint clean

demo: $(VENV)/ready
	$(BIN)/kvbench run --press all --task ruler-1k:niah_single_1+niah_multikey_2 --limit 4 \
		--budgets 32,64,128,256,512 --results $(DEMO)
	$(BIN)/kvbench table $(DEMO)
	$(BIN)/kvbench plot $(DEMO)

# The agents that come with kvbench. KVP_DATA names local copies of RULER's and OASST2's data: --data essays=PATH …
# The seeds are the commands' own: traces are drawn from 1729, the benchmark's samples from 42. RULER's questions
# (qa_1, qa_2) do not fit into 1k and 2k.
KVP := kvp-work
KVP_DATA ?=
KVP_NEEDLES := niah_single_1+niah_single_2+niah_single_3+niah_multikey_1+niah_multikey_2+niah_multikey_3+niah_multivalue+niah_multiquery+vt+cwe+fwe
KVP_STEPS ?= 240
AGENTS := kvbench/checkpoints/smollm2-135m

kvp: $(VENV)/ready
	mkdir -p $(KVP) kvbench/checkpoints
	$(BIN)/kvbench traces --task ruler-1k:$(KVP_NEEDLES),ruler-2k:$(KVP_NEEDLES) --samples 22 --rollout 128 --out $(KVP)/ruler-short $(KVP_DATA)
	$(BIN)/kvbench traces --task oasst2-1k:train,oasst2-2k:train,oasst2:train --samples 16 --rollout 128 --out $(KVP)/oasst2 $(KVP_DATA)
	$(BIN)/kvbench traces --task ruler-4k --samples 26 --rollout 128 --out $(KVP)/ruler-4k $(KVP_DATA)
	$(BIN)/kvbench train --traces $(KVP)/ruler-short --traces $(KVP)/ruler-4k --traces $(KVP)/oasst2 --steps $(KVP_STEPS) --half --out $(AGENTS).safetensors
	$(BIN)/kvbench train --traces $(KVP)/ruler-short --traces $(KVP)/ruler-4k --steps $(KVP_STEPS) --half --out $(AGENTS)-ruler.safetensors
	$(BIN)/kvbench train --traces $(KVP)/oasst2 --steps $(KVP_STEPS) --half --out $(AGENTS)-oasst2.safetensors

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
