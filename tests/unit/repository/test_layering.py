"""Imports point downwards between packages and folders, and run in no circle inside one."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Set
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.architecture import (
    PACKAGES,
    ROOT,
    folder_of,
    imported_at_load,
    imported_modules,
    module_name,
    modules_in_tree,
    source_files,
)
from tools.modules_table import FOLDERS

MAY_IMPORT: dict[str, set[str]] = {
    "kernels": set(),
    "radix_cache": set(),
    "tools_api": set(),
    "runtime": {"kernels", "radix_cache", "tools_api"},
    "sessions": {"runtime", "tools_api"},
    "cluster": {"runtime", "sessions"},
    "keepwarm": {"cluster", "sessions", "tools_api"},
}
THIRD_PARTY = {
    "kernels": {"torch", "triton", "numpy"},
    "radix_cache": {"numpy", "xxhash"},
    "tools_api": {"pydantic", "pydantic_core", "orjson", "websockets"},
    "cluster": {"ray"},
    "keepwarm": {"click", "pydantic", "mcp", "httpx2", "orjson", "textual", "rich"}
    | {"websockets"},
}
"""What these may take from outside; the base install has only tools_api's."""
CLIENT_CLOSURE = {
    f"tools_api.{name}"
    for name in (
        *("built_in_items", "errors", "exact_json", "exact_numbers", "item_fields"),
        *("item_reading", "items", "json_bounds", "json_fields", "noted_items"),
    )
}
LATE_IMPORTS = {
    "sessions.journal.places",
    "keepwarm.__main__",
    "keepwarm.commands.cluster",
    "keepwarm.commands.serve_words",
    "cluster.ray_replica",
    "cluster.up",
    "runtime.process.engine_process",
    "runtime.process.loading",
    "sessions.command.tracing",
    "sessions.command.hub",
    "tools_api.sdk.options",
    "tools_api.sdk.session",
    "tools_api.sdk.sync_session",
    "tools_api.sdk.transport",
}
"""Modules that may import inside a function: the command loads the server where there is one, and
what stands before servers where that is asked for; the
child's main loads torch, its parent does not; what several ranks need is loaded where there are
several; OpenTelemetry and huggingface_hub are extras; a
client without tools or transcripts loads no schemas and no HTTP."""
USES_TORCH = {
    "engine.lookahead",
    "engine.step_computation",
    "model.batch",
    "model.checkpoint",
    "model.code_layouts",
    "model.compressed_mixer",
    "model.compressor",
    "model.cuda_graphs",
    "model.cut_weights",
    "model.decoder",
    "model.delta_mixer",
    "model.delta_states",
    "model.embedding",
    "model.expert_stacks",
    "model.family_weights",
    "model.feed_forward",
    "model.gguf_weights",
    "model.hyper_connections",
    "model.kv_pool",
    "model.kimi_mixer",
    "model.latent_mixer",
    "model.adapter_folder",
    "model.adapters",
    "model.block_indexer",
    "model.layer_inputs",
    "model.layers",
    "model.memory_plan",
    "model.mamba_mixer",
    "model.mixer",
    "model.recurrent_mixers",
    "model.pages_ahead",
    "model.pool_indexer",
    "model.product_timing",
    "model.quantised_tensors",
    "model.random_weights",
    "model.rank_group",
    "model.rank_link",
    "model.rank_sum",
    "model.rotary",
    "model.router",
    "model.runner",
    "model.safetensors_file",
    "model.sampler",
    "model.state_plan",
    "model.state_pool",
    "model.state_step",
    "model.windowed_step",
    "model.step_buckets",
    "model.token_indexer",
    "model.warm_up",
    "model.weights",
    "offload.copies",
    "offload.opening",
    "offload.state_copies",
    "process.device_report",
    "process.model_report",
    "process.rank",
    "process.ranks",
    "process.stored_profile",
}
"""Modules of ``runtime`` that may import torch; the process that serves imports none of them."""
PICKLES = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
LEFT_OUT = {"campaigns", "faults", "hostile", "training", "benchmarks", "clients"}
"""Folders of tests that `make test` does not run: `make test-all` runs all but the last, which
`make test-clients` does."""
NOT_OF_MODULES = {"training", "benchmarks", "clients"}
"""Folders whose tests are not about modules of the packages."""
ALL_FILES = [path for package in PACKAGES for path in source_files(package)]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def top(names: Set[str]) -> set[str]:
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


def imports() -> dict[str, Set[str]]:
    """Of every module, the modules of ours that it imports."""
    tree = modules_in_tree()
    return {
        name: imported_modules(path.read_text(encoding="utf-8")) & tree.keys()
        for name, path in tree.items()
        if name not in LATE_IMPORTS
    }


def test_every_folder_with_modules_has_its_floor() -> None:
    assert set(FOLDERS) == {folder_of(name) for name in modules_in_tree()}


def test_imports_inside_a_package_go_from_later_folders_to_earlier_ones() -> None:
    floor = {folder: number for number, folder in enumerate(FOLDERS)}
    for name, others in imports().items():
        for other in others:
            if other.split(".")[0] == name.split(".")[0]:
                above, below = floor[folder_of(name)], floor[folder_of(other)]
                assert below <= above, f"{name} imports {other}, which stands above it"


def test_no_imports_inside_a_folder_run_in_a_circle() -> None:
    inside = {
        name: {other for other in others if folder_of(other) == folder_of(name)}
        for name, others in imports().items()
    }
    TopologicalSorter(inside).prepare()  # raises CycleError, which names the circle


@pytest.mark.parametrize("package", THIRD_PARTY)
def test_the_lower_packages_and_the_topmost_use_only_their_own_third_parties(package: str) -> None:
    allowed = THIRD_PARTY[package] | set(PACKAGES) | set(sys.stdlib_module_names)
    for path in source_files(package):
        wrong = top(imported_modules(path.read_text(encoding="utf-8"))) - allowed
        assert not wrong, f"{relative(path)} imports {sorted(wrong)}"


def test_torch_is_imported_only_where_it_may_be() -> None:
    may = {f"runtime.{name}" for name in USES_TORCH}
    assert may <= modules_in_tree().keys()
    for name, path in modules_in_tree().items():
        if name.startswith("kernels.") or name in may:
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


def test_the_client_needs_only_items_and_errors_until_it_is_given_a_tool() -> None:
    sdk = {name for name in modules_in_tree() if name.startswith("tools_api.sdk.")}
    other = {"client", "sync_client", "sync_session", "portal", "tool_making"}
    loaded = sdk - {f"tools_api.sdk.{name}" for name in other}
    assert closure("tools_api.sdk.client") == CLIENT_CLOSURE | loaded


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
        if path.name != "__init__.py" or path.parent.name in ("keepwarm", "runtime"):
            continue  # the names to import; the guard against a foreign package named kernels
        statements = ast.parse(path.read_text(encoding="utf-8")).body
        assert len(statements) == 1, relative(path)
        assert isinstance(statements[0], ast.Expr), relative(path)
        assert isinstance(statements[0].value, ast.Constant), relative(path)


def test_every_module_opens_with_a_docstring() -> None:
    for path in ALL_FILES:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), relative(path)


def test_every_suppression_of_a_rule_is_one_that_ruff_can_read() -> None:
    """Ruff warns of another one, reports what it should have suppressed, and exits with 0."""
    told = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "RUF100", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "noqa" not in told.stderr


def run_by_make_test() -> list[Path]:
    """What ``make test`` runs: pytest's own ``testpaths``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [ROOT / name for name in project["tool"]["pytest"]["ini_options"]["testpaths"]]


def folders_of_tests() -> set[str]:
    """The folders in ``tests`` that hold tests, at any depth."""
    tests = ROOT / "tests"
    return {path.relative_to(tests).parts[0] for path in tests.rglob("test_*.py")}


def test_make_test_leaves_out_the_folders_that_are_named_for_it_and_no_other() -> None:
    run = run_by_make_test()
    assert all(path.exists() for path in run)
    assert (
        folders_of_tests() - {path.relative_to(ROOT / "tests").parts[0] for path in run} == LEFT_OUT
    )


@pytest.mark.tail
def test_every_test_module_can_be_collected_without_triton() -> None:
    """`make test` has none; a module that cannot be imported is an error, not a skipped test."""
    found = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        names = imported_at_load(path.read_text(encoding="utf-8"))
        needed = {n for n in names if n.split(".")[0] == "triton" or "kernels.triton_" in n}
        if needed:
            found[relative(path)] = needed
    assert not found


def untested(modules: set[str], sources: dict[str, str]) -> set[str]:
    """``modules`` without a test module among ``sources``, which are by the test module's name.
    One has the module's name (``__main__`` its package's), or that of a folder it lies in and
    imports from the module; more folders may stand before either."""

    def of(parts: list[str]) -> list[str]:
        names = ("test_" + "_".join(parts[first:]) for first in range(len(parts)))
        return [sources[name] for name in names if name in sources]

    return {
        name
        for name in modules
        if not of(name.removesuffix(".__main__").split("."))
        and not any(
            name in imported_modules(source)
            for end in range(1, name.count(".") + 1)
            for source in of(name.split(".")[:end])
        )
    }


def test_every_module_has_a_test_module_of_its_name_or_its_folders_imports_from_it() -> None:
    folders = folders_of_tests() - NOT_OF_MODULES
    paths = (path for name in folders for path in (ROOT / "tests" / name).rglob("test_*.py"))
    sources = {path.stem: path.read_text(encoding="utf-8") for path in paths}
    assert not untested(set(modules_in_tree()), sources)


def test_a_folders_test_module_counts_for_what_it_imports_from_alone() -> None:
    modules = {"a.b.one", "a.b.two", "a.c.one", "a.three"}
    sources = {"test_b": "from a.b.one import x", "test_three": "", "test_c_one": ""}
    assert untested(modules, sources) == {"a.b.two"}
    assert untested(modules, sources | {"test_a_b": "from a.b import two"}) == set()
    assert untested(modules, {}) == modules
