"""Lists of modules in a model's folder, in the ways in which programs write and read them.

Always true: two lists that say the same in the same way are equal, and a list of thousands of names
is looked through in the time of a few.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from runtime.model.name_patterns import NamePattern, UnknownSyntax, expression

Way = Literal["ends", "wildcards", "parts", "targets", "all"]
"""How a name in a list is meant: a module that begins or ends so (transformers); one with ``*`` in
it, with all that is within (modelopt); a part of a module's name (AWQ); the whole name, or an
expression behind ``re:`` (compressed-tensors); whatever it is."""


@dataclass(frozen=True, slots=True)
class ModuleNames:
    """A list of modules' names, as a quantisation config has it."""

    way: Way
    names: tuple[str, ...]
    _prefixes: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _globs: tuple[str, ...] = field(init=False, repr=False, compare=False)
    _expressions: tuple[NamePattern, ...] = field(init=False, repr=False, compare=False)
    _plain: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raises UnknownSyntax: an expression cannot be read; the message begins with it."""
        expressions = [name for name in self.names if name.startswith("re:")]
        starred = [name for name in self.names if "*" in name]
        plain = [name for name in self.names if name and "*" not in name]
        put = object.__setattr__
        put(self, "_prefixes", tuple(f"{name}." for name in plain))
        put(self, "_globs", tuple(name.replace("\\.", ".").replace(".*", "*") for name in starred))
        put(self, "_plain", frozenset(plain))
        read = _read(expressions) if self.way == "targets" else ()
        put(self, "_expressions", tuple(read))

    def fits(self, module: str) -> bool:
        """Whether the list has this one."""
        if self.way == "targets":
            return module in self._plain or any(each.fits(module) for each in self._expressions)
        if self.way == "parts":
            return any(name in module for name in self._plain)
        if module in self._plain or module.startswith(self._prefixes):
            return True
        if self.way == "ends" and module.endswith(tuple(self._plain)):
            return True
        return self.way == "all" or any(
            fnmatchcase(module, glob) or fnmatchcase(module, f"{glob}.*") for glob in self._globs
        )


def _read(names: Sequence[str]) -> Sequence[NamePattern]:
    found = []
    for name in names:
        try:
            found.append(expression(name.removeprefix("re:")))
        except UnknownSyntax as error:
            raise UnknownSyntax(f"{name[:80]!r}: {error}") from error
    return found
