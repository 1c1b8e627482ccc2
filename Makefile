# make run   sets everything up and opens the dashboard
# make test  sets everything up and runs all checks and tests
# Needs Python 3.11, 3.12 or 3.13. On Debian and Ubuntu, missing system packages are installed; ./run begins with make.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || echo python3)
VENV ?= .venv
BIN = $(VENV)/bin
APT = $(shell [ "$$(id -u)" = 0 ] || echo sudo) env DEBIAN_FRONTEND=noninteractive apt-get

.PHONY: run test check format clean

run: $(VENV)/app-ready
	$(BIN)/streamlit run streamlit_app.py

test: check
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { $(APT) update -qq && $(APT) install -y -qq chromium; }
	@# Debian starts nginx when it is installed; the tests start one of their own.
	@test -x /usr/sbin/nginx || { $(APT) update -qq && $(APT) install -y -qq nginx-light openssl && { $(APT:apt-get=systemctl) disable --quiet --now nginx 2>/dev/null || true; }; }
	$(BIN)/python -m pytest

check: $(VENV)/tests-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/tests-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/app-ready: requirements.txt
	@# Debian keeps venv's pip in a package of its own.
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(APT) update -qq && $(APT) install -y -qq $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.txt
	touch $@

$(VENV)/tests-ready: $(VENV)/app-ready tests/requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement tests/requirements.txt
	touch $@

clean:
	rm -rf $(VENV) static .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
