"""An unchanged client of A2A, a2a-sdk: what it finds at a gateway, as JSON on standard output."""

import asyncio
import base64
import json
import sys
import uuid

import httpx
import jwt
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as types
from a2a.utils.signing import SignatureVerificationError, create_signature_verifier
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from google.protobuf import json_format

GATEWAY = sys.argv[1]
AGENT = f"{GATEWAY}/a2a/tools"


def message(part, **members):
    inner = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [part], **members}
    return json_format.ParseDict({"message": inner}, types.SendMessageRequest())


def call(method, params):
    return message({"data": {"method": method, "params": params}})


def plain(told):
    return json_format.MessageToDict(told)


async def all_of(client, request):
    return [plain(event) async for event in client.send_message(request)]


async def refused(awaited):
    try:
        await awaited
    except Exception as error:
        return [type(error).__name__, getattr(error, "data", None) or str(error)[:99]]
    return "nothing"


def decoded(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def is_signed(card, keys):
    """RFC 8785 for a card, whose names of members are ASCII and which has no numbers, and RFC 7515."""
    signature = card["signatures"][0]
    rest = {name: value for name, value in card.items() if name != "signatures"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    payload = base64.urlsafe_b64encode(text).rstrip(b"=").decode()
    header = json.loads(decoded(signature["protected"]))
    (key,) = [key for key in keys["keys"] if key["kid"] == header["kid"]]
    assert header["alg"] == "EdDSA" and header["typ"] == "JOSE", header
    try:
        public = Ed25519PublicKey.from_public_bytes(decoded(key["x"]))
        public.verify(decoded(signature["signature"]), f"{signature['protected']}.{payload}".encode())
    except InvalidSignature:
        return False
    return True


async def cards(http, found):
    async def key_of_document(url):
        return (await http.get(url)).json()

    raw = (await http.get(f"{AGENT}/.well-known/agent-card.json")).json()
    header = json.loads(decoded(raw["signatures"][0]["protected"]))
    keys = await key_of_document(header["jku"])

    def key_of(kid, _):
        (key,) = [key for key in keys["keys"] if key["kid"] == kid]
        return jwt.PyJWK(key)

    verifier = create_signature_verifier(key_of, ["EdDSA"])
    card = await A2ACardResolver(http, AGENT).get_agent_card(signature_verifier=verifier)
    at_root = await A2ACardResolver(http, GATEWAY).get_agent_card(signature_verifier=verifier)
    json_format.ParseDict(raw, types.AgentCard())  # refuses what the definition has not
    changed = {**raw, "description": raw["description"] + "!"}
    try:
        verifier(json_format.ParseDict(changed, types.AgentCard()))
        is_taken = True
    except SignatureVerificationError:
        is_taken = False
    found["card"] = {
        "is_one": card == at_root,
        "signed": [is_signed(raw, keys), is_signed(changed, keys), is_taken],
        "jku": header["jku"] == f"{GATEWAY}/.well-known/agent-card-keys.json",
        "url": raw["supportedInterfaces"][0]["url"] == AGENT,
        "skills": [skill["id"] for skill in raw["skills"]],
        "add": [skill for skill in raw["skills"] if skill["id"] == "math/add"],
        "capabilities": raw["capabilities"],
    }
    return card


async def strictly(http, request):
    """The events of a stream, each read by the definition of the protocol, which refuses what it has not."""
    body = {"jsonrpc": "2.0", "id": "s", "method": "SendStreamingMessage", "params": plain(request)}
    kinds = []
    async with http.stream("POST", AGENT, json=body, headers={"A2A-Version": "1.0"}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                assert event["id"] == "s", event
                read = json_format.ParseDict(event["result"], types.StreamResponse())
                kinds.append(read.WhichOneof("payload"))
    return kinds


async def main():
    found = {}
    async with httpx.AsyncClient(timeout=60) as http:
        card = await cards(http, found)
        streaming = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        blocking = ClientFactory(ClientConfig(httpx_client=http, streaming=False)).create(card)
        polling = ClientFactory(ClientConfig(httpx_client=http, streaming=False, polling=True)).create(card)

        for name, client in (("streaming", streaming), ("blocking", blocking)):
            (answer,) = await all_of(client, call("math/add", [2, 3]))
            found[name] = [answer["message"]["parts"], answer["message"]["role"], "contextId" in answer["message"]]
        # Whole numbers, which the client writes as floats.
        (job,) = await all_of(blocking, call("job/run", {"steps": 2}))
        found["job"] = [job["task"]["status"]["state"], job["task"]["artifacts"][0]["parts"]]

        words = await all_of(streaming, message({"text": "one by one"}))
        found["words"] = [
            [event["task"]["status"]["state"] for event in words[:1]],
            [[e["artifactUpdate"]["artifact"]["parts"], e["artifactUpdate"].get("append")] for e in words[1:-1]],
            words[-1]["statusUpdate"]["status"]["state"],
        ]
        task_id = words[0]["task"]["id"]
        task = plain(await streaming.get_task(types.GetTaskRequest(id=task_id)))
        found["kept"] = [task["status"]["state"], [part["text"] for part in task["artifacts"][0]["parts"]]]
        found["strict"] = await strictly(http, message({"text": "a b"}))
        found["strict_message"] = await strictly(http, call("math/add", [2, 3]))

        # Cancelled by another request while it streams.
        states = []
        async for event in streaming.send_message(call("job/run", {"steps": 5999})):
            told = plain(event)
            state = told.get("statusUpdate", told.get("task"))["status"]["state"]
            if state == "TASK_STATE_WORKING" and state not in states:
                cancelled = await blocking.cancel_task(types.CancelTaskRequest(id=event.status_update.task_id))
                found["cancelled"] = plain(cancelled)["status"]["state"]
            states.append(state)
        found["ended"] = [states[0], states[-1]]

        # Left alone, and followed later.
        (begun,) = await all_of(polling, call("job/run", {"steps": 20}))
        task_id = begun["task"]["id"]
        found["polled"] = begun["task"]["status"]["state"]
        followed = [plain(e) async for e in streaming.subscribe(types.SubscribeToTaskRequest(id=task_id))]
        found["followed"] = ["task" in followed[0], followed[-1]["statusUpdate"]["status"]["state"]]
        listed = await streaming.list_tasks(types.ListTasksRequest())
        found["listed"] = [listed.total_size, listed.tasks[0].id == task_id, listed.next_page_token]

        found["refused"] = {
            "denied": await refused(all_of(blocking, call("math/mul", [2, 3]))),
            "wrong": await refused(all_of(blocking, call("math/add", ["x"]))),
            "wrong_stream": await refused(all_of(streaming, call("math/add", ["x"]))),
            "none": await refused(all_of(blocking, call("math/none", [2]))),
            "file": await refused(all_of(blocking, message({"url": "https://a.example/x"}))),
            "task": await refused(streaming.get_task(types.GetTaskRequest(id="x"))),
            "over": await refused(streaming.cancel_task(types.CancelTaskRequest(id=task_id))),
            "push": await refused(
                streaming.create_task_push_notification_config(
                    types.TaskPushNotificationConfig(task_id=task_id, url="https://a.example")
                )
            ),
        }
        extended = await streaming.get_extended_agent_card(types.GetExtendedAgentCardRequest())
        found["extended"] = extended == card
    print(json.dumps(found))


asyncio.run(main())
