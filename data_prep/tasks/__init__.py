"""Tasks: their files, labels and metrics, and examples as arrays."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data_prep.tasks.base import Task


def get_task(name: str, data_dir: str | None = None, **options: Any) -> "Task":
    """Makes the task that `--task_name` names.

    Args:
      name: a GLUE task (CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI), AX, XNLI, TSV, CSV,
        NER, SWAG or RACE; case, dashes and underscores do not matter.
      data_dir: the folder with the task's files; TSV, CSV and NER read their labels there.
      **options: XNLI takes `language`; TSV and CSV take the arguments of `tsv.TsvTask`, NER those
        of `ner.NerTask`; SWAG and RACE take `train_file`, `dev_file` and `test_file`.

    Raises:
      ValueError: for an unknown name, or an option that the task does not have.
      FileNotFoundError: if the training file is needed for the labels and it is not there.
    """
    from data_prep.tasks import glue, ner, swag, tsv, xnli

    key = name.lower().replace("-", "").replace("_", "")
    if key in ("tsv", "csv"):
        return tsv.TsvTask(key.upper(), data_dir, **options)
    files = {"train_file", "dev_file", "test_file"}
    allowed = {
        "xnli": {"language"},
        "ner": {*files, "labels", "scheme", "word_column", "tag_column"},
        "swag": files,
        "race": files,
    }
    if extra := sorted(set(options) - allowed.get(key, set())):
        raise ValueError(
            f"The task {name} has no option {', '.join(extra)}: columns and labels can be chosen "
            "for the tasks TSV and CSV only, file names for NER, SWAG and RACE too."
        )
    if key == "ner":
        return ner.NerTask(data_dir, **options)
    if key in ("swag", "race"):
        return (swag.SwagTask if key == "swag" else swag.RaceTask)(**options)
    if key == "xnli":
        return xnli.XnliTask(**options)
    if key in glue.TASKS:
        return glue.TASKS[key]()
    names = [make().name for make in glue.TASKS.values()] + ["XNLI", "TSV", "CSV"]
    names += ["NER", "SWAG", "RACE"]
    raise ValueError(
        f"There is no task {name!r}. The tasks are: {', '.join(names)}. "
        "For data of your own use TSV or CSV."
    )
