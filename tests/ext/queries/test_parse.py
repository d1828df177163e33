"""A query is parsed into conditions, and a mistake in it is an error with its position."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dbloader.errors import OptionError
from dbloader.ext.queries.parse import Condition, Group, parse
from tests.ext.viewing.stores import quoted

FIELDS = {
    "score": "float",
    "n": "int",
    "caption": "text",
    "is_test": "bool",
    "split": "text",
    "my field": "float",
    "field.bytes": "int",
}


def parts(text: str) -> list[object]:
    """Return the parts of a query. A condition is (key, sign, value), and a group is [operator, part, ...]."""
    return [plain(part) for part in parse(text, FIELDS).parts]


def plain(part: Condition | Group) -> object:
    return part[1:] if isinstance(part, Condition) else [part.operator, *map(plain, part.parts)]


def test_query_is_parsed_into_conditions_with_values() -> None:
    assert parts(" class:cat\twidth<256\n-name:_01 7 damaged ") == [
        ("class", ":", "cat"),
        ("width", "<", 256),
        ["not", ("name", ":", "_01")],
        ("name", ":", "7"),
        ("event", ":", "damaged"),
    ]
    assert parts('class:"maine coon" class:"" "damaged" "class:x" a"b c"d') == [
        ("class", ":", "maine coon"),
        ("class", ":", ""),
        ("name", ":", "damaged"),
        ("name", ":", "class:x"),
        ("name", ":", "ab cd"),
    ]
    assert parts("index:5,7-9 label:-3 label:none label>=2 bytes>=1e6 bytes<5kB aspect=.5") == [
        ("index", ":", [range(5, 6), range(7, 10)]),
        ("label", ":", -3),
        ("label", ":", None),
        ("label", ">=", 2),
        ("bytes", ">=", 1e6),
        ("bytes", "<", 5000),
        ("aspect", "=", 0.5),
    ]
    assert parts('score>=0.5 n!=9007199254740993 caption~"red car" caption="" is_test not is_test is_test=false') == [
        ("field.score", ">=", 0.5),
        ("field.n", "!=", 2**53 + 1),
        ("field.caption", "~", "red car"),
        ("field.caption", "=", ""),
        ("field.is_test", "=", True),
        ["not", ("field.is_test", "=", True)],
        ("field.is_test", "=", False),
    ]
    assert parts('"my field"<3 field.score==1 field.bytes>2 bytes>2') == [
        ("field.my field", "<", 3),
        ("field.score", "=", 1),
        ("field.bytes", ">", 2),
        ("bytes", ">", 2),
    ]
    (condition,) = parse("  b", {}).parts
    assert condition == Condition(3, "name", ":", "b")
    assert parts("") == parts(" \n") == []
    assert len(parts("a" * 10_000)) == 1


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("width < 200  score>= .5 class : cat", "width<200 score>=.5 class:cat"),
        ("a and b and (c)", "a b (c)"),
        ("a or b c", "a or (b c)"),
        ("not a b", "(not a) b"),
        ("-a", "not a"),
        ("not not a", "-(-a)"),
        ("(a or b)or\tc", "(a or b) or c"),
        ("((a))", "(a)"),
        ("NOT a AND (b OR c) Or d", "not a and (b or c) or d"),
        ("width<>3 caption<>x score==1", "width!=3 caption!=x score=1"),
        ("is_test=True is_test==FALSE", "is_test is_test=false"),
        ("score>+5 score<+.5", "score>5 score<.5"),
        ("Damaged REPAIRED label:None", "damaged repaired label:none"),
    ],
)
def test_queries_with_the_same_meaning_have_equal_parts(text: str, same: str) -> None:
    assert unnested(parts(text)) == unnested(parts(same))


def unnested(part: object) -> object:
    """Replace each group that has only one member by its member."""
    if isinstance(part, list):
        some = [unnested(one) for one in part]
        return some[1] if len(some) == 2 and some[0] in ("and", "or") else some
    return part


def test_or_and_not_bind_as_in_python() -> None:
    assert parts("a or not b c") == [["or", ["and", A], ["and", ["not", B], C]]]
    assert parts("-(a or b)") == [["not", ["or", ["and", A], ["and", B]]]]
    assert parts("order android nothing")[0] == ("name", ":", "order")


A, B, C = (("name", ":", name) for name in "abc")


@given(st.text())
@settings(derandomize=True)
def test_any_quoted_text_is_parsed_as_a_class_name(text: str) -> None:
    assert parts(f"-class:{quoted(text)}") == [["not", ("class", ":", text)]]


@given(st.text(alphabet=st.sampled_from(list('ab -:<>=!~"()ornotand\\,.1e\0classwidthscore\ud800\n'))))
@settings(derandomize=True, max_examples=500)
def test_any_text_is_a_query_or_a_clear_error(text: str) -> None:
    try:
        found = parse(text, FIELDS)
    except OptionError as error:
        message = str(error)
    else:
        at = [condition.position for condition in conditions(found)]
        assert at == sorted({*at}), "conditions must stand in the order of the query"
        assert not any(text[position - 1].isspace() for position in at)
        assert bool(at) is bool(text.strip())
        return
    place = re.match(r"query, letter (\d+): \S", message)
    assert place, message
    assert 1 <= int(place[1]) <= len(text) + 1


def conditions(part: Condition | Group) -> list[Condition]:
    """Return the conditions of a query, from the first to the last."""
    return [part] if isinstance(part, Condition) else [one for each in part.parts for one in conditions(each)]


def test_field_may_have_the_name_of_a_query_keyword() -> None:
    found = parse('field.or field.repaired "or"=false "1st"=1', {"or": "bool", "repaired": "bool", "1st": "int"})
    assert [*map(plain, found.parts)] == [
        ("field.or", "=", True),
        ("field.repaired", "=", True),
        ("field.or", "=", False),
        ("field.1st", "=", 1),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('cat "abc', 'query, letter 5: a quote is opened and not closed; write it as in name:"a b"'),
        ("cat width<nan", "letter 5: width< needs a number, such as width<256 or width<1e6, got 'nan'"),
        ("width<1e999", "letter 1: width< needs a number, .* got '1e999'"),
        ("label=cat", "label= needs a number, such as label=3, got 'cat'; class:cat finds a class by its name"),
        ("width<", "letter 1: width< needs a value after it$"),
        ("width:9", "letter 1: use < or <= or > or >= or = or != after width, not :$"),
        ("class<cat", "use : after class, not <$"),
        ("score~3", "use < or <= or "),
        ("caption>3", "use ~ or = or != after caption, not >$"),
        ("a tags=3", "letter 3: tags cannot be compared: queries use fields whose values are all numbers, "),
        ("a 1st>=3", 'letter 3: quote the name of the field: "1st">=3'),
        ("1st=", 'quote the name of the field: "1st"='),
        ("http://x", "this store has no field 'http'; .*to find this text in names, quote it: \"http://x\""),
        ("foo < 3", "letter 1: this store has no field 'foo'; a condition begins with one of width, .* score, n, "),
        ("is_test=yes", "is_test= needs true or false, got 'yes'"),
        ("width<5kB", "width< needs a number, such as width<256 or width<1e6, got '5kB'"),
        ("label:cat", "a label is an integer or none, such as label:3, got 'cat'"),
        ("index:3-", "indices are integers and ranges, such as index:5 or index:1,5-9, got '3-'"),
        ("index:1,9-5", "a range goes from the lower index to the higher one, such as 1-5, got '1,9-5'"),
        ("name:", "letter 1: name: needs a value after it$"),
        ('a name:""', "letter 3: name: needs a value after it$"),
        ("caption=", "letter 1: caption= needs a value after it$"),
        ("a or", "letter 5: or needs conditions before and after it, such as class:cat or class:dog"),
        ("and a", "letter 1: and needs conditions before and after it"),
        ("a not", "letter 6: not needs a condition after it, such as not class:cat"),
        ("()", "letter 1: the parentheses are empty"),
        ("x (a or b", "letter 3: a parenthesis is opened and not closed"),
        ("a)", "letter 2: a parenthesis is closed and not opened"),
        ("(" * 21 + "a" + ")" * 21, "parentheses and the word not may be nested at most 20 deep"),
        ("a" * 10_001, "the query has 10,001 letters; at most 10,000 are allowed"),
        ('"' * 9_999, "a quote is opened"),
    ],
)
def test_mistake_is_an_error_with_position_and_example(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(text, {**FIELDS, "1st": "int"}, ["tags"])


BY_ITSELF = "write each comparison by itself, the field first: score>0.2 score<0.5"
NO = "alone is no condition:"
ALONE = rf"{NO} write score>0.2 score<0.5, or \(label:1 or label:2\)"
IN, BETWEEN = rf"{NO} write \(class:cat or class:dog\)", f"{NO} write score>=0.2 score<=0.5"
IS, LIKE = f"{NO} write class:cat, or label:none", rf"{NO} name:\*.png matches whole names, and caption~cat"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Python, pandas and C
        (
            "class:cat & width<3",
            "letter 11: '&' is no condition: write and; to find .* in names, quote it: \"&\"",
        ),
        ("class:cat && a", "'&&' is no condition: write and;"),
        ("(class:cat)|(class:dog)", "'|' is no condition: write or;"),
        ("class:cat || class:dog", "write or;"),
        ("!class:cat", "write not;"),
        ("! class:cat", "write not;"),
        ("~(class:cat)", "write not before a condition"),
        ("width<3&height<3", "letter 1: '3&height<3' is no value: write and$"),
        ("split=val&score>3", 'no value: write and; for this text, write split="val&score>3"'),
        ("split=val|split=test", "write or; for this text"),
        ("0.2<score<0.5", f"letter 1: '0.2<score<0.5' is no condition: {BY_ITSELF}"),
        ("0.2 < score < 0.5", f"letter 5: '<' is no condition: {BY_ITSELF}"),
        ("score>0.2<0.5", f"'0.2<0.5' is no value: {BY_ITSELF}$"),
        ("256>width", BY_ITSELF),
        ("width\u22653", BY_ITSELF),
        ("score=>3", f"'>3' is no value: {BY_ITSELF}"),
        ("label in [1,2]", f"letter 1: label {IN}"),
        ("label in (1, 2)", f"label {IN}"),
        ("label not in (1)", f"label {ALONE}"),
        ("cat in name", f"letter 5: in {IN}"),
        ("foo in [1]", f"letter 5: in {IN}"),
        ("[1,2]", r"write \(label:1 or label:2\)"),
        ("label:1,2", r"'1,2' is no value: write \(label:1 or label:2\)$"),
        ("split=val,test", r"write \(label:1 or label:2\); for this text, write split=\"val,test\""),
        ("class is cat", f"class {IS}"),
        ("class != cat", "use : after class, not !=: not class:cat$"),
        ("split='val'", 'quotes are "; for this text, write split="\'val\'"'),
        ("split=\u201cval\u201d", 'quotes are "'),
        ("score.isnull()", f"score.isnull {ALONE}"),
        ('caption.str.contains("x")', f"caption.str.contains {LIKE}"),
        ("`my field`>3", 'quotes are "'),
        ("caption!~x", "'caption!~x' is no condition: write not"),
        ("caption=~x", "'~x' is no value: .*caption~cat for texts that contain cat"),
        # SQL
        ("score BETWEEN 1 AND 2", f"score {BETWEEN}"),
        ("score is null", f"score {IS}"),
        ("caption LIKE '%x%'", f"caption {LIKE}"),
        ("caption~%x%", "'%x%' is no value: .*caption~cat finds parts of texts; for this text, write caption~\"%x%\""),
        ("a like b", f"like {LIKE}"),
        ("where width<3", f"where {ALONE}"),
        ("count(x)", f"count {ALONE}"),
        ("class:cat; a<b", "this store has no field 'a'"),
        ("a; b", "is no condition"),
        ("score=null", r"to find records without a value, write not \(score<0 or score>=0\)$"),
        ("caption!=None", 'write not caption~""; for this text, write caption!="None"$'),
        ("is_test=NaN", r"write not \(is_test or is_test=false\)$"),
        # Lucene, globs and regular expressions
        ("+class:cat -class:dog", "letter 1: '.class:cat' is no condition: conditions need no +"),
        ("width:[1 TO 5]", "use < or .* after width, not :$"),
        ("caption~cat*", "'cat\\*' is no value: name:\\*.png matches whole names, and caption~cat finds parts"),
        ("name:[0-9]*", r"'\[0-9\]\*' is no value"),
        ("name:^a.*", 'is no value: .*; for this text, write name:"\\^a'),
        ("name:{a,b}*", "is no value"),
        ("name:a|b", 'write or; for this text, write name:"a|b"'),
        # names of fields alone, in any case
        ("SCORE", f"SCORE {ALONE}"),
        ("tags", f"tags {ALONE}"),
        ("Width 3", f"Width {ALONE}"),
        ("{'label': 3}", "is no condition"),
    ],
)
def test_spelling_of_another_language_is_an_error_with_the_right_form(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse(text, FIELDS, ["tags"])


def test_quoted_text_of_another_language_is_searched_for() -> None:
    found = parts(
        '"R&D" name:"a|b" caption~"50%" caption="null" split="a,b" "in" "score" class:R&B c++ a+b',
    )
    values = [part[2] for part in found if isinstance(part, tuple)]
    assert values == ["R&D", "a|b", "50%", "null", "a,b", "in", "score", "R&B", "c++", "a+b"]
