import pytest

from data_prep.tasks.rows import read_rows


def _read(tmp_path, content, quoted=False):
    path = tmp_path / "a.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_rows(str(path), quoted))


def test_plain_rows(tmp_path):
    assert _read(tmp_path, "a\tb\nc\td\n") == [(1, ["a", "b"]), (2, ["c", "d"])]


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffa\tb\nc\t d\n",
        "a\tb\r\nc\t d\r\n",
        "a\tb\nc\t d",
        "a\tb\nc\t d\n\n\n \n",
        "\n\na\tb\n  \n\nc\t d\n",
        "\ufeff\r\na\tb\r\n\r\nc\t d",
    ],
)
@pytest.mark.parametrize("quoted", [False, True])
def test_marks_and_blank_lines_change_nothing(tmp_path, content, quoted):
    if quoted:
        content = content.replace("\t", ",")
    assert [fields for _, fields in _read(tmp_path, content, quoted)] == [["a", "b"], ["c", " d"]]


def test_line_numbers_count_blank_lines(tmp_path):
    assert [line for line, _ in _read(tmp_path, "a\tb\n\nc\td\n")] == [1, 3]


def test_only_line_feeds_end_rows(tmp_path):
    text = "a\u2028b\x85c\x0cd\x1ce\rf\tg\n"
    assert _read(tmp_path, text) == [(1, ["a\u2028b\x85c\x0cd\x1cef", "g"])]


def test_only_the_first_mark_is_dropped(tmp_path):
    assert _read(tmp_path, "\ufeffa\n\ufeffb\n") == [(1, ["a"]), (2, ["\ufeffb"])]


def test_empty_fields_are_kept(tmp_path):
    assert _read(tmp_path, "\t\na\t\t\n") == [(1, ["", ""]), (2, ["a", "", ""])]


def test_byte_offset_is_that_of_the_file(tmp_path):
    with pytest.raises(ValueError, match=r"a\.tsv: byte 9 \(0xe9\) is not UTF-8"):
        _read(tmp_path, b"\xef\xbb\xbfab\nca\x66\xe9\n")
    with pytest.raises(ValueError, match=r"byte 5 \(0xe9\)"):
        _read(tmp_path, b"\xef\xbb\xbfab\xe9\n")


def test_utf16_is_recognized(tmp_path):
    with pytest.raises(ValueError, match="looks like UTF-16"):
        _read(tmp_path, "a\tb\n".encode("utf-16"))


def test_quoted_fields(tmp_path):
    content = 'a,"b, ""c"""\n"two\nlines",d\ne,f\n'
    assert _read(tmp_path, content, quoted=True) == [
        (1, ["a", 'b, "c"']),
        (2, ["two\nlines", "d"]),
        (4, ["e", "f"]),
    ]


def test_quoted_long_field(tmp_path):
    assert _read(tmp_path, f'"{"x" * 200_000}",y\n', quoted=True)[0][1] == ["x" * 200_000, "y"]


@pytest.mark.parametrize("content", ['a,b\nc,"d\ne,f\n', 'a,b\n"c" d,e\n'])
def test_broken_quoting_names_its_line(tmp_path, content):
    with pytest.raises(ValueError, match=r"a\.tsv, line 2: the quoting"):
        _read(tmp_path, content, quoted=True)


def test_through_a_file_system_by_address():
    fsspec = pytest.importorskip("fsspec")
    with fsspec.filesystem("memory").open("/rows/a.tsv", "wb") as handle:
        handle.write(b"\xef\xbb\xbfa\tb\r\n")
    assert list(read_rows("memory://rows/a.tsv")) == [(1, ["a", "b"])]
