"""A program that starts its server as a child, writes a request on a line, and reads a line."""

import json
import subprocess
import sys

server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(line):
    server.stdin.write(line + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline().strip())


echo = {"jsonrpc": "2.0", "method": "text/echo", "params": ["local call"], "id": 777}
said = [ask(json.dumps(echo))]
said.append(ask("{ this is not JSON")["error"]["code"])
server.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "log/append", "params": {"msg": "silent"}}) + "\n")
said.append(ask(json.dumps({"jsonrpc": "2.0", "method": "math/add", "params": {"a": 2, "b": 3}, "id": "x"}))["result"])
server.terminate()
print(json.dumps({"said": said, "exit": server.wait(60)}))
