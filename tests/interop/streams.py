"""The caller's side of a call that answers with frames, written from SPEC.md §25: takes frames in order, acknowledges
them, asks again for lost ones, answers questions, cancels.

Deals with time and the connection; what a frame is, and in which order frames are taken, is in `nats_rpc_v1.py`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import nats_rpc_v1 as rpc

SILENCE_S = 20.0
AGAIN_S = 0.1
# The most bytes of an attachment in one answer (§25.6).
MAX_PART = 98304
CANCEL_S = 0.25
# Frames are acknowledged after this many bytes, as the service counts them, even within half a window (§25.4).
TELL_BYTES = 256 << 10
FRAME_BYTES = 1 << 10
# An answer that no frame follows is sent again after this time, twice; and after each loss, at most once a second.
UNHEARD_S = 3.0
ANSWER_S = 1.0
MOST_ANSWERS = 16

# Publishes control: operation, payload, the claims of the operation.
Control = Callable[..., Awaitable[None]]


@dataclass
class Wishes:
    """What to do during the call."""

    cancel_after_items: int | None = None
    cancel_after_s: float | None = None
    lease_ms: int | None = None
    answer: Any = None
    # What the method may ask for (§25.6), by digest.
    attached: dict[str, bytes] = field(default_factory=dict)
    # Numbers of frames that are lost on the way here, once each.
    lose: set[int] = field(default_factory=set)
    # How many answers to questions are lost on the way to the service.
    lose_answers: int = 0


@dataclass
class Answer:
    """An answer to a question: only the end of the stream confirms that it arrived (§25.4)."""

    ask: str
    payload: bytes
    # The last frame taken when it was first sent.
    after: int
    sent: float
    times: int = 1
    suspect: bool = False

    def is_due(self, now: float, last: int) -> bool:
        """Whether it may be lost and has to be sent again."""
        if self.suspect:
            return self.times < 8 and now - self.sent >= ANSWER_S
        return last == self.after and self.times < 3 and now - self.sent >= UNHEARD_S


class StreamCall:
    """One call under way."""

    def __init__(self, request: rpc.Request, wishes: Wishes, control: Control) -> None:
        now = time.monotonic()
        self.stream = rpc.Stream(request) if request.window is not None else None
        self.items: list[Any] = []
        self.notes: list[Any] = []
        self.asked: list[str] = []
        self.sent = {"ack": 0, "again": 0, "cancel": 0, "answer": 0}
        self.refused = 0
        self.response: bytes | None = None
        self.ignored = 0
        self._request = request
        self._wishes = wishes
        self._control_with = control
        self._counter = 0
        self._acked = 0
        self._bytes = 0
        self._pieces = bytearray()
        self._began = self._last_new = now
        self._last_ack = now
        self._gap_since: float | None = None
        self._last_again = self._last_cancel = 0.0
        self._again_wanted = False
        self._repeated_acks = 0
        self._answers: list[Answer] = []

    async def _control(self, op: str, payload: bytes = b"", **more: int | str) -> None:
        self._counter += 1
        self.sent[op] += 1
        if op == "answer" and self._wishes.lose_answers > 0:
            self._wishes.lose_answers -= 1
            return
        replica = self.stream.replica if self.stream is not None else None
        await self._control_with(self._request, replica, self._counter, op, payload, **more)

    async def frame(self, frame: rpc.Frame, replica: str, iat: int) -> None:
        """Handles a verified frame. Raises `Lost` and `Refused`."""
        assert self.stream is not None
        if frame.kind != "beat" and frame.seq in self._wishes.lose:
            self._wishes.lose.discard(frame.seq)
            return
        outcome, frames = self.stream.take(frame, replica, iat)
        if outcome == "ignored":
            self.ignored += 1
            return
        self._last_new = time.monotonic()
        for taken in frames:
            await self._taken(taken)
            self._repeated_acks = 0
        if not self.stream.has_gap:
            self._gap_since = None
        elif self._gap_since is None:
            self._gap_since = self._last_new
            self._suspect_answers()
        await self._acknowledge()
        if outcome == "alive" and self.stream.next > 0 and self._repeated_acks < 3:
            # The last acknowledgement may be lost: then the service waits for it, and nothing else comes.
            self._repeated_acks += 1
            await self._ack(self.stream.next - 1)
        await self.tick()

    async def _taken(self, frame: rpc.Frame) -> None:
        """Handles the next frame in order: only now is its payload read."""
        self._bytes += len(frame.payload) + FRAME_BYTES
        if frame.kind in ("item", "note"):
            body = rpc.parse_json(frame.payload)
            parts = body if isinstance(body, list) else [body]
            if not 1 <= len(parts) <= 50:
                raise rpc.Refused("no parts, or too many")
            for part in parts:
                self._part(frame.kind, part)
        elif frame.kind == "ask":
            question = rpc.parse_object(frame.payload)
            self.asked.append(question["method"])
            answer: dict[str, Any] = {"jsonrpc": "2.0", "id": question["id"]}
            if question["method"] == "rpc.attachment":
                answer.update(self._part_of_attachment(question.get("params")))
            elif self._wishes.answer is None:
                answer["error"] = {"code": -32601, "message": "Method not found"}
            else:
                answer["result"] = self._wishes.answer
            proof = rpc.digest(frame.proof.encode("ascii"))
            payload = json.dumps(answer, separators=(",", ":")).encode()
            self._answers = [*self._answers[1 - MOST_ANSWERS :], Answer(proof, payload, frame.seq, time.monotonic())]
            await self._control("answer", payload, ask=proof)
        elif frame.kind in ("piece", "end"):
            self._pieces += frame.payload
            if len(self._pieces) > rpc.MAX_PIECES:
                raise rpc.Lost("a response above the limit")
            if frame.kind == "end":
                self.response = bytes(self._pieces)

    def _part_of_attachment(self, params: Any) -> dict[str, Any]:
        """Gives only what was attached to this very call, and exactly the part that was asked for."""
        match params:
            case {"sha256": str(sha256), "offset": int(offset), "length": int(length), **rest} if not rest:
                attached = self._wishes.attached.get(sha256)
                within = 0 <= offset and 1 <= length <= MAX_PART
                if attached is not None and within and offset + length <= len(attached):
                    return {"result": rpc.b64(attached[offset : offset + length])}
        return {"error": {"code": -32602, "message": "Invalid params"}}

    def _part(self, kind: str, part: Any) -> None:
        if not isinstance(part, dict) or part.get("jsonrpc") != "2.0":
            raise rpc.Refused("a part that is not JSON-RPC")
        if kind == "item":
            if "result" not in part or part.get("id") != 1:
                raise rpc.Refused("an item that is no result of this call")
            self.items.append(part["result"])
        else:
            if "method" not in part or "id" in part:
                raise rpc.Refused("a note that is no notification")
            self.notes.append([part["method"], part.get("params")])

    async def _acknowledge(self) -> None:
        assert self.stream is not None and self._request.window is not None
        taken = self.stream.next - 1
        is_much = self._bytes >= TELL_BYTES
        if self.stream.ended or (taken - self._acked < max(1, self._request.window // 2) and not is_much):
            return
        await self._ack(taken)

    async def _ack(self, taken: int) -> None:
        assert self.stream is not None and self._request.window is not None
        self._acked, self._last_ack, self._bytes = taken, time.monotonic(), 0
        self.stream.allow(taken, self._request.window)
        lease = {} if self._wishes.lease_ms is None else {"tmo": self._wishes.lease_ms}
        await self._control("ack", ack=taken, **lease)

    def reconnected(self) -> None:
        """Everything in flight may be lost."""
        self._again_wanted = True
        self._suspect_answers()

    def _suspect_answers(self) -> None:
        for answer in self._answers:
            answer.suspect = True

    async def _answer_again(self, now: float, last: int) -> None:
        for answer in self._answers:
            if answer.is_due(now, last):
                answer.times, answer.sent, answer.suspect = answer.times + 1, now, False
                await self._control("answer", answer.payload, ask=answer.ask)

    async def tick(self) -> None:
        """Does what is due. Raises `Lost`."""
        now, stream = time.monotonic(), self.stream
        wishes = self._wishes
        enough = wishes.cancel_after_items is not None and len(self.items) >= wishes.cancel_after_items
        late = wishes.cancel_after_s is not None and now - self._began >= wishes.cancel_after_s
        if self.response is None and (enough or late) and now - self._last_cancel >= CANCEL_S:
            self._last_cancel = now
            await self._control("cancel")
        if stream is None or stream.replica is None or stream.ended:
            return
        if now - self._last_new > SILENCE_S:
            raise rpc.Lost("nothing new for 20 s")
        if self._gap_since is not None and now - self._gap_since > SILENCE_S:
            raise rpc.Lost("a gap for 20 s")
        if (stream.has_gap or self._again_wanted) and now - self._last_again >= AGAIN_S:
            if self._again_wanted and stream.next > 0:
                await self._ack(stream.next - 1)
            self._last_again, self._again_wanted = now, False
            # Nothing before that is missing, so this names the last frame received, not the last acknowledged.
            await self._control("again", **({"ack": stream.next - 1} if stream.next > 0 else {}))
        await self._answer_again(now, stream.next - 1)
        if wishes.lease_ms is not None and stream.next > 0 and now - self._last_ack >= wishes.lease_ms / 2000:
            await self._ack(stream.next - 1)

    async def give_up(self) -> None:
        """Makes the service end a call that nobody takes any more. A message may be lost, or overtake the request."""
        for pause in (CANCEL_S, 2 * CANCEL_S, 0):
            await self._control("cancel")
            await asyncio.sleep(pause)

    @property
    def is_leased(self) -> bool:
        """Whether the call lasts as long as frames come, and only silence ends it."""
        return self._wishes.lease_ms is not None and self.stream is not None and self.stream.replica is not None

    def report(self) -> dict[str, Any]:
        """What happened during the call."""
        stream = self.stream
        return {
            "items": self.items,
            "notes": self.notes,
            "asked": self.asked,
            "last_seq": stream.next - 1 if stream is not None else None,
            "replica": stream.replica if stream is not None else None,
            "sent": self.sent,
            "ignored": self.ignored,
            "refused": self.refused,
        }
