"""The examples that need frameworks, which take long to be imported, on a stage of their own."""

import os
import subprocess
import sys

import pytest
import test_examples as examples
from conftest import SOON


def test_a_fastapi_application(stage):
    pytest.importorskip("fastapi")
    assert examples.finished(examples.start(stage, "shop_app.py")) == examples.expected("shop_app.py")


def test_a_fastmcp_server(stage):
    pytest.importorskip("fastmcp")
    # The command gives its servers nothing of its own environment.
    path = f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"
    server = ["env", path, sys.executable, examples.EXAMPLES / "mounted_tools.py", "stdio"]
    command = stage.command("tools", "approve", "--yes", "--name", "tools", "--", *server)
    # On a busy machine, a server may take longer to start than the command waits.
    for _ in range(3):
        done = subprocess.run(command, cwd=stage.folder, capture_output=True, text=True, timeout=4 * SOON)
        if "it has not said within" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert examples.finished(examples.start(stage, "mounted_tools.py")) == examples.expected("mounted_tools.py")
