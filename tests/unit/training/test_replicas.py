"""One replica and two give the same run; in a process of their own, see two_replicas.py."""

import pathlib

import devices
import numpy as np
import pytest
import tiny


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    output = tmp_path_factory.mktemp("replicas") / "results.npz"
    return devices.arrays_of(pathlib.Path(__file__).with_name("two_replicas.py"), output)


def part(results, prefix):
    return {
        name.removeprefix(prefix): value
        for name, value in results.items()
        if name.startswith(prefix)
    }


# Adam divides by the gradient's size and so hides a factor; plain descent without clipping
# cannot: a gradient summed where it should be averaged would move twice as far.
@pytest.mark.parametrize(("optimizer", "tolerance"), [("adam", 1e-5), ("sgd", 1e-6)])
def test_training(results, optimizer, tolerance):
    one, two = (part(results, f"{count}/{optimizer}/") for count in ("one", "two"))
    assert one.keys() == two.keys()
    start = {}
    from bert_tf.checkpoint import original

    reader = original.Reader(str(tiny.GOLDEN / "checkpoint/tiny_pretraining"))
    for name, value in one.items():
        np.testing.assert_allclose(
            two[name], value, atol=1e-4 if name == "metrics" else tolerance, rtol=0, err_msg=name
        )
        if name in reader.shapes:
            start[name] = np.abs(value - reader.get(name)).max()
    assert one["global_step"] == two["global_step"] == 20
    # The comparison means something: the weights moved a thousand times as far.
    assert np.median(list(start.values())) > 1e3 * tolerance
    # Norms of 1 and more: Adam's run was clipped.
    assert one["metrics"][:, -1].min() > 1


def test_masks_differ_between_replicas(results):
    (first, other), (next_first, next_other) = results["masks"] != 0
    for a, b in ((first, other), (first, next_first), (other, next_other), (first, next_other)):
        # Halves of 1000 independent values: five deviations.
        assert abs((a == b).mean() - 0.5) < 5 * 0.5 / np.sqrt(1000)


def test_evaluation(results):
    one, two = (part(results, f"{count}/evaluation/") for count in ("one", "two"))
    assert one.keys() == two.keys() == {"logits", "loss"}
    for name, value in one.items():
        assert len(value) == 7
        np.testing.assert_allclose(two[name], value, atol=1e-5, rtol=0, err_msg=name)
    assert len(np.unique(one["loss"])) == 7
