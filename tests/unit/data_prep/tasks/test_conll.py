"""data_prep.tasks.conll: files to sentences, and predictions beside the tokens."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.tasks.conll import read_conll, write_predictions


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="file.txt"):
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return write_file


def words_of(file):
    return [" ".join(one.words) for one in file.sentences]


def text_of(path):
    return Path(path).read_bytes().decode()


# Reading.

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP I-ORG
rejects VBZ B-VP O
 \t
\t
German JJ B-NP I-MISC
British JJ I-NP B-MISC
-DOCSTART- -X- -X- O

Blackburn NNP B-NP I-PER
"""


def test_read_four_columns(write):
    file = read_conll(write(CONLL))
    assert words_of(file) == ["EU rejects", "German British", "Blackburn"]
    assert [one.tags for one in file.sentences] == [["B-ORG", "O"], ["B-MISC"] * 2, ["B-PER"]]
    assert [one.lines for one in file.sentences] == [[3, 4], [7, 8], [11]]
    assert [one.document for one in file.sentences] == [0, 0, 1]
    assert [one.guid for one in file.sentences] == ["train-0", "train-1", "train-2"]
    assert (file.scheme, file.strays, file.num_columns) == ("IOB1", [], 4)
    assert file.has_documents


@pytest.mark.parametrize(
    "text",
    [
        "a B-X\nb O\n\nc O\n",
        "a\tB-X\nb\tO\n\nc\tO",
        "a    B-X  \nb O\n\n\n\nc \t O\n",
        "a B-X\r\nb O\r\n\r\nc O\r\n",
        "\ufeffa B-X\nb O\n \t \nc O\n",
        "\n\n-DOCSTART-\n\na B-X\nb O\n-DOCSTART-\tO\nc O\n\n",
    ],
)
def test_layouts(write, text):
    file = read_conll(write(text))
    assert words_of(file) == ["a b", "c"]
    assert [one.tags for one in file.sentences] == [["B-X", "O"], ["O"]]


def test_white_space_that_does_not_separate(write):
    file = read_conll(write("\u00a0 O\na\u2028b O\n\u3000 B-X\n"))
    assert file.sentences[0].words == ["\u00a0", "a\u2028b", "\u3000"]
    # With tabs a token may hold spaces.
    file = read_conll(write("New York\tB-X\nb \tO\n"))
    assert file.sentences[0].words == ["New York", "b"]


def test_other_columns(write):
    path = write("1 a O x\n2 b B-X y\n")
    file = read_conll(path, word_column=1, tag_column=2)
    assert (file.sentences[0].words, file.sentences[0].tags) == (["a", "b"], ["O", "B-X"])


def test_files_without_tags(write):
    file = read_conll(write("a\nb\n\nc\n"), "test", labelled=False)
    assert words_of(file) == ["a b", "c"]
    assert [one.tags for one in file.sentences] == [None, None]
    # Whatever stands in the place of tags is not read.
    file = read_conll(write("a ?\nb NN\n"), "test", labelled=False)
    assert (words_of(file), file.sentences[0].tags) == (["a b"], None)


def test_strays_are_counted(write):
    file = read_conll(write("a B-X\nb O\n\nc I-X\nd I-X\n\ne B-X\n"))
    assert (file.scheme, file.strays) == ("IOB2", [4])
    assert file.sentences[1].tags == ["B-X", "I-X"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no tokens"),
        ("\n \n-DOCSTART- O\n", "has no tokens"),
        (
            "a N O\n\nb O\n",
            "line 3: expected 3 columns, found 2 columns; line 1, .*by spaces",
        ),
        ("a O\nb N O\n", "line 2: expected 2 columns, found 3 columns; line 1, .* has 2"),
        ("a\tO\nb O\n", "line 2: expected 2 columns, found 1 column; line 1, .* by tabs"),
        ("a\nb\n", "line 1: there are no tags beside the tokens; it has one column only: is this"),
        ("a\tO\n\tO\n", "line 2: the token is empty"),
        ("a N NN\n", "line 1: 'NN' is not a tag; a tag is O, or .* Are the tags in column -1"),
        ("a\tO\nb\t\n", "line 2: '' is not a tag"),
        ("a S-X\n\nb O\nc E-X\n", "line 4: the tag 'E-X' cannot follow 'O' in the scheme BIOES"),
        ("a S-X\nb U-X\n", "line 2: the tag 'U-X' is of the scheme BILOU"),
        (b"a O\n\xff O\n", "byte 4 .* is not UTF-8"),
    ],
)
def test_bad_files(write, text, message):
    with pytest.raises(ValueError, match=r"file\.txt.*" + message):
        read_conll(write(text))


def test_columns_that_are_not_there(write):
    path = write("\na O\n")
    with pytest.raises(ValueError, match=r"line 2: there is no column 2 .* for the tags, the"):
        read_conll(path, tag_column=2)
    with pytest.raises(ValueError, match=r"no column -3 .* for the tokens, the file has 2 columns"):
        read_conll(path, word_column=-3)
    with pytest.raises(ValueError, match="both are said to be in column 1"):
        read_conll(path, word_column=1)
    with pytest.raises(FileNotFoundError):
        read_conll(path + "x")


# Writing.


def test_predictions_are_added_to_the_lines(write, tmp_path):
    source = write(CONLL)
    target = str(tmp_path / "out.txt")
    write_predictions(source, target, [["O", "B-ORG"], ["B-MISC", "B-MISC"], ["I-PER"]], "IOB1")
    added = {3: "O", 4: "I-ORG", 7: "I-MISC", 8: "B-MISC", 11: "I-PER", 1: "O", 9: "O"}
    expected = [
        f"{line} {added[n]}" if n in added else line for n, line in enumerate(CONLL.split("\n"), 1)
    ]
    assert text_of(target) == "\n".join(expected)
    # A file with predictions can be read again.
    assert [one.tags for one in read_conll(target).sentences][1] == ["B-MISC", "B-MISC"]


def test_other_layouts_stay(write, tmp_path):
    target = str(tmp_path / "out.txt")

    def written(text, *tags, scheme=None):
        write_predictions(write(text), target, tags, scheme)
        return text_of(target)

    assert written("a b\tO\n\t\nc\tO", ["B-X"], ["O"]) == "a b\tO\tB-X\n\t\nc\tO\tO\n"
    assert written("\ufeffa\r\n\r\nb\r\n", ["B-X"], ["O"]) == "a B-X\n\nb O\n"
    assert written("-DOCSTART-\n\na\n", ["B-X"], scheme="BIOES") == "-DOCSTART-\n\na S-X\n"
    assert written("-DOCSTART-\na  O  \n", ["O"]) == "-DOCSTART-\na  O O\n"


@pytest.mark.parametrize("tags", [[["O"]], [["O"] * 2, ["O"] * 2]])
def test_a_file_that_changed(write, tmp_path, tags):
    target = tmp_path / "out.txt"
    with pytest.raises(ValueError, match=r"does not have the . tokens that there are predictions"):
        write_predictions(write("a O\nb O\n\nc O\n"), str(target), tags)
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 1


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    columns=st.integers(1, 4),
    separator=st.sampled_from([" ", "\t", "  "]),
    data=st.data(),
)
def test_no_token_is_lost(tmp_path_factory, sizes, columns, separator, data):
    source = tmp_path_factory.mktemp("ner") / "in"
    words = iter(f"w{i}" for i in range(100))
    lines = []
    for size in sizes:
        lines += [separator.join([next(words), *["x"] * (columns - 1)]) for _ in range(size)]
        lines += data.draw(
            st.lists(st.sampled_from(["", " ", "\t", "-DOCSTART- x"]), min_size=1, max_size=3)
        )
    source.write_text("\n".join(lines))
    file = read_conll(str(source), labelled=False)
    assert [len(one.words) for one in file.sentences] == sizes
    tags = [[f"B-{word}" for word in one.words] for one in file.sentences]
    target = str(source) + ".out"
    write_predictions(str(source), target, tags)
    result = text_of(target).split("\n")[:-1]
    # A blank last line has no end of its own.
    assert len(result) in (len(lines), len(lines) - 1)
    for before, after in zip(lines, result):
        if before.startswith("w"):
            assert after.startswith(before)
            assert after.split()[1 + columns - 1 :] == [f"B-{before.split()[0]}"]
        else:
            assert after.removesuffix(" O").removesuffix("\tO").rstrip() == before.rstrip()
