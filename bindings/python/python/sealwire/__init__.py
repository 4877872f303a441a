"""Signed calls over NATS: a client, a service, and the command `sealwire`.

A first call::

    import asyncio, sealwire

    async def main():
        async with sealwire.Client("planner.creds.json") as bus:
            print(await bus.call("math", "math/add", a=2, b=3))

    asyncio.run(main())
"""

from __future__ import annotations

import os as _os
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import _core
from ._core import VERSION as __version__
from ._errors import *

if _TYPE_CHECKING:
    from ._batch import BatchCall as BatchCall
    from ._client import Batch as Batch
    from ._client import CallStream as CallStream
    from ._client import Client as Client
    from ._client import Subscription as Subscription
    from ._core import Attachment as Attachment
    from ._core import Credentials as Credentials
    from ._core import Receipt as Receipt
    from ._ctx import AttachmentRef as AttachmentRef
    from ._ctx import Caller as Caller
    from ._ctx import Ctx as Ctx
    from ._ctx import Permit as Permit
    from ._ctx import SyncCtx as SyncCtx
    from ._request import Catalogue as Catalogue
    from ._request import ClientStats as ClientStats
    from ._request import MethodInfo as MethodInfo
    from ._request import Notification as Notification
    from ._request import Progress as Progress
    from ._request import Question as Question
    from ._service import Service as Service
    from ._service import Topic as Topic
    from ._sync import SyncBatch as SyncBatch
    from ._sync import SyncCallStream as SyncCallStream
    from ._sync import SyncClient as SyncClient
    from ._sync import SyncSubscription as SyncSubscription
    from ._task import SyncTask as SyncTask
    from ._task import Task as Task
    from ._task import TaskStatus as TaskStatus

#: Where each name is. It is imported when it is first used, so that `import sealwire` costs little.
_PLACES = {
    name: module
    for module, names in {
        "_batch": "BatchCall",
        "_client": "Batch CallStream Client Subscription",
        "_core": "Attachment Credentials Receipt",
        "_ctx": "AttachmentRef Caller Ctx Permit SyncCtx",
        "_request": "Catalogue ClientStats MethodInfo Notification Progress Question",
        "_service": "Service Topic",
        "_sync": "SyncBatch SyncCallStream SyncClient SyncSubscription",
        "_task": "SyncTask Task TaskStatus",
    }.items()
    for name in names.split()
}

__all__ = [
    "__version__",
    "ApprovalRequired",
    "Attachment",
    "AttachmentRef",
    "Batch",
    "BatchCall",
    "Busy",
    "CallStream",
    "Caller",
    "CallerError",
    "Cancelled",
    "Catalogue",
    "Client",
    "ClientStats",
    "ClockError",
    "Closed",
    "ConfigError",
    "Conflict",
    "ConnectError",
    "ConnectionLost",
    "Credentials",
    "CredentialsError",
    "Ctx",
    "DecodeError",
    "Denied",
    "Disconnected",
    "Error",
    "Forbidden",
    "ForkedError",
    "InvalidParams",
    "InvalidRequest",
    "MethodInfo",
    "MethodNotFound",
    "NobodyListens",
    "Notification",
    "Overloaded",
    "Permit",
    "Progress",
    "ProtocolError",
    "Question",
    "Quota",
    "Receipt",
    "RpcError",
    "ServeError",
    "Service",
    "StreamLost",
    "Subscription",
    "SyncBatch",
    "SyncCallStream",
    "SyncClient",
    "SyncCtx",
    "SyncSubscription",
    "SyncTask",
    "Task",
    "TaskError",
    "TaskStatus",
    "TaskWorking",
    "Timeout",
    "TokenError",
    "TooLarge",
    "Topic",
    "Unsigned",
    "Unverifiable",
    "ValidationFailed",
]


def __getattr__(name: str) -> object:
    module = _PLACES.get(name)
    if module is None:
        raise AttributeError(f"module 'sealwire' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f".{module}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_core.after_fork)
