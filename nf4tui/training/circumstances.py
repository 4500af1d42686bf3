"""What a run's numbers depend on beside its settings.

Another base or other data make it another run: refused on resume. Other versions, another device, processor
or number of threads may round differently: the resumed run goes on, and says that it is not bit-exact.
"""

import dataclasses
import hashlib
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nf4tui.config import thread_limit
from nf4tui.data.samples import Sample
from nf4tui.errors import InputError

_PACKAGES = ("nf4tui", "numpy", "safetensors", "tokenizers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """base, data: fingerprints of the frozen weights, and of all samples in order."""

    base: str
    data: str
    device: str
    processor: str
    threads: int
    versions: dict[str, str]

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Circumstances":
        """Raises KeyError where a value is missing."""
        return cls(**{field.name: values[field.name] for field in dataclasses.fields(cls)})

    def check_same_run(self, earlier: "Circumstances") -> None:
        """Raises InputError where base or data are not those that the run began with."""
        for what, now, then in (
            ("the model's weights", self.base, earlier.base),
            ("the training or validation data", self.data, earlier.data),
        ):
            if now != then:
                raise InputError(
                    f"--resume: {what} are not those of the run (fingerprint {now[:12]},"
                    f" the run has {then[:12]}); restore them, or start another run with another --out"
                )

    def differences(self, earlier: "Circumstances") -> list[str]:
        """What may make a resumed run differ in its last bits, as `name now (was then)`."""
        pairs = [
            (name, getattr(self, name), getattr(earlier, name)) for name in ("device", "processor", "threads")
        ]
        names = sorted(self.versions.keys() | earlier.versions.keys())
        pairs += [(name, self.versions.get(name), earlier.versions.get(name)) for name in names]
        return [f"{name} {now} (was {then})" for name, now, then in pairs if now != then]


def fingerprint(samples: Iterable[Sample]) -> str:
    """SHA-256 over the token ids and loss masks of the samples, in order."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(len(sample.ids).to_bytes(8, "little"))
        digest.update(sample.ids.astype("<i4").tobytes())
        digest.update(sample.supervised.astype(bool).tobytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on."""
    return {"python": platform.python_version(), **{package: version(package) for package in _PACKAGES}}


def processor() -> str:
    """The processor's name: BLAS picks its kernels, and with them its order of summing, by it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()


def threads() -> int:
    """Threads that BLAS works with: the processors this process may use, or fewer by the environment."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = thread_limit()
    return usable if limit is None else min(limit, usable)
