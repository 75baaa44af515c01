"""A run that is killed and started again ends in the same bits as one that never was."""

import json
import pathlib
import signal
import subprocess
import sys

import pytest
from classifier_runs import assert_same_weights, snapshot, weights

DATA_6 = "killed/model.ckpt-6.data-00000-of-00001"

# In the order of the lives of one folder: where each ends, the latest checkpoint it leaves, a
# file that shows how far it came, and one that it did not come to. Saves are after 3, 6, 9 and 12
# steps, evaluations after 4, 8 and 12.
KILLS = {
    "while the best weights are kept": (
        {"before": "best/checkpoint"}, "3", "best/best.json", "best/checkpoint",
    ),
    "between two saves": ({"step": 5}, "3", "best/checkpoint", "model.ckpt-6.index"),
    "between data and index": (
        {"after": DATA_6}, "3", "model.ckpt-6.data-00000-of-00001", "model.ckpt-6.index",
    ),
    "between index and state": (
        {"after": "killed/model.ckpt-6.index"}, "3", "model.ckpt-6.index",
        "model.ckpt-6.state.json",
    ),
    "before the checkpoint file": (
        {"before": "killed/checkpoint"}, "3", "model.ckpt-6.state.json", "model.ckpt-9.index",
    ),
    "right after an evaluation": (
        {"step": 8}, "6", "model.ckpt-6.index", "model.ckpt-9.index",
    ),
    "right after a save": (
        {"step": 9}, "9", "model.ckpt-9.state.json", "model.ckpt-10.index",
    ),
    "after the training": (
        {"before": "killed/eval_results.txt"}, "12", "model.ckpt-12.index", "eval_results.txt",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def lives(tmp_path_factory, sentiment, small_model):
    """Runs one folder without a kill, the other one through all kills."""
    folder = tmp_path_factory.mktemp("lives")
    argv = [
        "--task_name=TSV",
        f"--data_dir={sentiment}",
        f"--init_checkpoint={small_model}",
        "--max_seq_length=32",
        "--do_train",
        "--do_eval",
        "--do_predict",
        "--train_batch_size=8",
        "--num_train_epochs=4",
        "--learning_rate=1e-2",
        "--save_checkpoints_steps=3",
        "--keep_checkpoint_max=2",
        "--steps_per_loop=1",
        "--eval_steps=4",
        "--num_threads=2",
        "--seed=5",  # whose best step is not the last
    ]
    whole, killed = folder / "whole", folder / "killed"
    plan = [{"argv": [*argv, f"--output_dir={whole}"], "kill": None}]
    for kill in (*(kill[0] for kill in KILLS.values()), None):
        plan.append({"argv": [*argv, f"--output_dir={killed}"], "kill": kill})
    (folder / "plan.json").write_text(json.dumps(plan))
    driver = pathlib.Path(__file__).with_name("kill_driver.py")
    command = [sys.executable, driver, folder / "plan.json", folder / "log.txt"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    log = (folder / "log.txt").read_text()
    assert (ends[0]["signal"], ends[0]["status"]) == (0, 0), log
    assert (ends[-1]["signal"], ends[-1]["status"]) == (0, 0), log
    return whole, killed, ends


@pytest.mark.parametrize("number", range(len(KILLS)), ids=list(KILLS))
def test_each_life_ended_where_it_was_meant_to(lives, number):
    end = lives[2][1 + number]
    _, latest, there, missing = list(KILLS.values())[number]
    assert end["signal"] == signal.SIGKILL
    assert end["latest"] == f"model.ckpt-{latest}"
    assert there in end["files"]
    assert missing not in end["files"]


def test_killed_run_ends_in_the_same_bits(lives):
    whole, killed, _ = lives
    for name in ("model.ckpt-9", "model.ckpt-12"):
        assert_same_weights(killed / name, whole / name)
    last = weights(killed)
    assert last["global_step"] == 12
    assert sum(name.endswith("adam_v") for name in last) == 25
    assert_same_weights(killed / "best", whole / "best")
    # Not the last: a life that had forgotten the best value would have replaced it.
    assert json.loads((whole / "best" / "best.json").read_text())["step"] in (4, 8)


def test_killed_run_leaves_the_same_files(lives):
    whole, killed, _ = lives

    def files(folder):
        # Events hold times; a name with .tmp- is what a killed process was writing.
        return {
            name: content
            for name, content in snapshot(folder).items()
            if "events" not in name and ".tmp-" not in name
        }

    found, expected = files(killed), files(whole)
    assert found.keys() == expected.keys()
    assert {"eval_results.txt", "test_results.tsv", "best/best.json"} <= expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
