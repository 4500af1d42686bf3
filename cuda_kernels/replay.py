"""Work that is the same every time but for what its buffers hold."""

from collections.abc import Callable

from nf4tui.cuda_kernels.device import Device


class Replayed:
    """Launches `work` plainly the first time, which compiles its kernels; records it the second time; from then on
    replays it. On a GPU a launch costs several times what its node in a graph does."""

    def __init__(self, device: Device, work: Callable[[], None]) -> None:
        self._device, self._work = device, work
        self._launched = False
        self._replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self._replay is None and self._launched:
            self._replay = self._device.record(self._work)
        if self._replay is None:
            self._work()
            self._launched = True
        else:
            self._replay()
