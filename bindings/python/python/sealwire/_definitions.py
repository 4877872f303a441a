"""What a server of MCP says of its tools, and which of that an operator has approved: `tools.lock.toml`.

Never takes a tool for approved whose definition differs in anything from the one that was approved. The file is that of
`sealwire tools approve`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import itertools
import json
import logging
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from . import _core, _openapi
from ._errors import ConfigError

_logger = logging.getLogger("sealwire.mounts")

#: The longest name, in bytes, definition and schema, in characters.
_MOST_NAME, _MOST_DEFINITION, _MOST_SCHEMA = 256, 256 * 1024, 64 * 1024
#: How many places that do not fit are named, and the longest text of them.
_SHOWN, _MOST_SHOWN = 3, 400

_LOCK = "tools.lock.toml"

#: What is approved, by backend and tool: digest and definition.
Lock = Mapping[str, Mapping[str, tuple[str, str]]]


@dataclasses.dataclass(frozen=True)
class Definition:
    """A tool as its server describes it."""

    name: str
    #: Everything that the server says of it except `_meta`, in one form.
    text: str
    digest: str
    description: str | None
    arguments: dict[str, Any]
    result: dict[str, Any] | None
    #: What clients of MCP get unchanged.
    handed_on: dict[str, Any]
    #: Why it cannot be used.
    fault: str | None
    #: As the server wrote it.
    source: str
    _checks: dict[int, Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def unusable(self, fault: str) -> Definition:
        """The same, which cannot be used."""
        return dataclasses.replace(self, fault=fault)

    def mismatch(self, schema: dict[str, Any], value: Any) -> str | None:
        """Where a value does not fit one of its schemas. It quotes names and places, never values."""
        check = self._checks.get(id(schema))
        if check is None:
            check = self._checks[id(schema)] = _validator(schema)
        try:
            errors = list(itertools.islice(check.iter_errors(value), _SHOWN))
        except RecursionError:
            return "it is nested too deeply for the schema"
        said = (
            f"`/{'/'.join(map(str, error.absolute_path))}` does not fit `{error.validator}` of the schema"
            if error.absolute_path
            else f"it does not fit `{error.validator}` of the schema"
            for error in errors
        )
        return "; ".join(said)[:_MOST_SHOWN].encode("unicode_escape").decode() if errors else None


class _Word(float):
    """A number as its text."""

    text: str

    def __new__(cls, text: str) -> _Word:
        word = super().__new__(cls, 0)
        word.text = text
        return word


def _canonical(value: Any) -> str:
    """The one text of a value: members in the order of their names, no white space, and each number as it came."""
    if isinstance(value, dict):
        members = (f"{_canonical(name)}:{_canonical(value[name])}" for name in sorted(value))
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    return value.text if isinstance(value, _Word) else json.dumps(value, ensure_ascii=False)


def read(text: str) -> Definition:
    """A tool, of its JSON."""
    exact = json.loads(text, parse_float=_Word, parse_int=_Word)
    exact.pop("_meta", None)
    canonical = _canonical(exact)
    value = json.loads(text)
    name, description = str(value.get("name", "")), value.get("description")
    arguments, result = value.get("inputSchema"), value.get("outputSchema")
    fault = None
    if not 1 <= len(name.encode()) <= _MOST_NAME:
        fault = f"its name has not 1 to {_MOST_NAME} bytes"
    elif len(text) > _MOST_DEFINITION:
        fault = f"it has more than {_MOST_DEFINITION} characters"
    elif _core.json_flaw(text) is not None:
        fault = "its definition is no strict JSON"
    elif not isinstance(arguments, dict):
        fault = "it has no `inputSchema`"
    else:
        fault = _fault_of_schema(arguments) or (_fault_of_schema(result) if isinstance(result, dict) else None)
    return Definition(
        name,
        canonical,
        f"sha256:{hashlib.sha256(canonical.encode()).hexdigest()}",
        description if isinstance(description, str) else None,
        arguments if isinstance(arguments, dict) else {},
        result if isinstance(result, dict) else None,
        {
            **{each: value[each] for each in ("title", "annotations", "icons") if value.get(each) is not None},
            "result": "structured" if isinstance(result, dict) else "content",
        },
        fault,
        text,
    )


def named_params(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The members of the arguments as parameters for policies."""
    required = schema.get("required", [])
    params = []
    for name, each in schema.get("properties", {}).items():
        if _openapi.is_writable(name):
            kind, is_nullable = _openapi.kind_of(each, schema)
            optional = name not in required or is_nullable
            params.append({"name": name, "type": kind, "optional": optional, "description": None})
    return params


def _subschemas(value: Any) -> Iterator[dict[str, Any]]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _fault_of_schema(schema: dict[str, Any]) -> str | None:
    if len(json.dumps(schema)) > _MOST_SCHEMA:
        return f"a schema has more than {_MOST_SCHEMA} characters"
    for each in _subschemas(schema):
        reference = each.get("$ref", "#")
        if isinstance(reference, str) and not reference.startswith("#"):
            return "a reference of its schema leads out of it"
        if isinstance(each.get("patternProperties"), dict) or {"$dynamicRef", "$recursiveRef"} & each.keys():
            return "its schema has `patternProperties`, or references that are none of its own"
    try:
        _validator(schema)
        named_params(schema)
    except Exception as error:
        return f"its schema cannot be used: {str(error)[:200]}"
    return None


def _validator(schema: dict[str, Any]) -> Any:
    """What checks values. It fetches nothing, and leaves to the server what could take long: patterns."""
    validators: Any = importlib.import_module("jsonschema.validators")
    referencing: Any = importlib.import_module("referencing")
    known = validators.validator_for(schema, default=validators.validator_for({}))
    known.check_schema(schema)
    extended = validators.extend(known, {"pattern": _unchecked, "format": _unchecked, "uniqueItems": _unique})
    return extended(schema, registry=referencing.Registry())


def _unchecked(*_: Any) -> tuple[()]:
    return ()


def _unique(_validator: Any, wanted: Any, value: Any, _schema: Any) -> Iterator[Any]:
    if wanted is True and isinstance(value, list):
        texts = {json.dumps(each, sort_keys=True) for each in value}
        if len(texts) < len(value):
            yield importlib.import_module("jsonschema").ValidationError("not unique")


def standing(lock: Lock, backend: str, definition: Definition) -> str:
    """`approved`, `new`, or `changed`."""
    approved = lock.get(backend, {}).get(definition.name)
    if approved is None:
        return "new"
    return "approved" if approved == (definition.digest, definition.text) else "changed"


class Pins:
    """The file, read again when it changes."""

    def __init__(self, config: str | os.PathLike[str]) -> None:
        self._path = pathlib.Path(config).with_name(_LOCK)
        self._seen: Any = None
        self._lock: Lock | None = None
        self._told: str | None = None

    def lock(self) -> Lock:
        """What is approved now. A file that cannot be read changes nothing, except at the start: `ConfigError`."""
        seen = self._state()
        if self._lock is None or seen != self._seen:
            try:
                self._lock, self._told = _load(self._path), None
            except ValueError as error:
                if self._lock is None:
                    raise ConfigError(str(error)) from None
                if self._told != str(error):
                    self._told = str(error)
                    _logger.error("approvals of tools stay as they were: %s", error)
            self._seen = seen
        return self._lock

    def definitions(self, backend: str) -> dict[str, Definition]:
        """The approved tools of a server."""
        return {name: read(text) for name, (_, text) in self.lock().get(backend, {}).items()}

    def _state(self) -> Any:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns


def _load(path: pathlib.Path) -> Lock:
    if not path.exists():
        return {}
    text = _core.read_trusted(path)
    toml = _toml()
    try:
        read_lock: dict[str, Any] = toml.loads(text)
        lock: dict[str, dict[str, tuple[str, str]]] = {}
        for backend, approved in read_lock.items():
            if approved.keys() - {"tool", "prompt"}:
                raise ValueError("there is an unknown field")
            for kind, pins in approved.items():
                for name, pin in pins.items():
                    if pin.keys() != {"digest", "definition"}:
                        raise ValueError("there is an unknown field")
                    if pin["digest"] != f"sha256:{hashlib.sha256(pin['definition'].encode()).hexdigest()}":
                        raise ValueError(f"the definition of `{name}` was changed in the file")
                    if kind == "tool":
                        lock.setdefault(backend, {})[name] = pin["digest"], pin["definition"]
        return lock
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"`{path}`: {error}: approve the tools again with `sealwire tools approve`") from None


def _toml() -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise ConfigError("approvals of tools cannot be read: this needs Python 3.11, or tomli")
