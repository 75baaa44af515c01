"""Draws the curves of training runs from their event files.

    python examples/plot_training.py mlm_nsp mlm --output=curves.svg \\
        --metrics=masked_lm_loss,eval/masked_lm_loss

Each folder is a run's --output_dir. Needs matplotlib: pip install -e '.[plot]'.
"""

import argparse
import glob
import os
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def read_events(folder: str, metric: str) -> tuple[list[int], list[float]]:
    """Returns the steps and values of one metric of a run; what was done twice counts once."""
    import tensorflow as tf

    found: dict[int, float] = {}
    for path in sorted(glob.glob(os.path.join(folder, "events.out.tfevents*"))):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == metric:
                    found[event.step] = float(tf.make_ndarray(value.tensor))
    steps = sorted(found)
    return steps, [found[step] for step in steps]


def smooth(values: list[float], over: int) -> list[float]:
    """Returns the mean of each value and up to `over` - 1 before it."""
    result = []
    for end in range(1, len(values) + 1):
        part = values[max(0, end - over) : end]
        result.append(sum(part) / len(part))
    return result


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", help="output folders of runs")
    parser.add_argument("--metrics", default="loss", help="names as in TensorBoard, with commas")
    parser.add_argument("--smooth", type=int, default=10, help="points to average, 1 for none")
    parser.add_argument("--output", default="training.svg", help="file to write, .svg or .png")
    args = parser.parse_args(argv)
    try:
        import matplotlib
    except ImportError:
        parser.error("drawing needs matplotlib: pip install -e '.[plot]'")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for folder in args.folders:
        for metric in args.metrics.split(","):
            steps, values = read_events(folder, metric)
            if not steps:
                parser.error(
                    f"{folder} has no values of {metric}; of one objective alone the loss is "
                    "masked_lm_loss (--metrics)"
                )
            # Evaluations are few, and no noise of single batches.
            evaluated = metric.startswith("eval/")
            axes.plot(
                steps,
                values if evaluated else smooth(values, args.smooth),
                marker="o" if evaluated else None,
                label=f"{os.path.basename(os.path.normpath(folder))}: {metric}",
            )
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(args.output)
    print(f"Wrote {args.output}.")


if __name__ == "__main__":
    main()
