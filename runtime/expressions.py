"""Oniguruma's regular expressions, matched by ``re``, which does not count its steps.

An expression is read into atoms, each of which stands for one character (``a``, ``\\s``,
``\\p{L}``, ``[^\\r\\n]``), and what holds them together, which both spell alike. Which characters
an atom stands for is asked of Oniguruma, through the tokenizer library, for the characters of a
text: those that no atom tells apart are one class, and ``re`` matches an expression over classes
against the text in classes. So both know the same letters, whichever Unicode they were built with.

Knows the syntax that tokenizers use. What it does not know, and what the two would match
differently, is ``Unsupported``.

Always true: ``Matcher.spans`` are the matches that Oniguruma finds.
"""

import re
from collections.abc import Iterable, Iterator

from tokenizers import Regex, pre_tokenizers


class Unsupported(Exception):
    """The expression has something that is not known here, or may match nothing at all."""


class Expression:
    """One expression. Safe to share between threads."""

    def __init__(self, pattern: str) -> None:
        """Raises Unsupported: see there."""
        reader = _Reader(pattern)
        reader.read()
        self.parts = tuple(reader.parts)
        """Syntax as ``re`` has it too, and numbers of atoms."""
        self.atoms = tuple(reader.atoms)
        Matcher(self, "")

    def over(self, alphabet: Iterable[str]) -> "Matcher":
        """An expression that finds its matches in texts that are mostly made of ``alphabet``."""
        return Matcher(self, alphabet)


class Matcher:
    """Matches one expression against several texts."""

    def __init__(self, expression: Expression, alphabet: Iterable[str]) -> None:
        self._parts = expression.parts
        self._atoms = expression.atoms
        self._classes: dict[int, str] = {}
        """Characters and the names of their classes."""
        self._names: dict[int, str] = {}
        """The classes' names by what tells them apart: the atoms that they fit, as bits."""
        self._learn({*alphabet, "\n"})

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where the matches begin and end, one after the other. None is empty."""
        unknown = {char for char in set(text) if ord(char) not in self._classes}
        if unknown:
            self._learn(unknown)
        return (found.span() for found in self._compiled.finditer(text.translate(self._classes)))

    def _learn(self, chars: set[str]) -> None:
        alphabet = "".join(sorted(chars))
        marks = dict.fromkeys(alphabet, 0)
        for number, atom in enumerate(self._atoms):
            for char in _members(atom, alphabet):
                marks[char] |= 1 << number
        known = len(self._names)
        for char, mark in marks.items():
            self._classes[ord(char)] = self._names.setdefault(mark, chr(len(self._names)))
        if len(self._names) > known:
            self._compiled = self._compile()

    def _compile(self) -> re.Pattern[str]:
        spelt = (
            part if isinstance(part, str) else _class(part, self._names) for part in self._parts
        )
        try:
            return re.compile("".join(spelt))
        except (re.error, OverflowError, RecursionError) as error:
            raise Unsupported(str(error)) from error


def _class(atom: int, names: dict[int, str]) -> str:
    """The classes whose characters an atom stands for."""
    inside = "".join(re.escape(name) for mark, name in names.items() if mark >> atom & 1)
    return f"[{inside or _NO_CLASS}]"


def _members(atom: str, alphabet: str) -> frozenset[str]:
    """The characters of ``alphabet`` that an atom stands for."""
    if len(atom) == 1:
        return frozenset(atom) & frozenset(alphabet)
    try:
        others = pre_tokenizers.Split(Regex(atom), "removed").pre_tokenize_str(alphabet)
    except Exception as error:  # any failure inside the Rust library
        raise Unsupported(str(error)) from error
    return frozenset(alphabet).difference(*(piece for piece, _ in others))


_NO_CLASS = chr(0x10FFFF)
_LINE_BEGINS = ("(?:\\A|(?<=", ")(?!\\Z))")
_LINE_ENDS = ("(?=", "|\\Z)")
_ANCHORS = {"\\A": "\\A", "\\z": "\\Z"}
_ESCAPE = re.compile(
    r"\\(?:[sSdDwWhHnrtfvae]|[pP]\{\^?\w+\}|x[0-7][0-9A-Fa-f]|x\{[0-9A-Fa-f]+\}|u[0-9A-Fa-f]{4}"
    r"|[^\w]|_)"
)
_GROUP = re.compile(r"\((?:(\?(?:i?:|>|<?[=!]))|(?!\?)|\?<\w+>)")
_QUANTIFIER = re.compile(r"[*+?][+?]?|\{(?:\d+|\d*,\d*)\}\??")
_SPELT_ALIKE = re.compile(r"[*+?][+?]?|\{\d+\}|\{(?:\d+,\d*|,\d+)\}\??")
_LOOP = re.compile(r"[*+]|\{\d*,\}")
_MAY_BE_NONE = re.compile(r"[*?]|\{(?:0+[,}]|,)")
_DEEPEST = 50
"""Groups within groups; ``re`` reads each with some calls of its own."""
_TWO_IN_ONE = ("ff", "fi", "fl", "ss", "st")
"""Letters of ASCII that fold to one character where case does not count."""


class _Reader:
    """Reads one expression from its beginning to its end."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._folded = ""
        self._choices = 0
        self._depth = 0
        self.parts: list[str | int] = []
        """Syntax as ``re`` has it too, and numbers of atoms."""
        self.atoms: dict[str, int] = {}

    def read(self) -> None:
        """Raises Unsupported: see there."""
        if self._alternatives(folds=False):
            raise Unsupported("it may match nothing")
        if self._at < len(self._pattern):
            raise Unsupported("a bracket closes nothing")

    def _alternatives(self, *, folds: bool) -> bool:
        """Up to the bracket that closes them, or the end; whether they may match nothing.

        Args:
            folds: the case of letters does not count.
        """
        empty = self._sequence(folds)
        while self._next("|"):
            self._at += 1
            self.parts.append("|")
            empty |= self._sequence(folds)
        return empty

    def _sequence(self, folds: bool) -> bool:
        empty = True
        while self._at < len(self._pattern) and not self._next("|") and not self._next(")"):
            empty &= self._repeated(folds)
        return empty

    def _repeated(self, folds: bool) -> bool:
        choices = self._choices
        empty = self._element(folds)
        found = _QUANTIFIER.match(self._pattern, self._at)
        if found is None:
            return empty
        self._at = found.end()
        if empty or _QUANTIFIER.match(self._pattern, self._at):
            raise Unsupported("a repetition of what may be empty, or of a repetition")
        if _SPELT_ALIKE.fullmatch(found[0]) is None:
            raise Unsupported(f"the repetition {found[0]}")
        if self._choices > choices and _LOOP.match(found[0]):
            raise Unsupported("a loop of which each round may have any of several lengths")
        self._choices += "," in found[0] or found[0][0] != "{"
        self.parts.append(found[0])
        return _MAY_BE_NONE.match(found[0]) is not None

    def _element(self, folds: bool) -> bool:
        folded, self._folded = self._folded, ""
        anchor = _ANCHORS.get(self._pattern[self._at : self._at + 2])
        if self._next("("):
            return self._group(folds)
        if self._next("^") or self._next("$"):
            before, after = _LINE_BEGINS if self._next("^") else _LINE_ENDS
            self.parts += (before, self._number("\n"), after)
            self._at += 1
            return True
        if anchor is not None:
            self.parts.append(anchor)
            self._at += 2
            return True
        atom = self._atom()
        self.parts.append(self._number(self._folding(atom, folded) if folds else atom))
        return False

    def _folding(self, literal: str, before: str) -> str:
        """``literal`` in both cases; ``before`` is the letter in front of it."""
        if len(literal) > 1 or not literal.isascii():
            raise Unsupported("the case of what is no letter of ASCII does not count")
        self._folded = literal.lower()
        if before + self._folded in _TWO_IN_ONE:
            raise Unsupported("two letters are one where case does not count")
        return f"(?i:{literal})" if literal.isalpha() else literal

    def _atom(self) -> str:
        """Take the atom that stands here: one character that stands for itself, or syntax."""
        start, char = self._at, self._pattern[self._at]
        if char in "*+?":
            raise Unsupported("a repetition of nothing")
        if char == "[":
            self._at = self._class_end()
            return self._pattern[start : self._at]
        if char != "\\":
            self._at += 1
            return "[^\n]" if char == "." else char
        found = _ESCAPE.match(self._pattern, start)
        if found is None:
            raise Unsupported(f"the escape {self._pattern[start : start + 2]}")
        self._at = found.end()
        return found[0] if found[0][1].isalnum() else found[0][1]

    def _number(self, atom: str) -> int:
        return self.atoms.setdefault(atom, len(self.atoms))

    def _group(self, folds: bool) -> bool:
        found = _GROUP.match(self._pattern, self._at)
        if found is None:
            raise Unsupported(f"the group {self._pattern[self._at : self._at + 3]}")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise Unsupported("groups nested too deep")
        self._at = found.end()
        kind = found[1] or "?:"
        self.parts.append("(" + kind.replace("i", ""))
        empty = self._alternatives(folds=folds or "i" in kind)
        if not self._next(")"):
            raise Unsupported("a bracket is not closed")
        self._at += 1
        self._depth -= 1
        self.parts.append(")")
        return empty or kind[-1] in "=!"

    def _class_end(self) -> int:
        """Where the class ends that begins here; classes may stand in classes."""
        depth, at = 0, self._at
        while at < len(self._pattern):
            char = self._pattern[at]
            if char == "[" and depth and self._pattern.startswith(":", at + 1):
                at = self._pattern.find(":]", at) + 1 or len(self._pattern)
            elif char == "[":
                depth += 1
                at += self._pattern.startswith("^", at + 1)
                if self._pattern.startswith("]", at + 1):
                    raise Unsupported("a class begins with a bracket")
            elif char == "]":
                depth -= 1
            if depth == 0:
                return at + 1
            at += 2 if char == "\\" else 1
        raise Unsupported("a class is not closed")

    def _next(self, sign: str) -> bool:
        return self._pattern.startswith(sign, self._at)
