"""What `import sealwire` costs, and how `python -m sealwire` finds the command."""

import os
import subprocess
import sys
import sysconfig

import pytest
import sealwire
import sealwire.__main__


def test_only_what_is_used_is_imported():
    program = (
        "import sys, sealwire\n"
        "heavy = {'asyncio', 'inspect', 'dataclasses', 'logging', 'pydantic', 'typing_extensions'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "sealwire.Client, sealwire.Service\n"
        "sealwire.Service().mount_asgi\n"
        "frameworks = {'pydantic', 'anyio', 'fastapi', 'starlette', 'fastmcp', 'mcp', 'jsonschema'}\n"
        "print(sorted(frameworks & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False)
    if told.returncode == 0:
        assert told.stdout == "[]\n[]\n"
    else:
        # Without `site`, a wheel in an environment is not found.
        assert "No module named 'sealwire'" in told.stderr


def test_names():
    assert set(sealwire.__all__) <= set(dir(sealwire))
    for name in sealwire.__all__:
        assert getattr(sealwire, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sealwire.nothing


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    """A folder of scripts in place of the environment's, which may have the command."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name, scheme=None: str(tmp_path / (scheme or "own")))
    return tmp_path


def test_the_command_is_found_where_wheels_put_it(scripts, monkeypatch):
    assert sealwire.__main__.command() is None
    with pytest.raises(SystemExit, match="only the library"):
        sealwire.__main__.main()
    program = scripts / "own" / "sealwire"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    assert sealwire.__main__.command() == program
    became = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: became.append((path, arguments)))
    monkeypatch.setattr(sys, "argv", ["sealwire", "demo", "--quiet"])
    sealwire.__main__.main()
    assert became == [(program, [str(program), "demo", "--quiet"])]
