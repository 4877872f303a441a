"""The service `math`: its methods. Who may call them is in `policies`."""

import sealwire

service = sealwire.Service("sealwire.toml")


@service.method("math/add")
async def add(a: float, b: float) -> float:
    """Adds two numbers."""
    return a + b


if __name__ == "__main__":
    service.run()
