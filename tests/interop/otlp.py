#!/usr/bin/env python3
"""Reads OTLP with the messages that OpenTelemetry publishes: otlp.py <BODIES

Each line is the body of a request, in hexadecimal digits. Prints all spans as one JSON array. Never passes over a field that is not in
those messages.
"""

import json
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {1: "internal", 2: "server", 3: "client"}


def known(message):
    """Fails if the message, or one in it, has a field that its definition does not have."""
    if len(UnknownFieldSet(message)):
        sys.exit(f"unknown fields in a {message.DESCRIPTOR.name}")
    for field, value in message.ListFields():
        if field.message_type:
            for each in value if hasattr(value, "__len__") else [value]:
                known(each)


def attributes(pairs):
    found = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
    if len(found) != len(pairs):
        sys.exit(f"an attribute is there twice: {[pair.key for pair in pairs]}")
    return found


def main():
    spans = []
    for line in sys.stdin:
        request = ExportTraceServiceRequest()
        request.ParseFromString(bytes.fromhex(line.strip()))
        known(request)
        for of_resource in request.resource_spans:
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    spans.append({
                        "resource": attributes(of_resource.resource.attributes),
                        "scope": of_scope.scope.name,
                        "trace": span.trace_id.hex(),
                        "id": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "name": span.name,
                        "kind": KINDS[span.kind],
                        "attributes": attributes(span.attributes),
                        "failed": span.status.code == 2,
                        "flags": span.flags,
                        "links": [link.span_id.hex() for link in span.links],
                        "took_ns": span.end_time_unix_nano - span.start_time_unix_nano,
                        "began_s": span.start_time_unix_nano / 1e9,
                    })
    json.dump(spans, sys.stdout)


main()
