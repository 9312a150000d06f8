"""How fast a device computes: measured, and by its maker."""

import time
from functools import lru_cache

import torch

CPU_SECONDS = 0.5  # to measure a CPU for


# Dense 16-bit FLOP/s by the makers' data sheets, in the order in which names are looked for.
PEAKS = {
    "b200": 2250e12, "gh200": 989e12, "h200": 989e12, "h100 pcie": 756e12, "h100": 989e12, "h800": 989e12,
    "a100": 312e12, "a800": 312e12, "l40s": 362e12, "l40": 181e12, "a10g": 70e12, "a10": 125e12, "l4": 121e12,
    "rtx a6000": 155e12, "rtx 4090": 165e12, "rtx 3090": 71e12, "v100": 125e12, "t4": 65e12,
}  # fmt: skip


def peak_rate(device: torch.device) -> float | None:
    """What the device could do at best, by its name: the same however busy it is. None if the name is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device).lower()
    return next((rate for known, rate in PEAKS.items() if known in name), None)


@lru_cache(maxsize=4)
def matrix_rate(device: torch.device) -> float:
    """Measured FLOP/s of a large random matrix product: bfloat16 on a GPU, float32 on a CPU. On a CPU the fastest of
    many counts, since others may be using it."""
    on_gpu = device.type == "cuda"
    size, repeats, dtype = (8192, 30, torch.bfloat16) if on_gpu else (1024, 1, torch.float32)
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))

    def seconds(times: int) -> float:
        started = time.perf_counter()
        for _ in range(times):
            a @ b
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    seconds(5 if on_gpu else 1)  # warm up
    taken = [seconds(repeats)]
    while not on_gpu and sum(taken) < CPU_SECONDS:
        taken.append(seconds(repeats))
    return repeats * 2 * size**3 / min(taken)
