"""Our LAMB against tf-models-official's; see garden_lamb.py."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from bert_tf.optimization import Lamb, WarmupDecay

pytestmark = pytest.mark.parity

STEPS = 12
# Name -> size of the gradients.
VARIABLES = {
    "layer_0/dense/kernel": 1.0,
    "layer_1/dense/kernel": 1e-4,
    "layer_2/dense/kernel": 100.0,
    "layer_0/dense/bias": 1.0,
    "layer_0/LayerNorm/gamma": 1.0,
    "zeros/kernel": 1.0,
    "still/kernel": 0.0,
}


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    schedule = WarmupDecay(1e-2, STEPS, 4)
    found = {"rates": np.array([float(schedule(step)) for step in range(STEPS)], np.float32)}
    for name, size in VARIABLES.items():
        scale = 0.0 if name.startswith("zeros") else 1.0
        found[name] = rng.normal(0, scale, (4, 5)).astype(np.float32)
        found[f"{name}/gradients"] = rng.normal(0, size, (STEPS, 4, 5)).astype(np.float32)
    return found


@pytest.fixture(scope="module")
def theirs(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lamb")

    def safe(name):
        head, end = name.removesuffix("/gradients"), "/gradients" * name.endswith("/gradients")
        return head.replace("/", "|") + end

    np.savez(folder / "inputs.npz", **{safe(name): value for name, value in inputs.items()})
    done = subprocess.run(
        [
            sys.executable,
            str(pathlib.Path(__file__).with_name("garden_lamb.py")),
            str(folder / "inputs.npz"),
            str(folder / "outputs.npz"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    with np.load(folder / "outputs.npz") as arrays:
        return {name.replace("|", "/"): value for name, value in arrays.items()}


@pytest.mark.parametrize("name", VARIABLES)
def test_lamb(inputs, theirs, name):
    lamb = Lamb(None)
    value, slots = inputs[name], (np.zeros((4, 5), np.float32),) * 2
    moved = 0.0
    for step in range(STEPS):
        gradient, rate = inputs[f"{name}/gradients"][step], inputs["rates"][step]
        value, slots = lamb.update(name, value, gradient, slots, rate, step)
        np.testing.assert_allclose(value, theirs[name][step], rtol=1e-5, atol=1e-6)
        moved = max(moved, float(np.abs(value - inputs[name]).max()))
    assert moved > 1e-3
    for slot, key in zip(slots, "mv", strict=True):
        # They take 1 - 0.999 in float32, which is 1.3e-5 off.
        np.testing.assert_allclose(slot, theirs[f"{name}/{key}"], rtol=2e-5, atol=1e-9)
