"""A document as a parameter: the call names it by digest and size, about which policies can decide, and the method
fetches it.

Prints:
    stored 200000 bytes of application/pdf
    refused: too large for us (1003)
"""

import asyncio
import tempfile

import sealwire

service = sealwire.Service("sealwire.toml")


@service.method("archive/store")
async def store(ctx: sealwire.Ctx, document: sealwire.AttachmentRef) -> str:
    if document.size > 1_000_000:
        # Not a byte of it was sent so far.
        raise sealwire.RpcError(1003, "too large for us")
    content = await ctx.attachment(document)
    return f"stored {len(content)} bytes of {document.media_type}"


async def main():
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x" * 200_000)
        file.flush()
        report = await asyncio.to_thread(sealwire.Attachment.file, "application/pdf", file.name)
        async with service, sealwire.Client("planner.creds.json") as bus:
            print(await bus.call("math", "archive/store", document=report))
            film = sealwire.Attachment.bytes("video/mp4", b"x" * 2_000_000)
            try:
                await bus.call("math", "archive/store", document=film)
            except sealwire.RpcError as error:
                print(f"refused: {error}")


asyncio.run(main())
