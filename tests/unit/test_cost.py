"""benchmarks/cost.py: what it counts, the page that shows it, and a row."""

import pathlib
import re
import subprocess
import sys

import pytest

from benchmarks import cost
from bert_tf.config import BertConfig
from bert_tf.modeling.encoder import BertEncoder

ROOT = pathlib.Path(__file__).parents[2]
SIZES = cost.Sizes(layers=2, hidden=32, heads=4, intermediate=96, vocab=50, positions=40)


def test_parameters():
    encoder = BertEncoder(
        BertConfig(
            vocab_size=SIZES.vocab,
            hidden_size=SIZES.hidden,
            num_hidden_layers=SIZES.layers,
            num_attention_heads=SIZES.heads,
            intermediate_size=SIZES.intermediate,
            max_position_embeddings=SIZES.positions,
            type_vocab_size=2,
        )
    )
    encoder.build()
    assert SIZES.parameters() == encoder.count_params()
    assert SIZES.layer_parameters() == encoder.layers[0].count_params()
    # The paper: 110M and 340M.
    assert cost.BASE.parameters() == pytest.approx(110e6, rel=0.01)
    assert cost.LARGE.parameters() == pytest.approx(340e6, rel=0.02)


def test_activations():
    hidden, wide, scores = 10 * 32, 10 * 96, 4 * 10 * 10
    kept, moving = 8 * hidden + 2 * wide + 2 * scores, 4 * hidden + 2 * wide + 2 * scores
    assert cost.example_bytes(SIZES, 10, 4, recompute=False) == 4 * (2 * kept + moving)
    assert cost.example_bytes(SIZES, 10, 2, recompute=True) == 2 * (2 * hidden + kept + moving)


def test_largest_batch():
    fixed, each = cost.fixed_bytes(SIZES, 4), cost.example_bytes(SIZES, 10, 4, False)
    exact = (fixed + 7 * each) / cost.USABLE + cost.RESERVED
    assert cost.largest_batch(SIZES, 10, 4, False, exact + 2) == 7
    assert cost.largest_batch(SIZES, 10, 4, False, exact - 2) == 6
    assert cost.largest_batch(SIZES, 10, 4, False, cost.RESERVED) == 0


def test_the_page_shows_the_table():
    page = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    assert cost.table() in page
    rows = re.findall(r"^\| \d+ \|.*$", cost.table(), re.MULTILINE)
    assert len(rows) == 12
    for row in rows:
        cells = [int(cell) for cell in row.strip("| ").split("|")][1:]
        for plain, recomputed in zip(cells[::2], cells[1::2], strict=True):
            assert recomputed > 2 * plain > 0


def test_a_row():
    setting = {
        "batch": 2, "length": 8, "layers": 1, "hidden": 64, "heads": 1, "intermediate": 64,
        "dtype": "f32", "recompute": True, "steps": 2,
    }  # fmt: skip
    found = cost.measure(setting, memory=True)
    assert len(found["seconds"]) == 2
    assert min(found["seconds"]) > 0
    assert found["peak"] > 50e6


def test_flags_that_are_refused():
    command = [sys.executable, str(ROOT / "benchmarks" / "cost.py"), "time", "--hidden=100"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "multiple of 64" in done.stderr
