"""Tiles, clusters and waves: hand-counted waves, the post's Fig. 4 and 5, parameter checks."""

from __future__ import annotations

import numpy as np
import pytest

from shapefront.costmodel.errors import InvalidValueError, UnknownKeyError
from shapefront.costmodel.gemm import gemm_cost, gemm_parameters, gemm_seconds
from shapefront.costmodel.gemm_tiles import GemmParameters, Tile, as_tile, kernel_switches
from shapefront.costmodel.gemm_waves import Menu, Rates, drooped, fastest, fastest_at_once, padded, waves
from shapefront.costmodel.profile import parse_profile, profile_names

BLOG = "gb300-blog"
STEP = 256


def rate(m: object, n: object, k: object, tile: tuple[int, ...] | None = None) -> np.ndarray:
    m, n, k = np.broadcast_arrays(m, n, k)  # type: ignore[arg-type]
    return 2.0 * m * n * k / gemm_seconds(m, n, k, format="nvfp4", profile=BLOG, tile=tile)  # type: ignore[no-any-return]


def count(m: float, n: float, tile: Tile, p: GemmParameters, sms: int = 152) -> float:
    rates = Rates(sms, 1.0, float("inf"), 1.0, 1.0)
    return float(waves(1.0, np.array([m]), np.array([n]), tile, rates.slots(tile), p)[0][0])


def test_waves_by_hand() -> None:
    tile, hard = Tile(256, 128, 2, 4), GemmParameters()
    # 512x512 on 8 SMs: 19 slots. 8192/512 = 16 rows; N = 9728 = 19*512: 16*19/19 = 16 waves exactly.
    assert count(8192, 9728, tile, hard) == 16
    assert count(8192, 9729, tile, hard) == 17  # 16*20/19 = 16.84
    assert count(1, 1, tile, hard) == 1
    # Half-counted rounding: 16.84 + 0.5*(17 - 16.84) = 16.921.
    assert count(8192, 9729, tile, GemmParameters(wave_rounding=0.5)) == pytest.approx((320 / 19 + 17) / 2)


def test_split_k_by_hand() -> None:
    hard, one = GemmParameters(), Tile(128, 128)
    # 8 tiles on 152 SMs: without split-K one wave; split 4 ways 32 SMs work and the main loop takes a quarter;
    # split 64 ways there are only 152 / 8 = 19 workers a tile.
    assert count(1024, 128, one, hard) == 1
    assert count(1024, 128, Tile(128, 128, split_k=4), hard) == 0.25
    assert count(1024, 128, Tile(128, 128, split_k=64), hard) == pytest.approx(8 / 152)
    # Two full waves leave nothing idle: 304 tiles.
    assert count(128, 128 * 304, Tile(128, 128, split_k=4), hard) == 2
    # Time: 8/152 of the main loop and one epilogue: 2*128*128*1000/(1e12) * 8/152 + 2e-6.
    rates = Rates(152, 1e12, float("inf"), 2.0, 2.0)
    tile = Tile(128, 128, split_k=64, epilogue_seconds=2e-6)
    got = fastest(1.0, np.array([1024.0]), np.array([128.0]), np.array([1000.0]), (tile,), rates, hard)[0]
    assert got == pytest.approx(32.768e-6 * 8 / 152 + 2e-6)


def test_fallback_cluster_covers_the_edge_by_hand() -> None:
    tile, p = Tile(256, 128, 2, 4, fallback_n=2), GemmParameters(wave_rounding=0.0, fallback_penalty=0.2)
    # N = 1024 + 256: two full clusters and one of half width at 1.2 of its share: 2 + 0.6; 16 rows; 19 slots.
    assert count(8192, 1280, tile, p) == pytest.approx(16 * 2.6 / 19)
    # N = 1024 + 257: two fallback clusters would cost 1.2, a full one costs 1.
    assert count(8192, 1281, tile, p) == pytest.approx(16 * 3 / 19)


def test_one_tile_one_wave_time_by_hand() -> None:
    # One 128x128 tile on 1 of 10 SMs of 1e12 FLOP/s, u = 0.5, K = 1000, E = 2 us:
    # 2*128*128*1000 / (1e12*0.5) + 2e-6 = 65.536e-6 + 2e-6.
    rates = Rates(10, 1e12, float("inf"), 2.0, 2.0)
    tile = Tile(128, 128, utilisation=0.5, epilogue_seconds=2e-6)
    one = np.array([1.0])
    assert fastest(1.0, one, one, one * 1000, (tile,), rates, GemmParameters())[0] == pytest.approx(67.536e-6)
    # Loads at 1e9 B/s: (128*2 + 128*2)*1000/1e9 = 512 us rule.
    slow = Rates(10, 1e12, 1e9, 2.0, 2.0)
    assert fastest(1.0, one, one, one * 1000, (tile,), slow, GemmParameters())[0] == pytest.approx(514e-6)


@pytest.mark.parametrize("last", [9728, 12288, 16384])
def test_fig_4_left_reduction_sweep(last: int) -> None:
    k = np.arange(STEP, last + 1, STEP)
    share = rate(8192, 9728, k)
    share /= share.max()
    assert np.all(share[k <= 3072] < 0.8)
    assert np.all(share[k >= 3840] >= 0.8)
    assert share[k == 6144][0] >= 0.85


@pytest.mark.parametrize("last", [9728, 12288, 16384])
def test_fig_4_right_projection_sweep(last: int) -> None:
    n = np.arange(STEP, last + 1, STEP)
    share = rate(8192, n, 8448)
    share /= share.max()
    assert np.all(share[n <= 2560] < 0.8)
    assert np.all(share[n >= 3072] >= 0.8)
    assert share[n == 6144][0] >= 0.85


@pytest.mark.parametrize("m", [4096, 8192, 16384])
def test_fig_5_forced_tile(m: int) -> None:
    n = np.arange(32, 8193, 32)
    share = rate(m, n, 8448, tile=(256, 128, 2, 4))
    top = n[1:-1][(share[1:-1] > share[:-2]) & (share[1:-1] > share[2:])]
    # Local maxima at multiples of 256 and nowhere else; below one full wave of clusters nothing can be lost by a further tile.
    first = 512 * 19 * 512 // m
    assert set(range(256 * (first // 256 + 1), 8192, 256)) <= set(top.tolist())
    assert np.all(top % 256 == 0)
    whole, half = n[(n % 512 == 0) & (n > first)], n[(n % 512 == 256) & (n > first)]
    assert np.mean(rate(m, whole, 8448, (256, 128, 2, 4))) > np.mean(rate(m, half, 8448, (256, 128, 2, 4)))
    edges = np.concatenate([whole, half])
    assert np.all(rate(m, edges + 1, 8448, (256, 128, 2, 4)) < rate(m, edges, 8448, (256, 128, 2, 4)))


def test_forced_tile_takes_utilisation_and_fallback_from_the_menu() -> None:
    p = GemmParameters(tiles=(Tile(128, 128, utilisation=0.5), Tile(256, 128, 2, 4, utilisation=0.7, epilogue_seconds=1e-6)))
    forced = as_tile((256, 128, 2, 4), p)
    assert forced == Tile(256, 128, 2, 4, fallback_n=2, utilisation=0.7, epilogue_seconds=1e-6)
    assert as_tile((64, 64), p).utilisation == 0.5
    assert as_tile((256, 128, 2, 4, 0), p).fallback_n == 0
    with pytest.raises(InvalidValueError, match="2 to 6 numbers"):
        as_tile((128,), p)


def test_parameters_from_a_profile_table() -> None:
    p = GemmParameters.from_mapping(
        {"launch_seconds": 1e-6, "menu_tile_m": [128, 256], "menu_tile_n": 128, "menu_split_k": [1, 4]}
    )
    assert p.tiles == (Tile(128, 128), Tile(256, 128, split_k=4))
    assert GemmParameters.from_mapping({}) == GemmParameters()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"lunch_seconds": 1.0}, "unknown key 'lunch_seconds'"),
        ({"bandwidth_efficiency": 1.2}, "bandwidth_efficiency must lie in"),
        ({"bandwidth_efficiency": 0}, "bandwidth_efficiency must lie in"),
        ({"launch_seconds": -1}, "launch_seconds must lie in"),
        ({"combine_power": 0.5}, "combine_power must be 0"),
        ({"menu_tile_m": [128, 128], "menu_tile_n": [128]}, "must have 2 numbers"),
        ({"menu_tile_m": [128], "menu_tile_n": 128, "menu_utilisation": 1.5}, "utilisation must lie in"),
        ({"menu_tile_m": [0], "menu_tile_n": 128}, "tile_m must be a whole number"),
        ({"menu_tile_m": [128], "menu_tile_n": 128, "menu_cluster_n": 4, "menu_fallback_n": 3}, "fallback_n must divide"),
    ],
)
def test_bad_parameters_are_refused(table: dict[str, object], message: str) -> None:
    with pytest.raises((InvalidValueError, UnknownKeyError), match=message):
        GemmParameters.from_mapping(table)


def test_kernel_for_small_m_is_a_named_switch() -> None:
    # A 64-row tile only up to M = 64; past it the 256-row tile, whose main loop is 4 times as long on one SM.
    p = GemmParameters(tiles=(Tile(256, 128), Tile(64, 128, max_m=64)))
    assert kernel_switches(p) == (64,)
    rates = Rates(152, 1e12, float("inf"), 2.0, 2.0)
    m, one = np.array([64.0, 65.0]), np.ones(2)
    short, long = fastest(1.0, m, one, one * 1000, p.tiles, rates, p)
    assert short == pytest.approx(2 * 64 * 128 * 1000 / 1e12)
    assert long == pytest.approx(4 * short)
    with pytest.raises(InvalidValueError, match="needs a tile without max_m"):
        GemmParameters(tiles=(Tile(64, 128, max_m=64),))


def test_k_padding_and_droop_by_hand() -> None:
    # K = 1000 to a tile of 768: 1536 when fully counted, 1000 + (1536 - 1000)/2 = 1268 when half counted.
    assert padded(np.array([1000.0, 768.0]), GemmParameters(k_tile=768)).tolist() == [1536, 768]
    assert padded(np.array([1000.0]), GemmParameters(k_tile=768, k_rounding=0.5)).tolist() == [1268]
    # droop 0.3 at half weight when T = droop_seconds: 1 ms * 1.15; nearly none for 1 us.
    p = GemmParameters(droop=0.3, droop_seconds=1e-3)
    assert drooped(np.array([1e-3, 1e-6]), p) == pytest.approx([1.15e-3, 1e-6 * (1 + 0.3 / 1001)])


def test_activation_quantisation_by_hand() -> None:
    # 1 us + K * 1 ns + M * max(K, 1000) * (2 + 0.5625) B / (8e12 * 0.5) with M = 100, K = 480.
    table = {"quantise_seconds": 1e-6, "quantise_seconds_per_k": 1e-9, "quantise_minimum_k": 1000, "quantise_efficiency": 0.5}
    profile = parse_profile(
        {"name": "q", "hardware": "gb300", "gemm": {"nvfp4": {"status": "inferred", "source": "test", "parameters": table}}},
        "test",
    )
    cost = gemm_cost(100, 256, 480, format="nvfp4", profile=profile)
    assert float(cost.quantise_seconds) == pytest.approx(1e-6 + 4.8e-7 + 100 * 1000 * 2.5625 / 4e12)
    plain = gemm_seconds(100, 256, 480, format="nvfp4", profile="ideal")
    assert float(cost.seconds) == pytest.approx(float(plain) + float(cost.quantise_seconds))


def test_warm_l2_branch_is_only_for_validate() -> None:
    table = {"l2_bytes": 1e8, "l2_bandwidth_ratio": 2.0}
    profile = parse_profile(
        {"name": "w", "hardware": "gb300", "gemm": {"bf16": {"status": "inferred", "source": "test", "parameters": table}}},
        "test",
    )
    cold = float(gemm_seconds(1, 4096, 4096, format="bf16", profile=profile))
    warm = float(gemm_seconds(1, 4096, 4096, format="bf16", profile=profile, warm_l2=True))
    assert cold == float(gemm_seconds(1, 4096, 4096, format="bf16", profile="ideal"))
    # 33.6 MB of reads at twice the bandwidth; the 8 KB of writes as before.
    assert warm == pytest.approx(((4096 + 4096 * 4096) * 2 / 2 + 4096 * 2) / 8e12)
    far = gemm_seconds(1, 65536, 8192, format="bf16", profile=profile, warm_l2=True)  # 1 GB: all from HBM
    assert float(far) == pytest.approx(float(gemm_seconds(1, 65536, 8192, format="bf16", profile="ideal")))


@pytest.mark.parametrize("name", [n for n in profile_names() if n != "ideal"])
def test_all_tiles_at_once_are_the_tiles_one_by_one(name: str) -> None:
    """Two forms of the same equations: a few shapes take one, many the other."""
    rng = np.random.default_rng(3)
    m, n, k = (rng.integers(1, high, 500).astype(float) for high in (9000, 30_000, 20_000))
    for number_format in ("bf16", "fp8", "nvfp4"):
        p = gemm_parameters(name, number_format)
        rates = Rates(152, 1.6e13, 6e10, 0.5625, 0.5625)
        one_by_one = fastest(3.0, m, n, k, p.tiles, rates, p)
        np.testing.assert_allclose(fastest_at_once(3.0, m, n, k, Menu.of(p.tiles, rates), p), one_by_one, rtol=1e-12)


def test_few_shapes_cost_what_they_cost_among_many() -> None:
    m = np.arange(1.0, 5001.0)
    many = gemm_seconds(m, 4096, 7168, format="nvfp4", profile="gb300-trtllm")
    few = [float(gemm_seconds(x, 4096, 7168, format="nvfp4", profile="gb300-trtllm")) for x in m[::500]]
    np.testing.assert_allclose(many[::500], few, rtol=1e-12)
