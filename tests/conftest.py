"""What tests of several folders share; helpers without fixtures are in tiny.py."""

import atexit
import os
import shutil
import tempfile

import pytest
import tiny

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# What XLA compiles is compiled once for all processes of a session: each of the many that tests
# start would spend seconds on it. pytest-xdist's workers find the variable set.
if "TF_XLA_FLAGS" not in os.environ:
    _programs = tempfile.mkdtemp(prefix="bert-tf-tests-xla-")
    atexit.register(shutil.rmtree, _programs, ignore_errors=True)
    os.environ["TF_XLA_FLAGS"] = (
        f"--tf_xla_persistent_cache_directory={_programs} "
        "--tf_xla_persistent_cache_device_types=CPU"
    )


@pytest.fixture(scope="session")
def _traced_trainer():
    return tiny.make_trainer()


@pytest.fixture
def trainer(_traced_trainer):
    """A training step of the tiny classifier, as new: tracing takes seconds, so there is one."""
    tiny.reset(_traced_trainer, "tiny_classifier/bert_model.ckpt")
    return _traced_trainer
