"""The scripts on several devices and workers: the same files, kills, signals, wrong set-ups."""

import json
import signal

import devices
import numpy as np
import pytest
from classifier_runs import (
    assert_same_weights,
    probabilities,
    read_results,
    snapshot,
    write_rows,
    write_sentiment,
)  # fmt: skip
from pretraining_runs import write_config, write_records

import run_classifier
import run_pretraining
import run_squad

SCRIPTS = {
    "run_classifier": run_classifier,
    "run_squad": run_squad,
    "run_pretraining": run_pretraining,
}
# How long a worker may take to see that another one is gone, on a machine that does much else.
BOUND_SECONDS = 100


def write_squad(path, count):
    """Questions about letters, whose answers are good or bad."""
    random = np.random.RandomState(7)
    paragraphs = []
    for number in range(count):
        words = list(random.choice(list("abcdefghijklm"), 12))
        place = int(random.randint(12))
        words[place] = ("good", "bad")[number % 2]
        answer = {"text": words[place], "answer_start": len(" ".join([*words[:place], ""]))}
        question = {"id": f"q{number}", "question": "was it good", "answers": [answer]}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    data = {"version": "1.1", "data": [{"title": "letters", "paragraphs": paragraphs}]}
    path.write_text(json.dumps(data))
    return path


@pytest.fixture(scope="module")
def argv(tmp_path_factory, small_model):
    """The flags of each script: to train, and to evaluate and predict seven examples."""
    folder = tmp_path_factory.mktemp("data")
    texts = write_sentiment(folder / "texts", count=24)
    for name in ("dev", "test"):
        rows = [line.split("\t") for line in (texts / f"{name}.tsv").read_text().splitlines()]
        write_rows(texts / f"{name}.tsv", rows[:8])  # A header, and seven.
    common = ["--learning_rate=1e-2", "--save_checkpoints_steps=3", "--steps_per_loop=1"]
    common += ["--num_threads=2", "--train_batch_size=8"]
    model = f"--init_checkpoint={small_model}"
    train = {
        "run_classifier": [model, "--do_train", "--num_train_epochs=4", *common],
        "run_squad": [model, "--do_train", "--num_train_epochs=2", *common],
        "run_pretraining": [
            write_config(folder), "--do_train", "--num_train_steps=4", "--num_warmup_steps=0",
            f"--input_file={write_records(folder / 'train.tfrecord', 11, seed=1)}", *common,
        ],
    }  # fmt: skip
    use = {
        "run_classifier": [
            "--task_name=TSV", f"--data_dir={texts}", "--max_seq_length=32", "--do_eval",
            "--do_predict",
        ],
        "run_squad": [
            f"--train_file={write_squad(folder / 'train.json', 16)}", "--max_seq_length=32",
            f"--predict_file={write_squad(folder / 'dev.json', 7)}", "--max_query_length=8",
            "--doc_stride=8", "--do_predict",
        ],
        "run_pretraining": [
            f"--eval_input_file={write_records(folder / 'dev.tfrecord', 7, seed=2)}",
            "--max_seq_length=16", "--max_predictions_per_seq=4", "--do_eval",
        ],
    }  # fmt: skip
    return train, use


MIRRORED = "--distribution_strategy=mirrored"
STEPS = {"run_classifier": 12, "run_squad": 4, "run_pretraining": 4}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, argv):
    """{script: (folder of two mirrored devices, folder of two workers)}."""
    folder = tmp_path_factory.mktemp("trained")
    train, use = argv
    kinds = ("mirrored", "workers")
    found = {script: [folder / f"{script}_{kind}" for kind in kinds] for script in use}
    temporary = folder / "temporary"
    temporary.mkdir()
    plan = [
        [
            devices.alone(
                script, *train[script], *use[script], MIRRORED, f"--output_dir={one}", cpus=2
            )
            for script, (one, _) in found.items()
        ]
    ]
    for script, (_, two) in found.items():
        group = devices.workers(2, script, *train[script], *use[script], f"--output_dir={two}")
        group[1].update(temp=str(temporary), untouchable=str(two))
        plan.append(group)
    devices.assert_fine(devices.run(plan, folder / "runs"))
    assert list(temporary.iterdir()) == []
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_workers_write_the_files_of_one_process(trained, script):
    one, two = (snapshot(folder) for folder in trained[script])

    def names(files):
        return sorted("events" if "tfevents" in name else name for name in files)

    assert names(one) == names(two)
    assert sum("tfevents" in name for name in two) == 1
    assert f"model.ckpt-{STEPS[script]}.index" in two


def assert_same_results(script, found, expected):
    """Compares the results in two folders: predictions are equal, numbers to rounding."""
    names = {
        "run_classifier": ("eval_results.txt",),
        "run_squad": ("eval_results.json",),
        "run_pretraining": ("eval_results.txt",),
    }[script]
    for name in names:
        read = read_results if name.endswith("txt") else lambda p: json.loads(p.read_text())
        numbers, others = read(found / name), read(expected / name)
        assert numbers.keys() == others.keys()
        for key, value in others.items():
            assert float(numbers[key]) == pytest.approx(float(value), rel=1e-6, abs=1e-6), key
    if script == "run_classifier":
        values, others = (probabilities(each / "test_results.tsv") for each in (found, expected))
        assert values.shape == others.shape == (7, 2)
        np.testing.assert_allclose(values, others, atol=1e-6, rtol=0)
        assert len(np.unique(others[:, 0])) == 7
    if script == "run_squad":
        answers = json.loads((found / "predictions.json").read_text())
        assert answers == json.loads((expected / "predictions.json").read_text())
        assert sorted(answers) == [f"q{number}" for number in range(7)]
        best, others = (
            json.loads((each / "nbest_predictions.json").read_text()) for each in (found, expected)
        )
        for key, value in others.items():
            for entry, other in zip(best[key], value, strict=True):
                assert entry["text"] == other["text"]
                assert entry["probability"] == pytest.approx(other["probability"], abs=1e-6)


def use_checkpoint(script, argv, folder, target):
    """The flags to use the last checkpoint of a folder, with another folder for the results."""
    flags = [f"--init_checkpoint={folder}/model.ckpt-{STEPS[script]}", f"--output_dir={target}"]
    return [*argv[1][script], *flags]


@pytest.mark.parametrize("devices_of", [0, 1], ids=["mirrored", "workers"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_one_device_gives_the_same_results(trained, argv, tmp_path, script, devices_of):
    folder = trained[script][devices_of]
    SCRIPTS[script].main([f"{script}.py", *use_checkpoint(script, argv, folder, tmp_path)])
    assert_same_results(script, folder, tmp_path)


@pytest.fixture(scope="module")
def used(tmp_path_factory, trained, argv):
    """{what: results of seven examples} on three and four mirrored devices and three workers."""
    folder = tmp_path_factory.mktemp("used")
    script = "run_classifier"
    found = {what: folder / what for what in ("three", "four", "workers")}
    flags = {
        what: [
            *use_checkpoint(script, argv, trained[script][0], target),
            "--predict_batch_size=12",
            "--eval_batch_size=12",
        ]
        for what, target in found.items()
    }
    plan = [
        [
            devices.alone(script, *flags["three"], MIRRORED, cpus=3),
            devices.alone(script, *flags["four"], MIRRORED, cpus=4),
        ],
        devices.workers(3, script, *flags["workers"]),
    ]
    devices.assert_fine(devices.run(plan, folder / "runs"))
    return found


@pytest.mark.parametrize("what", ["three", "four", "workers"])
def test_the_last_part_of_a_batch_on_any_number_of_replicas(trained, used, what):
    assert_same_results("run_classifier", used[what], trained["run_classifier"][0])


@pytest.fixture(scope="module")
def lives(tmp_path_factory, argv):
    """A run of two workers, one of which is killed, then the other, then one is told to end."""
    folder = tmp_path_factory.mktemp("lives")
    train, use = argv
    flags = [*train["run_classifier"], *use["run_classifier"], f"--output_dir={folder / 'out'}"]
    plan = [devices.workers(2, "run_classifier", *flags) for _ in range(4)]
    plan[0][1]["kill"] = 5
    plan[1][0]["kill"] = 7
    plan[2][1]["terminate"] = 7
    return folder / "out", devices.run(plan, folder / "runs")


@pytest.mark.parametrize(("life", "dead"), [(0, 1), (1, 0)], ids=["a worker", "the chief"])
def test_the_death_of_one_ends_the_other(lives, life, dead):
    ends = lives[1][life]
    assert ends[dead]["signal"] == signal.SIGKILL
    survivor = ends[1 - dead]
    assert (survivor["signal"], survivor["status"]) == (0, 1), survivor["log"]
    assert survivor["seconds"] < BOUND_SECONDS
    message = survivor["log"].rpartition("run_classifier.py: error: ")[2]
    assert message.startswith(f"worker {dead} (localhost:"), survivor["log"]
    assert "they go on from the last checkpoint" in message
    assert "Traceback" not in survivor["log"]


def test_sigterm_of_one_saves_once_and_ends_both(lives):
    ends = lives[1][2]
    for end in ends:
        assert (end["signal"], end["status"]) == (0, 143), end["log"]
        # It came in the loop of step 7, and was answered after the next one.
        assert end["log"].count("SIGTERM: saved at step 8 of 12") == 1
    assert "Going on from" in ends[0]["log"]
    assert "model.ckpt-6 at step 6" in ends[0]["log"]


def test_interrupted_workers_end_in_the_same_bits(lives, trained):
    folder, ends = lives
    devices.assert_fine(ends[3:])
    assert "model.ckpt-8 at step 8" in ends[3][0]["log"]
    whole = trained["run_classifier"][1]
    for name in ("model.ckpt-9", "model.ckpt-12"):
        assert_same_weights(folder / name, whole / name)
    for name in ("eval_results.txt", "test_results.tsv", "task.json"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.fixture(scope="module")
def wrong(tmp_path_factory, argv):
    """Workers that do not fit together: {what: (folder, how each ended)}."""
    folder = tmp_path_factory.mktemp("wrong")
    train, use = argv
    flags = [*train["run_classifier"], *use["run_classifier"]]
    kinds = ("folders", "flags", "data")
    plan = [
        devices.workers(2, "run_classifier", *flags, f"--output_dir={folder / kind}")
        for kind in kinds
    ]
    plan[0][1]["argv"].append(f"--output_dir={folder / 'other'}")
    plan[1][1]["argv"].append("--learning_rate=2e-2")
    plan[2][1]["argv"].append(f"--data_dir={folder / 'nowhere'}")
    ends = devices.run(plan, folder / "runs")
    return {kind: (folder / kind, group) for kind, group in zip(kinds, ends, strict=True)}


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("folders", "is not one folder for all workers"),
        ("flags", "the workers were started with different flags"),
    ],
)
def test_workers_that_do_not_fit(wrong, kind, says):
    folder, ends = wrong[kind]
    for end in ends:
        assert (end["signal"], end["status"]) == (0, 1), end["log"]
        message = end["log"].rpartition("run_classifier.py: error: ")[2]
        assert says in message, end["log"]
        assert "Traceback" not in end["log"]
    assert list(folder.iterdir()) == []


def test_a_worker_that_fails_by_itself_is_named(wrong):
    chief, other = wrong["data"][1]
    assert (other["signal"], other["status"]) == (0, 1)
    assert "nowhere" in other["log"].rpartition("run_classifier.py: error: ")[2]
    assert (chief["signal"], chief["status"]) == (0, 1), chief["log"]
    assert chief["seconds"] < BOUND_SECONDS
    message = chief["log"].rpartition("run_classifier.py: error: ")[2]
    assert message.startswith("worker 1 (localhost:"), chief["log"]


@pytest.mark.parametrize("script", ["run_classifier", "run_squad"])
def test_on_a_tpu_shapes_are_fixed(monkeypatch, tmp_path, argv, script):
    # The strategy is this machine's; what the script makes of --use_tpu is what it would be.
    import tensorflow as tf

    from bert_tf.training import loop
    from data_prep import input_pipeline

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", lambda **_: "local")
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda _: None)
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda _: None)
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda _: tf.distribute.get_strategy())
    specs, schedules = [], []

    def note_shapes(name):
        make = getattr(input_pipeline, name)

        def noted(*args, **options):
            dataset = make(*args, **options)
            specs.append(dataset.element_spec)
            return dataset

        monkeypatch.setattr(input_pipeline, name, noted)

    note_shapes("train_dataset")
    note_shapes("eval_dataset")
    schedule = loop.Schedule

    def noted_schedule(*args, **options):
        schedules.append(schedule(*args, **options))
        return schedules[-1]

    monkeypatch.setattr(loop, "Schedule", noted_schedule)
    train, use = argv
    flags = ["--use_tpu", "--tpu_name=local", "--iterations_per_loop=3", "--num_train_epochs=1"]
    flags.append("--num_threads=0")  # TensorFlow has started.
    SCRIPTS[script].main(
        [f"{script}.py", *train[script], *use[script], *flags, f"--output_dir={tmp_path}"]
    )
    assert len(specs) >= 2
    for spec in specs:
        for name, feature in spec.items():
            assert feature.shape.is_fully_defined(), name
        assert spec["input_ids"].shape[1] == 32
    assert [each.steps_per_loop for each in schedules] == [3]
