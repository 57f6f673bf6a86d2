"""Text is cut at special tokens, the longer first, and nothing of it is lost."""

from runtime.chat_judge.literals import Literals
from tools_api.chat_format import Segment


def test_special_tokens_are_segments_of_their_own() -> None:
    literals = Literals(["<a>", "<a>b", "[", ""])
    assert literals.cut("x<a>b<a>[y") == (
        Segment("x"),
        *(Segment(text, special=True) for text in ("<a>b", "<a>", "[")),
        Segment("y"),
    )
    assert literals.cut("") == ()
    assert Literals([]).cut("<a>") == (Segment("<a>"),)
    assert literals.has_token("<a>")
    assert not literals.has_token("")
