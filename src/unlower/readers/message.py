"""A protobuf message as its fields by number: for the readers that walk deep into TensorFlow's protos.

Nothing is copied on the way down (fields are views of the file), and nothing is decoded until it is asked for.
"""

from typing import Any

from unlower.errors import FormatError
from unlower.readers.wire import BYTES, fields, varint

__all__ = ["Message"]


class Message:
    """One message; a missing field reads as its default: zero, an empty string, an empty message.

    Raises:
      FormatError: the bytes are no message; the offset counts from the start of this message.

    Example:
      >>> Message(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69])).integer(1)
      150
    """

    __slots__ = ("_values",)

    def __init__(self, data: bytes | memoryview = b""):
        self._values: dict[int, list[Any]] = {}
        view: Any = memoryview(data)
        for field in fields(view):
            self._values.setdefault(field.number, []).append((field.kind, view[field.start : field.stop]))

    def __contains__(self, number: int) -> bool:
        return number in self._values

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the fields that are there."""
        return tuple(self._values)

    def views(self, number: int) -> list[memoryview]:
        """The values of a repeated field of bytes, strings or messages, as views."""
        return [value for kind, value in self._values.get(number, ()) if kind == BYTES]

    def view(self, number: int) -> memoryview:
        """The value of a field of bytes; the last one counts, as protobuf has it."""
        views = self.views(number)
        return views[-1] if views else memoryview(b"")

    def strings(self, number: int) -> list[str]:
        """The values of a repeated field of strings."""
        return [_text(view) for view in self.views(number)]

    def string(self, number: int) -> str:
        """The value of a string field."""
        return _text(self.view(number))

    def messages(self, number: int) -> "list[Message]":
        """The values of a repeated field of messages."""
        return [Message(view) for view in self.views(number)]

    def message(self, number: int) -> "Message":
        """The value of a field that is a message."""
        return Message(self.view(number))

    def map(self, number: int) -> "dict[str, Message]":
        """The entries of a `map<string, Message>` field."""
        return {entry.string(1): entry.message(2) for entry in self.messages(number)}

    def string_map(self, number: int) -> dict[str, str]:
        """The entries of a `map<string, string>` field."""
        return {entry.string(1): entry.string(2) for entry in self.messages(number)}

    def integers(self, number: int) -> list[int]:
        """The values of a repeated integer field, packed or not; 64-bit and signed."""
        values = []
        for _, view in self._values.get(number, ()):
            at = 0
            while at < len(view):
                value, at = varint(view, at, len(view))
                value &= (1 << 64) - 1
                values.append(value - (1 << 64) if value >> 63 else value)
        return values

    def packed(self, number: int) -> list[memoryview]:
        """The values of a repeated field of fixed-size numbers, packed or not, as their bytes."""
        return [value for _, value in self._values.get(number, ())]

    def integer(self, number: int) -> int:
        """The value of an integer field; booleans and enumerations are integers too."""
        values = self.integers(number)
        return values[-1] if values else 0


def _text(view: memoryview) -> str:
    try:
        return bytes(view).decode()
    except UnicodeDecodeError:
        raise FormatError(
            "damaged protobuf: a name that is not UTF-8",
            where=repr(bytes(view[:40])),
            mend="copy or write the file again; it is cut off or changed",
        ) from None
