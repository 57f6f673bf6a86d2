"""A finding is what one line and its advice say."""

from keepwarm.commands.doctor import lines
from sessions.command.finding import Finding


def test_a_finding_is_a_line_and_its_advice_another() -> None:
    fault = Finding(what="port", verdict="fault", found="taken\x1b", advice="take another")
    assert lines(fault, colour=False) == ["fault: port: taken\ufffd", "  take another"]
    assert lines(fault, colour=True)[0].startswith("\x1b[31mfault")
