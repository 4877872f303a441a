"""The operations of an OpenAPI document as methods: their parameters, and the request that a call becomes.

Never lets a parameter become more than the value that it stands for: no other path, no other parameter, no other
header. The rules are those of a backend of kind `http` (docs/backends.md), so that an application has the same methods
either way.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any

from ._errors import RpcError

_logger = logging.getLogger("sealwire.mounts")

#: Methods of HTTP that calls are made with. The others ask about a resource, and do nothing with it.
_VERBS = ("get", "post", "put", "patch", "delete")

#: The longest value that may become part of a path, a query or a header, in bytes, and the longest path with its query.
_LONGEST = 4096
_LONGEST_TARGET = 8192

#: The longest schema that callers are shown, in characters of JSON.
_LONGEST_SCHEMA = 64 * 1024

#: How many references may follow each other.
_MOST_REFERENCES = 32

#: Header fields that no call sets, whatever the document declares: with `-` at its end, all that begin like this.
#: `_` is the same as `-`, as it is for servers of CGI and WSGI.
FORBIDDEN_FIELDS = frozenset(
    # The connection, and what the body is.
    "host content-length transfer-encoding connection te trailer upgrade expect keep-alive proxy- accept accept- "
    "content-type content-encoding content- range if- cookie cookie2 set-cookie http2-settings "
    # Who asks, and for whom.
    "authorization www-authenticate idempotency-key from origin referer sec- sealwire- traceparent tracestate baggage "
    "remote- x-remote- x-user x-user- x-auth- x-authenticated- x-webauth- x-consumer- x-credential- x-client- "
    "x-goog- x-amzn- x-ms- x-ssl- ssl- x-csrf- x-xsrf- "
    # What a proxy says of a request, or how it has one changed.
    "forwarded via max-forwards x-forwarded x-forwarded- x-forward- x-real- x-proxy- x-cluster- x-original- x-rewrite- "
    "x-http- x-method- x-host x-scheme x-url- x-envoy- x-arr- true-client- fastly- cf- cdn- front-end-".split()
)


class _Unsupported(Exception):
    """Something that a call cannot give."""


@dataclasses.dataclass(frozen=True)
class Declared:
    """A parameter of a method."""

    name: str
    kind: str
    optional: bool
    #: Whether the application wants a null if the call leaves it out.
    null: bool
    description: str | None
    schema: Any

    def declaration(self) -> dict[str, Any]:
        """As `Service.add` takes it."""
        return {"name": self.name, "type": self.kind, "optional": self.optional, "description": self.description}


@dataclasses.dataclass(frozen=True)
class Request:
    """What the application is asked."""

    verb: str
    path: str
    raw_path: bytes
    query: bytes
    #: Besides those of every request.
    fields: list[tuple[bytes, bytes]]
    body: bytes | None


@dataclasses.dataclass(frozen=True)
class Operation:
    """A method of an application."""

    #: Below the prefix of the mount.
    name: str
    verb: str
    template: str
    params: list[Declared]
    #: The path in pieces: text, or the place of a parameter.
    segments: list[list[str | int]]
    query: list[tuple[str, int]]
    fields: list[tuple[bytes, int]]
    #: The members of the body, each with the place of its parameter; the place of a parameter that is the whole body.
    body: list[tuple[str, int]] | int | None
    is_body_required: bool
    #: Whether the answer is a text, and not JSON.
    is_text: bool
    description: str | None
    params_schema: dict[str, Any] | None
    result_schema: Any

    def fill(self, params: Any) -> Request:
        """The request of a call. Raises what its caller is told of wrong parameters."""
        values = self._given(params)
        raw = "".join("/" + self._segment(segment, values) for segment in self.segments)
        pairs = [
            f"{urllib.parse.quote(name, safe='')}={urllib.parse.quote(_text(self.params[at], values[at]), safe='')}"
            for name, at in self.query
            if values[at] is not None
        ]
        query = "&".join(pairs)
        if len(raw) + len(query) + 1 > _LONGEST_TARGET:
            raise wrong(f"the parameters make the path longer than {_LONGEST_TARGET} bytes")
        fields = [
            (name, _field(_text(self.params[at], values[at]))) for name, at in self.fields if values[at] is not None
        ]
        path = urllib.parse.unquote(raw)
        return Request(self.verb, path, raw.encode(), query.encode(), fields, self._body(values))

    def probe(self, of_kind: Mapping[str, str]) -> str:
        """A path of this operation, with a text for each type of its parameters."""
        segments = [
            "".join(each if isinstance(each, str) else of_kind[self.params[each].kind] for each in segment)
            for segment in self.segments
        ]
        return urllib.parse.unquote("/" + "/".join(segments))

    def has_path_params(self) -> bool:
        """Whether callers choose a part of the path."""
        return any(isinstance(each, int) for segment in self.segments for each in segment)

    def _given(self, params: Any) -> list[Any]:
        if params is None:
            named: dict[str, Any] = {}
        elif isinstance(params, list):
            if len(params) > len(self.params):
                raise wrong(f"the method takes {len(self.params)} parameters")
            named = dict(zip((each.name for each in self.params), params))
        else:
            named = dict(params)
        values = []
        for each in self.params:
            value = named.pop(each.name, None)
            if value is None and not each.optional:
                raise wrong(f"parameter `{each.name}` is missing")
            if value is not None and not _is_of(each.kind, value):
                raise wrong(f"parameter `{each.name}` must be of type {each.kind.replace(' list', '[]')}")
            values.append(value)
        if named:
            raise wrong("there is a parameter that the method does not have")
        return values

    def _segment(self, segment: list[str | int], values: list[Any]) -> str:
        texts = [each if isinstance(each, str) else _text(self.params[each], values[each]) for each in segment]
        whole = "".join(texts)
        # Most servers decode a path before they split it, and some proxies decode it as well. What would then be a
        # separator is refused, not encoded. Some take what follows a semicolon, say, for a parameter, and remove it
        # before they look at dots.
        if any(isinstance(each, int) for each in segment) and (
            not whole
            or (whole.startswith(".") and not whole.lstrip(".")[:1].isalnum())
            or any(each in "/\\%?#" or _is_control(each) for each in whole)
        ):
            raise wrong(
                "a parameter cannot be a part of the path: it is empty, begins with dots and no letter or digit behind "
                "them, or has `/`, `\\`, `%`, `?`, `#` or a control character"
            )
        return "".join(
            text if isinstance(each, str) else urllib.parse.quote(text, safe="") for each, text in zip(segment, texts)
        )

    def _body(self, values: list[Any]) -> bytes | None:
        if self.body is None:
            return None
        if isinstance(self.body, int):
            value = values[self.body]
            return None if value is None and not self.is_body_required else _json_of(value)
        members = {name: values[at] for name, at in self.body if values[at] is not None or self.params[at].null}
        return _json_of(members) if members or self.is_body_required else None


def wrong(message: str) -> RpcError:
    """Parameters that do not fit; the text is for the caller."""
    return RpcError(-32602, message)


def _json_of(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f"


def _is_of(kind: str, value: Any) -> bool:
    if kind.endswith(" list"):
        return isinstance(value, list) and all(_is_of(kind.removesuffix(" list"), each) for each in value)
    if kind == "integer":
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    if kind == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return kind == "any" or isinstance(value, {"string": str, "boolean": bool}[kind])


def _text(declared: Declared, value: Any) -> str:
    """A value as part of a text."""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text.encode()) > _LONGEST or "\0" in text:
        raise wrong(f"parameter `{declared.name}` must have at most {_LONGEST} bytes and no NUL")
    return text


def _field(text: str) -> bytes:
    if text.strip() != text or any(map(_is_control, text)):
        raise wrong("a parameter has a character that is not allowed, or a space at either end")
    return text.encode()


def is_forbidden(field: str) -> bool:
    """Whether no call may set this header field."""
    name = field.lower().replace("_", "-")
    return name in FORBIDDEN_FIELDS or any(name.startswith(each) for each in FORBIDDEN_FIELDS if each.endswith("-"))


def is_json(media: str) -> bool:
    """`application/json`, `application/problem+json`, …"""
    return media == "text/json" or (media.startswith("application/") and media.endswith(("json", "/jsonrequest")))


def media_type(value: str) -> str:
    """Without parameters, in lower case."""
    return value.split(";")[0].strip().lower()


def operations(document: Any, chosen: Mapping[str, str] | Iterable[str] | None) -> list[Operation]:
    """The operations of a document, or those that are chosen. Raises `ValueError` if one cannot be a method."""
    if not isinstance(document, Mapping) or not str(document.get("openapi", "")).startswith("3."):
        raise ValueError("the document must be of OpenAPI 3")
    if isinstance(chosen, str):
        raise ValueError("`operations` are several: write a list")
    names = chosen if isinstance(chosen, Mapping) or chosen is None else {each: each for each in chosen}
    found: dict[str, Operation] = {}
    for template, item in document.get("paths", {}).items():
        item = _resolved(item, document)
        for verb in _VERBS:
            operation = item.get(verb)
            if operation is None:
                continue
            identity = operation.get("operationId")
            what = f"{verb.upper()} {template}"
            if names is not None and identity not in names:
                continue
            if not isinstance(identity, str):
                raise ValueError(f"{what} has no `operationId`, which would be its name; choose others by `operations`")
            if identity in found:
                raise ValueError(f"two operations have the `operationId` {identity!r}")
            try:
                name = identity if names is None else names[identity]
                found[identity] = _operation(document, name, verb, template, item, operation)
            except _Unsupported as error:
                raise ValueError(
                    f"{what} (`{identity}`) cannot be a method: {error}; leave it out by `operations`"
                ) from None
    if names is not None and set(names) - set(found):
        raise ValueError(f"the document has no operation {', '.join(map(repr, sorted(set(names) - set(found))))}")
    if not found:
        raise ValueError("the document has no operation that could be a method")
    return list(found.values())


def patterns(document: Mapping[str, Any]) -> dict[tuple[str, str], re.Pattern[str]]:
    """The paths of all operations, also of those that are no methods, by verb and template."""
    found = {}
    for template, item in document.get("paths", {}).items():
        for verb in _VERBS:
            if isinstance(item, Mapping) and verb in item:
                pieces = map(urllib.parse.unquote, re.split(r"\{[^{}]*\}", template))
                found[verb.upper(), template] = re.compile("[^/]+".join(map(re.escape, pieces)))
    return found


def _operation(
    document: Mapping[str, Any],
    name: str,
    verb: str,
    template: str,
    item: Mapping[str, Any],
    operation: Mapping[str, Any],
) -> Operation:
    given = {}
    for each in [*item.get("parameters", []), *operation.get("parameters", [])]:
        parameter = _resolved(each, document)
        given[parameter.get("in"), parameter.get("name")] = parameter
    params: list[Declared] = []
    query: list[tuple[str, int]] = []
    fields: list[tuple[bytes, int]] = []
    in_path: dict[str, int] = {}
    for (place, wire_name), parameter in given.items():
        try:
            declared = _parameter(document, place, parameter)
            if any(known.name == declared.name for known in params):
                raise _Unsupported(f"two of its parameters have the name `{declared.name}`")
        except _Unsupported as error:
            if parameter.get("required"):
                raise
            # Nobody can give it, so the application always sees it left out.
            _logger.info("%s %s: parameter `%s` is left out: %s", verb.upper(), template, wire_name, error)
            continue
        if place == "path":
            in_path[wire_name] = len(params)
        elif place == "query":
            query.append((wire_name, len(params)))
        else:
            fields.append((wire_name.lower().encode("ascii"), len(params)))
        params.append(declared)
    segments = _segments(template, in_path)
    body, is_body_required = _body(document, verb, operation, params)
    responses = [_resolved(each, document) for status, each in _responses(operation) if status.startswith("2")]
    media = {media_type(each): about for response in responses for each, about in response.get("content", {}).items()}
    is_text = bool(media) and not any(is_json(each) or each in ("text/event-stream", "*/*") for each in media)
    if is_text and not all(each.startswith("text/") for each in media):
        raise _Unsupported(f"its answer is {', '.join(media)}, and neither JSON nor a text")
    result = next((about.get("schema") for each, about in media.items() if is_json(each)), None)
    about = [operation.get("summary"), operation.get("description")]
    return Operation(
        name,
        verb.upper(),
        template,
        params,
        segments,
        query,
        fields,
        body,
        is_body_required,
        is_text,
        ": ".join(str(each) for each in about if each) or None,
        _shown(
            {
                "type": "object",
                "properties": {each.name: each.schema for each in params},
                "required": [each.name for each in params if not each.optional],
                "additionalProperties": False,
            },
            document,
        ),
        {"type": "string"} if is_text else _shown(result, document) if result else None,
    )


def _responses(operation: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(str(status), each) for status, each in operation.get("responses", {}).items()]


def _parameter(document: Mapping[str, Any], place: Any, parameter: Mapping[str, Any]) -> Declared:
    name = parameter.get("name")
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= 64 or any(map(_is_control, name)):
        raise _Unsupported("the name of a parameter is no text of 1 to 64 bytes")
    if place not in ("path", "query", "header"):
        raise _Unsupported(f"`{name}` would be in a {place}")
    if place == "header" and (not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or is_forbidden(name)):
        raise _Unsupported(f"header `{name}` belongs to the connection, or says who asks")
    if "schema" not in parameter or parameter.get("style") in ("matrix", "label"):
        raise _Unsupported(f"`{name}` has a form of its own")
    kind, is_nullable = kind_of(parameter["schema"], document)
    if kind not in ("string", "integer", "boolean"):
        raise _Unsupported(f"`{name}` must be a string, an integer or a boolean to be a part of a text")
    optional = place != "path" and (not parameter.get("required") or is_nullable)
    return Declared(name, kind, optional, False, parameter.get("description"), parameter["schema"])


def _segments(template: str, in_path: Mapping[str, int]) -> list[list[str | int]]:
    if not template.startswith("/") or any(c in "?#" or not "!" <= c <= "~" for c in template):
        raise _Unsupported("its path must be like `/a/b`, without a query")
    segments = []
    for segment in template.split("/")[1:]:
        pieces: list[str | int] = []
        for piece in re.split(r"(\{[^{}]*\})", segment):
            if piece.startswith("{"):
                if piece[1:-1] not in in_path:
                    raise _Unsupported(f"`{piece}` in its path is no parameter that is declared")
                pieces.append(in_path[piece[1:-1]])
            elif piece:
                pieces.append(piece)
        if any(isinstance(each, int) for each in pieces) and "%" in segment:
            raise _Unsupported(f"`{segment}`: a `%` beside a parameter could make something else of it")
        segments.append(pieces)
    unused = set(in_path.values()) - {each for segment in segments for each in segment if isinstance(each, int)}
    if unused:
        raise _Unsupported("a parameter of its path is not in the path")
    return segments


def _body(
    document: Mapping[str, Any], verb: str, operation: Mapping[str, Any], params: list[Declared]
) -> tuple[list[tuple[str, int]] | int | None, bool]:
    if "requestBody" not in operation:
        return None, False
    described = _resolved(operation["requestBody"], document)
    is_required = bool(described.get("required"))
    media = next((each for name, each in described.get("content", {}).items() if is_json(media_type(name))), None)
    if media is None or verb in ("get", "delete"):
        if is_required:
            raise _Unsupported("its body is not JSON" if media is None else f"a body with {verb.upper()}")
        return None, False
    written = media.get("schema", {})
    schema = _resolved(written, document)
    properties = schema.get("properties", {})
    taken = {each.name for each in params}
    mixed = any(
        each in schema for each in ("allOf", "anyOf", "oneOf", "not", "if", "additionalProperties", "patternProperties")
    )
    is_plain = schema.get("type") == "object" and not (mixed and schema.get("additionalProperties") is not False)
    if properties and is_plain and all(is_writable(each) and each not in taken for each in properties):
        members = []
        for name, each in properties.items():
            kind, is_nullable = kind_of(each, document)
            is_needed = name in schema.get("required", [])
            optional = not is_required or not is_needed or is_nullable
            about = _resolved(each, document).get("description")
            members.append((name, len(params)))
            params.append(Declared(name, kind, optional, is_needed and is_nullable, about, each))
        return members, is_required
    if "body" in taken:
        raise _Unsupported("its body would be the parameter `body`, and there is another one of that name")
    kind, is_nullable = kind_of(written, document)
    params.append(
        Declared("body", kind, not is_required or is_nullable, is_nullable, described.get("description"), written)
    )
    return len(params) - 1, is_required


def is_writable(name: str) -> bool:
    """Whether a policy file could declare a parameter of this name."""
    return 1 <= len(name.encode()) <= 64 and not any(map(_is_control, name))


def _resolved(value: Any, root: Any) -> Any:
    """What a chain of references leads to."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(value, Mapping) or "$ref" not in value:
            return value if isinstance(value, Mapping) else {}
        value = _target(value["$ref"], root)
    raise ValueError("references of the document lead to each other")


def _target(reference: Any, root: Any) -> Any:
    if not isinstance(reference, str) or not reference.startswith("#/"):
        raise ValueError(f"the reference {reference!r} leads out of the document")
    value = root
    for step in reference[2:].split("/"):
        step = urllib.parse.unquote(step).replace("~1", "/").replace("~0", "~")
        if not isinstance(value, Mapping) or step not in value:
            raise ValueError(f"the reference {reference!r} leads nowhere")
        value = value[step]
    return value


def kind_of(schema: Any, root: Any) -> tuple[str, bool]:
    """How policies see a value of this schema, and whether it may be null: what is not plainly a string, a number, a
    boolean, or a list of strings, integers or booleans is `any`."""
    schema = _resolved(schema, root)
    for keyword in ("anyOf", "oneOf"):
        options = schema.get(keyword)
        if isinstance(options, list):
            others = [each for each in options if not (isinstance(each, Mapping) and each.get("type") == "null")]
            kind = _named(_resolved(others[0], root), root) if len(others) == 1 else "any"
            return kind, len(others) < len(options)
    kinds = schema.get("type")
    if isinstance(kinds, list):
        names = [each for each in kinds if each != "null"]
        only = {**schema, "type": names[0]} if len(names) == 1 else {}
        return _named(only, root), "null" in kinds
    return _named(schema, root), bool(schema.get("nullable"))


def _named(schema: Mapping[str, Any], root: Any) -> str:
    kind = schema.get("type")
    if kind in ("string", "integer", "number", "boolean"):
        return str(kind)
    if kind == "array" and "items" in schema and "prefixItems" not in schema:
        item = _resolved(schema["items"], root).get("type")
        return f"{item} list" if item in ("string", "integer", "boolean") else "any"
    return "any"


def _shown(schema: Any, document: Mapping[str, Any]) -> Any:
    """A schema that stands alone, with what it refers to below `$defs`; None if it is too long to be shown."""
    schema = copy.deepcopy(schema)
    definitions: dict[str, Any] = {}
    open_values = [schema]
    size = 0
    while open_values:
        value = open_values.pop()
        if isinstance(value, list):
            open_values += value
        elif isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str):
                name = reference.rsplit("/", 1)[-1]
                if name not in definitions:
                    definitions[name] = copy.deepcopy(_target(reference, document))
                    open_values.append(definitions[name])
                    size += len(json.dumps(definitions[name], default=str))
                    if size > _LONGEST_SCHEMA:
                        return None
                value["$ref"] = f"#/$defs/{name}"
            # What only OpenAPI knows of a schema.
            if isinstance(value.get("discriminator"), dict) and "propertyName" in value["discriminator"]:
                del value["discriminator"]
            open_values += value.values()
    if definitions and isinstance(schema, dict):
        schema["$defs"] = definitions
    return schema if len(json.dumps(schema, default=str)) <= _LONGEST_SCHEMA else None
