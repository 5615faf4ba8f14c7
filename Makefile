PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check venv format tables lock clean

demo: venv  ## relations of two photographs, then train, evaluate and draw on generated scenes; some minutes
	@$(BIN)/polyadic demo

test: check  ## everything that CI runs
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: venv  ## formatting, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

venv:
	@$(PYTHON) .ci/venv.py

format: venv
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

tables: venv  ## README, docs and model card from results/*.csv
	$(BIN)/python results/tables.py

lock: venv  ## newest versions that pyproject.toml admits, for every supported Python
	$(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.10 --extra dev --no-emit-index-url \
		--custom-compile-command "make lock" --output-file requirements-dev.lock pyproject.toml

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
