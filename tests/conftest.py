"""What every test needs."""

import os
from collections.abc import Iterator

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Kernels run in Numba's CUDA simulator, unless it is the GPU that is tested (`pytest -m gpu`)."""
    os.environ["NUMBA_ENABLE_CUDASIM"] = "0" if config.option.markexpr == "gpu" else "1"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or leaves anything in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
