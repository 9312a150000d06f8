#!/bin/bash
# One node with its GPUs:            sbatch examples/slurm.sh mine.yaml
# A model over all GPUs of a node:   sbatch examples/slurm.sh mine.yaml compute.ranks=8
# The same twice on one store shares the work. The store must be on a disk that all nodes see.
#SBATCH --job-name=unmdpo
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120  # two minutes before the end: checkpoints are written, and the next job goes on from there

set -euo pipefail
exec srun unmdpo run "$@" --store "${UNMDPO_STORE:?set UNMDPO_STORE to a folder that all nodes see}"
