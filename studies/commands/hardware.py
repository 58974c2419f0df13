"""``shapefront hardware``."""

from __future__ import annotations

from typing import Annotated

import typer

from ...costmodel import Hardware, hardware_names, load_hardware
from ..output import print_json, print_table


def hardware(
    name: Annotated[str | None, typer.Argument(help="GPU to show in full: a built-in name or a .toml file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List GPUs, or show one with unit, source and status of each number."""
    if name is None:
        chips = [load_hardware(chip) for chip in hardware_names()]
        if json:
            print_json([{"name": c.name, "title": c.title, **{k: q.value for k, q in c.quantities.items()}} for c in chips])
            return
        print_table(
            [
                "name",
                "BF16 PFLOP/s",
                "FP8 PFLOP/s",
                "NVFP4 PFLOP/s",
                "HBM TB/s",
                "HBM GB",
                "SMs",
                "NVLink GPUs",
                "NVLink GB/s a way",
            ],
            [_row(load_hardware(chip)) for chip in hardware_names()],
            title="Dense peaks per GPU; 'shapefront hardware NAME' shows where each number comes from",
        )
        return
    chip = load_hardware(name)
    if json:
        print_json({"name": chip.name, "title": chip.title, "quantities": chip.quantities})
        return
    rows = [[key, q.value, q.unit, q.status, q.source] for key, q in chip.quantities.items()]
    print_table(["number", "value", "unit", "status", "source"], rows, title=chip.title)


def _row(c: Hardware) -> list[object]:
    peaks = (c.bf16_flop_per_second, c.fp8_flop_per_second, c.nvfp4_flop_per_second)
    memory = (c.memory_bytes_per_second / 1e12, c.memory_bytes / 1e9)
    return [
        c.name,
        *(peak / 1e15 or None for peak in peaks),
        *memory,
        c.sm_count,
        c.scale_up_gpus,
        c.scale_up_bytes_per_second / 1e9,
    ]
