"""run_pretraining.py: what it evaluates, its objectives, its phases, masks drawn in training."""

import json
import logging
import math

import numpy as np
import pytest
import tiny
from classifier_runs import read_results, snapshot, vocabulary, weights, write_vocabulary
from pretraining_runs import (
    CONFIG,
    LENGTH,
    MASK,
    PREDICTIONS,
    main,
    make_example,
    write_config,
    write_examples,
    write_records,
)

import create_pretraining_data
from bert_tf.config import BertConfig
from data_prep import records

# A text of one token attends to itself alone.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a softmax over axis")

# The original's six, and the perplexity.
RESULTS = [
    "global_step",
    "loss",
    "masked_lm_accuracy",
    "masked_lm_loss",
    "masked_lm_perplexity",
    "next_sentence_accuracy",
    "next_sentence_loss",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A configuration, a vocabulary, records to train on and seven to evaluate on."""
    path = tmp_path_factory.mktemp("pretraining")
    write_config(path)
    write_vocabulary(path / "vocab.txt")
    write_records(path / "train.tfrecord", 11)
    write_records(path / "held_out.tfrecord", 7, seed=1)
    return path


def files(folder, output):
    return [
        f"--input_file={folder}/train.tfrecord",
        f"--eval_input_file={folder}/held_out.tfrecord",
        f"--bert_config_file={folder}/bert_config.json",
        f"--output_dir={output}",
    ]


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """A run of eight steps with evaluations, and its metrics."""
    output = tmp_path_factory.mktemp("trained")
    metrics = main(
        *files(folder, output),
        "--do_train",
        "--do_eval",
        "--num_train_steps=8",
        "--save_checkpoints_steps=4",
        "--eval_steps=3",
        "--report_flops",
    )
    return output, metrics


# Evaluation.


@pytest.mark.parametrize("inputs", ["inputs", "inputs_padded_row"])
def test_golden_evaluation(tmp_path, inputs):
    batch = tiny.read_batch(f"model/{inputs}.json")
    rows = [{name: value[row] for name, value in batch.items()} for row in range(4)]
    write_examples(tmp_path / "golden.tfrecord", rows)
    found = main(
        f"--input_file={tmp_path}/golden.tfrecord",
        f"--output_dir={tmp_path / 'output'}",
        f"--init_checkpoint={tiny.GOLDEN}/checkpoint/tiny_pretraining/bert_model.ckpt",
        "--do_eval",
        "--max_seq_length=24",
        "--max_predictions_per_seq=6",
        # One batch is not full.
        "--eval_batch_size=3",
    )
    golden = tiny.read_json("model/eval_metrics.json")[inputs]
    assert found.pop("global_step") == 0
    perplexity = found.pop("masked_lm_perplexity")
    # The original's loss is that of the training, with 1e-5 more masked tokens below the line.
    more = golden["masked_lm_loss"] * 1e-5 / batch["masked_lm_weights"].sum()
    expected = golden.pop("loss") + more
    assert found.pop("loss") == pytest.approx(expected, abs=2e-6)
    assert found == pytest.approx(golden, abs=2e-6)
    assert perplexity == pytest.approx(math.exp(golden["masked_lm_loss"]), rel=1e-5)


def test_results_file(trained):
    output, metrics = trained
    lines = (output / "eval_results.txt").read_text().splitlines()
    assert [line.split(" = ")[0] for line in lines] == RESULTS
    found = read_results(output / "eval_results.txt")
    assert found["global_step"] == "8"
    for name in RESULTS[1:]:
        assert float(found[name]) == pytest.approx(metrics[name], rel=1e-6)
    assert metrics["loss"] == metrics["masked_lm_loss"] + metrics["next_sentence_loss"]
    assert metrics["masked_lm_perplexity"] == math.exp(metrics["masked_lm_loss"])


def sums_by_hand(checkpoint, examples):
    """Loss and hits over all predictions of the examples, one example at a time."""
    from bert_tf.checkpoint import original
    from bert_tf.modeling.models import BertPretrainer, named_variables

    model = BertPretrainer(CONFIG)
    reader = original.Reader(str(checkpoint))
    for name, variable in named_variables(model).items():
        variable.assign(reader.get(name))
    loss, right, count, pair_loss, pair_right = 0.0, 0, 0, 0.0, 0
    for example in examples:
        batch = {
            name: value[None].astype(np.float32 if value.dtype.kind == "f" else np.int32)
            for name, value in example.items()
        }
        outputs = model(batch)
        used = int(example["masked_lm_weights"].sum())
        logits = np.asarray(outputs["masked_lm_logits"], np.float64)[:used]
        labels = example["masked_lm_ids"][:used]
        loss += (np.logaddexp.reduce(logits, -1) - logits[np.arange(used), labels]).sum()
        right += (logits.argmax(-1) == labels).sum()
        count += used
        logits = np.asarray(outputs["next_sentence_logits"], np.float64)[0]
        label = example["next_sentence_labels"][0]
        pair_loss += np.logaddexp.reduce(logits) - logits[label]
        pair_right += logits.argmax() == label
    return {
        "masked_lm_loss": loss / count,
        "masked_lm_accuracy": right / count,
        "next_sentence_loss": pair_loss / len(examples),
        "next_sentence_accuracy": pair_right / len(examples),
    }


@pytest.mark.parametrize(("cap", "count"), [(0, 7), (1, 4), (2, 7)])
def test_each_record_counts_once(folder, trained, tmp_path, caplog, cap, count):
    output, _ = trained
    flags = files(folder, output)[1:]
    with caplog.at_level(logging.INFO, logger="absl"):
        found = main(*flags, "--do_eval", "--eval_batch_size=4", f"--max_eval_steps={cap}")
    examples = [make_example(1000 + number) for number in range(count)]
    expected = sums_by_hand(output / "model.ckpt-8", examples)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-5)
    capped = "Evaluating the first 4 of 7 records: --max_eval_steps=1 batches of 4" in caplog.text
    assert capped == (count == 4)


def test_the_evaluation_of_a_folder_changes_nothing_else(folder, trained):
    output, metrics = trained
    before = snapshot(output)
    # The configuration and the objective are known from the folder.
    assert main(*files(folder, output)[1:2], f"--output_dir={output}", "--do_eval") == metrics
    assert snapshot(output) == before


def test_best_weights_by_the_loss(folder, trained, tmp_path):
    output, _ = trained
    best = json.loads((output / "best/best.json").read_text())
    assert best.keys() == {"loss", "step"}
    assert best["step"] in (3, 6, 8)
    assert not any("adam" in name for name in weights(output / "best"))
    flags = [*files(folder, tmp_path)[1:], f"--init_checkpoint={output}/best"]
    found = main(*flags, "--do_eval")
    assert found["loss"] == pytest.approx(best["loss"], rel=1e-6)
    assert found["global_step"] == best["step"]
    state = json.loads((output / "model.ckpt-8.state.json").read_text())
    assert state == {
        "best_metric": "loss",
        "best_step": best["step"],
        "best_value": best["loss"],
    }


def test_events_of_a_run(trained):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(trained[0]))
    events.Reload()
    tags = set(events.Tags()["tensors"])
    assert {
        "loss", "masked_lm_loss", "next_sentence_loss", "masked_lm_accuracy",
        "next_sentence_accuracy", "learning_rate", "grad_norm", "sequences_per_second",
        "tokens_per_second", "gflops_per_second", "matmul_share", "eval/loss",
        "eval/masked_lm_perplexity",
    } <= tags  # fmt: skip
    assert [event.step for event in events.Tensors("eval/loss")] == [3, 6, 8]


def test_a_random_head_is_warned_about(folder, tmp_path, caplog):
    checkpoint = tiny.GOLDEN / "checkpoint/tiny_classifier"
    flags = [*files(folder, tmp_path)[1:], f"--init_checkpoint={checkpoint}", "--do_eval"]
    flags.append(f"--bert_config_file={checkpoint}/bert_config.json")
    with caplog.at_level(logging.WARNING, logger="absl"):
        main(*flags)
    loud = [record.getMessage() for record in caplog.records if "HEAD IS RANDOM" in record.message]
    assert len(loud) == 1
    assert "cls/predictions/output_bias" in loud[0]


# Objectives.


@pytest.fixture(scope="module")
def ablations(folder, tmp_path_factory):
    """One short run of each objective besides the paper's."""
    found = {}
    for objective in ("mlm", "ltr"):
        output = tmp_path_factory.mktemp(objective)
        flags = [*files(folder, output), "--do_train", "--do_eval", "--num_train_steps=2"]
        found[objective] = output, main(*flags, f"--objective={objective}")
    return found


@pytest.mark.parametrize("objective", ["mlm", "ltr"])
def test_an_objective_without_next_sentence(ablations, objective):
    output, metrics = ablations[objective]
    saved = weights(output)
    assert not [name for name in saved if "seq_relationship" in name]
    assert not [name for name in saved if "pooler" in name and "adam" in name]
    # There and as it began, for those who fine-tune.
    assert "bert/pooler/dense/kernel" in saved
    assert not any("next_sentence" in name for name in metrics)
    assert metrics["loss"] == metrics["masked_lm_loss"]
    config = BertConfig.from_json_file(str(output / "bert_config.json"))
    assert config == CONFIG.replace(causal_attention=objective == "ltr")
    assert json.loads((output / "pretraining.json").read_text())["objective"] == objective


def test_left_to_right_predicts_every_token(folder, ablations):
    output, metrics = ablations["ltr"]
    from bert_tf.checkpoint import original
    from bert_tf.modeling.encoder import BertEncoder

    reader = original.Reader(str(output))
    encoder = BertEncoder(CONFIG.replace(causal_attention=True))
    encoder.build()
    for variable in encoder.variables:
        variable.assign(reader.get(variable.path))
    table = reader.get("bert/embeddings/word_embeddings").astype(np.float64)
    dense, gamma, beta, bias = (
        reader.get(f"cls/predictions/{name}").astype(np.float64)
        for name in (
            "transform/dense/kernel", "transform/LayerNorm/gamma", "transform/LayerNorm/beta",
            "output_bias",
        )
    )  # fmt: skip
    dense_bias = reader.get("cls/predictions/transform/dense/bias")
    losses = []
    for number in range(7):
        example = make_example(1000 + number)
        ids = example["input_ids"].copy()
        used = int(example["masked_lm_weights"].sum())
        ids[example["masked_lm_positions"][:used]] = example["masked_lm_ids"][:used]
        length = int(example["input_mask"].sum())
        # Each prediction from a text that ends where it stands.
        for end in range(1, length):
            given = ids[None, :end].astype(np.int32)
            segments = example["segment_ids"][None, :end].astype(np.int32)
            states = encoder(given, segment_ids=segments)["sequence_output"]
            x = np.asarray(states, np.float64)[0, -1] @ dense + dense_bias
            x = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
            x = (x - x.mean()) / np.sqrt(x.var() + 1e-12) * gamma + beta
            logits = table @ x + bias
            losses.append(np.logaddexp.reduce(logits) - logits[ids[end]])
    assert metrics["masked_lm_loss"] == pytest.approx(np.mean(losses), abs=1e-5)


def test_the_objective_is_known_from_the_folder_or_the_checkpoint(folder, ablations, tmp_path):
    for objective, (output, metrics) in ablations.items():
        flags = [files(folder, output)[1], "--do_eval", f"--output_dir={output}"]
        assert main(*flags) == metrics, objective
    output, metrics = ablations["ltr"]
    flags = [files(folder, output)[1], "--do_eval", f"--output_dir={tmp_path}"]
    assert main(*flags, f"--init_checkpoint={output}") == metrics


def test_another_objective_in_the_same_folder(folder, ablations):
    output, _ = ablations["mlm"]
    before = snapshot(output)
    with pytest.raises(ValueError, match=r"began with --objective=mlm: .*another --output_dir"):
        main(*files(folder, output), "--do_train", "--objective=mlm_nsp")
    assert snapshot(output) == before


@pytest.mark.parametrize("objective", ["mlm", "mlm_nsp"])
def test_a_causal_checkpoint_is_for_one_objective(folder, ablations, tmp_path, objective):
    flags = [files(folder, tmp_path)[0], f"--init_checkpoint={ablations['ltr'][0]}", "--do_train"]
    with pytest.raises(ValueError, match=rf"--objective={objective} cannot train.*=ltr"):
        main(*flags, f"--output_dir={tmp_path / 'output'}", f"--objective={objective}")


# Phases.


def longer(folder, output, *more):
    """A second phase at twice the length, of ten steps in all or more."""
    write_records(folder / "long.tfrecord", 6, seed=2, length=32, predictions=6)
    return [
        f"--input_file={folder}/long.tfrecord",
        f"--output_dir={output}",
        "--do_train",
        "--max_seq_length=32",
        "--max_predictions_per_seq=6",
        "--num_train_steps=10",
        "--num_warmup_steps=4",
        *more,
    ]


def test_a_next_phase_takes_weights_slots_and_step(folder, trained, tmp_path, caplog, monkeypatch):
    first, _ = trained
    from bert_tf.training.loop import train as train_loop

    seen = {}

    def watched(step, *rest):
        seen.update(step.tensors())
        return train_loop(step, *rest)

    monkeypatch.setattr("bert_tf.training.loop.train", watched)
    flags = longer(folder, tmp_path, f"--init_checkpoint={first}", "--init_slots", "--init_step")
    with caplog.at_level(logging.INFO, logger="absl"):
        main(*flags)
    tiny.assert_same(seen, weights(first))
    assert weights(tmp_path)["global_step"] == 10
    # The schedule goes on: 1e-2 falls to 0 at step 10, the warm-up is over.
    assert "steps 8 to 10 of 4 records each" in caplog.text
    assert "Learning rate (linear, warm-up 4 steps): 0.002 at step 8" in caplog.text
    assert "within its warm-up" not in caplog.text


def test_a_next_phase_begins_a_schedule_of_its_own(folder, trained, tmp_path, caplog):
    first, _ = trained
    flags = longer(folder, tmp_path, f"--init_checkpoint={first}", "--num_train_steps=1")
    with caplog.at_level(logging.INFO, logger="absl"):
        main(*flags)
    assert "steps 0 to 1 of 4 records each" in caplog.text
    assert "0 at step 0" in caplog.text
    assert "The run ends within its warm-up: --num_warmup_steps is 4 " in caplog.text
    found, before = weights(tmp_path), weights(first)
    assert found["global_step"] == 1
    # The first step of a warm-up moves nothing: all weights, the heads too, are the first phase's.
    for name in before:
        if "adam" not in name and name != "global_step":
            np.testing.assert_array_equal(found[name], before[name], err_msg=name)
    slot = "cls/predictions/output_bias/adam_v"
    assert np.abs(found[slot]).max() < np.abs(before[slot]).max()


@pytest.mark.parametrize("flag", ["--init_slots", "--init_step"])
def test_a_release_has_neither_slots_nor_step(folder, tmp_path, flag):
    checkpoint = tiny.GOLDEN / "checkpoint/tiny_pretraining/bert_model.ckpt"
    flags = longer(folder, tmp_path / "output", f"--init_checkpoint={checkpoint}", flag)
    with pytest.raises(ValueError, match=rf"{flag}: .* holds weights alone, as a release"):
        main(*flags)
    assert not list((tmp_path / "output").glob("*.json"))


# Masks that are drawn in training.


@pytest.fixture(scope="module")
def unmasked(folder, tmp_path_factory):
    """Records that create_pretraining_data.py --dynamic_masking makes."""
    path = tmp_path_factory.mktemp("dynamic")
    rng = np.random.default_rng(0)
    words = [word for word in vocabulary() if word.isalpha()]
    text = "\n\n".join(
        "\n".join(" ".join(rng.choice(words, 7)) for _ in range(6)) for _ in range(4)
    )
    (path / "text.txt").write_text(text)
    create_pretraining_data.main(
        [
            "create_pretraining_data.py",
            f"--input_file={path}/text.txt",
            f"--output_file={path}/records.tfrecord",
            f"--vocab_file={folder}/vocab.txt",
            f"--max_seq_length={LENGTH}",
            f"--max_predictions_per_seq={PREDICTIONS}",
            "--dupe_factor=1",
            "--dynamic_masking",
        ]
    )
    return path / "records.tfrecord"


def test_dynamic_masking_trains(folder, unmasked, tmp_path, caplog):
    flags = [
        f"--input_file={unmasked}",
        f"--eval_input_file={unmasked}",
        f"--output_dir={tmp_path}",
        f"--bert_config_file={folder}/bert_config.json",
        "--masking=ngram",
    ]
    with pytest.raises(ValueError, match=r"records hold no masks.*--vocab_file"):
        main(*flags, "--do_train", "--num_train_steps=3")
    flags.append(f"--vocab_file={folder}/vocab.txt")
    with caplog.at_level(logging.INFO, logger="absl"):
        first = main(*flags, "--do_train", "--do_eval", "--num_train_steps=3")
    assert "records without masks; ngram masks are drawn" in caplog.text
    assert first["global_step"] == 3
    # Another evaluation has the same masks.
    assert main(*flags, "--do_eval") == first
    example = records.parse_example(next(records.read_records(str(unmasked))))
    assert "masked_lm_positions" not in example
    assert MASK not in example["input_ids"]


# Precision, accumulation and optimizers by flag; each is tested by itself in tests/unit.


def test_many_flags_together(folder, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        found = main(
            f"--input_file={folder}/train.tfrecord",
            f"--bert_config_file={folder}/bert_config.json",
            f"--output_dir={tmp_path}",
            "--do_train",
            "--do_eval",
            "--num_train_steps=30",
            "--optimizer=lamb",
            "--lr_decay=polynomial",
            "--lr_decay_power=2",
            "--end_learning_rate=1e-3",
            "--gradient_accumulation_steps=2",
            "--precision=bfloat16",
            "--learning_rate=3e-2",
        )
    # Far below what a model that knows nothing reaches: there is little to learn by heart.
    assert found["masked_lm_loss"] < math.log(CONFIG.vocab_size) - 0.5
    settings = json.loads((tmp_path / "pretraining.json").read_text())["training"]
    assert settings["precision"] == "bfloat16"
    assert settings["lr_decay_power"] == 2
    assert settings["gradient_accumulation_steps"] == 2
    assert "No --eval_input_file: the evaluation is on the records that are tr" in caplog.text
