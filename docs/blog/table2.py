"""Table 2: FFN-2 with a small H' = 512 on GB300, NVFP4 in, FP8 out: memory-bound at every token count."""

from shapefront.costmodel.gemm import gemm_cost
from shapefront.studies.output import print_table

PRINTED = {256: (0.14, 0.30, 0.26), 2048: (1.15, 0.37, 2.10), 16384: (9.16, 0.89, 16.8)}  # µs: math, read, write


def rows():
    """M and the three times in µs, with the printed ones."""
    found = []
    for m, printed in PRINTED.items():
        cost = gemm_cost(m, 8192, 512, format="nvfp4", output_format="fp8", profile="ideal")
        times = [1e6 * float(value) for value in (cost.math_seconds, cost.read_seconds, cost.write_seconds)]
        found.append([m, *times, *printed, str(cost.bound)])
    return found


if __name__ == "__main__":
    heads = ["M", "math µs", "read µs", "write µs", "printed math", "printed read", "printed write", "bound"]
    print_table(heads, rows(), title="Table 2: N = 8192, K = 512, 15 PFLOP/s, 8 TB/s")
