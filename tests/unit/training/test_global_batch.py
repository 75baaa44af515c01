"""The batch is that of all devices: one, several, workers and micro-batches train alike."""

import devices
import numpy as np
import pytest

# The softmax does not see them: their true gradient is 0, and Adam enlarges what rounding leaves.
WITHOUT_EFFECT = ("attention/self/key/bias", "cls/squad/output_bias")
# Adam divides by the gradient's size and so hides a factor; plain descent without clipping cannot.
TOLERANCES = {"descent": 1e-6, "adam": 1e-5, "lamb": 1e-5}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """{run/replicas/what: array}, and of workers {run/replicas/what: [array of each worker]}."""
    folder = tmp_path_factory.mktemp("global_batch")
    checkpoint = folder / "of_workers"
    checkpoint.mkdir()
    ends = devices.run(
        [
            devices.workers(2, "global_batch:on_workers", folder / "workers2", checkpoint),
            devices.workers(3, "global_batch:on_workers", folder / "workers3", "none"),
            [
                devices.alone("global_batch:pretraining", folder / "a.npz", checkpoint, cpus=4),
                devices.alone("global_batch:fine_tuning", folder / "b.npz", cpus=2),
            ],
        ],
        folder / "runs",
    )
    devices.assert_fine(ends)

    def read(name):
        with np.load(folder / f"{name}.npz") as arrays:
            return dict(arrays)

    on_devices = {**read("a"), **read("b")}
    on_workers = {
        count: [read(f"workers{count}_{number}") for number in range(count)] for count in (2, 3)
    }
    return on_devices, on_workers


def part(arrays, run, count):
    prefix = f"{run}/{count}/"
    found = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
    assert found, prefix
    return found


def assert_near(found, expected, tolerance, without_effect=1e-4):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=0, err_msg=name,
            atol=without_effect if name.endswith(WITHOUT_EFFECT) else tolerance,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("run", "count", "rules"),
    [
        ("pretrainer", 2, ("descent", "adam", "lamb")),
        ("pretrainer", 4, ("descent", "adam")),
        ("accumulated", 1, ("descent", "adam")),
        ("classifier", 2, ("descent", "adam")),
        ("squad", 2, ("descent", "adam")),
    ],
)
def test_mirrored_and_micro_batches(results, run, count, rules):
    on_devices, _ = results
    base = "pretrainer" if run == "accumulated" else run
    for rule in rules:
        expected = part(on_devices, f"{base}_{rule}", 1)
        assert_near(part(on_devices, f"{run}_{rule}", count), expected, TOLERANCES[rule])
        assert expected["global_step"] == 20
        assert expected["metric first_bad_step"] == -1


@pytest.mark.parametrize(
    ("count", "rules"), [(2, ("descent", "adam", "lamb")), (3, ("descent", "adam"))]
)
def test_workers(results, count, rules):
    on_devices, on_workers = results
    for rule in rules:
        expected = part(on_devices, f"pretrainer_{rule}", 1)
        first, *others = (part(each, f"pretrainer_{rule}", count) for each in on_workers[count])
        assert_near(first, expected, TOLERANCES[rule])
        for other in others:
            assert_near(other, first, 0.0, without_effect=0.0)


@pytest.mark.parametrize(
    ("run", "rules"),
    [
        ("pretrainer", ("descent", "adam", "lamb")),
        ("classifier", ("descent", "adam")),
        ("squad", ("descent", "adam")),
    ],
)
def test_the_rules_would_show_a_factor(results, run, rules):
    on_devices, _ = results
    ends = [part(on_devices, f"{run}_{rule}", 1) for rule in rules]
    names = [name for name in ends[0] if not name.startswith(("metric", "global_step"))]
    for number, end in enumerate(ends):
        for other in ends[:number]:
            apart = [np.abs(end[name] - other[name]).max() for name in names]
            # The rules end a thousand tolerances apart, so the weights moved that far.
            assert np.median(apart) > 1e-2


@pytest.mark.parametrize("saved_by", ["mirrored", "workers"])
@pytest.mark.parametrize("count", [1, 4])
def test_resumed_on_other_devices(results, saved_by, count):
    on_devices, _ = results
    found = part(on_devices, f"resumed_of_{saved_by}", count)
    whole = part(on_devices, "pretrainer_adam", 1)
    assert_near(found, {name: whole[name] for name in found}, 1e-5)
    assert found["global_step"] == 20


def everywhere(results, run):
    """The run on one device, on two mirrored ones, and on each of two workers."""
    on_devices, on_workers = results
    workers = [part(each, run, 2) for each in on_workers[2]]
    return part(on_devices, run, 1), [part(on_devices, run, 2), *workers]


def test_float16_skips_on_all_what_overflows_on_one(results):
    # One device without XLA, the others with it.
    one, others = everywhere(results, "float16")
    for found in (one, *others):
        assert found["skipped"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
        assert found["unchanged"]
        assert (found["loss_scale"], found["loss_scale_good_steps"]) == (2.0**16, 4)
        # Eight steps at a rate of 1e-3; XLA rounds to float16 at other places.
        assert_near(found, one, 1e-3, without_effect=1e-3)
        apart = [np.abs(found[name] - value).mean() for name, value in one.items() if value.ndim]
        assert np.median(apart) < 5e-5
    for name, value in others[1].items():
        np.testing.assert_array_equal(others[2][name], value, err_msg=name)


def test_each_replica_draws_its_own_dropout(results):
    on_devices, on_workers = results
    for masks in (
        on_devices["masks"],
        *(np.concatenate([each["masks"] for each in on_workers[n]], axis=1) for n in (2, 3)),
    ):
        flat = (masks != 0).reshape(-1, masks.shape[-1])  # [step * replica, value]
        for number, first in enumerate(flat):
            assert abs(first.mean() - 0.5) < 5 * 0.5 / np.sqrt(1000)
            for other in flat[:number]:
                # Halves of 1000 independent values: five deviations.
                assert abs((first == other).mean() - 0.5) < 5 * 0.5 / np.sqrt(1000)
