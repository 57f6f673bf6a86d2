"""Imports point downwards: between packages, and inside each by the document's order."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.architecture import (
    PACKAGES,
    ROOT,
    document,
    imported_at_load,
    imported_modules,
    module_name,
    modules_in_tree,
    source_files,
)

MAY_IMPORT: dict[str, set[str]] = {
    "kernels": set(),
    "radix_cache": set(),
    "tools_api": set(),
    "runtime": {"kernels", "radix_cache", "tools_api"},
    "sessions": {"runtime", "tools_api"},
}
THIRD_PARTY = {
    "kernels": {"torch", "triton", "numpy"},
    "radix_cache": {"numpy", "xxhash"},
    "tools_api": {"pydantic", "pydantic_core", "orjson", "websockets"},
}
"""What the lower packages may take from outside; the base install has only tools_api's."""
CLIENT_CLOSURE = {
    f"tools_api.{name}" for name in ("client_turn", "errors", "items", "limits", "tools", "wire")
}
LATE_IMPORTS = {"runtime.engine_process"}
"""Modules that may import inside a function: the child's main loads torch, its parent does not."""
PICKLES = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
ALL_FILES = [path for package in PACKAGES for path in source_files(package)]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def top(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def closure(module: str) -> set[str]:
    """Every module of ours that importing ``module`` loads, ``module`` itself excluded."""
    tree = modules_in_tree()
    reached: set[str] = set()
    open_names = [module]
    while open_names:
        source = tree[open_names.pop()].read_text(encoding="utf-8")
        new = {name for name in imported_at_load(source) if name in tree} - reached
        reached |= new
        open_names += new
    return reached - {module}


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_downwards_between_packages(package: str) -> None:
    forbidden = set(PACKAGES) - MAY_IMPORT[package] - {package}
    for path in source_files(package):
        wrong = top(imported_modules(path.read_text(encoding="utf-8"))) & forbidden
        assert not wrong, f"{relative(path)} imports {sorted(wrong)}"


def test_imports_inside_a_package_go_from_later_rows_to_earlier_ones() -> None:
    place = {module.name: row for row, module in enumerate(document())}
    for name, path in modules_in_tree().items():
        source = path.read_text(encoding="utf-8")
        if name in LATE_IMPORTS:
            continue
        for other in imported_modules(source) & place.keys():
            if other.split(".")[0] == name.split(".")[0]:
                assert place[other] < place[name], f"{name} imports {other}, which stands later"


@pytest.mark.parametrize("package", THIRD_PARTY)
def test_the_lower_packages_use_only_their_own_third_parties(package: str) -> None:
    allowed = THIRD_PARTY[package] | set(PACKAGES) | set(sys.stdlib_module_names)
    for path in source_files(package):
        wrong = top(imported_modules(path.read_text(encoding="utf-8"))) - allowed
        assert not wrong, f"{relative(path)} imports {sorted(wrong)}"


def test_torch_is_imported_only_where_the_document_says_so() -> None:
    marked = {module.name for module in document() if module.uses_torch}
    for name, path in modules_in_tree().items():
        if name.startswith("kernels.") or name in marked:
            continue
        assert "torch" not in top(imported_modules(path.read_text(encoding="utf-8"))), name


def test_no_torch_is_reachable_from_wire_cache_or_service() -> None:
    light = [name for name in modules_in_tree() if not name.startswith(("kernels.", "runtime."))]
    program = (
        f"import importlib, sys\n"
        f"for name in {light!r}: importlib.import_module(name)\n"
        f"sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False)
    assert result.returncode == 0


def test_the_client_needs_only_items_tools_and_errors() -> None:
    assert closure("tools_api.client") == CLIENT_CLOSURE


@pytest.mark.parametrize("path", ALL_FILES, ids=relative)
def test_no_module_hides_a_cycle_or_unpickles(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert "TYPE_CHECKING" not in source
    assert not top(imported_modules(source)) & PICKLES


@pytest.mark.parametrize("path", ALL_FILES, ids=relative)
def test_imports_stand_at_the_top(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    if module_name(path) not in LATE_IMPORTS:
        assert imported_modules(source) == imported_at_load(source)


def test_a_package_init_is_a_docstring() -> None:
    for path in ALL_FILES:
        if path.name != "__init__.py" or path == ROOT / "runtime/__init__.py":
            continue  # runtime's holds the guard against a foreign package named kernels
        statements = ast.parse(path.read_text(encoding="utf-8")).body
        assert len(statements) == 1, relative(path)
        assert isinstance(statements[0], ast.Expr), relative(path)
        assert isinstance(statements[0].value, ast.Constant), relative(path)


def test_every_module_opens_with_a_docstring() -> None:
    for path in ALL_FILES:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), relative(path)


def test_every_module_has_a_test_module_of_its_name() -> None:
    tests = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    missing = [
        name
        for name in modules_in_tree()
        if f"test_{name.rsplit('.', 1)[-1]}" not in tests
        and f"test_{name.replace('.', '_')}" not in tests
    ]
    assert not missing
