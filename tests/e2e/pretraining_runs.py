"""What the end-to-end tests of run_pretraining.py share: a model, records, runs."""

import gzip
import pathlib

import numpy as np

import run_pretraining
from bert_tf.config import BertConfig
from data_prep import records

CONFIG = BertConfig(
    vocab_size=120, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=64, type_vocab_size=2, initializer_range=0.2,
)  # fmt: skip
LENGTH, PREDICTIONS = 16, 4
CLS, SEP, MASK = 2, 3, 4


def write_config(folder, **changes):
    """Writes a model's configuration; returns the flag that names it."""
    path = folder / "bert_config.json"
    CONFIG.replace(**changes).to_json_file(str(path))
    return f"--bert_config_file={path}"


def make_example(seed, length=LENGTH, predictions=PREDICTIONS, masked=True, vocabulary=120):
    """One pre-training example as arrays, a function of the seed."""
    rng = np.random.default_rng(seed)
    used = int(rng.integers(8, length + 1))
    middle = int(rng.integers(2, used - 3))
    ids = rng.integers(5, vocabulary, used)
    ids[0], ids[middle], ids[-1] = CLS, SEP, SEP
    example = {
        "input_ids": np.zeros(length, np.int64),
        "input_mask": (np.arange(length) < used).astype(np.int64),
        "segment_ids": ((np.arange(length) > middle) & (np.arange(length) < used)).astype(np.int64),
        "next_sentence_labels": rng.integers(0, 2, 1),
    }
    example["input_ids"][:used] = ids
    if masked:
        count = int(rng.integers(1, predictions + 1))
        inner = np.delete(np.arange(1, used - 1), middle - 1)
        positions = np.sort(rng.choice(inner, count, replace=False))
        empty = [0] * (predictions - count)
        example["masked_lm_positions"] = np.array([*positions, *empty])
        example["masked_lm_ids"] = np.array([*ids[positions], *empty])
        example["masked_lm_weights"] = np.array([1.0] * count + empty, np.float32)
        example["input_ids"][positions] = MASK
    return example


def write_examples(path, examples):
    """Writes examples as a TFRecord file, compressed if its name ends so."""
    data = b"".join(records.frame(records.encode_example(each)) for each in examples)
    pathlib.Path(path).write_bytes(gzip.compress(data) if str(path).endswith(".gz") else data)
    return path


def write_records(path, count, seed=0, **options):
    """Writes `count` examples of `make_example`."""
    numbers = range(1000 * seed, 1000 * seed + count)
    return write_examples(path, [make_example(number, **options) for number in numbers])


def main(*flags):
    """Runs the script in this process; what a test gives comes last and wins."""
    return run_pretraining.main(
        [
            "run_pretraining.py",
            f"--max_seq_length={LENGTH}",
            f"--max_predictions_per_seq={PREDICTIONS}",
            "--train_batch_size=4",
            "--num_warmup_steps=0",
            "--learning_rate=1e-2",
            *map(str, flags),
        ]
    )
