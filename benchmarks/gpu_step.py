r"""Sequences a second of pre-training on one GPU: this model on JAX, beside torch and KerasHub.

The layers, losses and optimizer are those that the scripts train with, under Keras's JAX backend:
JAX compiles the whole step, TensorFlow is not needed. Its losses are those of
`bert_tf.training.step.TrainStep` for the same weights, batch and seed; a test compares them.

Needs jax (with CUDA), keras, namex and optree; the peers also transformers and torch, or keras-hub.
On a machine that reaches no package index, take along what is missing as wheels:

    python -m pip download --no-deps --only-binary=:all: --python-version 3.12 -d wheels \
        keras namex optree
    python -m pip install --no-index --no-deps --target site wheels/*.whl

    PYTHONPATH=site python benchmarks/gpu_step.py --shape=base128,base512,large128 \
        --torch_python=python --keras_hub_python=python

Each row is a process of its own, one after another: a process keeps the card's memory to itself.
Masked LM and next sentence prediction on one fixed batch, Adam with decoupled weight decay and
clipped gradients, weights in float32 and products in bfloat16. A row's seconds are the median of
its steps, compilation left out; both dropouts hold for all rows.

The share is of the card's matmul rate, measured in the same run: products of 8192 x 8192 in
bfloat16 with random numbers (1024 x 1024 without a GPU). The work counted is that of the matrix
products, B T L (72 H^2 + 12 T H) + 6 B P (H V + H^2), whatever a row computes beyond it.

--attention lists ways to compute attention, a row each: "scores" is the model's own (scores,
softmax, dropout); "dot_product" is keras.ops.dot_product_attention, "cudnn" cuDNN's fused kernel
through JAX. The last two know no dropout of probabilities: they need --attention_dropout=0.

A peer whose python is not given is left out, and the table says so.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pretraining_step
from peers import gpu_common, pretraining_common

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
ATTENTION = ("scores", "dot_product", "cudnn")
POLICIES = {"bf16": "mixed_bfloat16", "f32": "float32"}

# By flag: the peer's script and the name of its row.
PEERS = {
    "torch_python": ("gpu_torch.py", "transformers + torch, sdpa, compiled (b)"),
    "keras_hub_python": ("gpu_keras_hub.py", "KerasHub BertMaskedLM on JAX (a)"),
}


def make_step(
    model: Any, loss: Any, optimizer: Any, seed: int = 0
) -> Callable[[list[Any], list[Any], int, dict[str, Any]], tuple[list[Any], list[Any], Any]]:
    """Returns a training step on JAX, compiled.

    Args:
      model: a model of bert_tf.modeling.models.
      loss: a `bert_tf.modeling.losses.Loss`.
      optimizer: a `BertAdam`.
      seed: of the dropout masks; the same seed and step give `TrainStep`'s.

    Returns:
      A function (values, slots, step, batch) -> (values, slots, {name: float32 scalar}): the
      values of the model's variables in the order of `named_variables`, and the optimizer's slots
      in the order of `make_slots`. The arrays given are used up.
    """
    import jax
    import keras
    import numpy as np
    from jax import numpy as jnp

    from bert_tf.modeling import kernels
    from bert_tf.modeling.layers import DROPOUT_STREAMS, derive_seed
    from bert_tf.modeling.models import named_variables
    from bert_tf.optimization import clip_scale, global_norm

    variables = named_variables(model)
    first = np.int32(derive_seed(seed, "dropout"))

    def losses(values: list[Any], step: Any, batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        key = jnp.stack([first, step * DROPOUT_STREAMS])
        weights = loss.weights(batch)
        scope = keras.StatelessScope(list(zip(variables.values(), values, strict=True)))
        # No compiler of its own: all of the step is compiled.
        with scope, kernels.fused(kernels.Fusion()):
            found = loss.values(model(batch, dropout_key=key), batch)
        parts = {
            name: jnp.sum(weights[name] * found[name])
            / (jnp.sum(weights[name]) + loss.epsilon.get(name, 0.0))
            for name in loss.names
        }
        return sum(parts.values()), parts

    def take_step(
        values: list[Any], slots: list[Any], step: Any, batch: dict[str, Any]
    ) -> tuple[list[Any], list[Any], dict[str, Any]]:
        gradients, parts = jax.grad(losses, has_aux=True)(values, step, batch)
        factor = clip_scale(global_norm(gradients), optimizer.clip_norm)
        rate = optimizer.learning_rate(step)
        new_values, new_slots = [], []
        for index, name in enumerate(variables):
            gradient = gradients[index].astype("float32") * factor
            own = (slots[2 * index], slots[2 * index + 1])
            value, own = optimizer.update(name, values[index], gradient, own, rate, step)
            new_values.append(value)
            new_slots.extend(own)
        return new_values, new_slots, parts

    return jax.jit(take_step, donate_argnums=(0, 1))


@contextlib.contextmanager
def attention(kind: str) -> Iterator[None]:
    """Models made within it compute attention in one of the ways of ATTENTION."""
    import jax
    from keras import ops

    from bert_tf.modeling import encoder
    from bert_tf.modeling.layers import TransformerLayer

    class DotProductLayer(TransformerLayer):
        """A transformer layer around one function for all of attention, without dropout."""

        def attend(
            self, query: Any, key: Any, value: Any, attention_bias: Any, dropout_key: Any
        ) -> Any:
            del dropout_key
            if kind == "dot_product":
                bias = ops.cast(attention_bias, query.dtype)
                return ops.dot_product_attention(query, key, value, bias=bias)
            # Padding stands at the end: cuDNN leaves it out instead of adding a bias.
            lengths = (attention_bias[:, 0, 0] == 0).sum(axis=-1, dtype="int32")  # [B]
            return jax.nn.dot_product_attention(
                query,
                key,
                value,
                key_value_seq_lengths=lengths,
                # Elsewhere JAX's own arithmetic: the tests run where no GPU is.
                implementation="cudnn" if jax.default_backend() == "gpu" else "xla",
            )

    if kind == "scores":
        yield
        return
    encoder.TransformerLayer = DotProductLayer
    try:
        yield
    finally:
        encoder.TransformerLayer = TransformerLayer


def make_model(args: argparse.Namespace) -> Any:
    """Makes the model of a shape: a `BertPretrainer` with new weights."""
    from bert_tf.config import BertConfig
    from bert_tf.modeling.models import BertPretrainer

    config = BertConfig(
        **pretraining_common.config_sizes(args),
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.attention_dropout,
    )
    with attention(args.attention):
        model = BertPretrainer(config, dtype=POLICIES[args.dtype])
    model.bert.recompute = args.recompute
    return model


def ours(args: argparse.Namespace) -> None:
    """Times our own step in this process."""
    import jax
    import keras
    from jax import numpy as jnp

    from bert_tf.modeling.losses import pretraining_loss
    from bert_tf.modeling.models import named_variables
    from bert_tf.optimization import BertAdam, WarmupDecay

    model = make_model(args)
    optimizer = BertAdam(
        WarmupDecay(pretraining_common.LEARNING_RATE, 1_000_000),
        weight_decay=pretraining_common.WEIGHT_DECAY,
        clip_norm=pretraining_common.CLIP_NORM,
    )
    variables = named_variables(model)
    # Copies: the step uses up what it is given.
    values = [jnp.array(variable.value) for variable in variables.values()]
    slots = [jnp.zeros(value.shape, "float32") for value in values for _ in range(2)]
    batch = {
        name: jnp.asarray(value) for name, value in pretraining_common.make_batch(args).items()
    }
    compiled = make_step(model, pretraining_loss(), optimizer)
    number = 0

    def step() -> Any:
        nonlocal values, slots, number
        values, slots, parts = compiled(values, slots, number, batch)
        number += 1
        return sum(parts.values())

    device = jax.devices()[0]
    name = f"ours, keras {keras.__version__}, jax {jax.__version__} on {device.device_kind}"
    pretraining_common.time_steps(args, step, name)


def matmul(args: argparse.Namespace) -> None:
    """Prints the FLOP/s of large products of random numbers, as JSON."""
    import jax
    from jax import numpy as jnp

    size, products = (8192, 20) if jax.default_backend() == "gpu" else (1024, 2)
    dtype = {"bf16": "bfloat16", "f32": "float32"}[args.dtype]
    left, right = (jax.random.normal(jax.random.key(i), (size, size), dtype) for i in (1, 2))
    product = jax.jit(jnp.matmul)
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(products):
            result = product(left, right)
        result.block_until_ready()
        best = min(best, (time.perf_counter() - start) / products)
    rate = 2 * size**3 / best
    print(json.dumps({"peer": "matmul", "rate": rate, "device": jax.devices()[0].device_kind}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shape", default="base128", help=f"comma-separated, of {', '.join(gpu_common.SHAPES)}"
    )
    gpu_common.add_flags(parser)
    parser.add_argument(
        "--attention", default="scores", help=f"comma-separated, of {', '.join(ATTENTION)}"
    )
    parser.add_argument(
        "--recompute", action="store_true", help="ours: activations anew in the backward pass"
    )
    parser.add_argument("--torch_python", help="interpreter with torch and transformers 5")
    parser.add_argument("--keras_hub_python", help="interpreter with keras-hub and jax")
    parser.add_argument("--row", choices=["ours", "matmul"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    shapes, kinds = args.shape.split(","), args.attention.split(",")
    for flag, given, known in (
        ("shape", shapes, tuple(gpu_common.SHAPES)),
        ("attention", kinds, ATTENTION),
    ):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"--{flag}: {unknown[0]!r} is not one of {', '.join(known)}")
    if args.attention_dropout and kinds != ["scores"]:
        parser.error("--attention other than scores needs --attention_dropout=0")
    if args.row:
        os.environ["KERAS_BACKEND"] = "jax"
        sys.path.insert(0, ROOT)
        {"ours": ours, "matmul": matmul}[args.row](gpu_common.take_shape(args, shapes[0]))
        return

    names = ("dtype", "dropout", "attention_dropout", "steps", "warmup")
    flags = [f"--{name}={getattr(args, name)}" for name in names]
    own = [sys.executable, os.path.abspath(__file__), *flags]
    own += ["--recompute"] if args.recompute else []
    rate = pretraining_step.run([*own, "--row=matmul"])
    print(f"matmul, {args.dtype}: {rate['rate'] / 1e12:.4g} TFLOP/s on {rate['device']}")
    left_out, found_names, failed = [], {}, []
    rows: dict[str, list[str]] = {}
    for kind in kinds:
        label = f"ours, {kind}" + (", recomputed" if args.recompute else "")
        rows[label] = [*own, "--row=ours", f"--attention={kind}"]
    for flag, (script, name) in PEERS.items():
        python = getattr(args, flag)
        if not python:
            left_out.append(f"{name}: left out (no --{flag})")
        elif flag == "keras_hub_python" and args.dropout != args.attention_dropout:
            left_out.append(f"{name}: left out (it has one dropout for both)")
        else:
            rows[name] = [python, os.path.join(HERE, "peers", script), *flags]
    print(f"dropout {args.dropout:g}, of attention {args.attention_dropout:g}, in each row")
    print(f"\n{'':10}{'':42} {'s/step':>8} {'seq/s':>8} {'of matmul':>10} {'loss':>15}")
    for shape in shapes:
        sizes = gpu_common.take_shape(args, shape)
        for label, command in rows.items():
            try:
                result = pretraining_step.run([*command, f"--shape={shape}"])
            except RuntimeError as error:
                failed.append(f"{shape} {label}")
                print(f"{shape:10}{label:42}   failed: {error}", flush=True)
                continue
            seconds = statistics.median(result["seconds"])
            share = pretraining_step.work(sizes) / seconds / rate["rate"]
            losses = f"{result['losses'][0]:.2f} to {result['losses'][-1]:.2f}"
            # At once: a run that is cut short has shown what it has.
            print(
                f"{shape:10}{label:42} {seconds:8.4f} {sizes.batch / seconds:8.0f} {share:10.1%} "
                f"{losses:>15}",
                flush=True,
            )
            found_names[result["peer"]] = True
    print("\n(a) masked LM alone, on the masked positions; it has no next sentence prediction")
    print("(b) the vocabulary matrix at all positions, as transformers does it")
    for line in [*left_out, *(f"with {name}" for name in found_names)]:
        print(line)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
