"""The same without an event loop: for scripts, for threads, for frameworks that are not asynchronous.

Prints:
    5.0
"""

import sealwire

with sealwire.SyncClient("planner.creds.json") as bus:
    bus.wait_for("math")
    print(bus.call("math", "math/add", a=2, b=3))
