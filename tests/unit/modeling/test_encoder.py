import math

import numpy as np
import pytest
import tensorflow as tf
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.config import BertConfig
from bert_tf.modeling.encoder import BertEncoder
from bert_tf.modeling.models import BertPretrainer, named_variables

# A text of one token attends to itself alone.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a softmax over axis")

SMALL = BertConfig(
    vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
    intermediate_size=40, max_position_embeddings=20, type_vocab_size=3,
)  # fmt: skip


def plain_encoder(weights, config, ids, mask, segments):
    """The encoder in float64, one example and one head at a time: no line is shared with ours."""

    def norm(x, scope):
        mean = x.mean(-1, keepdims=True)
        variance = x.var(-1, keepdims=True)
        scaled = (x - mean) / np.sqrt(variance + config.layer_norm_eps)
        return scaled * weights[f"{scope}/gamma"] + weights[f"{scope}/beta"]

    def dense(x, scope):
        return x @ weights[f"{scope}/kernel"] + weights[f"{scope}/bias"]

    def gelu(x):
        if config.hidden_act == "gelu_erf":
            return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    table = weights["bert/embeddings/word_embeddings"]
    every, pooled = [], []
    for row, row_mask, row_segments in zip(ids, mask, segments, strict=True):
        x = np.stack(
            [
                table[token]
                + weights["bert/embeddings/token_type_embeddings"][segment]
                + weights["bert/embeddings/position_embeddings"][position]
                for position, (token, segment) in enumerate(zip(row, row_segments, strict=True))
            ]
        )
        x = norm(x, "bert/embeddings/LayerNorm")
        states = [x]
        size = config.hidden_size // config.num_attention_heads
        for index in range(config.num_hidden_layers):
            scope = f"bert/encoder/layer_{index}"
            query, key, value = (
                dense(x, f"{scope}/attention/self/{name}") for name in ("query", "key", "value")
            )
            heads = []
            for head in range(config.num_attention_heads):
                part = slice(head * size, (head + 1) * size)
                scores = query[:, part] @ key[:, part].T / math.sqrt(size)
                scores = scores + np.where(row_mask == 1, 0.0, -10000.0)
                if config.causal_attention:
                    scores[np.triu_indices(len(scores), 1)] = -np.inf
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                heads.append(scores / scores.sum(-1, keepdims=True) @ value[:, part])
            attended = dense(np.concatenate(heads, -1), f"{scope}/attention/output/dense")
            attended = norm(attended + x, f"{scope}/attention/output/LayerNorm")
            wide = gelu(dense(attended, f"{scope}/intermediate/dense"))
            x = norm(dense(wide, f"{scope}/output/dense") + attended, f"{scope}/output/LayerNorm")
            states.append(x)
        every.append(states)
        read = np.flatnonzero(row_mask)[-1] if config.causal_attention else 0
        pooled.append(np.tanh(dense(x[read], "bert/pooler/dense")))
    return [np.stack(layer) for layer in zip(*every, strict=True)], np.stack(pooled)


def random_encoder(config, seed=0):
    encoder = BertEncoder(config)
    encoder.build()
    rng = np.random.default_rng(seed)
    for variable in encoder.variables:
        near = 1.0 if variable.path.endswith("gamma") else 0.0
        variable.assign(rng.normal(near, 0.2, variable.shape))
    return encoder


@pytest.fixture(scope="module")
def encoder():
    return random_encoder(SMALL)


def random_inputs(config, batch, length, seed=0):
    rng = np.random.default_rng(seed)
    shape = (batch, length)
    ids = rng.integers(0, config.vocab_size, shape, np.int32)
    mask = (rng.random(shape) < 0.8).astype(np.int32)
    mask[:, 0] = 1
    return ids, mask, rng.integers(0, config.type_vocab_size, shape, np.int32)


@pytest.mark.parametrize("act", ["gelu", "gelu_erf"])
@pytest.mark.parametrize(("batch", "length"), [(3, 11), (1, 1), (2, SMALL.max_position_embeddings)])
def test_against_plain_arithmetic(act, batch, length):
    config = SMALL.replace(hidden_act=act, layer_norm_eps=1e-6)
    encoder = random_encoder(config, seed=length)
    ids, mask, segments = random_inputs(config, batch, length, seed=length)
    found = encoder(ids, input_mask=mask, segment_ids=segments)
    weights = {
        variable.path: np.asarray(variable).astype(np.float64) for variable in encoder.variables
    }
    states, pooled = plain_encoder(weights, config, ids, mask, segments)
    np.testing.assert_allclose(found["embedding_output"], states[0], atol=1e-5, rtol=0)
    assert len(found["encoder_outputs"]) == config.num_hidden_layers
    for ours, exact in zip(found["encoder_outputs"], states[1:], strict=True):
        np.testing.assert_allclose(ours, exact, atol=1e-5, rtol=0)
    np.testing.assert_allclose(found["pooled_output"], pooled, atol=1e-5, rtol=0)


@settings(deadline=None, max_examples=15)
@given(length=st.integers(1, 12), padding=st.integers(1, 8), seed=st.integers(0, 1000))
def test_padding_changes_nothing(encoder, length, padding, seed):
    ids, _, segments = random_inputs(SMALL, 2, length, seed)
    mask = np.ones_like(ids)
    short = encoder(ids, input_mask=mask, segment_ids=segments)
    # What stands in the padding does not matter either.
    filler = np.random.default_rng(seed).integers(0, SMALL.vocab_size, (2, padding), np.int32)
    zeros = np.zeros((2, padding), np.int32)
    long = encoder(
        np.concatenate([ids, filler], 1),
        input_mask=np.concatenate([mask, zeros], 1),
        segment_ids=np.concatenate([segments, zeros], 1),
    )
    for name in ("sequence_output", "embedding_output"):
        np.testing.assert_allclose(long[name][:, :length], short[name], atol=1e-5, rtol=0)
    np.testing.assert_allclose(long["pooled_output"], short["pooled_output"], atol=1e-5, rtol=0)


def test_padding_is_masked_whatever_its_score():
    config = SMALL.replace(num_hidden_layers=1)
    encoder = random_encoder(config)
    for variable in encoder.variables:
        # Scores of hundreds: a mask of -100 would let some through.
        if variable.path.endswith(("query/kernel", "key/kernel")):
            variable.assign(np.asarray(variable) * 20)
    ids, _, segments = random_inputs(config, 8, 12)
    mask = np.ones_like(ids)
    mask[:, 6:] = 0
    long = encoder(ids, input_mask=mask, segment_ids=segments)["sequence_output"]
    short = encoder(ids[:, :6], segment_ids=segments[:, :6])["sequence_output"]
    np.testing.assert_allclose(long[:, :6], short, atol=1e-3, rtol=0)


def test_defaults_are_no_padding_and_segment_0(encoder):
    ids, _, _ = random_inputs(SMALL, 2, 7)
    found = encoder(ids)
    given = encoder(ids, input_mask=np.ones_like(ids), segment_ids=np.zeros_like(ids))
    np.testing.assert_allclose(found["pooled_output"], given["pooled_output"], atol=1e-6)


def test_too_long_an_input(encoder):
    ids = np.zeros((1, SMALL.max_position_embeddings + 1), np.int32)
    with pytest.raises(ValueError, match=r"the input has 21 tokens.*positions for 20"):
        encoder(ids)


def test_dropout_follows_its_key(encoder):
    ids, mask, segments = random_inputs(SMALL, 2, 7)

    def run(key):
        key = None if key is None else tf.constant(key, tf.int32)
        found = encoder(ids, input_mask=mask, segment_ids=segments, dropout_key=key)
        return np.asarray(found["sequence_output"])

    np.testing.assert_array_equal(run([1, 256]), run([1, 256]))
    np.testing.assert_array_equal(run(None), run(None))
    for other in (run(None), run([1, 512]), run([2, 256])):
        assert np.abs(run([1, 256]) - other).max() > 0.1


def test_rates_come_from_the_configuration():
    config = SMALL.replace(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    encoder = random_encoder(config)
    ids, _, _ = random_inputs(config, 2, 7)
    key = tf.constant([1, 256], tf.int32)
    np.testing.assert_array_equal(
        encoder(ids, dropout_key=key)["sequence_output"], encoder(ids)["sequence_output"]
    )


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(dtype):
    batch = tiny.read_batch("model/inputs.json")
    outputs = {}
    for policy in ("float32", dtype):
        model = BertPretrainer(tiny.CONFIG, dtype=policy)
        assert {variable.dtype for variable in model.variables} == {"float32"}
        tiny.assign(named_variables(model), "tiny_pretraining/bert_model.ckpt")
        outputs[policy] = model(batch)
    wide, half = outputs["float32"], outputs[dtype]
    assert half["sequence_output"].dtype.name == dtype.removeprefix("mixed_")
    for name in ("masked_lm_logits", "next_sentence_logits"):
        assert half[name].dtype == tf.float32
    difference = np.abs(np.asarray(half["sequence_output"], np.float32) - wide["sequence_output"])
    # Eight bits of mantissa: bfloat16 rounds by 0.4% at each of some thirty steps.
    limit = 0.1 if dtype == "mixed_bfloat16" else 0.01
    assert 0 < difference.max() < limit


# Left to right.

CAUSAL = SMALL.replace(causal_attention=True)


@pytest.fixture(scope="module")
def causal():
    return random_encoder(CAUSAL)


def test_causal_against_plain_arithmetic(causal):
    ids, _, segments = random_inputs(CAUSAL, 4, 9)
    mask = (np.arange(9) < [[9], [1], [5], [8]]).astype(np.int32)
    found = causal(ids, input_mask=mask, segment_ids=segments)
    weights = {
        variable.path: np.asarray(variable).astype(np.float64) for variable in causal.variables
    }
    states, pooled = plain_encoder(weights, CAUSAL, ids, mask, segments)
    np.testing.assert_allclose(found["pooled_output"], pooled, atol=1e-5, rtol=0)
    real = mask == 1
    np.testing.assert_allclose(
        np.asarray(found["sequence_output"])[real], states[-1][real], atol=1e-5, rtol=0
    )


@settings(deadline=None, max_examples=20)
@given(
    length=st.integers(2, 14),
    padding=st.integers(0, 5),
    cut=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 1000),
)
def test_a_later_token_changes_nothing_before_it(causal, encoder, length, padding, cut, seed):
    ids, _, segments = random_inputs(CAUSAL, 2, length + padding, seed)
    mask = (np.arange(length + padding) < length).astype(np.int32)[None].repeat(2, 0)
    at = 1 + int(cut * (length - 1))
    other = ids.copy()
    other[:, at] = (other[:, at] + 1) % CAUSAL.vocab_size

    def run(model, given):
        found = model(given, input_mask=mask, segment_ids=segments)
        return np.asarray(found["sequence_output"]), np.asarray(found["pooled_output"])

    (first, first_pooled), (second, second_pooled) = run(causal, ids), run(causal, other)
    np.testing.assert_array_equal(first[:, :at], second[:, :at])
    # What stands there and after it does change, the pooled output of the last token too.
    assert (np.abs(first - second).max(axis=2)[:, at:length] > 1e-5).all()
    assert (np.abs(first_pooled - second_pooled).max(axis=1) > 1e-6).all()
    # In both directions the first tokens would see it.
    assert np.abs(run(encoder, ids)[0] - run(encoder, other)[0])[:, 0].max() > 1e-5


@settings(deadline=None, max_examples=10)
@given(length=st.integers(1, 12), padding=st.integers(1, 8), seed=st.integers(0, 1000))
def test_padding_changes_nothing_for_a_causal_model(causal, length, padding, seed):
    ids, _, segments = random_inputs(CAUSAL, 2, length + padding, seed)
    mask = (np.arange(length + padding) < length).astype(np.int32)[None].repeat(2, 0)
    long = causal(ids, input_mask=mask, segment_ids=segments)
    # No mask at all: the last token is the last one there.
    short = causal(ids[:, :length], segment_ids=segments[:, :length])
    np.testing.assert_allclose(
        long["sequence_output"][:, :length], short["sequence_output"], atol=1e-5, rtol=0
    )
    np.testing.assert_allclose(long["pooled_output"], short["pooled_output"], atol=1e-5, rtol=0)


def test_causal_encoder_of_an_empty_row(causal):
    ids, _, segments = random_inputs(CAUSAL, 2, 6)
    mask = np.array([[1] * 6, [0] * 6], np.int32)
    found = causal(ids, input_mask=mask, segment_ids=segments)
    assert np.isfinite(found["pooled_output"]).all()
