# Two commands are enough: `make demo` and `make test`. Both install what they need into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test transports contract test-all coverage test-deploy chaos fuzz release check docs bench tables clean

demo: $(VENV)/.demo
	$(BIN)/fedshift demo

test: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test

# Every method in every transport, private entries and resuming: six of the contract's ten clauses,
# about ten minutes.
transports: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" FEDSHIFT_TEST_ALL=1 scripts/test tests/contract \
		-k "finite or equals or private or resumes or stands"

# Every clause of the contract for every method: about a quarter of an hour.
contract: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" FEDSHIFT_TEST_ALL=1 scripts/test tests/contract

# As test, with every further case.
test-all: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" FEDSHIFT_TEST_ALL=1 scripts/test

# As test; fails below 95 %, branches counted.
coverage: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test --cov --cov-report=term --cov-fail-under=95

# kill -9 of a site and of the server in the midst of a run, on loopback with TLS: some minutes.
test-deploy: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" FEDSHIFT_TEST_DEPLOY=1 OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest tests/deploy --capture=no

# Every target of tests/fuzz for half an hour each; `make fuzz FUZZ_SECONDS=60` is shorter. A later
# run goes on from what .fuzz holds. Without atheris, the same changes are made without its guidance.
FUZZ_SECONDS ?= 1800
fuzz: $(VENV)/.fuzz
	$(BIN)/python scripts/fuzz.py --seconds $(FUZZ_SECONDS) --corpus "$(CURDIR)/.fuzz"

# Packages, a requirements file locked by hashes, an SBOM and an audit, in dist/; tools in a venv of
# their own, since they and what is released need other versions of the same packages.
release: $(VENV)-release/.done
	$(VENV)-release/bin/python scripts/release.py

# Runs are killed, cut off and damaged at random, and must end the same: docs/reliability.md. Half an
# hour or more; started again, it goes on where it was. Results in chaos/.
chaos: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python scripts/chaos.py

check: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

docs: $(VENV)/.dev
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/docs

# The demo's table and picture in the documentation: three seeds, about half an hour on one core.
tables: $(VENV)/.dev
	$(BIN)/python scripts/tables.py

# Ratios in benchmarks/RESULTS.md: about half an hour on two idle cores.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/results.py

clean:
	rm -rf $(VENV) $(VENV)-release site demo runs dist .fuzz

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing fedshift into $(VENV) (once; torch is large, this takes a minute or two)"
	$(PIP) --editable ".[report]"
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing fedshift and its tools into $(VENV) (once; this takes a minute or two)"
	$(PIP) --editable ".[dev]"
	@touch $@ $(VENV)/.demo

$(VENV)/.fuzz: $(VENV)/.dev
	$(PIP) --editable ".[fuzz]" || echo "atheris does not install here: fuzzing without coverage"
	@touch $@

$(VENV)-release/.done: scripts/release-tools.txt
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/python -m pip --disable-pip-version-check install --quiet -r $<
	@touch $@
