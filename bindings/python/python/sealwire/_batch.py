"""Several calls and notifications in one message.

Never matches an answer with a call by its position.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from . import _errors, _json
from ._errors import InvalidRequest
from ._request import decoded

T = TypeVar("T")


class BatchCall(Generic[T]):
    """One call of a batch."""

    def __init__(self, result: Any) -> None:
        self._hint = result
        self._answer: tuple[bool, Any] | None = None

    def result(self) -> T:
        """The result, once the batch was sent; raises the error of this call if it failed."""
        if self._answer is None:
            raise InvalidRequest("the batch was not sent, or was not answered")
        failed, payload = self._answer
        if failed:
            raise _errors.of(payload)
        return cast(T, decoded(payload, self._hint))


class Entries:
    """The entries of a batch that is put together."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, str, bool]] = []
        self._calls: list[BatchCall[Any]] = []

    def call(self, method: str, /, *, params: Any = None, result: Any = None, **named: Any) -> BatchCall[Any]:
        """Adds a call. Its result is there once the batch was sent."""
        call: BatchCall[Any] = BatchCall(result)
        self._entries.append((method, self._text(params, named), True))
        self._calls.append(call)
        return call

    def notify(self, method: str, /, *, params: Any = None, **named: Any) -> None:
        """Adds a notification."""
        self._entries.append((method, self._text(params, named), False))

    def __len__(self) -> int:
        return len(self._entries)

    @staticmethod
    def _text(params: Any, named: dict[str, Any]) -> str:
        text, attached = _json.write_params(params, named)
        if attached:
            raise InvalidRequest("attachments go with single calls, streams and subscriptions, not with batches")
        return text

    def _take(self, answers: list[tuple[bool, Any]]) -> list[BatchCall[Any]]:
        for call, answer in zip(self._calls, answers):
            call._answer = answer
        return self._calls
