"""A function as a method: its parameters from its type hints, how it is called, what policies and callers are told of
it.

Never calls it with parameters that do not have their types.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable
from typing import Any, Final, Literal

from . import _core, _json, _types
from ._ctx import Ctx, SyncCtx
from ._request import Seconds, seconds
from ._types import Decode, Member, Mismatch

#: How a method answers.
RESULT: Final = "result"
STREAM: Final = "stream"
SUBSCRIPTION: Final = "subscription"

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclasses.dataclass(frozen=True)
class Method:
    """A registered method."""

    name: str
    answers: Literal["result", "stream", "subscription"]
    function: Callable[..., Any]
    #: Whether it runs in the event loop, and not in a thread.
    is_async: bool
    takes_ctx: bool
    #: Positional and keyword arguments of the function, from the JSON of a call.
    bind: Callable[[str | None], tuple[list[Any], dict[str, Any]]]
    #: As the part in Rust takes it.
    declared: str


def period(value: str | Seconds | None) -> float | None:
    """`"24h"`, `"30m"`, `"7d"`, `"10s"`, a `timedelta` or a number of seconds."""
    if not isinstance(value, str):
        return None if value is None else seconds(value)
    found = re.fullmatch(r"(\d{1,9})([smhd])", value.strip())
    if found is None:
        raise ValueError(f"{value!r} is no length of time: write `10s`, `30m`, `24h` or `7d`")
    return int(found[1]) * _UNITS[found[2]]


def idempotence(
    name: str, keep: str | Seconds | None, rerun_if_lost: bool, task: str | Seconds | None, only_as_task: bool
) -> dict[str, Any] | None:
    """What a method is that runs once for each idempotency key, as the part in Rust takes it; None if it is none."""
    if only_as_task and task is None:
        raise ValueError(f'`{name}`: say for how long it may run as a task, `task="6h"`')
    if keep is None and (rerun_if_lost or task is not None):
        raise ValueError(f'`{name}`: say for how long outcomes are kept, `idempotent="24h"`')
    if keep is None:
        return None
    return {
        "keep_s": period(keep),
        "rerun_if_lost": rerun_if_lost,
        "task_s": period(task),
        "only_as_task": only_as_task,
    }


def of_function(
    name: str,
    function: Callable[..., Any],
    answers: Literal["result", "stream", "subscription"],
    *,
    description: str | None,
    examples: list[tuple[dict[str, Any], Any]],
    idempotent: dict[str, Any] | None,
) -> Method:
    """The method that a function with type hints is."""
    is_generator = inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function)
    if is_generator != (answers != RESULT):
        what = "a generator" if answers != RESULT else "no generator"
        raise TypeError(
            f"`{name}`: {what} is needed here: parts come from `@service.stream`, a result from `@service.method`"
        )
    takes_ctx, all_members, by_name, decoders, result = _signature(name, function)
    rich = [each for each in all_members if _types.schema(each.hint) not in ({"type": "string"}, {"type": "integer"})]
    declared = _declared(
        name,
        answers,
        params=[_types.param(each) for each in all_members],
        by_name=by_name,
        description=description or _summary(function),
        params_schema=_types.object_schema(all_members) if rich else None,
        result_schema=_types.schema(result) or None
        if answers == RESULT and result is not inspect.Signature.empty
        else None,
        examples=examples,
        idempotent=idempotent,
    )
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    bind = _binder(all_members, decoders, by_name)
    return Method(name, answers, function, is_async, takes_ctx, bind, declared)


def of_values(
    name: str,
    function: Callable[..., Any],
    answers: Literal["result", "stream", "subscription"],
    *,
    params: list[dict[str, Any]] | None,
    params_schema: dict[str, Any] | None,
    result_schema: Any,
    by_name: bool,
    description: str | None,
    extensions: dict[str, Any] | None,
    idempotent: dict[str, Any] | None,
    hidden: bool = False,
) -> Method:
    """A method that takes its parameters as they are: the function's second argument is a mapping, a list or None."""
    declared = _declared(
        name,
        answers,
        params=params,
        by_name=by_name,
        description=description,
        params_schema=params_schema,
        result_schema=result_schema,
        examples=[],
        idempotent=idempotent,
        extensions=extensions or {},
        hidden=hidden,
    )
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    return Method(name, answers, function, is_async, True, _whole, declared)


def _whole(text: str | None) -> tuple[list[Any], dict[str, Any]]:
    return [None if text is None else _json.read_value(text)], {}


def _declared(
    name: str,
    answers: Literal["result", "stream", "subscription"],
    *,
    params: list[dict[str, Any]] | None,
    by_name: bool,
    description: str | None,
    params_schema: dict[str, Any] | None,
    result_schema: Any,
    examples: list[tuple[dict[str, Any], Any]],
    idempotent: dict[str, Any] | None,
    extensions: dict[str, Any] | None = None,
    hidden: bool = False,
) -> str:
    fault = _core.name_fault(name)
    if fault is not None:
        raise ValueError(fault)
    return json.dumps(
        {
            "name": name,
            "answers": answers,
            "params": params,
            "by_name": by_name,
            "description": description,
            "params_schema": params_schema,
            "result_schema": result_schema,
            "examples": examples,
            "extensions": extensions or {},
            "idempotent": idempotent,
            "hidden": hidden,
        },
        allow_nan=False,
        default=_json._plain,
    )


def _summary(function: Callable[..., Any]) -> str | None:
    """The first paragraph of the docstring."""
    text = inspect.getdoc(function)
    return None if not text else " ".join(text.split("\n\n")[0].split())


def _signature(name: str, function: Callable[..., Any]) -> tuple[bool, list[Member], bool, list[Decode], Any]:
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"`{name}`: a type hint cannot be resolved: {error}") from None
    parameters = list(inspect.signature(function).parameters.values())
    takes_ctx = bool(parameters) and (hints.get(parameters[0].name) in (Ctx, SyncCtx) or parameters[0].name == "ctx")
    all_members, kinds = [], set()
    for each in parameters[takes_ctx:]:
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            raise TypeError(
                f"`{name}`: `{each}` says nothing of its names and types: name each parameter, or use `Service.add`"
            )
        hint = hints.get(each.name, Any)
        said = _types.about(hint)
        all_members.append(Member(each.name, hint, each.default is not each.empty, said))
        kinds.add(each.kind == each.KEYWORD_ONLY)
    if len(kinds) > 1:
        raise TypeError(f"`{name}`: either all parameters are by name only (after `*`), or none is")
    try:
        decoders = [_types.decoder(each.hint, closed=True) for each in all_members]
    except TypeError as error:
        raise TypeError(f"`{name}`: {error}") from None
    defaults = [each.default for each in parameters[takes_ctx:]]
    decoders = [
        _with_default(decode, member, default) for decode, member, default in zip(decoders, all_members, defaults)
    ]
    return takes_ctx, all_members, kinds == {True}, decoders, hints.get("return", inspect.Signature.empty)


#: Stands for a parameter that a call leaves out.
_LEFT_OUT: Any = object()


def _with_default(decode: Decode, member: Member, default: Any) -> Decode:
    allows_none = _types._allows_none(member.hint) or member.hint is Any

    def value(given: Any, where: str) -> Any:
        if given is _LEFT_OUT:
            if member.has_default:
                return default
            if _types._allows_none(member.hint):
                return None
            raise Mismatch(f"{where} is missing")
        # As with all services: null stands for a parameter that is left out.
        if given is None and member.has_default and not allows_none:
            return default
        return decode(given, where)

    return value


def _binder(
    all_members: list[Member], decoders: list[Decode], by_name: bool
) -> Callable[[str | None], tuple[list[Any], dict[str, Any]]]:
    known = {each.name: place for place, each in enumerate(all_members)}
    places = [f"parameter `{each.name}`" for each in all_members]

    def bind(text: str | None) -> tuple[list[Any], dict[str, Any]]:
        given = {} if text is None else _json.read_value(text)
        values = [_LEFT_OUT] * len(places)
        if isinstance(given, list):
            if by_name and given:
                raise Mismatch("the method takes its parameters by name")
            if len(given) > len(values):
                raise Mismatch(f"{len(given)} values, and the method takes {len(values)}")
            values[: len(given)] = given
        else:
            for name, value in given.items():
                if name not in known:
                    names = ", ".join(f"`{each}`" for each in known) or "none"
                    raise Mismatch(f"a parameter is unknown: there are {names}")
                values[known[name]] = value
        found = [decode(value, place) for decode, value, place in zip(decoders, values, places)]
        return ([], dict(zip(known, found))) if by_name else (found, {})

    return bind
