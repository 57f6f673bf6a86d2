"""Names under which members and their balancer know each other."""

from sessions.journal.members import MemberState, bell_of


def test_a_clusters_bell_is_no_servers_name() -> None:
    assert bell_of("prod") == "cluster/prod"  # a server's own has a host's name and colons


def test_states_are_words_of_the_row() -> None:
    assert [str(each) for each in MemberState] == ["starting", "ready", "draining"]
