"""All kernels of recorded steps are compiled side by side, before the first of them is launched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed; `make kernels` has it")

from kernels.launching import compiling_ahead, launch


class Kernel:
    """Keeps what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, bool, tuple[object, ...], dict[str, object]]] = []

    def run(self, *arguments: object, grid: object, warmup: bool, **sizes: object) -> None:
        self.asked.append((grid, warmup, arguments, sizes))


def test_a_launch_is_made_outside_and_only_compiled_inside() -> None:
    kernel = Kernel()
    launch(kernel, (3,))(1, SIZE=2)
    with compiling_ahead(1):
        launch(kernel, (4,))(5, SIZE=6)
    launch(kernel, (7,))(8)
    assert kernel.asked == [
        ((3,), False, (1,), {"SIZE": 2}),
        ((4,), True, (5,), {"SIZE": 6}),
        ((7,), False, (8,), {}),
    ]


def test_a_failure_inside_ends_it() -> None:
    kernel = Kernel()
    with pytest.raises(ZeroDivisionError), compiling_ahead(1):
        raise ZeroDivisionError
    launch(kernel, (1,))()
    assert kernel.asked == [((1,), False, (), {})]


def test_recorded_steps_of_a_model_are_compiled_for_an_h200_without_one(tmp_path: Path) -> None:
    own = {"KEEPWARM_KERNELS": "triton", "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    own["OMP_NUM_THREADS"] = "1"
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.compile_ahead"],
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    said = json.loads(run.stdout.splitlines()[-1])
    first, second, served = said["compiled"]
    assert first >= 20
    assert second == 0
    assert served == 0
    assert said["graphs"] >= 2
    assert len(list(tmp_path.rglob("*.cubin"))) == first
