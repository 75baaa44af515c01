"""The paper's protocol: every combination and restart, stopped and taken up again."""

import json
import statistics

import pytest
from classifier_runs import (
    assert_same_weights,
    main,
    read_results,
    read_table,
    snapshot,
)

import run_classifier

# The rates as they are given, and with them the runs' names.
RUNS = [f"lr{rate}_batch8_epochs1_seed{seed}" for rate in ("0.01", "0.0001") for seed in (7, 8)]


class Stopped(Exception):
    """Stands for whatever ends a search early."""


@pytest.fixture(scope="module")
def searches(tmp_path_factory, sentiment, small_model):
    """One search that is never stopped, and one that is, in its third run."""
    folder = tmp_path_factory.mktemp("searches")
    loops = []

    def search(output):
        return main(
            "--task_name=TSV",
            f"--data_dir={sentiment}",
            f"--output_dir={output}",
            f"--init_checkpoint={small_model}",
            "--do_train",
            "--do_eval",
            "--do_predict",
            "--train_batch_size=8",
            "--num_train_epochs=1",
            "--learning_rates=1e-2,1e-4",
            "--num_restarts=2",
            "--seed=7",
            "--best_metric=loss",
            "--save_checkpoints_steps=2",
            "--steps_per_loop=1",
        )

    def stop(step):
        loops.append(step)
        if len(loops) == 8:  # Three steps of each of two runs, two of the third.
            raise Stopped

    whole, stopped = folder / "whole", folder / "stopped"
    returned = search(whole)
    run_classifier.AFTER_LOOP = stop
    try:
        with pytest.raises(Stopped):
            search(stopped)
        half = snapshot(stopped)
        loops.clear()
        search(stopped)
    finally:
        run_classifier.AFTER_LOOP = None
    return whole, stopped, half, loops, returned


def test_table_of_runs(searches):
    whole = searches[0]
    header, *rows = read_table(whole / "search_runs.tsv")
    assert header[:4] == ["learning_rate", "train_batch_size", "num_train_epochs", "seed"]
    assert [row[:4] for row in rows] == [
        ["0.01", "8", "1", "7"],
        ["0.01", "8", "1", "8"],
        ["0.0001", "8", "1", "7"],
        ["0.0001", "8", "1", "8"],
    ]
    assert {"accuracy", "f1", "loss"} <= set(header)
    losses = [float(row[header.index("loss")]) for row in rows]
    assert len(set(losses)) == 4


def test_table_of_means(searches):
    whole = searches[0]
    header, *rows = read_table(whole / "search_runs.tsv")
    names, *groups = read_table(whole / "search_summary.tsv")
    assert names[:4] == ["learning_rate", "train_batch_size", "num_train_epochs", "runs"]
    assert [group[:4] for group in groups] == [["0.01", "8", "1", "2"], ["0.0001", "8", "1", "2"]]
    for metric in ("accuracy", "loss"):
        values = [float(row[header.index(metric)]) for row in rows]
        for group, pair in zip(groups, (values[:2], values[2:]), strict=True):
            found = {
                what: float(group[names.index(f"{metric}_{what}")])
                for what in ("mean", "deviation", "best")
            }
            assert found["mean"] == pytest.approx(statistics.mean(pair), abs=2e-6)
            assert found["deviation"] == pytest.approx(statistics.stdev(pair), abs=2e-6)
            assert found["best"] == (min if metric == "loss" else max)(pair)


def test_the_best_run_is_kept_evaluated_and_predicted_with(searches):
    whole, _, _, _, returned = searches
    header, *rows = read_table(whole / "search_runs.tsv")
    losses = [float(row[header.index("loss")]) for row in rows]
    best = json.loads((whole / "best" / "best.json").read_text())
    assert best["run"] == RUNS[losses.index(min(losses))]
    assert best["loss"] == pytest.approx(min(losses), abs=1e-6)
    assert returned["loss"] == pytest.approx(min(losses), abs=1e-6)
    found = read_results(whole / "eval_results.txt")
    assert float(found["loss"]) == pytest.approx(min(losses), abs=1e-6)
    assert len(read_table(whole / "test_results.tsv")) == 12


def test_only_the_best_weights_stay(searches):
    whole = searches[0]
    found = sorted(str(path.relative_to(whole)) for path in whole.rglob("*.index"))
    assert found == ["best/model.ckpt-3.index"]
    assert list(whole.rglob("*.data-*")) == [whole / "best" / "model.ckpt-3.data-00000-of-00001"]
    assert sorted(path.name for path in (whole / "runs").iterdir()) == sorted(RUNS)


def test_stopped_search_does_not_repeat_finished_runs(searches):
    _, stopped, half, loops, _ = searches
    for name in RUNS[:2]:
        assert f"runs/{name}/result.json" in half
    assert f"runs/{RUNS[2]}/result.json" not in half
    assert f"runs/{RUNS[2]}/model.ckpt-2.index" in half
    # The third run went on where it stood; then came the fourth.
    assert loops == [3, 1, 2, 3]
    assert (stopped / "runs" / RUNS[0] / "result.json").read_bytes() == half[
        f"runs/{RUNS[0]}/result.json"
    ]


def test_stopped_search_ends_alike(searches):
    whole, stopped, _, _, _ = searches
    for name in ("search_runs.tsv", "search_summary.tsv", "eval_results.txt", "test_results.tsv"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()
    assert_same_weights(stopped / "best", whole / "best")
    best = [json.loads((folder / "best" / "best.json").read_text()) for folder in (whole, stopped)]
    assert best[0] == best[1]
