"""``shapefront kernel``: price one kernel."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any

import numpy as np
import typer

from ...costmodel import DEFAULT_PROFILE, InvalidValueError, get_format
from ...costmodel.attention_common import BOUNDS
from ..output import number, print_json, print_table, say

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")

Profile = Annotated[str, typer.Option(help="Kernel profile: a built-in name (see 'shapefront profiles') or a .toml file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


ASKED_UNITS = {"batch": "sequences", "context": "tokens", "window": "tokens", "ranks": "GPUs"}  # the other names say it
DATA = {"read_bytes": "data read", "write_bytes": "data written", "kv_bytes": "KV cache read", "wire_bytes": "data sent"}
UNITS = {
    "flop": "FLOP",
    "padded_k": "values: K as the kernel runs it",
    "experts": "experts of the slowest GPU",
    "rows": "token-expert pairs of the slowest GPU",
}


def _show(kernel: str, cost: Any, json: bool, **asked: Any) -> None:
    """Print the parts of one cost; seconds as microseconds for people."""
    found = {f.name: _scalar(getattr(cost, f.name)) for f in fields(cost)}
    for name in ("memory_seconds", "bound"):
        if name not in found and hasattr(type(cost), name):
            found[name] = _scalar(getattr(cost, name))
    found.pop("tile", None)
    if isinstance(found.get("bound"), int):
        found["bound"] = BOUNDS[found["bound"]]
    found |= _achieved(found)
    if json:
        print_json({"kernel": kernel, **asked, **found})
        return
    order = sorted(found, key=lambda name: (name == "bound", name.endswith("per_second"), name == "seconds", "seconds" in name))
    rows = [[*_for_people(name, found[name])] for name in order]
    heading = ", ".join(f"{key} {number(value)}{_unit_of(key)}" for key, value in asked.items())
    print_table([kernel, "value", "unit"], rows, title=heading, right=(1,))
    say("total: parts that run at the same time are not added; bound: the part that rules")


def _achieved(found: dict[str, Any]) -> dict[str, float]:
    """FLOP/s and bytes/s over the whole kernel, where the cost counts them."""
    seconds, flop = found.get("seconds"), found.get("flop")
    moved = [found[name] for name in DATA if found.get(name) is not None]
    if not seconds:
        return {}
    rates = {} if flop is None else {"flop_per_second": flop / seconds}
    return rates | ({"bytes_per_second": sum(moved) / seconds} if moved else {})


def _unit_of(key: str) -> str:
    return f" {ASKED_UNITS[key]}" if key in ASKED_UNITS else ""


def _for_people(name: str, value: Any) -> tuple[str, Any, str]:
    """Name, value and unit of one line."""
    if name == "flop_per_second":
        return "achieved", number(value / 1e12), "TFLOP/s"
    if name == "bytes_per_second":
        return "achieved", number(value / 1e9), "GB/s"
    if value is None or isinstance(value, str):
        return name, "–" if value is None else value, ""
    if name.endswith("seconds"):
        return "total" if name == "seconds" else name.removesuffix("_seconds"), number(value * 1e6), "µs"
    if name.endswith("_bytes"):
        return DATA.get(name, name), number(round(value) if value < 1e12 else value), "bytes"
    return name, number(round(value) if name == "flop" and value < 1e15 else value), UNITS.get(name, "")


def _scalar(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return str(value)
    array = np.asarray(value)
    if array.size != 1:
        return None
    item = array.reshape(-1)[0].item()
    return item if isinstance(item, str | int | float) else str(item)


@app.command()
def gemm(
    m: Annotated[int, typer.Option("--m", help="Rows: tokens.")],
    n: Annotated[int, typer.Option("--n", help="Columns: outputs.")],
    k: Annotated[int, typer.Option("--k", help="Reduction: inputs.")],
    a: Annotated[str, typer.Option("--a", help="Format of A, the activations.")] = "nvfp4",
    b: Annotated[str, typer.Option("--b", help="Format of B, the weights.")] = "nvfp4",
    c: Annotated[str, typer.Option("--c", help="Format of C, the output.")] = "bf16",
    profile: Profile = DEFAULT_PROFILE,
    tile: Annotated[str | None, typer.Option(help="Force a tile: tile_m,tile_n,cluster_m,cluster_n.")] = None,
    json: Json = False,
) -> None:
    """C[M,N] = A[M,K] B[K,N]: FLOP, bytes and the time of each part."""
    from ...costmodel.gemm import gemm_cost

    if get_format(a).activation_bits != get_format(b).activation_bits:
        raise InvalidValueError(
            f"A must hold the activations that format {b} of B takes ({get_format(b).activation_bits:g} bits a "
            f"value), got A in {a}"
        )
    forced = None
    if tile is not None:
        parts = tile.split(",")
        if len(parts) != 4 or not all(part.strip().isdecimal() and len(part) < 6 for part in parts):
            raise InvalidValueError(f"a tile reads like 256,128,2,4 (tile_m,tile_n,cluster_m,cluster_n), got '{tile[:40]}'")
        forced = tuple(int(part) for part in parts)
    cost = gemm_cost(m, n, k, format=b, output_format=c, profile=profile, tile=forced)
    _show("gemm", cost, json, m=m, n=n, k=k, a=a, b=b, c=c, profile=profile)
    if not json and float(cost.padded_k) > k:
        multiple = get_format(b).k_multiple
        say(f"{b} kernels take K in multiples of {multiple}: {k} is padded and priced as {float(cost.padded_k):.0f}")


@app.command()
def attention(
    heads: Annotated[int, typer.Option(help="Query heads on this GPU.")],
    kv_heads: Annotated[int, typer.Option(help="KV heads on this GPU.")],
    batch: Annotated[float, typer.Option(help="Sequences in the batch.")] = 1,
    context: Annotated[float, typer.Option(help="Decode: tokens in the KV cache. Prefill: tokens before the new ones.")] = 8192,
    new_tokens: Annotated[float, typer.Option(help="New tokens per sequence: 1 is decode, more is prefill.")] = 1,
    head_dim: Annotated[int, typer.Option(help="Head size, values.")] = 128,
    window: Annotated[int, typer.Option(help="Sliding window, tokens; 0 = full.")] = 0,
    format: Annotated[str, typer.Option(help="Format of the attention math (prefill).")] = "bf16",
    kv_format: Annotated[str, typer.Option(help="Format of the KV cache.")] = "fp8",
    profile: Profile = DEFAULT_PROFILE,
    json: Json = False,
) -> None:
    """Attention of one layer (MHA, GQA, MQA), prefill or decode."""
    from ...costmodel.attention import attention_decode_cost, attention_prefill_cost

    shape: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "window": window, "kv_format": kv_format}
    if new_tokens > 1:
        cost = attention_prefill_cost(batch, new_tokens, context, format=format, profile=profile, **shape)
    else:
        cost = attention_decode_cost(batch, context, profile=profile, **shape)
    _show("attention", cost, json, batch=batch, context=context, new_tokens=new_tokens, **shape, profile=profile)


@app.command()
def moe(
    tokens: Annotated[float, typer.Option(help="Tokens of the whole EP group in the step.")],
    hidden_size: Annotated[int, typer.Option(help="Hidden size H.")],
    moe_intermediate_size: Annotated[int, typer.Option(help="Inner width of one expert, H′e.")],
    num_experts: Annotated[int, typer.Option(help="Experts in the layer, E.")],
    top_k: Annotated[int, typer.Option(help="Experts per token.")],
    ep: Annotated[int, typer.Option(help="Expert parallelism, GPUs.")] = 1,
    tp: Annotated[int, typer.Option(help="Tensor parallelism of an expert, GPUs.")] = 1,
    format: Annotated[str, typer.Option(help="Format of weights and activations.")] = "nvfp4",
    load: Annotated[str, typer.Option(help="balanced, uniform_random, power_law_1.01 or power_law_1.2.")] = "balanced",
    profile: Profile = DEFAULT_PROFILE,
    json: Json = False,
) -> None:
    """Routed experts of one layer on the slowest rank."""
    from ...costmodel.moe import moe_cost

    shape: dict[str, Any] = {
        "hidden_size": hidden_size, "moe_intermediate_size": moe_intermediate_size, "num_experts": num_experts, "top_k": top_k,
        "ep": ep, "tp": tp, "format": format, "load": load,
    }  # fmt: skip
    _show("moe", moe_cost(tokens, profile=profile, **shape), json, tokens=tokens, **shape, profile=profile)


@app.command()
def collective(
    kind: Annotated[str, typer.Argument(help="all-reduce, all-gather, reduce-scatter or all-to-all.")],
    bytes: Annotated[float, typer.Option("--bytes", help="Message size, bytes.")],
    ranks: Annotated[int, typer.Option(help="GPUs.")],
    profile: Profile = DEFAULT_PROFILE,
    json: Json = False,
) -> None:
    """A collective between GPUs."""
    from ...costmodel import UnknownKeyError, collectives
    from ...costmodel.errors import did_you_mean

    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    if kind not in kinds:
        raise UnknownKeyError(f"unknown collective '{kind[:40]}'{did_you_mean(kind, kinds)}")
    cost = getattr(collectives, f"{kind.replace('-', '_')}_cost")(bytes, ranks, profile=profile)
    _show(kind, cost, json, bytes=bytes, ranks=ranks, profile=profile)
