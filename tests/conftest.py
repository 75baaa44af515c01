"""What tests of several folders share; helpers without fixtures are in tiny.py."""

import os

import pytest
import tiny

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(scope="session")
def _traced_trainer():
    return tiny.make_trainer()


@pytest.fixture
def trainer(_traced_trainer):
    """A training step of the tiny classifier, as new: tracing takes seconds, so there is one."""
    tiny.reset(_traced_trainer, "tiny_classifier/bert_model.ckpt")
    return _traced_trainer
