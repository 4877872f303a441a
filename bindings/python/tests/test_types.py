"""Type hints: what values they accept, what they declare, and the same with and without pydantic."""

import dataclasses
import enum
import typing

import typing_extensions

import pytest
from sealwire import _json, _types


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: typing.Annotated[int, "to the right"]
    y: int = 0


@dataclasses.dataclass
class Tree:
    value: int
    children: "list[Tree]" = dataclasses.field(default_factory=list)


class Named(typing.TypedDict, total=False):
    name: typing_extensions.Required[str]
    age: int


class Quoted(typing.TypedDict):
    name: str
    age: "typing_extensions.NotRequired[int]"


GOOD = [
    (str, "a", "a"),
    (int, 5, 5),
    (float, 5, 5.0),
    (bool, True, True),
    (None, [1, {"a": None}], [1, {"a": None}]),
    (typing.Any, {"a": 1}, {"a": 1}),
    (type(None), None, None),
    (int | None, None, None),
    (typing.Optional[str], "a", "a"),
    (int | str, "1", "1"),
    (float | int, 1, 1),
    (float | int, 1.5, 1.5),
    (list[int], [1, 2], [1, 2]),
    (list, [1, "a"], [1, "a"]),
    (set[str], ["a", "a"], {"a"}),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (typing.Literal["a", 1], "a", "a"),
    (Colour, "red", Colour.RED),
    (Point, {"x": 1}, Point(1, 0)),
    (Tree, {"value": 1, "children": [{"value": 2}]}, Tree(1, [Tree(2)])),
    (Named, {"name": "a"}, {"name": "a"}),
    (Quoted, {"name": "a"}, {"name": "a"}),
    (typing.Annotated[int, "cents"], 5, 5),
]

BAD = [
    (str, 1),
    (str, None),
    (int, "1"),
    (int, 1.0),
    (int, True),
    (float, "1"),
    (float, True),
    (float, 10**400),
    (bool, 1),
    (type(None), 0),
    (int | None, "1"),
    (list[int], [1, "2"]),
    (list[int], {"0": 1}),
    (tuple[int, str], [1]),
    (dict[str, int], {"a": "1"}),
    (typing.Literal["a", 1], True),
    (Colour, "green"),
    (Colour, []),
    (Point, {}),
    (Point, {"x": None}),
    (Point, [1, 2]),
    (Tree, {"value": 1, "children": [{"value": "2"}]}),
    (Named, {"age": 1}),
]


@pytest.mark.parametrize(("hint", "value", "expected"), GOOD)
def test_values_of_a_type(hint, value, expected):
    for closed in (False, True):
        found = _types.decoder(hint, closed=closed)(value, "") if hint is not None else value
        assert found == expected and type(found) is type(expected)
    assert _types.decode_text(_json.write(value), hint) == expected


@pytest.mark.parametrize(("hint", "value"), BAD)
def test_values_that_are_of_another_type(hint, value):
    for closed in (False, True):
        with pytest.raises(_types.Mismatch) as caught:
            _types.decoder(hint, closed=closed)(value, "p")
        assert "p" in str(caught.value)


def test_unknown_members_are_errors_only_where_that_is_asked_for():
    assert _types.decoder(Point)({"x": 1, "z": 2}, "") == Point(1)
    with pytest.raises(_types.Mismatch, match="z is unknown"):
        _types.decoder(Point, closed=True)({"x": 1, "z": 2}, "")


def test_numbers_that_no_float_can_hold_are_never_infinity():
    with pytest.raises(ValueError, match="too large"):
        _json.read("[1e400]")
    with pytest.raises(ValueError):
        _json.read("NaN")


def test_models_of_pydantic_are_validated_by_it():
    import pydantic

    class Model(pydantic.BaseModel):
        x: int
        name: str = pydantic.Field(default="", description="what it is called")

    assert _types.decoder(Model, closed=True)({"x": 1}, "") == Model(x=1)
    with pytest.raises(_types.Mismatch, match="x: "):
        _types.decoder(Model, closed=True)({"x": "1", "name": "a secret"}, "p")
    assert _types.decoder(list[Model])([{"x": 1}], "") == [Model(x=1)]
    kind = _types.kind(Model)
    assert kind["type"] == "object" and [each["name"] for each in kind["members"]] == ["x", "name"]
    assert kind["members"][1]["description"] == "what it is called" and kind["members"][1]["optional"]
    assert _types.schema(Model)["properties"]["x"]["type"] == "integer"
    assert _types.kind(typing.Annotated[int, pydantic.Field(ge=1)]) == {"type": "integer"}


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, "string"),
        (int, "integer"),
        (float, "number"),
        (bool, "boolean"),
        (typing.Any, "any"),
        (int | None, "integer"),
        (int | float, "number"),
        (int | str, "any"),
        (list[str], "string list"),
        (list[int], "integer list"),
        (list[float], "any"),
        (dict[str, int], "any"),
        (typing.Literal["a", "b"], "string"),
        (typing.Literal["a", 1], "any"),
        (Colour, "string"),
        (typing.Annotated[int, "cents"], "integer"),
    ],
)
def test_what_policies_see_of_a_type(hint, expected):
    assert _types.kind(hint)["type"] == expected


def test_objects_and_their_schemas():
    assert _types.kind(Point) == {
        "type": "object",
        "members": [
            {"name": "x", "optional": False, "description": "to the right", "type": "integer"},
            {"name": "y", "optional": True, "description": None, "type": "integer"},
        ],
    }
    schema = _types.schema(Point)
    assert schema["required"] == ["x"] and schema["properties"]["x"] == {
        "type": "integer",
        "description": "to the right",
    }
    # A type that contains itself ends somewhere.
    assert "properties" in _types.schema(Tree) and _types.kind(Tree)["type"] == "object"
    assert _types.schema(tuple[int, str])["maxItems"] == 2
    assert _types.schema(list[Colour]) == {"type": "array", "items": {"enum": ["red", "blue"]}}


def test_types_that_nothing_can_check_are_refused_at_once(monkeypatch):
    monkeypatch.setattr(_types, "_adapter", lambda _: None)
    with pytest.raises(TypeError, match="not a type that JSON can be checked against"):
        _types._decoder(typing.Callable[[], int], False)
