"""Compile the Triton kernels for an H200 (sm_90) and check the machine code. Needs no GPU.

    python -m tools.compile_kernels [--json]

For each kernel with the sizes and tilings it is launched with (``tools.kernel_builds``): registers,
spills, shared memory, and which instructions its inner loop is made of. Exit code 1 if a bar is not
met. Says nothing about time, nor about results: those are for the interpreter's tests and a GPU.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tools.kernel_build import Build
from tools.kernel_builds import builds

TARGET = GPUTarget("cuda", 90, 32)
SHARED_MEMORY_BYTES = 227 * 1024
"""Most that one block of threads may have on sm_90."""
REGISTERS = 65536
"""Registers of one multiprocessor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The outcome of a compilation."""

    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    hgmma: int
    hmma: int
    ldgsts: int
    ldg: int
    faults: tuple[str, ...]


def compile_one(build: Build) -> Code:
    """Compile and look at the code."""
    names = build.kernel.arg_names
    signature = {name: build.types.get(name, "constexpr") for name in names}
    source = ASTSource(
        build.kernel,
        signature,
        constexprs=build.constants,
        attrs={
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(names)
            if signature[name].startswith("*")
        },
    )
    options = {
        "num_warps": build.num_warps,
        "num_stages": build.num_stages,
        "enable_fp_fusion": build.fused,
    }
    compiled = triton.compile(source, target=TARGET, options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
        listing = _tool("nvdisasm", file.name)
    registers, stack = (int(re.findall(rf"{key}:(\d+)", usage)[-1]) for key in ("REG", "STACK"))
    local = len(re.findall(r"\b(?:LDL|STL)\b", listing))
    counts = {
        key: len(re.findall(rf"\b{key}\b", listing))
        for key in ("HGMMA", "HMMA", "LDGSTS", "LDG", "FFMA")
    }
    shared = int(compiled.metadata.shared)
    threads = build.num_warps * 32
    faults = []
    if stack or local:
        faults.append(f"spills: {stack} bytes of stack, {local} local accesses")
    if shared * build.blocks_at_once > SHARED_MEMORY_BYTES:
        faults.append(f"{shared} bytes of shared memory, {build.blocks_at_once} blocks at once")
    if registers * threads * build.blocks_at_once > REGISTERS:
        faults.append(f"{registers} registers, {build.blocks_at_once} blocks of {threads} threads")
    if registers > build.max_registers:
        faults.append(f"{registers} registers, at most {build.max_registers} are wanted")
    if build.needs and not counts[build.needs]:
        faults.append(f"no {build.needs}")
    if not build.fused and counts["FFMA"]:
        faults.append(f"{counts['FFMA']} fused products and sums")
    return Code(
        name=build.name,
        registers=registers,
        spilled_bytes=stack,
        shared_bytes=shared,
        hgmma=counts["HGMMA"],
        hmma=counts["HMMA"],
        ldgsts=counts["LDGSTS"],
        ldg=counts["LDG"],
        faults=tuple(faults),
    )


def _tool(name: str, *arguments: str) -> str:
    """Output of one of the binary tools that Triton's wheel carries."""
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--json", action="store_true", help="print one line of JSON")
    options.add_argument("--only", default="", help="builds whose name contains this")
    arguments = options.parse_args()
    codes = [compile_one(build) for build in builds() if arguments.only in build.name]
    if arguments.json:
        answer = {"triton": triton.__version__, "target": "sm_90"}
        print(json.dumps(answer | {"kernels": [asdict(code) for code in codes]}))
    else:
        print(f"Triton {triton.__version__}, sm_90")
        print(f"{'kernel':<36}{'regs':>5}{'spill':>6}{'shared':>8}", end="")
        print(f"{'HGMMA':>7}{'HMMA':>6}{'LDGSTS':>8}{'LDG':>5}")
        for code in codes:
            print(f"{code.name:<36}{code.registers:>5}{code.spilled_bytes:>6}", end="")
            print(f"{code.shared_bytes:>8}{code.hgmma:>7}{code.hmma:>6}", end="")
            print(f"{code.ldgsts:>8}{code.ldg:>5}  {'; '.join(code.faults)}")
    faulty = sum(bool(code.faults) for code in codes)
    print(f"{len(codes)} kernels compiled, {faulty} with faults", file=sys.stderr)
    return 1 if faulty or not codes else 0


if __name__ == "__main__":
    sys.exit(main())
