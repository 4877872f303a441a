"""Judges documents by a JSON Schema with a library that is not ours.

Reads {"schema": …, "documents": […]} and prints what is wrong with each document, or null.
"""

import json
import sys

from jsonschema import Draft202012Validator

given = json.load(sys.stdin)
Draft202012Validator.check_schema(given["schema"])
validator = Draft202012Validator(given["schema"])
faults = [next(validator.iter_errors(document), None) for document in given["documents"]]
json.dump([fault and f"{fault.json_path}: {fault.message}" for fault in faults], sys.stdout)
