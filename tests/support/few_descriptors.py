"""The command ``keepwarm`` in a process that may have few files open.

``FEW_DESCRIPTORS`` says how many: as after ``ulimit -n``, no process of the server may have more.
"""

import os
import resource
import sys

if __name__ == "__main__":
    most = int(os.environ["FEW_DESCRIPTORS"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    from keepwarm.__main__ import main

    sys.exit(main(sys.argv[1:]))
