"""python -m bert_tf.cli.export, and what it writes in a process without this project."""

import json
import pathlib
import subprocess
import sys

import pytest
from predictor_folders import write_folder

from bert_tf import predictor
from bert_tf.cli import export

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Loads a model with TensorFlow and tensorflow-text alone.
LOAD = """
import json, sys

class Refuse:
    @staticmethod
    def find_spec(name, *_):
        if name.split(".")[0] in ("bert_tf", "data_prep"):
            raise ImportError(f"{name} is not to be imported")

sys.meta_path.insert(0, Refuse)
import tensorflow as tf, tensorflow_text

def plain(value):
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value

results = []
folder, requests = json.load(sys.stdin)
signature = tf.saved_model.load(folder).signatures["serving_default"]
for inputs in requests:
    outputs = signature(**{name: tf.constant(value, tf.string) for name, value in inputs.items()})
    results.append({name: plain(value.numpy().tolist()) for name, value in outputs.items()})
assert not {"bert_tf", "data_prep"} & {name.split(".")[0] for name in sys.modules}
print(json.dumps(results))
"""


def run(*arguments, **options):
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_answers_in_a_process_without_this_project(tmp_path):
    folder = write_folder(tmp_path / "run", "question_answering")
    target = tmp_path / "model" / "1"
    flags = [f"--model_dir={folder}", f"--export_dir={target}"]
    said = run("-m", "bert_tf.cli.export", *flags, cwd=ROOT)
    assert f"Wrote {target}: question_answering, float32 weights" in said
    assert "  ids: input_ids, input_mask, segment_ids -> end_logits, start_logits\n" in said

    question, context = "who was it", "Kim was in it.  Max was not \u00e9! " * 3
    requests = [
        {"question": [question], "context": [context]},
        {"question": [], "context": []},
    ]
    said = run("-c", LOAD, input=json.dumps([str(target), requests]), cwd=tmp_path)
    found, none = json.loads(said.splitlines()[-1])
    [expected] = predictor.load(folder).answer([(question, context)])
    for name in ("answer", "start", "end"):
        assert found[name] == [expected[name]]
    for name in ("text", "start", "end", "probability", "start_logit", "end_logit"):
        values = [entry[name] for entry in expected["nbest"]]
        if name not in ("text", "start", "end"):
            values = pytest.approx(values, abs=1e-5)
        assert found[f"nbest_{name}"] == [values]
    assert set(map(tuple, none.values())) == {()}


def test_bad_command_lines(tmp_path):
    with pytest.raises(ValueError, match=r"--model_dir: the trained model\n  --export_dir: the fo"):
        export.main(["export"])
    with pytest.raises(ValueError, match="float16"):
        export.main(["export", "--weights_dtype=float16"])
