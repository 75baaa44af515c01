"""Our encoder against tf-models-official's, with the same weights; see garden_encoder.py."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tiny

pytestmark = pytest.mark.parity

GARDEN = tiny.GOLDEN / "checkpoint/tiny_garden"
CASES = ("golden", "full", "longest", "short")


def make_inputs():
    golden = tiny.read_batch("model/inputs.json")
    names = ("input_ids", "input_mask", "segment_ids")
    inputs = {"golden": {name: golden[name] for name in names}}
    rng = np.random.default_rng(0)
    for case, batch, length, whole in (
        ("full", 3, 17, True),
        ("longest", 2, tiny.CONFIG.max_position_embeddings, False),
        ("short", 5, 2, False),
    ):
        shape = (batch, length)
        mask = np.arange(length) < rng.integers(length if whole else 1, length + 1, (batch, 1))
        inputs[case] = {
            "input_ids": rng.integers(0, tiny.CONFIG.vocab_size, shape, np.int32),
            "input_mask": mask.astype(np.int32),
            "segment_ids": rng.integers(0, 2, shape, np.int32),
        }
    assert inputs.keys() == set(CASES)
    return inputs


@pytest.fixture(scope="module")
def ours():
    from bert_tf.modeling.encoder import BertEncoder

    encoder = BertEncoder(tiny.CONFIG)
    encoder.build()
    weights = {variable.path: variable for variable in encoder.variables}
    tiny.assign(weights, "tiny_pretraining/bert_model.ckpt")
    return {
        case: encoder(
            batch["input_ids"], input_mask=batch["input_mask"], segment_ids=batch["segment_ids"]
        )
        for case, batch in make_inputs().items()
    }


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("garden")
    inputs = {
        f"{case}/{name}": value
        for case, batch in make_inputs().items()
        for name, value in batch.items()
    }
    np.savez(folder / "inputs.npz", **inputs)
    done = subprocess.run(
        [
            sys.executable,
            str(pathlib.Path(__file__).with_name("garden_encoder.py")),
            str(GARDEN / "bert_model.ckpt-1"),
            str(GARDEN / "bert_config.json"),
            str(folder / "inputs.npz"),
            str(folder / "outputs.npz"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    with np.load(folder / "outputs.npz") as arrays:
        return dict(arrays)


@pytest.mark.parametrize("case", CASES)
def test_outputs(ours, theirs, case):
    found = ours[case]
    assert len(found["encoder_outputs"]) == tiny.CONFIG.num_hidden_layers
    pairs = {
        "sequence_output": found["sequence_output"],
        "pooled_output": found["pooled_output"],
        **{f"layer_{index}": value for index, value in enumerate(found["encoder_outputs"])},
    }
    for name, value in pairs.items():
        expected = theirs[f"{case}/{name}"]
        np.testing.assert_allclose(value, expected, atol=1e-5, rtol=0, err_msg=name)
