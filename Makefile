# README's two commands, and what a contributor runs. Everything happens in .venv; nothing else is touched.
VENV ?= .venv
SECONDS_OF_FUZZ ?= 3600
PYTHON ?= python3
export PYTHON
# Without compiled modules each of the hundreds of processes that the tests start would compile numba, pandas and torch anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo picture test kernels fuzz lint types slow docs benchmarks benchmarks-table wheel clean

# Sets up and runs the main job on the built-in text: the gaps of the zoo's models, with intervals, and a page.
demo: $(VENV)/.installed
	$(VENV)/bin/recallkit demo

# README's picture, for light and for dark pages, with room beside it for names in fonts that are broader than Arial.
# (docs/memory.svg is price.svg of docs/memory.md's command.)
picture: $(VENV)/.installed
	$(VENV)/bin/recallkit gap $(addprefix zoo:,attention based retnet mamba hyena) --figures build/figures
	sed 's/234.00pt/255.27pt/; s/"0 0 321.75/"-8 0 351/; s/width="321.75"/x="-8" width="351"/' build/figures/recall.svg > docs/gap.svg
	for name in gap memory; do \
	  sed 's/#ffffff/#0d1117/; s/#1b1b1b/#e8e8e8/g; s/#5d6166/#a9aeb3/g; s/#dcdee1/#3a3f44/g' docs/$$name.svg > docs/$$name-dark.svg; done

# Sets up and runs the tests. Continuous integration asks for more of them: make test TESTS='not slow and not gpu'.
TESTS ?= not slow and not gpu and not ci and not kernels
# One process more than there are cores, for tests wait for processes of their own; each takes up to 2 GB.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(4, os.cpu_count() + 1))")
test: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "$(TESTS)"

# Tests of kernels, and the record that they passed, to be committed: continuous integration runs them where something has changed since.
kernels: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -q -n $(WORKERS) -m "kernels and not slow and not gpu"
	scripts/kernels_digest.sh $(VENV) > .ci/kernels.passed

slow: $(VENV)/.installed-dev
	$(VENV)/bin/python -m pytest -q -m "slow or kernels"

# Flips bits for an hour: every command answers rightly, or refuses.
fuzz: $(VENV)/.installed-dev
	$(VENV)/bin/python -m tests.fuzz.answers --seconds $(SECONDS_OF_FUZZ)

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/codespell

types: $(VENV)/.installed-dev
	$(VENV)/bin/mypy

# The documentation as a site, in build/site: opens from disk. (With --quiet, mkdocs would not count warnings.)
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build --strict --config-file docs/mkdocs.yml

benchmarks: $(VENV)/.installed-dev
	for script in $(filter-out %/harness.py %/table.py %/test_benchmarks.py,$(wildcard tests/benchmarks/*.py)); do $(VENV)/bin/python $$script || exit 1; done

# The table that docs/benchmarks.md opens with, in about a quarter of an hour.
benchmarks-table: $(VENV)/.installed-dev
	$(VENV)/bin/python tests/benchmarks/table.py

wheel: $(VENV)/.installed-dev
	scripts/build.sh $(VENV) dist

clean:
	rm -rf $(VENV) build dist *.egg-info

$(VENV)/.installed: pyproject.toml constraints-cpu.txt scripts/install.sh
	scripts/install.sh $(VENV) -e ".[fast]"
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints-cpu.txt scripts/install.sh
	scripts/install.sh $(VENV) -e ".[fast,dev,docs]"
	touch $@ $(VENV)/.installed
