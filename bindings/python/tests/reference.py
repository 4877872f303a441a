"""Writes docs/python-reference.md from the docstrings of the package, or compares it: `reference.py FILE [--write]`.

Never says more than the code.
"""

import dataclasses
import inspect
import pathlib
import re
import sys
import textwrap

import sealwire
from sealwire import _errors

WIDTH = 140
GROUPS = [
    ("Calls", "Client SyncClient Batch SyncBatch BatchCall CallStream SyncCallStream Subscription SyncSubscription"),
    ("Calls that outlive their callers", "Task SyncTask TaskStatus"),
    ("What a client is given and gives", "Credentials Attachment Receipt Progress Notification Question"),
    ("What a service says of itself", "Catalogue MethodInfo ClientStats"),
    ("Services", "Service Topic Ctx SyncCtx Caller Permit AttachmentRef"),
    ("Errors", " ".join(sorted(_errors.__all__, key=lambda name: (name != "Error", name)))),
]


def filled(text, **options):
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False, **options)


def paragraphs(text):
    """A docstring as Markdown."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(text).replace("``", "`"))
    for part in parts:
        if part.startswith("    "):
            yield "```python\n" + textwrap.dedent(part) + "\n```"
        else:
            text = re.sub(r"::$", ":", " ".join(part.split()))
            yield filled(text)


def signature(name, value):
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name + "()"
    parameters = [each.replace(annotation=each.empty) for each in found.parameters.values()]
    parameters = [each for each in parameters if each.name not in ("self", "_warn")]
    # A `/` after `self` alone says nothing.
    text = str(found.replace(parameters=parameters, return_annotation=found.empty)).replace("(/, ", "(")
    return name + text


def comments(cls):
    """What the comments `#: …` above attributes say."""
    try:
        lines = inspect.getsource(cls).splitlines()
    except (OSError, TypeError):
        return {}
    found, said = {}, []
    for line in lines:
        text = line.strip()
        if text.startswith("#: "):
            said.append(text[3:])
            continue
        attribute = re.match(r"(\w+)\s*[:=]", text)
        if attribute and not attribute[1].startswith("_"):
            found[attribute[1]] = " ".join(said)
        said = []
    return found


def members(cls):
    attributes = comments(cls)
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
    else:
        names = [name for name in attributes if name in vars(cls) and not callable(getattr(cls, name))]
    for name in names:
        if attributes.get(name) or dataclasses.is_dataclass(cls):
            said = attributes.get(name)
            yield f"- `{name}`" + (f": {said}" if said else "")
    # Those in Rust come in a different order each time.
    own = vars(cls).items() if cls.__module__.startswith("sealwire.") else sorted(vars(cls).items())
    for name, value in own:
        if name.startswith("_") or name in names:
            continue
        value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        document = inspect.getdoc(value)
        if not document:
            continue
        first, *rest = paragraphs(document)
        is_property = isinstance(value, property) or not callable(value)
        head = f"- **`{name if is_property else signature(name, value)}`**: {first}"
        head = textwrap.fill(
            " ".join(head.split()), WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        yield "\n\n".join([head, *(textwrap.indent(part, "  ") for part in rest)])


def text():
    out = [
        "# Python: the reference",
        "Every name of the package `sealwire`, from its docstrings; [the page](python.md) says how to begin.",
    ]
    named = set()
    for title, names in GROUPS:
        out.append(f"## {title}")
        for name in names.split():
            named.add(name)
            value = getattr(sealwire, name)
            bases = [
                base.__name__
                for base in value.__mro__[1:-1]
                if base.__name__ not in ("Generic", "BaseException", "Exception")
            ]
            bases = [base for base in bases if not base.startswith("_")]
            also = f" ({', '.join(bases)})" if title == "Errors" and bases else ""
            out.append(f"### {name}{also}")
            out += paragraphs(inspect.getdoc(value) or "")
            found = list(members(value))
            if found:
                out.append("\n".join(found))
    assert named == set(sealwire.__all__) - {"__version__"}, named ^ (set(sealwire.__all__) - {"__version__"})
    return "\n\n".join(out) + "\n"


file = pathlib.Path(sys.argv[1])
made = text()
if "--write" in sys.argv:
    file.write_text(made)
elif file.read_text() != made:
    sys.exit(f"{file} is not what the docstrings say: SEALWIRE_WRITE_DOCS=1 cargo test --test pytest reference")
