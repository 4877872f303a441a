"""Values as JSON and back.

Never writes what the other side would refuse: no NaN, no infinity.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
import sys
import uuid
from collections.abc import Callable
from typing import Any

from ._core import Attachment
from ._errors import InvalidRequest


@dataclasses.dataclass(frozen=True)
class Text:
    """JSON that is passed on as it is."""

    text: str


class _HasAttachment(Exception):
    """The plain encoder has met an attachment, which has to be sent along."""


def _plain(value: Any) -> Any:
    """What stands in JSON for a value that is none of JSON's own."""
    if isinstance(value, Attachment):
        raise _HasAttachment
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return str(value)
    # Whoever has a model has imported pydantic.
    pydantic: Any = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(value, pydantic.BaseModel):
        model: Any = value
        return model.model_dump(mode="json", by_alias=True)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _encoder() -> Callable[[Any], str]:
    """`JSONEncoder.encode`, without making its encoder in C anew for each value."""
    made: Any = getattr(json.encoder, "c_make_encoder", None)
    if made is None:
        return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode
    # It does not look for circles by itself then: they end as too deep.
    chunks = made(None, _plain, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    join = "".join
    return lambda value: join(chunks(value, 0))


_ENCODE = _encoder()


def write(value: Any) -> str:
    """JSON text of a value without attachments."""
    if isinstance(value, Text):
        return value.text
    try:
        return _ENCODE(value)
    except _HasAttachment:
        raise InvalidRequest("attachments go with single calls, streams and subscriptions") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the value cannot be written as JSON: {error}") from error


def write_params(params: Any, named: dict[str, Any]) -> tuple[str, list[Attachment]]:
    """JSON text of parameters, and the attachments that they name."""
    if params is None:
        if not named:
            return "null", []
        params = named
    elif named:
        raise InvalidRequest(
            f"parameters are given twice: as `params` and by name (`{next(iter(named))}`); is that meant as an option?"
        )
    try:
        return _ENCODE(params), []
    except _HasAttachment:
        pass
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the parameters cannot be written as JSON: {error}") from error
    attached: list[Attachment] = []

    def collect(value: Any) -> Any:
        if isinstance(value, Attachment):
            attached.append(value)
            return json.loads(value.to_json())
        return _plain(value)

    try:
        text = json.dumps(params, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=collect)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"the parameters cannot be written as JSON: {error}") from error
    return text, attached


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)
_READ, _READ_FIRST = _DECODER.decode, _DECODER.raw_decode


def read(text: str) -> Any:
    """The value of JSON text. A number that no float can hold is an error, and never infinity."""
    return _READ(text)


def read_value(text: str) -> Any:
    """The same, of text that the library has read as one value: there is nothing around it."""
    return _READ_FIRST(text)[0]
