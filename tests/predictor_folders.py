"""Output folders as the scripts leave them, with random weights: what predictors are tested on."""

import json

import tiny

from bert_tf.config import BertConfig

LABELS = {
    "classification": ["no", "yes", "perhaps"],
    "multilabel": ["toxic", "funny", "long"],
    "regression": [],
    "tagging": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    "choice": [],
}
TASKS = {
    "classification": "TSV",
    "multilabel": "TSV",
    "regression": "TSV",
    "tagging": "NER",
    "choice": "SWAG",
}
KINDS = (*LABELS, "question_answering", "masked_lm")

# One that each kind takes.
INSTANCES = {
    "classification": {"text": "he was good", "text_pair": "it is not"},
    "multilabel": {"text": "it was bad and good"},
    "regression": {"text": "good", "text_pair": "not good"},
    "tagging": {"tokens": ["good", "max", "was", "in"]},
    "choice": {"context": "he was in it", "choices": ["good", "bad it is", "not"]},
    "question_answering": {"question": "who was good ?", "context": "Max was good. Kim was bad."},
    "masked_lm": {"text": "it was [MASK] and [MASK]"},
}

_WORDS = "the of is a in was and not on it he she who max kim good bad 船 他 書".split()


def vocabulary():
    return tiny.vocabulary(_WORDS)


def config(**changes):
    return BertConfig(
        vocab_size=120,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        type_vocab_size=2,
        initializer_range=0.2,
    ).replace(**changes)


def make_model(kind, settings, sizes, seed):
    """A new model of a kind, as the scripts make it."""
    from bert_tf.modeling import models

    bilstm = settings.get("bilstm_head", False)
    if kind == "question_answering":
        return models.BertForSquad(sizes, seed=seed, bilstm=bilstm)
    if kind == "masked_lm":
        return models.BertPretrainer(sizes, seed=seed)
    if kind == "choice":
        return models.BertForMultipleChoice(sizes, seed=seed)
    choice = settings.get("feature_based", "off")
    if choice != "off":
        layers = {"weighted_sum": sizes.num_hidden_layers + 1, "concat_last_4": 4}.get(choice, 1)
        mixed = layers if choice == "weighted_sum" else 0
        size, units = layers * sizes.hidden_size, settings["lstm_units"]
        outputs = len(LABELS[kind])
        return models.BertFeatureTagger(sizes, outputs, size, mixed, units, seed=seed)
    make = models.BertTokenClassifier if kind == "tagging" else models.BertClassifier
    return make(sizes, len(LABELS[kind]) or 1, seed=seed, bilstm=bilstm)


def write_folder(folder, kind, settings=None, seed=3, **sizes):
    """Writes the folder of a run of a kind; returns it."""
    from bert_tf.checkpoint import original
    from bert_tf.modeling.models import named_variables

    settings = dict(settings or {})
    folder.mkdir(parents=True, exist_ok=True)
    sizes = config(**sizes)
    model = make_model(kind, settings, sizes, seed)
    prefix = str(folder / "model.ckpt-5")
    values = {name: variable.numpy() for name, variable in named_variables(model).items()}
    for name, value in values.items():
        # Scores that differ from text to text, and biases that are no zeros.
        if name.endswith("output_weights"):
            values[name] = 10 * value
        if name.endswith("output_bias"):
            values[name] = value + 0.1
    original.write(prefix, values)
    original.write_state(str(folder), prefix)
    sizes.to_json_file(str(folder / "bert_config.json"))
    lines = "".join(f"{token}\n" for token in vocabulary())
    (folder / "vocab.txt").write_text(lines, encoding="utf-8")
    tokenizer = {"do_lower_case": True, "strip_accents": True, "never_split": []}
    if kind == "masked_lm":
        name, own = "pretraining.json", {"objective": "mlm_nsp"}
    elif kind == "question_answering":
        own = {
            "max_seq_length": 32,
            "doc_stride": 8,
            "max_query_length": 10,
            "version_2_with_negative": False,
            "null_score_diff_threshold": 0.0,
            "n_best_size": 20,
            "max_answer_length": 30,
            "character_level": False,
            **tokenizer,
        }
        name = "squad.json"
    else:
        own = {
            "task": TASKS[kind],
            "kind": kind,
            "labels": LABELS[kind],
            "max_seq_length": 32,
            "truncation": "longest_first",
            **tokenizer,
        }
        if kind == "tagging":
            own |= {"scheme": "IOB2", "word_column": 0, "tag_column": -1}
            own |= {"document_context": False, "feature_based": "off"}
        name = "task.json"
    (folder / name).write_text(json.dumps(own | settings))
    return folder
