"""The parts of ``keepwarm.testing``: a server in the process that answers as a script says."""
