#!/usr/bin/env bash
# One part of what is to be found out on a GPU: tools/gpu_run.sh PART OUT_DIR [--rehearse]
# Results come as they are made; see tools/gpu_run.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python3}" -m tools.gpu_run "$@"
