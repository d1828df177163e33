"""Queries: words and their values, and mistakes with their positions."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbloader.errors import OptionError
from dbloader.viewing.query import Word, parse
from tests.viewing.stores import quoted


def words(text: str) -> list[tuple[bool, str, str, object]]:
    return [(word.negated, word.key, word.sign, word.value) for word in parse(text)]


def test_words_and_their_values() -> None:
    assert words(" class:cat\twidth<256\n-name:_01 7 damaged ") == [
        (False, "class", ":", "cat"),
        (False, "width", "<", 256.0),
        (True, "name", ":", "_01"),
        (False, "name", ":", "7"),
        (False, "event", ":", "damaged"),
    ]
    assert words('class:"maine coon" class:"" "damaged" "class:x" a"b c"d') == [
        (False, "class", ":", "maine coon"),
        (False, "class", ":", ""),
        (False, "name", ":", "damaged"),
        (False, "name", ":", "class:x"),
        (False, "name", ":", "ab cd"),
    ]
    assert words("index:5,7-9 label:-3 label:none bytes>=1e6 aspect=.5") == [
        (False, "index", ":", [range(5, 6), range(7, 10)]),
        (False, "label", ":", -3),
        (False, "label", ":", None),
        (False, "bytes", ">=", 1e6),
        (False, "aspect", "=", 0.5),
    ]
    (group,) = parse('-(class:a or -"b)" or\twidth<3 )')
    assert (group.position, group.negated, group.key) == (1, True, "or")
    assert [(word.negated, word.key, word.value) for word in group.value] == [
        (False, "class", "a"),
        (True, "name", "b)"),
        (False, "width", 3.0),
    ]
    assert words("or order (or or a)b")[:2] == [(False, "name", ":", "or"), (False, "name", ":", "order")]
    assert parse("a  b")[1] == Word(4, False, "name", ":", "b")
    assert parse("") == parse(" \n") == []
    assert (len(parse("a " * 32)), len(parse("a" * 10_000))) == (32, 1)


@given(st.text())
@settings(derandomize=True)
def test_any_text_in_quotes_can_be_a_class(text: str) -> None:
    assert words(f"-class:{quoted(text)}") == [(True, "class", ":", text)]


@given(st.text(alphabet=st.sampled_from(list('ab -:<>="()or\\,.1e\0classwidth\ud800\n'))))
@settings(derandomize=True, max_examples=500)
def test_any_text_is_a_query_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(OptionError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('cat "abc', 'query, letter 5: a quote is opened and not closed; write it as in name:"a b"'),
        ("cat width<nan", "letter 5: width< needs a number, such as width<256 or width<1e6, got 'nan'"),
        ("width<1e999", "letter 1: width< needs a number, .* got '1e999'"),
        ("width<", "letter 1: width< needs a number, .* got ''"),
        ("width<0x10", "got '0x10'"),
        ("width:9", "letter 1: 'width:9' is not understood: a word is one of class:, .*, aspect<, .*damaged"),
        ("class<cat", "'class<cat' is not understood"),
        ("http://x", "'http://x' is not understood: .*write quotes around a part of a name .*\"http:\""),
        ("label:cat", "a label is an integer or none, such as label:3, got 'cat'"),
        ("label:99999999999999999999", "a label is an integer"),
        ("index:3-", "indices are integers and ranges, such as index:5 or index:1,5-9, got '3-'"),
        ("index:-3", "indices are integers"),
        ("index:1,9-5", "a range goes from the lower index to the higher one, such as 1-5, got '1,9-5'"),
        ("name:", "letter 1: name: needs something after it, such as name:_012"),
        ('x class: "cat"', "letter 3: class: needs something after it, such as class:cat"),
        ("a -", "letter 3: name: needs something after it"),
        ("(a b)", "letter 4: parentheses contain words with or between them, such as .class:cat or class:dog"),
        ("a (b or )", "letter 9: parentheses contain words"),
        ("(a or (b or c))", "letter 7: parentheses contain words"),
        ("()", "letter 2: parentheses contain words"),
        ("img(1)", "letter 1: parentheses contain words with or between them, .*quote a name that contains them"),
        ("x (a or b", "letter 3: a parenthesis is opened and not closed"),
        ("a)", "letter 2: parentheses contain words"),
        ("a " * 33, "letter 65: at most 32 words are allowed, got 33"),
        ("a" * 10_001, "the query has 10,001 letters; at most 10,000 are allowed"),
        ('"' * 9_999, "a quote is opened"),
        ('"' + "\\" * 9_998, "a quote is opened"),
    ],
)
def test_mistake_is_an_error_with_position_and_example(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(text)
