"""``keepwarm.demo.child_server`` under its former name."""

from keepwarm.demo.child_server import ChildServer, ServerDidNotStart, child_server

__all__ = ["ChildServer", "ServerDidNotStart", "child_server"]
