#!/bin/bash
# A Dask cluster inside one Slurm job:  sbatch --ntasks=64 slurm-dask.sh moe-open --engine exhaustive --out open
# The same line again continues where the job was stopped (time limit, preemption, a node that died).
#SBATCH --job-name=shapefront
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=1
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
set -eu
file=$PWD/dask-$SLURM_JOB_ID.json
rm -f "$file" # of the same job before it was requeued
trap 'kill $(jobs -p) 2>/dev/null || true; rm -f "$file"' EXIT
dask scheduler --scheduler-file "$file" --port 0 --no-dashboard &
srun --ntasks=$((SLURM_NTASKS - 2)) dask worker --scheduler-file "$file" --nthreads 1 --no-dashboard &
shapefront run "$@" --quiet --resume --dask "$file" &
run=$!
trap 'kill -TERM $run' TERM # two minutes before the time limit: stored, results so far written
wait $run || { code=$?; wait $run || exit $code; }
