"""The benchmark of adapters writes models that are one another's, and tells ratios."""

import pytest
import torch
from safetensors.torch import load_file

from benchmarks import adapters
from runtime.model.adapter_folder import AdapterFolder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> adapters.Models:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapters, "SIZE", "tiny")
        return adapters.Models(tmp_path_factory.mktemp("models"))


def test_merged_folders_are_the_model_with_an_adapter(models: adapters.Models) -> None:
    plain = load_file(models.plain / "model.safetensors")
    for adapter, merged in zip(models.adapters, models.merged, strict=True):
        folder, together = AdapterFolder(adapter), load_file(merged / "model.safetensors")
        assert set(together) == set(plain)
        changed = {name for name in plain if not torch.equal(plain[name], together[name])}
        assert changed == {name for name in plain if name.endswith("_proj.weight")}
        for name in changed:
            down, up = folder.matrices(name.removesuffix(".weight"), *plain[name].shape)
            expected = (plain[name].float() + up @ down).to(plain[name].dtype)
            assert torch.equal(together[name], expected), name
        folder.check_all_taken()


def test_ratios_are_of_the_ways_they_name() -> None:
    figures = {
        "adapters_seconds": 6.0,
        "merged_seconds": 20.0,
        "merged_narrow_seconds": 12.0,
        "alone_seconds": 4.0,
        "adapters_memory_mib": 100.0,
        "merged_memory_mib": 400.0,
    }
    assert adapters.ratios(figures) == {
        "seconds_over_merged": 0.5,
        "memory_over_merged": 0.25,
        "seconds_over_alone": 1.5,
    }
    assert set(adapters.ratios(figures)) == set(adapters.BARS)
