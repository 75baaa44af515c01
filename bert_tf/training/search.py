"""A search over hyper-parameters: lists in flags, and tables of what came out."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bert_tf import paths

RUNS_FILE = "search_runs.tsv"
SUMMARY_FILE = "search_summary.tsv"

# Of these the lowest value is the best.
_LOWER_IS_BETTER = ("loss", "mse", "mae")


def numbers(text: str | None, default: Any, kind: type, flag: str) -> list[Any]:
    """Reads a list of positive numbers from a flag.

    Args:
      text: numbers, comma-separated, or None.
      default: the only one where there is no list.
      kind: int or float.
      flag: the flag's name, for the error.

    Raises:
      ValueError: if the text is something else.
    """
    if not text:
        return [default]
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value < math.inf for value in values):
        raise ValueError(f"--{flag}={text}: give positive numbers, comma-separated")
    return list(dict.fromkeys(values))


def write_tables(
    folder: str, done: Sequence[Mapping[str, Any]], settings: Sequence[str], names: Sequence[str]
) -> str:
    """Writes all runs, and each combination's mean and deviation over its restarts.

    Args:
      folder: where search_runs.tsv and search_summary.tsv go.
      done: a dict for each run, with settings (the seed among them) and metrics by name, which
        are None for a run that failed.
      settings: names of the settings that make a combination.
      names: names of the metrics, in the order of the columns.

    Returns: the summary's text.
    """
    rows = ["\t".join([*settings, "seed", *names])]
    for result in done:
        row = [f"{result['settings'][key]:g}" for key in (*settings, "seed")]
        metrics = result["metrics"] or dict.fromkeys(names, math.nan)
        rows.append("\t".join(row + [f"{metrics[name]:.6f}" for name in names]))
    _write(paths.join(folder, RUNS_FILE), rows)
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for result in done:
        groups.setdefault(tuple(result["settings"][key] for key in settings), []).append(result)
    columns = [f"{name}_{what}" for name in names for what in ("mean", "deviation", "best")]
    lines = ["\t".join([*settings, "runs", *columns])]
    for key, results in groups.items():
        row = [f"{value:g}" for value in key] + [str(len(results))]
        for name in names:
            values = [result["metrics"][name] for result in results if result["metrics"]]
            if not values:
                row += ["nan"] * 3
                continue
            deviation = statistics.stdev(values) if len(values) > 1 else math.nan
            best = min(values) if name in _LOWER_IS_BETTER else max(values)
            row += [f"{statistics.mean(values):.6f}", f"{deviation:.6f}", f"{best:.6f}"]
        lines.append("\t".join(row))
    _write(paths.join(folder, SUMMARY_FILE), lines)
    return "\n".join(lines)


def _write(path: str, lines: Sequence[str]) -> None:
    with paths.atomic_write(path) as handle:
        handle.write("\n".join(lines) + "\n")
