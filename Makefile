# Needs Python 3.11 or later, and make. Everything is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH_PIP := $(VENV)-bench/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

CORE := kernels aggregators tasks test_client.py attacks test_intake.py test_server.py init algorithms test_simulation.py

.PHONY: help demo test test-slow test-reference test-browser mutants docs wheel bench lint clean

help:
	@echo "make demo       all methods on the paper's default problem (out/demo), then a table of schools (out/schools)"
	@echo "make test       lint, types and all tests but the slow ones"
	@echo "make test-slow  the statistical evidence (minutes)"
	@echo "make test-reference  the tests of the core on the NumPy references of all kernels, nothing compiled"
	@echo "make test-browser  the pages of reports and the live page in a headless Chromium; skipped with a word where there is none"
	@echo "make mutants    small changes of the core that no test notices (an hour of one core)"
	@echo "make docs       the documentation as a site (out/site); its links lead somewhere, its examples run, its tables hold"
	@echo "make wheel      build the package into dist"
	@echo "make bench      time and memory of the aggregators beside NumPy, SciPy, torch, ByzFL, ByzPy and Flower"
	@echo "make clean      remove .venv and caches"

# A stamp per set of dependencies: after the first install nothing is looked up again, so both work offline.
$(VENV)/demo.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/demo.stamp

demo: $(VENV)/demo.stamp
	rm -rf out/demo out/schools
	$(BIN)/coterie run --trials 6 --out out/demo
	$(BIN)/coterie run --set problem.kind=schools-like --out out/schools
	@echo "The picture: out/demo/convergence.png; pages to open: out/demo/report.html, out/schools/report.html"

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2 --dist loadfile

test-slow: $(VENV)/dev.stamp
	$(BIN)/pytest -m slow

test-reference: $(VENV)/dev.stamp
	COTERIE_KERNELS=reference $(BIN)/pytest $(addprefix tests/,$(CORE))

$(VENV)/browser.stamp: $(VENV)/dev.stamp
	$(PIP) --editable '.[browser]'
	touch $@

# The browser is a package of the system, which only root can install.
test-browser: $(VENV)/browser.stamp
	@if [ "$$(id -u)" = 0 ] && ! command -v chromedriver >/dev/null && command -v apt-get >/dev/null; then \
		apt-get update -qq && apt-get install -qq -y chromium chromium-driver >/dev/null \
			|| echo "chromium could not be installed"; fi
	$(BIN)/pytest -m browser -rs tests/report tests/watch

mutants: $(VENV)/dev.stamp
	PYTHONPATH=src:tests $(BIN)/python -m mutants --processes 2 --page

$(VENV)/docs.stamp: $(VENV)/dev.stamp
	$(PIP) --editable '.[docs]'
	touch $@

docs: $(VENV)/docs.stamp
	rm -rf out/site
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --conf-dir docs --doctree-dir out/doctrees . out/site
	$(BIN)/pytest -m 'site or not slow' tests/test_docs.py tests/test_reference_pages.py tests/test_site.py
	@echo "The documentation: out/site/index.html"

wheel: $(VENV)/demo.stamp
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

# The peers pin what we do not: an environment of their own.
$(VENV)-bench/stamp: pyproject.toml constraints.txt benchmarks/requirements.txt
	test -x $(VENV)-bench/bin/python || $(PYTHON) -m venv $(VENV)-bench
	$(BENCH_PIP) --editable '.[torch]' --requirement benchmarks/requirements.txt
	$(BENCH_PIP) --no-deps byzfl==0.0.11 byzpy==0.1.4
	touch $@

bench: $(VENV)-bench/stamp
	$(VENV)-bench/bin/python -m benchmarks cpu

clean:
	rm -rf $(VENV) $(VENV)-bench dist .pytest_cache .mypy_cache .ruff_cache .hypothesis out
