"""Checkpoints that tf-models-official restores and writes, against ours; see garden_checkpoint.py.

Theirs restores what convert_checkpoint wrote, by the strictest of its checks, and computes the
same; ours does so with what theirs wrote.
"""

import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tiny

from bert_tf.checkpoint import names, restore
from bert_tf.cli import convert_checkpoint

pytestmark = pytest.mark.parity

SOURCE = tiny.GOLDEN / "checkpoint/tiny_pretraining"
PLACES = np.array([[0, 3, 5], [1, 2, 0], [9, 4, 7], [6, 6, 1]], np.int32)


def make_inputs():
    golden = tiny.read_batch("model/inputs.json")
    return {name: golden[name] for name in ("input_ids", "input_mask", "segment_ids")}


def convert(source, target, *switches):
    argv = [f"--input={source}", f"--output={target}", "--to=garden", *switches]
    convert_checkpoint.main(["convert_checkpoint", *argv])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which both sides have written."""
    folder = tmp_path_factory.mktemp("garden")
    shutil.copy(SOURCE / "bert_config.json", folder)
    convert(SOURCE, folder / "pretrainer")
    convert(tiny.GOLDEN / "checkpoint/tiny_classifier", folder / "encoder", "--encoder_only")
    # A run without next sentences.
    from bert_tf.checkpoint import original

    tensors = restore.load(str(SOURCE)).tensors()
    tensors = {name: value for name, value in tensors.items() if "seq_relation" not in name}
    original.write(str(folder / "source" / "bert_model.ckpt"), tensors)
    shutil.copy(SOURCE / "bert_config.json", folder / "source")
    convert(folder / "source", folder / "masked_lm")

    inputs = make_inputs()
    np.savez(
        folder / "inputs.npz",
        input_word_ids=inputs["input_ids"],
        input_mask=inputs["input_mask"],
        input_type_ids=inputs["segment_ids"],
        masked_lm_positions=PLACES,
    )
    script = pathlib.Path(__file__).with_name("garden_checkpoint.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def theirs(folder):
    with np.load(folder / "outputs.npz") as arrays:
        return dict(arrays)


def compute(source):
    """What our model computes with all the weights of a checkpoint."""
    from bert_tf.modeling.models import BertPretrainer, named_variables

    checkpoint = restore.load(str(source))
    assert checkpoint.config == tiny.CONFIG.replace(hidden_act=checkpoint.config.hidden_act)
    heads = names.heads_in(checkpoint.shapes)
    model = BertPretrainer(tiny.CONFIG, next_sentence=names.NEXT_SENTENCE in heads)
    variables = named_variables(model)
    report = restore.merge(
        {name: tuple(variable.shape) for name, variable in variables.items()},
        checkpoint,
        () if names.MASKED_LM in heads else ("cls/*",),
        # The head of tiny_classifier.
        ("output_*",),
    )
    for name, value in restore.values(checkpoint, report):
        variables[name].assign(value)
    outputs = model({**make_inputs(), "masked_lm_positions": PLACES})
    found = {
        "sequence_output": outputs["sequence_output"],
        "pooled_output": outputs["pooled_output"],
    }
    if names.MASKED_LM in heads:
        logits = np.asarray(outputs["masked_lm_logits"])
        found["mlm_logits"] = logits.reshape(*PLACES.shape, -1)
    if names.NEXT_SENTENCE in heads:
        found["next_sentence"] = outputs["next_sentence_logits"]
    return {name: np.asarray(value) for name, value in found.items()}


def check(theirs, case, ours):
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[f"{case}/{name}"], atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize("case", ["encoder", "encoder_v2", "masked_lm", "pretrainer"])
def test_theirs_restores_ours(folder, theirs, case):
    sources = {
        "encoder": tiny.GOLDEN / "checkpoint/tiny_classifier",
        "masked_lm": folder / "source",
        "pretrainer": SOURCE,
    }
    check(theirs, case, compute(sources[case.removesuffix("_v2")]))


def test_theirs_begins_with_ours(theirs):
    """A task's init_checkpoint: the pooler goes into the head."""
    ours = compute(SOURCE)
    ours["head_pooler"] = ours.pop("pooled_output")
    del ours["next_sentence"]
    check(theirs, "initialized", ours)


@pytest.mark.parametrize("case", ["theirs_bert", "theirs_bert_v2"])
def test_ours_reads_their_encoders(folder, theirs, case):
    check(theirs, case, compute(folder / case))


def test_ours_reads_their_run(folder, theirs):
    ours = compute(folder / "theirs_run")
    # Their encoder's own pooler is not the one that their loss reaches.
    del ours["pooled_output"]
    check(theirs, "theirs_run", ours)
    checkpoint = restore.load(str(folder / "theirs_run"))
    assert checkpoint.global_step == 7
    reasons = set(checkpoint.left_out.values())
    assert {"slot of the optimizer", "the optimizer's"} < reasons
    assert restore.whole(checkpoint, tiny.CONFIG).keys() == checkpoint.shapes.keys()
