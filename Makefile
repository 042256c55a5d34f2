# The README's commands, and what CI runs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo-results

.PHONY: demo leaderboard test lint clean

demo: $(VENV)/ready
	$(BIN)/kvbench run --press all --task ruler-1k:niah_single_1+niah_multikey_2 --limit 4 \
		--budgets 32,64,128,256,512 --results $(DEMO)
	$(BIN)/kvbench table $(DEMO)
	$(BIN)/kvbench plot $(DEMO)

# The agents that come with kvbench. The data variables name local copies: RULER_DATA="--data essays=PATH --data nltk=PATH"
# for RULER's needles, QA_DATA="--data squad=PATH --data hotpotqa=PATH" beside it for its questions, which do not fit into
# 1k and 2k, and OASST2_DATA="--data oasst2=PATH". The seeds are the commands' own: traces are drawn from 1729, the
# benchmark's samples from 42. One cut, at the prompt's end, is what agents learn most from.
KVP := kvp-work
KVP_STEPS ?= 240
RULER_DATA ?=
QA_DATA ?=
OASST2_DATA ?=
KVP_NEEDLES := niah_single_1+niah_single_2+niah_single_3+niah_multikey_1+niah_multikey_2+niah_multikey_3+niah_multivalue+niah_multiquery+vt+cwe+fwe
KVP_TRACES := $(BIN)/kvbench traces --cuts 1 --rollout 64
KVP_TRAIN := $(BIN)/kvbench train --steps $(KVP_STEPS) --half

.PHONY: kvp kvp-traces kvp-mixture kvp-ruler kvp-oasst2
kvp: kvp-mixture kvp-ruler kvp-oasst2

kvp-traces: $(VENV)/ready
	mkdir -p $(KVP)
	$(KVP_TRACES) --task ruler-4k --samples 52 --out $(KVP)/ruler-4k $(RULER_DATA) $(QA_DATA)
	$(KVP_TRACES) --task ruler-1k:$(KVP_NEEDLES),ruler-2k:$(KVP_NEEDLES) --samples 22 --out $(KVP)/ruler-short $(RULER_DATA)
	$(KVP_TRACES) --task oasst2-1k:train,oasst2-2k:train,oasst2:train --samples 20 --out $(KVP)/oasst2 $(OASST2_DATA)

kvp-mixture: kvp-traces
	$(KVP_TRAIN) --traces $(KVP)/ruler-short --traces $(KVP)/ruler-4k --traces $(KVP)/oasst2 --out $(KVP)/smollm2-135m.safetensors
	cp $(KVP)/smollm2-135m.safetensors kvbench/checkpoints/

kvp-ruler: kvp-traces
	$(KVP_TRAIN) --traces $(KVP)/ruler-short --traces $(KVP)/ruler-4k --out $(KVP)/smollm2-135m-ruler.safetensors
	cp $(KVP)/smollm2-135m-ruler.safetensors kvbench/checkpoints/

kvp-oasst2: kvp-traces
	$(KVP_TRAIN) --traces $(KVP)/oasst2 --out $(KVP)/smollm2-135m-oasst2.safetensors
	cp $(KVP)/smollm2-135m-oasst2.safetensors kvbench/checkpoints/

# From results/: the figures, the tables in README.md, and the page in site/.
leaderboard: $(VENV)/ready
	$(BIN)/kvbench validate results
	$(BIN)/kvbench plot results
	$(BIN)/python -m cogapp -r -P -I benchmarks -p 'from readme import show' README.md
	$(BIN)/kvbench leaderboard results

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
