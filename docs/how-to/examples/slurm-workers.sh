#!/bin/bash
# Independent workers, one a task:  sbatch --ntasks=32 slurm-workers.sh postgresql://user@host/shapes mine mine.toml
#SBATCH --job-name=shapefront-workers
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=1
#SBATCH --requeue
set -eu
srun --kill-on-bad-exit=0 shapefront worker --storage "$1" --study "$2" --spec "$3" --allow-code
