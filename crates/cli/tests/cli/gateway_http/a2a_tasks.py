"""An unchanged client of A2A, a2a-sdk: calls a method that is a task, and prints what it was told, as a JSON object.

Usage: a2a_tasks.py poll|stream|cancel METHOD PARAMS ADDRESS
poll asks for the task until it has ended; stream follows it, and goes on wherever its stream ends.
"""

import asyncio
import json
import sys
import uuid

import httpx
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as types
from google.protobuf import json_format

HOW, METHOD, PARAMS, ADDRESS = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
ENDED = {f"TASK_STATE_{state}" for state in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")}


def message():
    part = {"data": {"method": METHOD, "params": PARAMS}}
    inner = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [part]}
    return json_format.ParseDict({"message": inner}, types.SendMessageRequest())


class Told:
    def __init__(self):
        self.id, self.seen, self.result, self.streams = None, [], None, 0

    def status(self, status):
        text = [part.get("text") for part in status.get("message", {}).get("parts", [])]
        if [status["state"], text] not in self.seen:
            self.seen.append([status["state"], text])

    def event(self, event):
        told = json_format.MessageToDict(event)
        if "task" in told:
            self.task(told["task"])
        elif "statusUpdate" in told:
            self.status(told["statusUpdate"]["status"])
        elif "artifactUpdate" in told:
            self.result = told["artifactUpdate"]["artifact"]["parts"]
        else:
            raise RuntimeError(f"no task: {told}")

    def task(self, task):
        assert self.id in (None, task["id"]), "another task"
        self.id = task["id"]
        self.status(task["status"])
        for artifact in task.get("artifacts", []):
            self.result = artifact["parts"]

    def has_ended(self):
        return bool(self.seen) and self.seen[-1][0] in ENDED


async def main():
    told = Told()
    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(http, ADDRESS).get_agent_card()
        config = ClientConfig(httpx_client=http, streaming=HOW == "stream", polling=True)
        client = ClientFactory(config).create(card)
        async for event in client.send_message(message()):
            told.event(event)
        if HOW == "cancel":
            cancelled = await client.cancel_task(types.CancelTaskRequest(id=told.id))
            told.task(json_format.MessageToDict(cancelled))
        while not told.has_ended():
            if HOW == "stream":
                told.streams += 1
                async for event in client.subscribe(types.SubscribeToTaskRequest(id=told.id)):
                    told.event(event)
            else:
                await asyncio.sleep(0.2)
                told.task(json_format.MessageToDict(await client.get_task(types.GetTaskRequest(id=told.id))))
    print(json.dumps({"seen": told.seen, "result": told.result, "streams": told.streams}))


asyncio.run(main())
