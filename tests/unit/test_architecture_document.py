"""docs/architecture.md lists exactly the modules that exist."""

from tests.support.architecture import PACKAGES, ROOT, document, documented_modules, modules_in_tree


def test_the_document_lists_exactly_the_modules_that_exist() -> None:
    listed = [module.name for module in document()]
    assert sorted(listed) == sorted(modules_in_tree())


def test_the_packages_stand_from_the_lowest_to_the_highest() -> None:
    listed = [module.name.split(".")[0] for module in document()]
    assert [package for package in PACKAGES if package in listed] == list(dict.fromkeys(listed))


def test_the_document_is_one_page_beside_its_tables() -> None:
    lines = (ROOT / "docs/architecture.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line and not line.startswith("|")]) <= 50


def test_a_table_row_is_read_with_its_package_and_torch_mark() -> None:
    text = "### `runtime/` engine\n| module | does | torch |\n| --- | --- | --- |\n"
    text += "| `models/decoder` | forward | torch |\n| `policy` | order | |\n# End\n| `x` | y | |\n"
    modules = documented_modules(text)
    assert [(module.name, module.uses_torch) for module in modules] == [
        ("runtime.models.decoder", True),
        ("runtime.policy", False),
    ]
