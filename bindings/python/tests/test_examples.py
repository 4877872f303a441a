"""Each example does what its first lines say."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
import sealwire
from conftest import SOON, run

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
#: Those of test_examples_mounts.py.
MOUNTS = ("shop_app.py", "mounted_tools.py")
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))


def start(stage, name):
    return subprocess.Popen(
        [sys.executable, EXAMPLES / name],
        cwd=stage.folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def expected(name):
    """What an example says that it prints."""
    document = (EXAMPLES / name).read_text().split('"""')[1]
    return textwrap.dedent(document.split("Prints:\n")[1]).strip().splitlines()


def finished(process):
    """What a program has printed, once it has ended well."""
    printed, errors = process.communicate(timeout=4 * SOON)
    assert process.returncode == 0, printed + errors
    assert "Traceback" not in errors, errors
    return printed.splitlines()


@pytest.mark.parametrize("name", [name for name in PROGRAMS if not name.startswith("first_") and name not in MOUNTS])
def test_a_program_that_serves_and_calls(stage, name):
    if name == "web_front.py":
        pytest.importorskip("fastapi")
    assert finished(start(stage, name)) == expected(name)


def test_the_first_service_and_its_callers(stage):
    with start(stage, "first_service.py") as service:
        for name in ("first_call.py", "first_call_sync.py"):
            assert finished(start(stage, name)) == expected(name)
        service.terminate()
        finished(service)


def blocks():
    """The programs on the page, by name."""
    page = (EXAMPLES.parents[2] / "docs/python.md").read_text()
    return {part.split("\n", 1)[0]: part.split("\n", 1)[1].split("```")[0] for part in page.split("```python ")[1:]}


def test_the_programs_on_the_page(stage):
    page = blocks()
    assert sorted(page) == ["agent.py", "first_call.py", "first_service.py", "parts.py", "service.py"]
    for name in ("first_call.py", "first_service.py"):
        assert (EXAMPLES / name).read_text().split('"""\n\n', 1)[1] == page[name], name

    service = {}
    exec(compile(page["service.py"], "service.py", "exec"), service)

    async def shop():
        service["service"]._config = stage.folder / "sealwire.toml"
        async with service["service"], sealwire.Client(stage.creds("planner")) as bus:
            assert await bus.call("math", "shop/buy", order={"product": "lamp"}) == "planner bought 1 lamp with card"
            assert await bus.call("math", "shop/list", shelf="a") == ["lamp", "chair"]
            with pytest.raises(sealwire.RpcError, match="nothing to buy"):
                await bus.call("math", "shop/buy", order={"product": "lamp", "number": 0})

    run(shop)

    async def parts():
        counting = sealwire.Service(stage.folder / "sealwire.toml")
        printed = []

        @counting.stream("math/count")
        def count(to: int):
            yield from range(to)

        @counting.subscription("clock/ticks")
        def ticks():
            yield {"tick": 1}

        program = "async def program(bus, print):\n" + textwrap.indent(page["parts.py"], "    ")
        scope = {}
        exec(compile(program, "parts.py", "exec"), scope)
        async with counting, sealwire.Client(stage.creds("planner")) as bus:
            await scope["program"](bus, printed.append)
        assert printed == [0, 1, 2, None, {"tick": 1}]

    run(parts)


def test_every_example_has_a_row():
    rows = (EXAMPLES / "README.md").read_text()
    assert all(f"[{name}]({name})" in rows for name in PROGRAMS), PROGRAMS
