"""Type hints: values of JSON as values of a type, the parameters that a function declares, JSON Schemas.

Never converts silently: "1" is no int, and 1.0 is none either. Types beyond those of the language need pydantic.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import math
import sys
import types
import typing
from collections.abc import Callable
from typing import Any, Union

from . import _json

#: Turns a value of JSON into a value of the type; the text names the place for errors.
Decode = Callable[[Any, str], Any]


class Mismatch(ValueError):
    """A value is not of its type."""


def decode_text(text: str, hint: Any) -> Any:
    """The value of JSON `text`, as a value of this type. Raises `ValueError`."""
    if hint is None or hint is Any:
        return _json.read_value(text)
    adapter = _adapter(hint)
    if adapter is not None:
        return adapter.validate_json(text)
    return decoder(hint)(_json.read_value(text), "")


def decoder(hint: Any, *, closed: bool = False) -> Decode:
    """What makes a value of this type of a value of JSON. `closed`: unknown members of objects are errors."""
    try:
        return _cached(hint, closed)
    except TypeError:
        # An unhashable hint, such as `Literal` of a list.
        return _decoder(hint, closed)


def _wrong(where: str, expected: str, value: Any) -> Mismatch:
    return Mismatch(f"{where or 'it'} must be {expected}, and is {_kind_of(value)}")


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {str: "a string", int: "a whole number", float: "a number", list: "an array", dict: "an object"}
    return names.get(type(value), "something else")


def _any(value: Any, _where: str) -> Any:
    return value


def _none(value: Any, where: str) -> None:
    if value is not None:
        raise _wrong(where, "null", value)


def _str(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, "a string", value)
    return value


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value)
    return value


def _int(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(where, "a whole number", value)
    return value


def _float(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(where, "a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _wrong(where, "a number that a double can hold", value)
    return number


_PLAIN: dict[Any, Decode] = {
    Any: _any,
    object: _any,
    None: _none,
    type(None): _none,
    str: _str,
    bool: _bool,
    int: _int,
    float: _float,
    list: lambda value, where: _list(value, where, _any),
    dict: lambda value, where: _dict(value, where, _any),
}

_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def _list(value: Any, where: str, item: Decode) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(where, "an array", value)
    return [item(each, f"{where}[{index}]") for index, each in enumerate(value)]


def _dict(value: Any, where: str, item: Decode) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    return {name: item(each, f"{where}.{name}" if where else name) for name, each in value.items()}


def _decoder(hint: Any, closed: bool) -> Decode:
    plain = _PLAIN.get(hint) if isinstance(hint, collections.abc.Hashable) else None
    if plain is not None:
        return plain
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated and _says_only_words(hint):
        return decoder(args[0], closed=closed)
    if is_union(hint):
        return _union([decoder(each, closed=closed) for each in args], hint)
    if origin is typing.Literal:
        return _literal(args)
    if origin in _LISTS and len(args) == 1:
        item = decoder(args[0], closed=closed)
        return lambda value, where: _list(value, where, item)
    if origin in (set, frozenset) and len(args) == 1:
        item = decoder(args[0], closed=closed)
        return lambda value, where: origin(_list(value, where, item))
    if origin is tuple:
        return _tuple(args, closed)
    if origin in _DICTS and len(args) == 2 and args[0] is str:
        item = decoder(args[1], closed=closed)
        return lambda value, where: _dict(value, where, item)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum(hint)
    own = getattr(hint, "__sealwire_decode__", None)
    if own is not None:
        return typing.cast(Decode, own)
    if is_typed_dict(hint) or _is_plain_dataclass(hint):
        return _object(hint, closed)
    adapter = _adapter(hint)
    if adapter is not None:
        return _validated(adapter, closed)
    raise TypeError(
        f"{_named(hint)} is not a type that JSON can be checked against: use str, int, float, bool, list, dict, "
        "a dataclass, a TypedDict, an Enum or a Literal; or install pydantic (`pip install 'sealwire[pydantic]'`)"
    )


#: What is known of a type is known once.
_cached = functools.lru_cache(maxsize=1024)(_decoder)


def _union(each: list[Decode], hint: Any) -> Decode:
    def decode(value: Any, where: str) -> Any:
        reason = None
        for one in each:
            try:
                return one(value, where)
            except ValueError as error:
                reason = error
        if len(each) == 2 and _none in each and reason is not None:
            raise reason
        raise _wrong(where, f"one of {_named(hint)}", value)

    # So that null is never tried as anything else, and an int stays one in `float | int`.
    each.sort(key=lambda one: (one is not _none, one is not _bool, one is not _int))
    return decode


def _literal(allowed: tuple[Any, ...]) -> Decode:
    def decode(value: Any, where: str) -> Any:
        for each in allowed:
            if type(each) is type(value) and each == value:
                return value
        raise _wrong(where, f"one of {', '.join(map(repr, allowed))}", value)

    return decode


def _enum(hint: type[enum.Enum]) -> Decode:
    allowed = {(type(each.value), each.value): each for each in hint}

    def decode(value: Any, where: str) -> Any:
        try:
            return allowed[type(value), value]
        except (KeyError, TypeError):
            raise _wrong(where, f"one of {', '.join(repr(each.value) for each in hint)}", value) from None

    return decode


def _tuple(args: tuple[Any, ...], closed: bool) -> Decode:
    if len(args) == 2 and args[1] is ...:
        item = decoder(args[0], closed=closed)
        return lambda value, where: tuple(_list(value, where, item))
    items = [decoder(each, closed=closed) for each in args]

    def decode(value: Any, where: str) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise _wrong(where, f"an array of {len(items)}", value)
        return tuple(item(each, f"{where}[{index}]") for index, (item, each) in enumerate(zip(items, value)))

    return decode


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of an object, or a parameter of a function."""

    name: str
    hint: Any
    has_default: bool
    description: str | None = None

    @property
    def optional(self) -> bool:
        """Whether it may be left out, or be null."""
        return self.has_default or _allows_none(self.hint)


def members(hint: Any) -> list[Member]:
    """The members of a dataclass, of a TypedDict or of a model."""
    if _is_model(hint):
        return [
            Member(field.alias or name, field.annotation, not field.is_required(), field.description)
            for name, field in hint.model_fields.items()
        ]
    hints = typing.get_type_hints(hint, include_extras=True)
    if is_typed_dict(hint):
        # Which does not know marks in quotes, nor any in Python 3.10: those are looked at here.
        required: frozenset[str] = hint.__required_keys__
        default = {"Required": False, "NotRequired": True}
        return [
            Member(name, _bare(each), default.get(_mark(each), name not in required), about(each))
            for name, each in hints.items()
        ]
    missing = dataclasses.MISSING
    return [
        Member(
            field.name,
            hints[field.name],
            field.default is not missing or field.default_factory is not missing,
            about(hints[field.name]),
        )
        for field in dataclasses.fields(hint)
        if field.init
    ]


def _mark(hint: Any) -> str:
    """`Required` or `NotRequired`, or the name of any other type."""
    origin = typing.get_origin(hint)
    return getattr(origin, "__name__", None) or getattr(origin, "_name", None) or ""


def _bare(hint: Any) -> Any:
    """Without `Required` and `NotRequired`."""
    return typing.get_args(hint)[0] if _mark(hint) in ("Required", "NotRequired") else hint


def _object(hint: Any, closed: bool) -> Decode:
    # A type may contain itself: its members are looked at when the first value is there.
    known: dict[str, tuple[Member, Decode]] = {}

    def decode(value: Any, where: str) -> Any:
        if not known:
            known.update({each.name: (each, decoder(each.hint, closed=closed)) for each in members(hint)})
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        found = {}
        for name, each in value.items():
            if name in known:
                found[name] = known[name][1](each, f"{where}.{name}" if where else name)
            elif closed:
                raise Mismatch(f"{where}.{name} is unknown" if where else f"{name} is unknown")
        for name, (member, _) in known.items():
            if name in found or member.has_default:
                continue
            if not _allows_none(member.hint):
                raise Mismatch(f"{where}.{name} is missing" if where else f"{name} is missing")
            found[name] = None
        return hint(**found)

    return decode


def is_union(hint: Any) -> bool:
    """Whether it is `X | Y`, `Union` or `Optional`."""
    return typing.get_origin(hint) in (Union, types.UnionType)


def is_typed_dict(hint: Any) -> bool:
    """Whether it is a TypedDict."""
    return isinstance(hint, type) and issubclass(hint, dict) and hasattr(hint, "__required_keys__")


def _is_plain_dataclass(hint: Any) -> bool:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint) and not hasattr(hint, "__pydantic_core_schema__")


def _is_model(hint: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(hint, type) and issubclass(hint, pydantic.BaseModel)


def _allows_none(hint: Any) -> bool:
    return hint is None or (is_union(hint) and type(None) in typing.get_args(hint))


def _says_only_words(hint: Any) -> bool:
    """Whether an `Annotated` adds nothing that a value would have to be checked against."""
    return all(isinstance(each, str) for each in hint.__metadata__)


def about(hint: Any) -> str | None:
    """What `Annotated[int, "cents"]` says."""
    texts = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, str)]
    return texts[0] if texts else None


def _named(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)


def _adapter(hint: Any) -> Any:
    """What pydantic validates the type with, if it is one of pydantic's or unknown here; None for types of the
    language."""
    if _is_ours(hint):
        return None
    try:
        return _made_adapter(hint)
    except ImportError:
        return None


def _make_adapter(hint: Any) -> Any:
    import pydantic

    return pydantic.TypeAdapter(hint)


_made_adapter = functools.lru_cache(maxsize=1024)(_make_adapter)


def _is_ours(hint: Any) -> bool:
    """Whether the type can be decoded without pydantic, so that it means the same with and without it."""
    if hint in _PLAIN or hasattr(hint, "__sealwire_decode__"):
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _says_only_words(hint) and _is_ours(args[0])
    if origin is typing.Literal:
        return True
    if is_union(hint) or origin in (*_LISTS, set, frozenset):
        return all(_is_ours(each) for each in args)
    if origin is tuple:
        return all(each is ... or _is_ours(each) for each in args)
    if origin in _DICTS:
        return args[0] is str and _is_ours(args[1])
    return isinstance(hint, type) and (issubclass(hint, enum.Enum) or is_typed_dict(hint) or _is_plain_dataclass(hint))


def _validated(adapter: Any, closed: bool) -> Decode:
    def decode(value: Any, where: str) -> Any:
        try:
            return adapter.validate_json(_json.write(value), strict=closed or None)
        except ValueError as error:
            raise Mismatch(f"{where or 'it'}: {_reason(error)}") from None

    return decode


def _reason(error: ValueError) -> str:
    """What pydantic says, without the input."""
    errors = getattr(error, "errors", None)
    if errors is None:
        return str(error)
    first = errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else str(first["msg"])


_KINDS = {str: "string", int: "integer", float: "number", bool: "boolean"}


def kind(hint: Any, depth: int = 0) -> dict[str, Any]:
    """How policies see a parameter of this type: `type`, and `members` of an object."""
    if hint in _KINDS:
        return {"type": _KINDS[hint]}
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return kind(args[0], depth)
    if is_union(hint):
        kinds = [kind(each, depth) for each in args if each is not type(None)]
        if all(each == kinds[0] for each in kinds):
            return kinds[0]
        return {"type": "number" if {each["type"] for each in kinds} == {"integer", "number"} else "any"}
    if origin is typing.Literal:
        return _kind_of_values(args)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _kind_of_values(tuple(each.value for each in hint))
    if origin in _LISTS and len(args) == 1:
        item = kind(args[0], depth)["type"]
        return {"type": f"{item} list"} if item in ("string", "integer", "boolean") else {"type": "any"}
    own = getattr(hint, "__sealwire_kind__", None)
    if own is not None:
        return typing.cast("dict[str, Any]", own)
    if is_typed_dict(hint) or _is_plain_dataclass(hint) or _is_model(hint):
        if depth >= 8:
            return {"type": "any"}
        return {"type": "object", "members": [param(each, depth + 1) for each in members(hint)]}
    adapter = _adapter(hint) if hint not in _PLAIN else None
    said = adapter.json_schema().get("type") if adapter is not None else None
    return {"type": said if said in ("string", "integer", "number", "boolean") else "any"}


def _kind_of_values(values: tuple[Any, ...]) -> dict[str, Any]:
    kinds = {_KINDS.get(type(value), "any") for value in values}
    return {"type": kinds.pop() if len(kinds) == 1 else "any"}


def param(member: Member, depth: int = 0) -> dict[str, Any]:
    """A declared parameter, as the part in Rust takes it."""
    return {
        "name": member.name,
        "optional": member.optional,
        "description": member.description,
        **kind(member.hint, depth),
    }


def schema(hint: Any, depth: int = 0) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a type; `{}` for any value."""
    if hint in _KINDS:
        return {"type": _KINDS[hint]}
    if hint is None or hint is type(None):
        return {"type": "null"}
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated and _is_ours(hint):
        said = about(hint)
        return {**schema(args[0], depth), **({"description": said} if said else {})}
    if origin is typing.Literal:
        return {"enum": list(args)}
    own = getattr(hint, "__sealwire_schema__", None)
    if own is not None:
        return typing.cast("dict[str, Any]", own)
    if not _is_ours(hint):
        adapter = _adapter(hint)
        return typing.cast("dict[str, Any]", adapter.json_schema()) if adapter is not None else {}
    if is_union(hint):
        return {"anyOf": [schema(each, depth) for each in args]}
    if origin in (*_LISTS, set, frozenset):
        return {"type": "array", "items": schema(args[0], depth)}
    if origin is tuple:
        return _tuple_schema(args, depth)
    if origin in _DICTS:
        return {"type": "object", "additionalProperties": schema(args[1], depth)}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [each.value for each in hint]}
    if is_typed_dict(hint) or _is_plain_dataclass(hint):
        return {} if depth >= 8 else object_schema(members(hint), depth + 1)
    return {list: {"type": "array"}, dict: {"type": "object"}}.get(hint, {})


def _tuple_schema(args: tuple[Any, ...], depth: int) -> dict[str, Any]:
    if len(args) == 2 and args[1] is ...:
        return {"type": "array", "items": schema(args[0], depth)}
    items = [schema(each, depth) for each in args]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def object_schema(all_members: list[Member], depth: int = 0) -> dict[str, Any]:
    """The JSON Schema of an object with these members."""
    properties = {}
    for each in all_members:
        properties[each.name] = schema(each.hint, depth)
        if each.description and "description" not in properties[each.name]:
            properties[each.name]["description"] = each.description
    required = [each.name for each in all_members if not each.optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
