"""What the end-to-end tests of run_squad.py share: texts, questions, models, runs."""

import contextlib
import json
import pathlib
import string

import numpy as np
import pytest
import squad_plain

import run_squad
from bert_tf.config import BertConfig
from bert_tf.tokenization import BertTokenizer
from bert_tf.tokenization.wordpiece import BasicTokenizer
from data_prep.squad import windows

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "checkpoint" / "tiny_squad"
LENGTHS = {"max_seq_length": 40, "doc_stride": 12, "max_query_length": 12}
FILES = ("predictions.json", "nbest_predictions.json")

CONFIG = BertConfig(
    vocab_size=120, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=64, type_vocab_size=2, initializer_range=0.2,
)  # fmt: skip

_WORDS = "the has red blue how many who in box kim bo ann max hat cup pen".split()
_CHINESE = "他她在是的我有三五六紅船書山水人門中國誰"


def vocabulary():
    """Returns 120 tokens, for English of a few words and Chinese of a few characters."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"。？.?"]
    letters = string.ascii_lowercase
    for characters in (letters, string.digits):
        tokens += [*characters, *(f"##{character}" for character in characters)]
    tokens += [*_WORDS, *_CHINESE]
    return [*tokens, *(f"[unused{number}]" for number in range(120 - len(tokens)))]


def tokenizer():
    return BertTokenizer.from_vocab({token: number for number, token in enumerate(vocabulary())})


# Data.


def question(text, answer, context, qas_id, impossible=None, others=()):
    """A question as SQuAD has it; `answer` None: it has none."""
    given = [] if answer is None else [answer, *others]
    item = {
        "id": qas_id,
        "question": text,
        "answers": [{"text": each, "answer_start": context.find(each)} for each in given],
    }
    return item if impossible is None else item | {"is_impossible": impossible}


def english(version_2=False, seed=0):
    """Six texts, the longest of several windows, and three questions about each.

    SQuAD 2.0 has a question without an answer about each, and one about a blank text.
    """
    random = np.random.default_rng(seed)
    paragraphs = []
    for number, size in enumerate((1, 2, 3, 4, 5, 8)):
        said = []
        for place in range(size):
            who, what, color = (
                str(random.choice(["Kim", "Bo", "Ann", "Max"])),
                str(random.choice(["hats", "cups", "pens"])),
                str(random.choice(["red", "blue"])),
            )
            said.append((who, f"{10 * place + int(random.integers(10))}", color, what))
        context = " ".join(f"{a} has {b} {c} {d} in the box." for a, b, c, d in said)
        impossible = False if version_2 else None
        asked = []
        for which in range(3):
            who, count, color, what = said[(which * 5) % size]
            text, answer = (
                (f"How many {color} {what} has {who}?", count),
                (f"Who has {count} {what}?", who),
                (f"How many {what} has {who}?", f"{count} {color} {what}"),
            )[which]
            asked.append(question(text, answer, context, f"q{number}-{which}", impossible))
        if version_2:
            asked.append(question("Who has the box?", None, context, f"q{number}-none", True))
        paragraphs.append({"context": context, "qas": asked})
    if version_2:
        blank = question("Who?", None, " \n", "blank", True)
        paragraphs.append({"context": " \n", "qas": [blank]})
    title = f"Boxes {seed}"
    version = "v2.0" if version_2 else "1.1"
    return {"version": version, "data": [{"title": title, "paragraphs": paragraphs}]}


def chinese():
    """Texts without spaces."""
    paragraphs = []
    for number, (who, count) in enumerate(("他三", "她五", "我六")):
        context = f"{who}有{count}紅船。山在水中，{count}人在門中。書是中國的。"
        asked = [
            question("誰有紅船？", who, context, f"c{number}-0"),
            question("船有？", f"{count}紅船", context, f"c{number}-1"),
            question("山在？", "水中", context, f"c{number}-2"),
        ]
        paragraphs.append({"context": context, "qas": asked})
    return {"version": "1.1", "data": [{"title": "船", "paragraphs": paragraphs}]}


def ids(data):
    return [
        item["id"]
        for article in data["data"]
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
    ]


def write(path, data):
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    return path


def read(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


# Models and runs.


def write_vocabulary(folder):
    path = folder / "vocab.txt"
    path.write_text("\n".join(vocabulary()) + "\n", encoding="utf-8")
    return path


def write_model(folder, seed=3, step=None, head=True, bilstm=False, **changes):
    """Writes a checkpoint with its configuration and vocabulary; as of a run if `step` is given."""
    from bert_tf.checkpoint import original
    from bert_tf.modeling.models import BertForSquad, named_variables

    folder.mkdir(exist_ok=True)
    config = CONFIG.replace(**changes)
    variables = named_variables(BertForSquad(config, seed=seed, bilstm=bilstm))
    values = {
        name: variable.numpy()
        for name, variable in variables.items()
        if head or not name.startswith(("cls/", "bilstm/"))
    }
    prefix = str(folder / ("bert_model.ckpt" if step is None else f"model.ckpt-{step}"))
    original.write(prefix, values)
    if step is not None:
        original.write_state(str(folder), prefix)
    config.to_json_file(str(folder / "bert_config.json"))
    write_vocabulary(folder)
    return folder


def write_run(folder, settings=None, **model):
    """Writes a folder as run_squad.py leaves it, without training."""
    write_model(folder, step=5, **model)
    values = {
        **LENGTHS,
        "version_2_with_negative": False,
        "null_score_diff_threshold": 0.0,
        "n_best_size": 20,
        "max_answer_length": 30,
        "character_level": False,
        "do_lower_case": True,
        "strip_accents": True,
        "never_split": [],
        "bilstm_head": model.get("bilstm", False),
    }
    (folder / "squad.json").write_text(json.dumps(values | (settings or {})))
    return folder


def main(*flags):
    """Runs the script in this process; what a test gives comes last and wins."""
    lengths = [f"--{name}={value}" for name, value in LENGTHS.items()]
    return run_squad.main(["run_squad.py", *lengths, *map(str, flags)])


@contextlib.contextmanager
def recorded():
    """Yields a list that gets the examples of a prediction, their windows and logits."""
    seen = []
    real = run_squad.scored_examples

    def scored(*arguments):
        for item in real(*arguments):
            seen.append(item)
            yield item

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_squad, "scored_examples", scored)
        yield seen


def plainly_decoded(seen, **options):
    """Decodes recorded logits by the plain decoder: {id: (text, n-best list, null odds)}."""
    words = tokenizer()
    basic = BasicTokenizer(words.do_lower_case, words.strip_accents)
    found = {}
    for example, its, starts, ends in seen:
        if its:
            fields = [windows.original_fields(window, words, 64) for window in its]
            logits = [[row.tolist() for row in rows] for rows in (starts, ends)]
            found[example.qas_id] = squad_plain.decode(example, fields, *logits, basic, **options)
    return found


def model_logits(folder, its):
    """Runs a folder's latest weights over windows, padded to 64: two lists of [T].

    The weights are read by TensorFlow itself and set by name.
    """
    import tensorflow as tf

    from bert_tf.modeling.models import BertForSquad, named_variables

    settings = read(folder / "squad.json")
    config = BertConfig.from_json_file(str(folder / "bert_config.json"))
    model = BertForSquad(config, bilstm=settings["bilstm_head"])
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))
    for name, variable in named_variables(model).items():
        variable.assign(reader.get_tensor(name))
    batch = windows.batch(its, 64)
    outputs = model({name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")})
    return [
        [row[: window.length] for row, window in zip(outputs[name].numpy(), its, strict=True)]
        for name in ("start_logits", "end_logits")
    ]


def assert_same_answers(found, expected, atol=1e-5):
    """Compares two output folders: the same texts, and probabilities that are close."""
    assert read(found / FILES[0]) == read(expected / FILES[0])
    first, second = (read(folder / FILES[1]) for folder in (found, expected))
    assert first.keys() == second.keys()
    for name, entries in second.items():
        assert [entry["text"] for entry in first[name]] == [entry["text"] for entry in entries]
        for key in ("probability", "start_logit", "end_logit"):
            np.testing.assert_allclose(
                [entry[key] for entry in first[name]],
                [entry[key] for entry in entries],
                atol=atol,
                err_msg=name,
            )
