# `make test` is the README's test command without the installation.
PYTHON ?= .venv/bin/python

.PHONY: install test slow shapes kills mutate lint flower versions docs notebooks bench accuracy demo

install:
	python3 -m venv .venv && .venv/bin/pip install -e '.[test,lint,docs]' -e ./experiments

test:
	$(PYTHON) -m pytest

slow: shapes kills
	XLA_FLAGS= $(PYTHON) -m pytest -n 0 -m slow -s

# Two hundred random faults of real processes; COUNT and SEED are others. Goes on where it was interrupted.
kills:
	PYTHONPATH=tests $(PYTHON) tests/kills.py --count $(or $(COUNT),200) --seed $(or $(SEED),0)

# Types and shapes of all annotations are checked at run time; the recorded runs cover every axis.
SHAPES = tests/recorded tests/families tests/partition tests/models/test_glm.py tests/models/test_network.py tests/test_expectations.py \
	tests/test_objective.py tests/test_aggregation.py tests/test_schedules.py tests/test_predict.py tests/test_metrics.py

shapes:
	$(PYTHON) -m pytest --jaxtyping-packages=partita,shapes.checked -m "" $(SHAPES)

# Ten thousand mutated inputs of each kind; COUNT and SEED are others.
mutate:
	PYTHONPATH=tests $(PYTHON) tests/mutate.py --count $(or $(COUNT),10000) --seed $(or $(SEED),0)

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

# The newest version of Flower, whose protocol is used; says if it cannot be installed.
flower:
	$(PYTHON) tests/newest_flower.py

# The oldest and the newest versions that are supported; PYTHONS are interpreters, by default those on the path.
versions:
	$(PYTHON) tests/versions.py $(PYTHONS)

docs:
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet

# What the notebooks' cells print, stored in them again; no Jupyter is needed.
notebooks:
	PYTHONPATH=tests $(PYTHON) tests/docs/notebooks.py

bench:
	$(PYTHON) benchmarks/global_vi_adult.py
	$(PYTHON) benchmarks/many_rows.py
	$(PYTHON) benchmarks/network_step.py
	$(PYTHON) benchmarks/messages.py
	$(PYTHON) benchmarks/power_ep.py
	$(PYTHON) benchmarks/block.py
	$(PYTHON) benchmarks/small_factors.py

accuracy:
	$(PYTHON) benchmarks/accuracy.py --page docs/accuracy.md

demo:
	$(PYTHON) -m partita demo
