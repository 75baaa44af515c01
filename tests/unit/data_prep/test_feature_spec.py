"""The declaration of records, and the checks that it makes possible."""

import numpy as np
import pytest

from data_prep import feature_spec, records


def example(size: int = 8, predictions: int = 2) -> dict[str, np.ndarray]:
    return {
        feature.name: np.ones(feature.length, feature.kind)
        for feature in feature_spec.pretraining(size, predictions)
    }


def test_names_and_lengths():
    spec = {f.name: (f.kind, f.length) for f in feature_spec.pretraining(128, 20)}
    assert spec == {
        "input_ids": ("int64", 128),
        "input_mask": ("int64", 128),
        "segment_ids": ("int64", 128),
        "masked_lm_positions": ("int64", 20),
        "masked_lm_ids": ("int64", 20),
        "masked_lm_weights": ("float32", 20),
        "next_sentence_labels": ("int64", 1),
    }
    unmasked = [f.name for f in feature_spec.pretraining(128, 20, masked=False)]
    assert unmasked == ["input_ids", "input_mask", "segment_ids", "next_sentence_labels"]


def test_mismatch():
    spec = feature_spec.pretraining(8, 2)
    assert feature_spec.mismatch(spec, example()) == ""
    assert "input_ids has 9 values, expected 8 (by --max_seq_length)" in feature_spec.mismatch(
        spec, example(9)
    )
    wrong = example()
    wrong["masked_lm_weights"] = np.ones(2, np.int64)
    assert "masked_lm_weights is int64, expected float32" in feature_spec.mismatch(spec, wrong)
    del wrong["masked_lm_weights"]
    assert feature_spec.mismatch(spec, wrong) == "masked_lm_weights is missing"


def test_check_files_names_file_feature_and_both_values(tmp_path):
    file = tmp_path / "x.tfrecord"
    file.write_bytes(records.frame(records.encode_example(example(8, 2))))
    feature_spec.check_files(feature_spec.pretraining(8, 2), [str(file)])
    with pytest.raises(ValueError) as caught:
        feature_spec.check_files(feature_spec.pretraining(8, 3), [str(file)])
    message = str(caught.value)
    assert str(file) in message
    assert "masked_lm_ids has 2 values, expected 3 (by --max_predictions_per_seq)" in message
