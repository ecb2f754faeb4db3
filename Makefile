# Needs make and Python 3.11 or newer with its venv module; nothing else.
# PYTHON=... picks the interpreter, ARGS=... is handed to the command a target runs.

CANDIDATES := $(or $(PYTHON),python3.11 python3.12 python3.13 python3.14 python3)
CHECK := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
VENV := .venv
CHROMIUM := /usr/bin/chromium
PY := $(VENV)/bin/python
INSTALL := $(PY) -m pip install -qq --no-input --disable-pip-version-check \
	--root-user-action=ignore --constraint constraints.txt
JOBS ?= 2
PYTEST := $(PY) -m pytest -n $(JOBS)

# A checkout that was moved or copied keeps scripts and links of the old place: build again.
ifneq ($(shell cat $(VENV)/.stamp 2>/dev/null),$(CURDIR))
  MOVED := moved
endif

.DEFAULT_GOAL := help
.PHONY: help venv browser lint test test-more compare bench lock clean moved

help:
	@echo 'make venv       the environment, in .venv'
	@echo 'make test       all tests but the slow ones'
	@echo 'make test-more  the slow tests, other libraries, a browser, and all again with types checked'
	@echo 'make browser    what the tests in a browser need: Chromium, and what drives it'
	@echo 'make lint       ruff, pyrefly, import-linter'
	@echo 'make compare    the main job: compare encodings (ARGS="--help" lists the options)'
	@echo 'make bench      speed and memory beside other libraries (ARGS="--help" lists the options)'
	@echo 'make lock       write constraints.txt anew, from the newest releases'
	@echo 'make clean      remove what the other targets made'

venv: $(VENV)/.stamp

NATIVE := $(wildcard native/*.cpp native/*.h native/CMakeLists.txt)

$(VENV)/.stamp: pyproject.toml constraints.txt Makefile $(NATIVE) $(MOVED)
	@set -e; rm -f $@ $(VENV)/.peers $(VENV)/.browser; \
	if [ -n "$(MOVED)" ] || ! $(PY) -c '' 2>/dev/null; then \
		found=; for python in $(CANDIDATES); do \
			if "$$python" -c '$(CHECK)' 2>/dev/null; then found=$$python; break; fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo 'make venv needs Python 3.11 or newer with venv and ensurepip; none among: $(CANDIDATES). Set PYTHON=/path/to/python.' >&2; \
			exit 1; \
		fi; \
		echo "Making $(VENV) with $$found"; \
		"$$found" -m venv --clear $(VENV); \
	fi
	$(INSTALL) --upgrade pip
	$(INSTALL) --group build
	$(INSTALL) --no-build-isolation --group lint --group test --editable '.[all]'
	@# The finder of this install would go before PYTHONPATH; the path beside it is enough.
	@sed -i.old '/^import _editable_/d' $(VENV)/lib/python*/site-packages/_*whereness*.pth
	@echo '$(CURDIR)' > $@

$(VENV)/.peers: $(VENV)/.stamp
	$(INSTALL) --group peers
	$(INSTALL) --no-deps --group peers-alone --group real
	@touch $@

# Chromium comes from Debian: playwright's own cannot be fetched everywhere.
browser: $(VENV)/.browser
	@if [ ! -x $(CHROMIUM) ]; then \
		if [ "$$(id -u)" = 0 ]; then as_root=; else as_root=sudo; fi; \
		$$as_root apt-get update -qq && $$as_root env DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; \
	fi

$(VENV)/.browser: $(VENV)/.stamp
	$(INSTALL) --group browser
	@touch $@

lint: venv
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m pyrefly check
	$(VENV)/bin/lint-imports --no-logo --no-cache

test: venv
	$(PYTEST) -m 'not more' $(ARGS)

test-more: venv $(VENV)/.peers browser
	$(PYTEST) -m more $(ARGS)
	WHERENESS_TYPED=1 $(PYTEST) -m 'not more and not untyped' $(ARGS)

compare: venv
	$(VENV)/bin/whereness compare $(ARGS)

# Results are kept: every sample of this run as lines of JSON, and the newest table.
RESULTS := benchmarks/results
bench: venv $(VENV)/.peers
	@mkdir -p $(RESULTS)
	$(VENV)/bin/whereness bench --json $(RESULTS)/$$(date -u +%Y%m%dT%H%M%SZ).jsonl \
		--markdown $(RESULTS)/table.md $(ARGS)

# The pins are made with the oldest Python, so that they hold for every newer one. torch and its
# version stay as they are: move that line by hand. What only an accelerator's torch needs is not
# pinned: which packages that is depends on the machine.
lock:
	@$(PY) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
		{ echo 'make lock needs a .venv of Python 3.11: make clean; make venv PYTHON=python3.11' >&2; exit 1; }
	$(PY) -m venv --clear build/lock
	grep '^torch==' constraints.txt > build/torch.txt
	build/lock/bin/python -m pip install -qq --upgrade pip
	build/lock/bin/python -m pip install -qq --constraint build/torch.txt \
		--group build --group lint --group test --group peers --group browser --editable '.[all]'
	build/lock/bin/python -m pip install -qq --no-deps --group peers-alone --group real
	{ echo '# Written by `make lock`: every package of `make venv` and `make test-more`.'; \
	  build/lock/bin/python -m pip freeze --all --exclude-editable | sed 's/+.*//' | \
	  grep -E -v '^(nvidia-|cuda-)'; } > build/constraints.txt
	mv build/constraints.txt constraints.txt
	rm -rf build/lock build/torch.txt

clean:
	git clean -qfdX native src/whereness/kernels 2>/dev/null || true
	rm -rf $(VENV) build dist .hypothesis .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
