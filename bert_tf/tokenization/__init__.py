"""Text to tokens and ids by the original release's rules; imports no TensorFlow.

`vocab` reads the vocabulary file, `wordpiece` holds the exact rules, `tokenizer` is the fast way
to the same result, `packing` makes `[CLS] A [SEP] B [SEP]`.
"""

from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.vocab import load_vocab

__all__ = ["BertTokenizer", "load_vocab"]
