"""What the flags of devices choose, and what they refuse."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.cli import scripts
from bert_tf.cli.command_line import CommandLine
from bert_tf.training import distribution


@pytest.fixture
def parse():
    cli = CommandLine("script.py", "A script.", "python script.py")
    scripts.run_flags(cli)
    scripts.optimizer_flags(cli)
    scripts.device_flags(cli)
    cli.integer("train_batch_size", 32, "")
    cli.integer("eval_batch_size", 8, "")
    return lambda *flags: cli.parse(["script.py", *flags])


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


@pytest.fixture
def workers(monkeypatch):
    config = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


@pytest.fixture
def made(monkeypatch):
    """Two GPUs that are not there, and what is made of them: a list of (kind, arguments)."""
    calls = []
    monkeypatch.setattr(
        tf.config, "list_physical_devices",
        lambda kind=None: ["first", "second"] if kind == "GPU" else ["cpu"],
    )  # fmt: skip
    monkeypatch.setattr(
        tf.config, "set_visible_devices", lambda *given: calls.append(("visible", given))
    )
    for name in ("MirroredStrategy", "OneDeviceStrategy", "MultiWorkerMirroredStrategy"):

        def make(*args, name=name, **options):
            calls.append((name, (*args, options)))
            return name

        monkeypatch.setattr(tf.distribute, name, make)
    return calls


def test_auto_on_one_device():
    assert distribution.make_strategy("auto") is tf.distribute.get_strategy()
    assert distribution.make_strategy("off") is tf.distribute.get_strategy()


def test_auto_with_several_gpus(made):
    assert distribution.make_strategy("auto") == "MirroredStrategy"
    assert made == [
        ("MirroredStrategy", (["GPU:0", "GPU:1"], {"cross_device_ops": None})),
    ]


def test_auto_with_workers(made, workers):
    distribution.make_strategy("auto", all_reduce_alg="ring")
    ((name, (options,)),) = made
    assert name == "MultiWorkerMirroredStrategy"
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    assert options["communication_options"].implementation == ring


def test_the_number_of_gpus(made):
    assert distribution.make_strategy("auto", num_gpus=1) is tf.distribute.get_strategy()
    assert distribution.make_strategy("mirrored", num_gpus=1) == "MirroredStrategy"
    assert distribution.make_strategy("one_device", num_gpus=0) == "OneDeviceStrategy"
    assert distribution.make_strategy("one_device") == "OneDeviceStrategy"
    assert made == [
        ("visible", (["first"], "GPU")),
        ("visible", (["first"], "GPU")),
        ("MirroredStrategy", (["GPU:0"], {"cross_device_ops": None})),
        ("visible", ([], "GPU")),
        ("OneDeviceStrategy", ("CPU:0", {})),
        ("OneDeviceStrategy", ("GPU:0", {})),
    ]
    with pytest.raises(ValueError, match="--num_gpus=3, but TensorFlow finds 2 here"):
        distribution.make_strategy("auto", num_gpus=3)


def test_one_device_trains_where_it_says():
    strategy = distribution.make_strategy("one_device")
    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
    assert strategy.num_replicas_in_sync == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nccl", tf.distribute.NcclAllReduce),
        ("hierarchical_copy", tf.distribute.HierarchicalCopyAllReduce),
        ("reduce_to_one", tf.distribute.ReductionToOneDevice),
    ],
)
def test_how_mirrored_gradients_are_summed(made, name, kind):
    distribution.make_strategy("mirrored", all_reduce_alg=name)
    assert isinstance(made[0][1][1]["cross_device_ops"], kind)


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("mirrored", "ring", "--all_reduce_alg=ring does not go with mirrored, which has nccl"),
        ("mirrored", "none", "--all_reduce_alg=none does not go with mirrored"),
        ("multi_worker_mirrored", "hierarchical_copy", "with multi_worker_mirrored, which"),
        ("off", "nccl", "--all_reduce_alg does not go with one device"),
        ("one_device", "nccl", "--all_reduce_alg does not go with one device"),
        ("tpu", "nccl", "--all_reduce_alg does not go with a TPU"),
    ],
)
def test_an_algorithm_of_another_kind(made, kind, name, says):
    with pytest.raises(ValueError, match=says):
        distribution.make_strategy(kind, all_reduce_alg=name)


@pytest.mark.parametrize("kind", ["off", "one_device", "mirrored", "tpu"])
def test_workers_with_another_kind(workers, kind):
    with pytest.raises(ValueError, match=f"names 2 workers, but --distribution_strategy={kind}"):
        distribution.make_strategy(kind, tpu_name="local")


def test_a_wrong_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(ValueError, match="TF_CONFIG is no JSON"):
        distribution.make_strategy()


@pytest.mark.parametrize("kind", ["off", "one_device", "mirrored", "multi_worker_mirrored"])
def test_use_tpu_with_another_kind(parse, kind):
    flags = parse("--use_tpu", "--tpu_name=local", f"--distribution_strategy={kind}")
    with pytest.raises(ValueError, match=f"--use_tpu contradicts --distribution_strategy={kind}"):
        scripts.make_strategy(flags, {})


@pytest.fixture
def tpu(monkeypatch):
    """A TPU of one core that is this machine; what was asked of it."""
    asked = []

    def resolver(**given):
        asked.append(given)
        return "resolver"

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", resolver)
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", asked.append)
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", asked.append)
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda _: tf.distribute.get_strategy())
    return asked


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--use_tpu", "--tpu_name=mine"], "mine"),
        (["--distribution_strategy=tpu", "--tpu_name=mine"], "mine"),
        (["--use_tpu", "--distribution_strategy=tpu", "--tpu_name=mine", "--master=no"], "mine"),
        (["--use_tpu", "--master=grpc://10.0.0.2:8470"], "grpc://10.0.0.2:8470"),
    ],
)
def test_a_tpu(parse, tpu, flags, name):
    found = parse(*flags, "--tpu_zone=z", "--gcp_project=p", "--num_tpu_cores=1")
    assert scripts.uses_tpu(found)
    assert scripts.make_strategy(found, {}) is tf.distribute.get_strategy()
    assert tpu == [{"tpu": name, "zone": "z", "project": "p"}, "resolver", "resolver"]


def test_a_tpu_of_another_size(parse, tpu, caplog):
    scripts.make_strategy(parse("--use_tpu", "--tpu_name=mine"), {})
    assert "--num_tpu_cores is 8; the TPU has 1" in caplog.text
    caplog.clear()
    scripts.make_strategy(parse("--use_tpu", "--tpu_name=mine", "--num_tpu_cores=1"), {})
    assert "num_tpu_cores" not in caplog.text


def test_a_tpu_that_is_not_used(parse, tpu):
    # As in the original, --tpu_name alone says nothing.
    flags = parse("--tpu_name=mine", "--num_tpu_cores=4")
    assert not scripts.uses_tpu(flags)
    scripts.make_strategy(flags, {})
    assert tpu == []


def test_steps_between_two_looks_at_the_losses(parse):
    numbers = ("--steps_per_loop=7", "--iterations_per_loop=50")
    assert scripts.steps_per_loop(parse(*numbers)) == 7
    assert scripts.steps_per_loop(parse(*numbers, "--use_tpu")) == 50
    assert scripts.steps_per_loop(parse(*numbers, "--distribution_strategy=tpu")) == 50
    assert scripts.steps_per_loop(parse("--use_tpu")) == 1000


@pytest.fixture
def three(monkeypatch):
    """Three replicas."""
    strategy = SimpleNamespace(num_replicas_in_sync=3)
    monkeypatch.setattr(distribution, "make_strategy", lambda *_: strategy)
    return strategy


def test_batches_that_cannot_be_divided(parse, three):
    used = {"train_batch_size": True, "eval_batch_size": True}
    with pytest.raises(ValueError, match="--train_batch_size=32 is the batch over all replicas: "):
        scripts.make_strategy(parse(), used)
    with pytest.raises(ValueError, match=r"--eval_batch_size=8 .* multiple of their number, 3$"):
        scripts.make_strategy(parse("--train_batch_size=30"), used)
    both = ("--train_batch_size=30", "--eval_batch_size=9")
    assert scripts.make_strategy(parse(*both), used) is three
    with pytest.raises(ValueError, match=r"number, 3, times --gradient_accumulation_steps=4$"):
        scripts.make_strategy(parse(*both, "--gradient_accumulation_steps=4"), used)
    # Micro-batches are those of the training alone.
    parts = ("--train_batch_size=36", "--eval_batch_size=9", "--gradient_accumulation_steps=4")
    assert scripts.make_strategy(parse(*parts), used) is three
    # What a command does not use does not matter.
    assert scripts.make_strategy(parse(), dict.fromkeys(used, False)) is three


def test_a_worker_with_several_gpus_gets_a_part_for_each(monkeypatch):
    # Of two workers with two replicas each, the second.
    context = SimpleNamespace(
        input_pipeline_id=1, num_input_pipelines=2, num_replicas_in_sync=4
    )  # fmt: skip
    strategy = SimpleNamespace(
        num_replicas_in_sync=4,
        distribute_datasets_from_function=lambda make: make(context),
    )
    monkeypatch.setattr(distribution, "several_workers", lambda _: True)

    def make(shard_index, shard_count):
        assert (shard_index, shard_count) == (1, 2)

        def generate():
            for step in range(2):
                ids = np.arange(4 * (step + 3), dtype=np.int32).reshape(4, -1) + 100 * step
                yield {"input_ids": ids, "label_ids": np.arange(4, dtype=np.int32)}

        signature = {
            "input_ids": tf.TensorSpec([4, None], tf.int32),
            "label_ids": tf.TensorSpec([4], tf.int32),
        }
        return tf.data.Dataset.from_generator(generate, output_signature=signature)

    dataset = distribution.distribute(strategy, make)
    assert dataset.element_spec["input_ids"].shape.as_list() == [2, None]
    assert dataset.element_spec["label_ids"].shape.as_list() == [2]
    first, second, third = (each["input_ids"] for each in dataset.take(3).as_numpy_iterator())
    np.testing.assert_array_equal(np.concatenate([first, second]), np.arange(12).reshape(4, 3))
    np.testing.assert_array_equal(third, 100 + np.arange(8).reshape(2, 4))


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("gone: /job:worker/replica:0/task:0 is dead", "worker 0 (a:1) died"),
        ("Error reported from /job:worker/task:0:", "worker 0 (a:1) died"),
        # Its own name says nothing.
        ("/job:worker/replica:0/task:1 cannot reach", "one of the other workers died"),
        ("connection reset", "one of the other workers died"),
    ],
)
def test_a_lost_worker_is_named(monkeypatch, workers, message, named):
    monkeypatch.setattr(distribution, "several_workers", lambda strategy: strategy == "several")
    error = tf.errors.UnavailableError(None, None, message)
    several = distribution.naming_workers("several")
    with pytest.raises(distribution.WorkerLostError) as caught, several:
        raise error
    assert str(caught.value).startswith(named)
    assert message in str(caught.value)
    with pytest.raises(tf.errors.UnavailableError), distribution.naming_workers("one"):
        raise error


def test_an_error_of_its_own_is_no_lost_worker(monkeypatch, workers):
    monkeypatch.setattr(distribution, "several_workers", lambda _: True)
    for error in (
        tf.errors.InternalError(None, None, "CUBLAS_STATUS_ALLOC_FAILED"),
        tf.errors.InvalidArgumentError(None, None, "bad shape on /job:worker/task:0"),
        tf.errors.ResourceExhaustedError(None, None, "out of memory on /job:worker/task:0"),
    ):
        with pytest.raises(type(error)), distribution.naming_workers("several"):
            raise error
