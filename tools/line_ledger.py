"""Lines of Python per package, and the longest file and function of each.

Printed for each change by CI. A size is a question ("is this two things?"), not a verdict:
nothing fails here.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernels", "radix_cache", "tools_api", "runtime", "sessions")
BESIDE = ("examples", "benchmarks", "tools", "tests")


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (lines, name) of every function in ``path``."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, node.name


def row(folder: str) -> tuple[int, str]:
    """Return the line count of ``folder`` and its line of the table."""
    files = python_files(ROOT / folder)
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    longest_file = max(lengths, key=lambda path: lengths[path], default=None)
    longest_function = max(
        ((*found, path) for path in files for found in functions(path)),
        key=lambda found: found[0],
        default=None,
    )
    total = sum(lengths.values())
    file_text = f"{longest_file.name} {lengths[longest_file]}" if longest_file else ""
    function_text = f"{longest_function[1]} {longest_function[0]}" if longest_function else ""
    return total, f"{folder:<12}{len(files):>6}{total:>8}  {file_text:<32}{function_text}"


def main() -> None:
    print(f"{'package':<12}{'files':>6}{'lines':>8}  {'longest file':<32}longest function")
    packages = [row(folder) for folder in PACKAGES]
    for _, text in packages:
        print(text)
    print(f"{'together':<12}{'':>6}{sum(lines for lines, _ in packages):>8}")
    for _, text in map(row, BESIDE):
        print(text)


if __name__ == "__main__":
    main()
