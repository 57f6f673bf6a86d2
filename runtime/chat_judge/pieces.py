"""The pieces of a chat template's texts, found by comparing texts of short conversations.

Turns are what a longer conversation's text has more than a shorter one's. What they are given is
marked, so that it can be told from what the template writes around it. What is found is data for
``tools_api.chat_generic``.

Knows texts alone: the template ran elsewhere.

Always true: ``pieces_of`` either finds everything or raises, naming the conversation.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from runtime.chat_judge.call_match import matching_syntax
from runtime.chat_judge.conversations import call_id
from runtime.chat_judge.differences import difference, without_empty_thoughts
from runtime.chat_judge.literals import Literals
from runtime.chat_judge.short_conversations import (
    ANSWER,
    CALLS,
    LATER,
    MORE,
    NAMES,
    OUTPUTS,
    SECOND,
    SYSTEM,
    THOUGHT,
    TOOLS,
    USER,
)
from tools_api.chat_format import THINK_CLOSER, THINK_OPENER, Segment
from tools_api.chat_generic import Learned, Part, Parts, Pieces, Slot, Trim, opens_thinking
from tools_api.tool_listing import LISTINGS


class Unfit(Exception):
    """Turns cannot be written one after the other as this template writes them. The message is
    a sentence with the place."""


class _NoTools(Exception):
    """The same of tools and calls alone."""


@dataclass(frozen=True, slots=True)
class Found:
    """Pieces, and why they have no tools where they have none."""

    pieces: Pieces
    no_tools: str = ""


@dataclass(frozen=True, slots=True)
class _Marked:
    """The texts around a mark."""

    before: str
    behind: str
    trim: Trim


class _Texts:
    """The texts by their conversations' names."""

    def __init__(self, texts: Mapping[str, str], errors: Mapping[str, str]) -> None:
        self._texts = {name: without_empty_thoughts(text) for name, text in texts.items()}
        self._whole, self._errors = texts, errors

    def has(self, name: str) -> bool:
        return name in self._texts

    def text(self, name: str) -> str:
        if name not in self._texts:
            raise Unfit(f"for {name!r} it gives no text: {self._errors.get(name, '')}")
        return self._texts[name]

    def grown(self, shorter: str, longer: str) -> str:
        """The text that the longer has more. Raises Unfit: it does not begin with the shorter."""
        return self._more(self.text(shorter), self.text(longer), shorter, longer)

    def prompt(self, shorter: str, longer: str) -> str:
        """The same where the longer ends in a prompt, which may hold an empty think block."""
        self.text(longer)
        whole, text = self._whole[longer], self.text(shorter)
        for base in (self._whole[shorter], text):
            if whole.startswith(base):
                return whole[len(base) :]
        return self._more(text, whole, shorter, longer)

    def _more(self, text: str, whole: str, shorter: str, longer: str) -> str:
        if whole.startswith(text):
            return whole[len(text) :]
        place = difference(whole, text, longer)
        raise Unfit(
            f"what stands before a turn depends on what follows it: the text of {longer!r} "
            f"does not begin with that of {shorter!r}, at character {place.at} stands "
            f"{place.template!r} instead of {place.ours!r}"
        )


def _around(text: str, mark: str, where: str) -> _Marked:
    count = text.count(mark)
    if count != 1:
        what = "drops what it is given" if not count else f"writes it {count} times"
        raise Unfit(f"the template {what}: in {where!r} the contents {mark!r} stand {count} times")
    before, _, behind = text.partition(mark)
    left, right = before.endswith("\t "), behind.startswith(" \t")
    trim: Trim = "" if left and right else "left" if right else "right" if left else "both"
    return _Marked(
        before.removesuffix("\t ") if left else before,
        behind.removeprefix(" \t") if right else behind,
        trim,
    )


def pieces_of(
    texts: Mapping[str, str],
    errors: Mapping[str, str],
    literals: Literals,
    ways: Sequence[Learned],
) -> Found:
    """The pieces of a template.

    Args:
        texts: of the ``conversations``, by name.
        errors: of those that have no text.
        literals: cuts text at special tokens.
        ways: in which the template may write calls.

    Raises:
        Unfit: there are none.
    """
    return _Extraction(_Texts(texts, errors), literals, ways).found()


class _Extraction:
    """Finds one piece after the other."""

    def __init__(self, texts: _Texts, literals: Literals, ways: Sequence[Learned]) -> None:
        self._texts, self._literals, self._ways = texts, literals, ways
        self._lead = ""
        self._output_trim: Trim = ""

    def found(self) -> Found:
        pieces = self._plain()
        try:
            return Found(self._with_tools(pieces))
        except _NoTools as reason:
            return Found(pieces, str(reason))

    # Turns without tools

    def _plain(self) -> Pieces:
        texts = self._texts
        later = _around(texts.grown("an answer", "a second user"), MORE, "a second user")
        first = _around(texts.text("a user"), USER, "a user")
        self._user = self._without_lead(first, later)
        header = self._header("a user", first)
        if texts.has("two users"):
            self._follows("a user", "two users", MORE, self._user)
        said = self._turn("a user", "an answer", ANSWER)
        self._answer = said
        self._follows("a second user", "a second answer", SECOND, said)
        end = self._literals.cut(said.behind)
        if not end or not end[0].special:
            raise Unfit(
                "no special token ends the model's turn: behind an answer stands "
                f"{said.behind[:40]!r}"
            )
        prompt = texts.prompt("a user", "a prompt")
        if not prompt.startswith(self._lead + said.before):
            raise Unfit(
                f"the model's turn is opened by {prompt[:60]!r}, and later written behind "
                f"{said.before[:60]!r}"
            )
        self._prompt = prompt
        return self._thinking(
            Pieces(
                lead=self._lead,
                headers={"": self._literals.cut(header), "s": self._instructed("instructions")},
                user=self._slot(self._user, "text"),
                system=self._later_system(),
                before_answer=self._literals.cut(said.before),
                answer_trim=said.trim,
                after_answer=end,
                prompt=self._literals.cut(prompt),
                prompt_thinking=self._literals.cut(prompt),
            )
        )

    def _without_lead(self, first: _Marked, later: _Marked) -> _Marked:
        """The user's turn without the white space that stands between turns and not before the
        first."""
        before = later.before
        while before and not first.before.endswith(before):
            before = before[1:]
        self._lead = later.before[: len(later.before) - len(before)]
        if self._lead.strip() or first.behind != later.behind or first.trim != later.trim:
            raise Unfit(
                f"the first user message stands between {first.before[-40:]!r} and "
                f"{first.behind[:40]!r}, a later one between {later.before[-40:]!r} and "
                f"{later.behind[:40]!r}"
            )
        return replace(later, before=before)

    def _header(self, name: str, around: _Marked | None = None) -> str:
        around = around or _around(self._texts.text(name), USER, name)
        user = self._user
        if around.behind != user.behind or not around.before.endswith(user.before):
            raise Unfit(
                f"in {name!r} the user message stands between {around.before[-40:]!r} and "
                f"{around.behind[:40]!r}, elsewhere between {user.before!r} and {user.behind!r}"
            )
        return around.before[: len(around.before) - len(user.before)]

    def _instructed(self, name: str) -> Parts:
        return self._slot(_around(self._header(name), SYSTEM, name), "system")

    def _turn(self, shorter: str, longer: str, mark: str) -> _Marked:
        text = self._texts.grown(shorter, longer)
        if not text.startswith(self._lead):
            raise Unfit(f"in {longer!r} the last turn begins with {text[:20]!r}, others otherwise")
        return _around(text[len(self._lead) :], mark, longer)

    def _follows(self, shorter: str, longer: str, mark: str, known: _Marked) -> None:
        """The last turn is written as elsewhere."""
        found = self._turn(shorter, longer, mark)
        if found != known:
            raise Unfit(
                f"in {longer!r} the last turn stands between {found.before[-60:]!r} and "
                f"{found.behind[:60]!r}, elsewhere between {known.before!r} and {known.behind!r}"
            )

    def _later_system(self) -> Parts | None:
        name = "a later system message"
        if not self._texts.has(name):
            return None
        try:
            return self._slot(self._turn("an answer", name, LATER), "text")
        except Unfit:
            return None

    def _slot(self, around: _Marked, name: str) -> Parts:
        cut = self._literals.cut
        return (*cut(around.before), Slot(name, around.trim), *cut(around.behind))

    def _thinking(self, pieces: Pieces) -> Pieces:
        texts, cut = self._texts, self._literals.cut
        tags = (THINK_OPENER, THINK_CLOSER)
        if not all(map(self._literals.has_token, tags)) or not texts.has("a prompt to think"):
            return pieces
        if texts.text("a user, thinking") != texts.text("a user"):
            return pieces
        asked = cut(texts.prompt("a user, thinking", "a prompt to think"))
        reasoning = self._reasoning()
        if reasoning is None and asked == pieces.prompt and not opens_thinking(asked):
            return pieces
        closing = (Segment("\n"), Segment(THINK_CLOSER, special=True), Segment("\n\n"))
        behind = reasoning[1] if reasoning else closing
        prompt = pieces.prompt
        if opens_thinking(prompt):
            prompt = (*prompt, *behind)
        return replace(
            pieces,
            reasoning=reasoning,
            prompt=prompt,
            prompt_thinking=asked,
            thinking=True,
            opens_reasoning=opens_thinking(asked),
            after_thinking="".join(
                part.text for part in _behind(behind, THINK_CLOSER) if isinstance(part, Segment)
            ),
        )

    def _reasoning(self) -> tuple[Parts, Parts] | None:
        name = "a thought"
        if not self._texts.has(name):
            return None
        text = self._texts.grown("a user", name)[len(self._lead + self._answer.before) :]
        if text.count(THOUGHT) != 1 or text.count(ANSWER) != 1:
            return None
        before, _, rest = text.partition(THOUGHT)
        behind = _around(rest, ANSWER, name).before
        parts = self._literals.cut(before), self._literals.cut(behind)
        tags = [Segment(tag, special=True) for tag in (THINK_OPENER, THINK_CLOSER)]
        return parts if all(map(tuple.__contains__, parts, tags)) else None

    # Tools

    def _with_tools(self, pieces: Pieces) -> Pieces:
        for name in ("one tool", "three tools", "one call", "two calls", "three calls"):
            if not self._texts.has(name):
                raise _NoTools(f"for {name!r} it gives no text")
        listing, between, parts = self._listed("")
        also, again, instructed = self._listed("instructions, ")
        if (listing, between) != (also, again):
            raise _NoTools("it lists tools otherwise under instructions")
        pieces = self._called(pieces)
        before, middle, behind = self._results()
        return replace(
            pieces,
            headers={**pieces.headers, "t": parts, "st": instructed},
            listing=listing,
            between_tools=between,
            outputs=(before, middle, behind),
            output_trim=self._output_trim,
        )

    def _listed(self, under: str) -> tuple[str, str, Parts]:
        one, three = (self._header(f"{under}{name}") for name in ("one tool", "three tools"))
        for name, listing in LISTINGS.items():
            before, found, behind = one.partition(listing(TOOLS[0]))
            if not found or NAMES[0] in before + behind:
                continue
            if not (three.startswith(before) and three.endswith(behind)):
                continue
            middle = three[len(before) : len(three) - len(behind)]
            first, second, third = map(listing, TOOLS)
            between = middle.removeprefix(first).partition(second)[0]
            if middle != between.join((first, second, third)):
                continue
            return name, between, self._joined(before, behind, under)
        raise _NoTools("it lists tools in no way that is known here")

    def _joined(self, before: str, behind: str, under: str) -> Parts:
        def cut(literal: str) -> Parts:
            if under and SYSTEM in literal:
                return self._slot(_around(literal, SYSTEM, f"{under}tools"), "system")
            return self._literals.cut(literal)

        if under and SYSTEM not in before + behind:
            raise Unfit("the template drops the instructions where there are tools")
        return (*cut(before), Slot("tools"), *cut(behind))

    def _called(self, pieces: Pieces) -> Pieces:
        said = self._answer
        start, end = self._lead + said.before, said.behind
        grown = [
            self._texts.grown("three tools", name)
            for name in ("one call", "two calls", "three calls")
        ]
        if not all(text.startswith(start) and text.endswith(end) for text in grown):
            raise _NoTools("it writes calls outside the model's turn")
        inside = [text[len(start) : len(text) - len(end)] for text in grown]
        match = matching_syntax(inside, CALLS, self._literals, self._ways)
        if match is None:
            raise _NoTools(f"it writes calls in no way that is known here: {inside[0][:80]!r}")
        before_text, trim = "", said.trim
        if self._texts.has("a text and a call"):
            text = self._texts.grown("three tools", "a text and a call")
            around = _around(text, ANSWER, "a text and a call")
            tail = match.written(CALLS[:1]) + match.behind + end
            if not around.behind.endswith(tail):
                raise _NoTools("it writes calls behind a text otherwise than alone")
            trim = around.trim
            before_text = around.behind[: len(around.behind) - len(tail)]
        return replace(
            pieces,
            calls=match.learned,
            called_trim=trim,
            before_calls=before_text,
            before_calls_alone=match.before,
            after_calls=match.behind,
        )

    def _results(self) -> tuple[Parts, Parts, Parts]:
        texts = self._texts
        if not texts.has("one output"):
            raise _NoTools("it writes no outputs of calls")
        one = self._turn("one call", "one output", OUTPUTS[0])
        self._output_trim = one.trim
        three = texts.grown("three calls", "three outputs")[len(self._lead) :]
        first = _around(three, OUTPUTS[0], "three outputs")
        second = _around(first.behind, OUTPUTS[1], "three outputs")
        third = _around(second.behind, OUTPUTS[2], "three outputs")
        parts = [
            self._of_call(literal, number)
            for literal, number in (
                (first.before, 1),
                (second.before, 2),
                (third.before, 3),
                (third.behind, 3),
            )
        ]
        alone = self._of_call(one.before, 1), self._of_call(one.behind, 1)
        if parts[1] != parts[2] or alone != (parts[0], parts[3]):
            raise _NoTools("it writes an output otherwise where there are others")
        if texts.prompt("one output", "one output and a prompt") != self._prompt:
            raise _NoTools("it opens the model's turn otherwise behind an output")
        self._follows("one output", "an output and a user", MORE, self._user)
        self._follows("one output", "an output and an answer", SECOND, self._answer)
        return parts[0], parts[1], parts[3]

    def _of_call(self, literal: str, number: int) -> Parts:
        """The literal with slots for the id and name of the call of that number."""

        def slots(text: str, given: str, name: str) -> Iterator[str | Slot]:
            first, *others = text.split(given)
            yield first
            for other in others:
                yield Slot(name)
                yield other

        parts: list[Part] = []
        for piece in slots(literal, call_id(number), "call_id"):
            if isinstance(piece, Slot):
                parts.append(piece)
                continue
            for inner in slots(piece, NAMES[number - 1], "name"):
                parts += [inner] if isinstance(inner, Slot) else self._literals.cut(inner)
        return tuple(parts)


def _behind(parts: Parts, tag: str) -> Parts:
    """The parts behind a special token."""
    at = [i for i, part in enumerate(parts) if part == Segment(tag, special=True)]
    return parts[at[-1] + 1 :] if at else ()
