"""What the end-to-end tests of run_classifier.py share: a vocabulary, data folders, runs."""

import json
import pathlib
import string

import numpy as np
import tiny

import run_classifier

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
DATA = GOLDEN / "classifier"
PRETRAINED = GOLDEN / "checkpoint" / "tiny_pretraining"
FINE_TUNED = GOLDEN / "checkpoint" / "tiny_classifier"

_WORDS = "the of is a in was and not on it 船 是 的 他 她 good bad".split()


def vocabulary(size=120):
    return tiny.vocabulary(_WORDS, size, ".,!?'\"-")


def write_vocabulary(path, size=120):
    path.write_text("\n".join(vocabulary(size)) + "\n", encoding="utf-8")
    return path


def write_model(folder):
    """Writes an original checkpoint with its config and vocabulary; quicker than the golden ones.

    One layer of 16; the initial values are spread so that a few steps change the metrics.
    """
    from bert_tf.checkpoint import original
    from bert_tf.config import BertConfig
    from bert_tf.modeling.models import BertClassifier, named_variables

    config = BertConfig(
        vocab_size=120,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        type_vocab_size=2,
        initializer_range=0.2,
    )
    variables = named_variables(BertClassifier(config, 2, seed=3))
    values = {k: v.numpy() for k, v in variables.items() if k.startswith("bert/")}
    original.write(str(folder / "bert_model.ckpt"), values)
    config.to_json_file(str(folder / "bert_config.json"))
    write_vocabulary(folder / "vocab.txt")
    return folder


def model_flags(vocab_file, checkpoint=PRETRAINED / "bert_model.ckpt"):
    return [f"--vocab_file={vocab_file}", f"--init_checkpoint={checkpoint}"]


def main(*flags):
    """Runs the script in this process; its texts are cut at 32 tokens unless told otherwise."""
    return run_classifier.main(["run_classifier.py", "--max_seq_length=32", *map(str, flags)])


def write_rows(path, rows):
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def write_sentiment(folder, names=("train", "dev", "test"), count=24):
    """Writes a TSV task of two labels: sentence, label."""
    folder.mkdir(exist_ok=True)
    random = np.random.RandomState(5)
    for name in names:
        rows = [("sentence", "label")]
        for number in range(count if name == "train" else count // 2):
            word = ("bad", "good")[number % 2]
            filler = " ".join(random.choice(list(string.ascii_lowercase), random.randint(1, 20)))
            rows.append((f"{word} {filler}", ("neg", "pos")[number % 2]))
        write_rows(folder / f"{name}.tsv", rows)
    return folder


def read_results(path):
    """Reads `key = value` lines: {key: text}."""
    lines = pathlib.Path(path).read_text().splitlines()
    return dict(line.split(" = ") for line in lines)


def read_table(path):
    return [line.split("\t") for line in pathlib.Path(path).read_text().splitlines()]


def probabilities(path):
    return np.array(read_table(path), np.float64)


def weights(path):
    """Returns all variables of a checkpoint, read by TensorFlow itself."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(path))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same_weights(found, expected):
    """Compares two checkpoints bit for bit."""
    found, expected = weights(found), weights(expected)
    assert found.keys() == expected.keys()
    different = [
        name for name, value in expected.items() if found[name].tobytes() != value.tobytes()
    ]
    assert different == []


def snapshot(folder):
    """Returns the content of every file below a folder by its relative path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(pathlib.Path(folder).rglob("*"))
        if path.is_file()
    }


def task_settings(folder):
    return json.loads((pathlib.Path(folder) / "task.json").read_text())
