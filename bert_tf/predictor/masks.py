"""What may stand in the place of [MASK]: the masked-LM head that pre-training leaves.

Letters in shape comments: B batch, T tokens, P masks of a text, V vocabulary, K candidates.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_tf import paths
from bert_tf.checkpoint import names, restore
from bert_tf.predictor import folder
from bert_tf.predictor.base import FEATURES, Predictor, Row, graph, padded, text_of
from bert_tf.tokenization import packing

MASK = "[MASK]"

# Masks that are computed together: the scores of each are as many as the vocabulary has tokens.
_MASKS = 512


def checkpoint_of(model_dir: str) -> str:
    """Returns the path of the weights that a folder means: its best ones, or its latest."""
    if not paths.is_dir(model_dir):
        return model_dir
    return restore.trained_checkpoint(model_dir) or model_dir


class MaskFiller(Predictor):
    """Fills masks with a pre-trained model.

    A left-to-right model (`run_pretraining.py --objective=ltr`) is asked what comes next: it sees
    only what stands before a mask.

    Args:
      model_dir: the output folder of run_pretraining.py, an original checkpoint (folder or
        prefix) or a Hugging Face folder; bert_config.json (or config.json) and vocab.txt are
        beside it.
      batch_size: texts of a batch, 1 or more.
      top_k: candidates to give for each mask, 1 or more.
      do_lower_case: whether texts are lower-cased. None: what the folder's tokenizer_config.json
        says; without one, whether the vocabulary has no token with a capital letter.

    Raises:
      FileNotFoundError: there is no checkpoint; says what is there.
      ValueError: the checkpoint has no masked-LM head, something beside it is missing or wrong, or
        a number is below 1.

    Example:
      >>> filler = MaskFiller("uncased_L-12_H-768_A-12", top_k=1)
      >>> filler.fill(["The capital of France is [MASK]."])
      [{'masks': [{'candidates': [{'token': 'paris', 'probability': 0.42}]}]}]
    """

    kind = "masked_lm"
    needed = ("text",)
    fields = f"text, a string with {MASK} in it"

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        batch_size: int = 32,
        top_k: int = 10,
        do_lower_case: bool | None = None,
    ):
        folder.check_at_least_one(batch_size=batch_size, top_k=top_k)
        model_dir = os.fspath(model_dir)
        checkpoint = restore.load(checkpoint_of(model_dir))
        if names.MASKED_LM not in names.heads_in(checkpoint.shapes):
            raise ValueError(
                f"The checkpoint {checkpoint.prefix} has no masked-LM head: give one of "
                "pre-training."
            )
        if checkpoint.config is None or checkpoint.vocab_file is None:
            missing = restore.VOCAB_FILE if checkpoint.config else restore.ORIGINAL_CONFIG_FILE
            raise FileNotFoundError(
                f"There is no {missing} beside the checkpoint {checkpoint.prefix}: put it there."
            )
        if do_lower_case is None:
            do_lower_case = checkpoint.do_lower_case
        if do_lower_case is None:
            do_lower_case = _is_uncased(checkpoint.vocab_file)
        settings = {
            "do_lower_case": do_lower_case,
            "strip_accents": None,
            "never_split": [MASK],
        }
        self.tokenizer = folder.make_tokenizer(checkpoint, settings)
        self.batch_size = batch_size
        self.top_k = top_k
        self._config = config = checkpoint.config

        import tensorflow as tf

        from bert_tf.modeling.models import BertPretrainer

        self.model = BertPretrainer(config, next_sentence=False)
        folder.set_weights(
            self.model,
            checkpoint,
            may_miss=("bert/pooler/*",),
            may_be_left=("cls/seq_relationship/*", "cls/squad/*", "output_*", "bilstm/*"),
        )
        # Rows of the table without a token of their own are no candidates.
        known = np.zeros(config.vocab_size, bool)
        known[list(self.tokenizer.inv_vocab)] = True
        count = min(top_k, int(known.sum()))

        def candidates(batch: dict[str, Any]) -> tuple[Any, Any]:
            scores = self.model(batch)["masked_lm_logits"]  # [B*P, V]
            scores = tf.where(known, scores, tf.constant(-np.inf, tf.float32))
            best, ids = tf.math.top_k(scores, count)  # [B*P, K]
            total = tf.reduce_logsumexp(scores, axis=-1, keepdims=True)
            shape = tf.concat([tf.shape(batch["masked_lm_positions"]), [count]], axis=0)
            return tf.reshape(tf.exp(best - total), shape), tf.reshape(ids, shape)  # [B, P, K]

        wanted = (*FEATURES, "masked_lm_positions")
        self._run = graph(candidates, dict.fromkeys(wanted, ([None, None], "int32")))

    def fill(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Finds candidates for the masks of texts, in their order.

        A text that is longer than the model reads is cut at its end.

        Returns a dict for each: masks, in their order, each with candidates: a list of token and
          probability, the most likely first.

        Raises:
          TypeError: `texts` is a bare string.
          ValueError: a text has no mask, or one further on than the model reads.
        """
        if isinstance(texts, str):
            raise TypeError(f"Expected a list of texts. For one text, give [{texts[:40]!r}].")
        return self.predict_instances([{"text": text} for text in texts])

    def _item(self, instance: Any) -> Any:
        text = text_of(self._object(instance), "text")
        ids = self.tokenizer.encode(text)
        # Of the packed text, with [CLS] in front.
        masks = np.flatnonzero(np.array(ids, np.int32) == self.tokenizer.mask_id) + 1
        if not len(masks):
            raise ValueError(f"text must have {MASK} in it; found {folder.show(text)}.")
        room = self._config.max_position_embeddings - 2
        if masks[-1] > room:
            raise ValueError(
                f"text has a {MASK} at token {masks[-1]}, but the model reads {room} tokens: "
                "shorten what stands before it."
            )
        row = packing.pack(ids[:room], None, self.tokenizer.cls_id, self.tokenizer.sep_id)
        return row, masks

    def _predict(self, items: list[Any]) -> list[dict[str, Any]]:
        results: list[Any] = [None] * len(items)
        # A left-to-right model says what comes next at the token before.
        shift = 1 if self._config.causal_attention else 0
        for group in self._groups(items):
            batch = padded([items[number][0] for number in group])
            most = max(len(items[number][1]) for number in group)
            positions = np.zeros((len(group), most), np.int32)
            for row, number in zip(positions, group, strict=True):
                masks = items[number][1]
                row[: len(masks)] = masks - shift
            found = self._run({**batch, "masked_lm_positions": positions})
            for number, values, ids in zip(group, *(each.numpy() for each in found), strict=True):
                count = len(items[number][1])
                results[number] = {
                    "masks": [
                        {"candidates": self._candidates(row, its)}
                        for row, its in zip(values[:count].tolist(), ids[:count].tolist())
                    ]
                }
        return results

    def _candidates(self, probabilities: list[float], ids: list[int]) -> list[dict[str, Any]]:
        tokens = self.tokenizer.convert_ids_to_tokens(ids)
        return [
            {"token": token, "probability": value}
            for token, value in zip(tokens, probabilities, strict=True)
        ]

    def _groups(self, items: list[tuple[Row, np.ndarray]]) -> Iterator[list[int]]:
        """Yields the numbers of texts to compute together: of like length, with few masks."""
        group: list[int] = []
        most = 0
        for number in sorted(range(len(items)), key=lambda each: -len(items[each][0][0])):
            count = len(items[number][1])
            full = len(group) == self.batch_size or (len(group) + 1) * max(most, count) > _MASKS
            if group and full:
                yield group
                group, most = [], 0
            group.append(number)
            most = max(most, count)
        if group:
            yield group


def _is_uncased(vocab_file: str) -> bool:
    from bert_tf.tokenization import load_vocab

    return not any(
        "A" <= character <= "Z"
        for token in load_vocab(vocab_file)
        if not token.startswith("[")
        for character in token
    )
