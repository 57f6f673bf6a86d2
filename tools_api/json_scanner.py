"""One call's JSON object, read character by character as a model writes it.

``{"name": "...", "arguments": {...}}``: the name is decoded, the arguments' text is passed
through untouched while it grows, other keys are skipped, and it is told when what they hold is
lost. Brackets and strings are followed
only as far as needed to know where a value ends; whether the arguments satisfy a schema is
the grammar's business.

Always true: the state after a text does not depend on how it was split.
"""

import json

_SPACE = " \t\r\n"
_BESIDE = ("id", "type")
"""Keys that some models write into a call; calls are known by our own ids."""
_CLOSER = {"{": "}", "[": "]"}


class CallScanner:
    """Reads one object; not reusable."""

    def __init__(
        self,
        arguments_key: str,
        *,
        needs_arguments: bool,
        plain: frozenset[str] = frozenset(),
    ) -> None:
        """
        Args:
            arguments_key: key whose value is the arguments.
            needs_arguments: an object without that key is no call (it ``failed``).
            plain: names whose input stands behind the object: it is a call without that key.
        """
        self._arguments_key = arguments_key
        self._needs_arguments = needs_arguments
        self._plain = plain
        self._at = "object"
        self._token = ""
        self._key: str | None = None
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False
        self._pieces: list[str] = []
        self._taken = 0
        self._has_arguments = False
        self.name: str | None = None
        self.done = False
        """Whether the object is closed."""
        self.skipped = False
        """There was a key that means nothing in a call."""
        self.failed = False
        """The text is no call; nothing after this point was read."""

    @property
    def announced(self) -> bool:
        """It is known that this is a call, and to what."""
        return self.name is not None and (self._has_arguments or self.done)

    @property
    def input_follows(self) -> bool:
        """The object is closed, and the input stands behind it as plain text."""
        return self.done and self.name in self._plain and not self._has_arguments

    @property
    def arguments(self) -> str:
        """The arguments' text so far."""
        return "".join(self._pieces)

    def take_arguments(self) -> str:
        """The text that ``arguments`` gained since the last call of this method."""
        new = "".join(self._pieces[self._taken :])
        self._taken = len(self._pieces)
        return new

    def feed(self, text: str) -> int:
        """Read on; return how many characters were read: all, unless done or failed."""
        for i, char in enumerate(text):
            self._step(char)
            if self.failed:
                return i
            if self.done:
                return i + 1
        return len(text)

    def _step(self, char: str) -> None:
        if self._at == "value":
            self._value_char(char)
        elif self._at == "key":
            self._token += char
            if self._string_char(char):
                self._key = self._decoded()
                self._at = "colon"
        elif char not in _SPACE:
            self._structure_char(char)

    def _structure_char(self, char: str) -> None:
        match self._at, char:
            case "object", "{":
                self._at = "first_key"
            case (("first_key" | "next_key"), '"'):
                self._at, self._token, self._in_string = "key", char, True
            case "colon", ":":
                self._at = "value_start"
            case "value_start", _:
                self._start_value(char)
            case "after_value", ",":
                self._at = "next_key"
            case (("first_key" | "after_value"), "}"):
                self._close()
            case _:
                self.failed = True

    def _start_value(self, char: str) -> None:
        if char in ",}]" or (self._key == "name" and self.name is None and char != '"'):
            self.failed = True
            return
        if self._key == self._arguments_key:
            if self._has_arguments:
                self._key = None  # a second one is skipped
            self._has_arguments = True
        self.skipped = self.skipped or self._key not in ("name", self._arguments_key, *_BESIDE)
        self._at, self._token = "value", ""
        self._value_char(char)

    def _value_char(self, char: str) -> None:
        if not self._in_string and not self._closers and (char in ",}" or char in _SPACE):
            self._end_value()  # a number or literal ends where something else starts
            if char not in _SPACE:
                self._structure_char(char)
            return
        if char in "}]" and not self._in_string and self._closers[-1:] != [char]:
            self.failed = True
            return
        if self._key == self._arguments_key:
            self._pieces.append(char)
        else:
            self._token += char
        if self._in_string:
            if self._string_char(char) and not self._closers:
                self._end_value()
        elif char == '"':
            self._in_string = True
        elif char in _CLOSER:
            self._closers.append(_CLOSER[char])
        elif char in "}]":
            self._closers.pop()
            if not self._closers:
                self._end_value()

    def _string_char(self, char: str) -> bool:
        """Whether this character closes the string that is open."""
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            return True
        return False

    def _end_value(self) -> None:
        self._at = "after_value"
        if self._key == "name" and self.name is None:
            self.name = self._decoded()

    def _decoded(self) -> str | None:
        try:
            return str(json.loads(self._token))
        except json.JSONDecodeError:
            self.failed = True
            return None

    def _close(self) -> None:
        whole = self._has_arguments or not self._needs_arguments or self.name in self._plain
        self.done = self.name is not None and whole
        self.failed = not self.done


class ValueScanner:
    """Finds where one JSON object ends; white space in front of it is skipped. Not reusable."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False
        self.done = False
        """Whether the object is closed."""
        self.failed = False
        """It is none; nothing after this point was read."""

    def feed(self, text: str) -> int:
        """Read on; return how many characters were read: all, unless done or failed."""
        for i, char in enumerate(text):
            if self._in_string:
                self._string_char(char)
            elif char in _CLOSER:
                self.failed = not self._closers and char != "{"
                self._closers.append(_CLOSER[char])
            elif char in "}]":
                self.failed = self._closers[-1:] != [char]
                self.done = not self.failed and len(self._closers) == 1
                self._closers = self._closers[:-1]
            elif char == '"' and self._closers:
                self._in_string = True
            else:
                self.failed = not self._closers and char not in _SPACE
            if self.failed or self.done:
                return i + self.done
        return len(text)

    def _string_char(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
