import pytest
from classifier_runs import write_model, write_sentiment, write_vocabulary


@pytest.fixture(scope="session")
def vocab_file(tmp_path_factory):
    return write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "tiny.txt")


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """An --init_checkpoint with all that belongs to it."""
    return write_model(tmp_path_factory.mktemp("small_model"))


@pytest.fixture(scope="session")
def sentiment(tmp_path_factory):
    """A folder with a TSV task: 24 training rows, 12 to evaluate, 12 to predict."""
    return write_sentiment(tmp_path_factory.mktemp("sentiment"))
