"""TF_CONFIG: which workers a run has."""

import json

import pytest

from bert_tf.training import cluster

TWO = ["a:1", "b:2"]


@pytest.fixture
def read(monkeypatch):
    def read(config):
        text = config if isinstance(config, str) else json.dumps(config)
        monkeypatch.setenv("TF_CONFIG", text)
        return cluster.from_environment()

    return read


def config(kind="worker", index=0, **kinds):
    return {"cluster": kinds or {"worker": TWO}, "task": {"type": kind, "index": index}}


@pytest.mark.parametrize("text", [None, "", "  ", "{}", '{"cluster": {}}', '{"cluster": null}'])
def test_alone(monkeypatch, text):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    found = cluster.from_environment()
    assert found == cluster.ALONE
    assert found.is_chief
    assert len(found.addresses) == 1


def test_workers(read):
    first, second = read(config()), read(config(index=1))
    assert first.addresses == second.addresses == ("a:1", "b:2")
    assert (first.index, second.index) == (0, 1)
    assert (first.is_chief, second.is_chief) == (True, False)
    assert [first.number("worker", task) for task in (0, 1)] == [0, 1]


def test_a_chief_by_name_comes_first(read):
    kinds = {"worker": TWO, "chief": ["c:3"]}
    chief = read(config("chief", 0, **kinds))
    workers = [read(config("worker", index, **kinds)) for index in (0, 1)]
    for each in (chief, *workers):
        assert each.addresses == ("c:3", "a:1", "b:2")
        # TensorFlow's worker 0 is the second of all.
        assert each.number("chief", 0) == 0
        assert [each.number("worker", task) for task in (0, 1)] == [1, 2]
    assert [each.index for each in (chief, *workers)] == [0, 1, 2]
    assert [each.is_chief for each in (chief, *workers)] == [True, False, False]


def test_other_keys_are_left_alone(read):
    # Kubeflow and others add such; an evaluator is another program's.
    found = read({**config(worker=TWO, evaluator=["e:1"]), "environment": "cloud"})
    assert found.addresses == ("a:1", "b:2")
    assert read(config(worker=["[::1]:22", "10.0.0.1:22"])).addresses[0] == "[::1]:22"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ('{"cluster": ', "is no JSON: Expecting value"),
        ("[1]", "it must be an object"),
        ('"x"', "it must be an object"),
        ({"cluster": ["a:1"]}, "cluster and task must be objects"),
        ({"cluster": {"worker": TWO}, "task": "worker"}, "cluster and task must be objects"),
        (config(worker=TWO, ps=["p:1"]), "its cluster has ps, but .* no parameter servers"),
        (config(worker="a:1"), "worker must be a list of addresses"),
        (config(worker=[1, 2]), "worker must be a list of addresses"),
        (config(worker={"0": "a:1"}), "worker must be a list of addresses"),
        (config(worker=["a:1", "b"]), "worker has 'b', which is no address"),
        (config(worker=["a:1", ":2"]), "worker has ':2', which is no address"),
        (config(worker=["a:1", "b:"]), "worker has 'b:', which is no address"),
        (config(worker=TWO, chief=["c:1", "d:1"]), "there can be one chief"),
        ({"cluster": {"worker": TWO}}, "task needs a type"),
        (config("master", 0), "task needs a type"),
        (config("evaluator", 0, worker=TWO, evaluator=["e:1"]), "task needs a type"),
        (config("worker", "1"), "task needs a type .* and an index"),
        (config("worker", True), "task needs a type .* and an index"),
        (config("worker", None), "task needs a type .* and an index"),
        (config("worker", 2), "task is worker 2, but the cluster has 2 of that type"),
        (config("worker", -1), "task is worker -1, but"),
        (config("chief", 0), "task is chief 0, but the cluster has 0 of that type"),
        (config(worker=["a:1", "a:1"]), "two workers have one address"),
        (config("chief", 0, worker=TWO, chief=["b:2"]), "two workers have one address"),
    ],
)
def test_wrong_forms(read, wrong, says):
    with pytest.raises(ValueError, match=says) as caught:
        read(wrong)
    assert "environment variable TF_CONFIG is" in str(caught.value)
    if "no JSON" not in says:
        # What a right one looks like.
        assert '"task": {"type": "worker", "index": 0}' in str(caught.value)
