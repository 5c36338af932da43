"""The order of the files: those that take longest begin first, or one worker would end long after the others."""

from __future__ import annotations

import pytest

LONG = ("test_compile", "test_gpu_check", "test_triton_kernels", "test_fake_gpu", "test_benchmark_quality")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONG)
