"""Tasks: their files, labels and metrics, and examples as arrays."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data_prep.tasks.base import Task


def get_task(name: str, data_dir: str | None = None, **options: Any) -> "Task":
    """Makes the task that `--task_name` names.

    Args:
      name: a GLUE task (CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI), AX, XNLI, TSV or
        CSV; case, dashes and underscores do not matter.
      data_dir: the folder with the task's files; TSV and CSV read their columns and labels there.
      **options: XNLI takes `language`; TSV and CSV take the arguments of `tsv.TsvTask`.

    Raises:
      ValueError: for an unknown name, or an option that the task does not have.
      FileNotFoundError: if TSV or CSV needs the training file and it is not there.
    """
    from data_prep.tasks import glue, tsv, xnli

    key = name.lower().replace("-", "").replace("_", "")
    if key in ("tsv", "csv"):
        return tsv.TsvTask(key.upper(), data_dir, **options)
    allowed = {"language"} if key == "xnli" else set()
    if extra := sorted(set(options) - allowed):
        raise ValueError(
            f"The task {name} has no option {', '.join(extra)}: "
            "columns, labels and file names can be chosen for the tasks TSV and CSV only."
        )
    if key == "xnli":
        return xnli.XnliTask(**options)
    if key in glue.TASKS:
        return glue.TASKS[key]()
    names = [make().name for make in glue.TASKS.values()] + ["XNLI", "TSV", "CSV"]
    raise ValueError(
        f"There is no task {name!r}. The tasks are: {', '.join(names)}. "
        "For data of your own use TSV or CSV."
    )
