"""Every statement that lets something go of a request, and the code without one of them."""

RELEASES: list = []
Release = object
left_out = None
