"""The smallest service. It runs until SIGTERM or Ctrl-C."""

import sealwire

service = sealwire.Service("sealwire.toml")


@service.method("math/add")
async def add(a: float, b: float) -> float:
    return a + b


service.run()
