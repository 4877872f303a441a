"""A project of `sealwire init --language python`: from an empty folder to the first call, as it prints.

Never leaves one of them running.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from conftest import SOON


@contextlib.contextmanager
def running(line, folder, env):
    """A line as it is typed in a terminal of its own."""
    # In place of the shell, so that it has ended when the process has.
    started = subprocess.Popen(f"exec {line}", shell=True, cwd=folder, env=env, start_new_session=True)
    try:
        yield
        assert started.poll() is None, f"`{line}` has ended"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGTERM)
        started.wait(SOON)


def listening(port):
    begun = time.monotonic()
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() - begun < SOON, f"nothing listens on port {port}"
            time.sleep(0.05)


def test_a_new_project_runs_in_three_commands(stage, tmp_path):
    # What is typed finds the command, and this Python.
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sealwire").symlink_to(pathlib.Path(stage.command()[0]).resolve())
    path = os.pathsep.join([str(programs), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path}

    def typed(line, folder):
        return subprocess.run(
            line,
            shell=True,
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=3 * SOON,
        ).stdout

    # The system gives it to nobody else meanwhile.
    port = stage.unused_port
    made = json.loads(typed(f"sealwire init hello --language python --service sums --port {port} --json", tmp_path))
    hello = tmp_path / "hello"
    broker, service, client = made["run"]
    assert (service, client) == ("python3 service.py", "python3 client.py")
    readme = (hello / "README.md").read_text()
    assert "\n".join(made["run"]) in readme
    typed("sealwire policy check --warnings-are-errors", hello)
    typed("sealwire policy test --require-coverage", hello)
    with running(broker, hello, env):
        listening(port)
        with running(service, hello, env):
            assert typed(client, hello) == "5.0\n"
            # The policy is about the methods of the program: one that is added to both can be called.
            program = hello / "service.py"
            sub = '@service.method("sums/sub")\ndef sub(a: int, b: int) -> int:\n    return a - b\n\n\n'
            program.write_text(program.read_text().replace("if __name__", f"{sub}if __name__"))
            with (hello / "policies/sums.toml").open("a") as policy:
                policy.write('\n[method."sums/sub"]\n')
        with running(service, hello, env):
            call = "sealwire call --creds planner.creds.json sums sums/sub '[5, 3]' --wait 10s"
            assert typed(call, hello) == "2\n"
