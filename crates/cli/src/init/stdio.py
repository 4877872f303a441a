"""The methods of the service `math`: a request per line on standard input, an answer per line on standard output.

`sealwire serve` starts this program and hands it only calls that it has verified and that the policy allows.
"""

import json
import sys


def add(a, b):
    return a + b


METHODS = {"math/add": add}


def answer(request):
    method, params = METHODS.get(request["method"]), request.get("params", [])
    if method is None:
        return {"error": {"code": 1, "message": "no such method"}}
    try:
        # By name, or by position.
        return {"result": method(**params) if isinstance(params, dict) else method(*params)}
    except TypeError as error:
        return {"error": {"code": -32602, "message": str(error)}}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer(request)}), flush=True)
