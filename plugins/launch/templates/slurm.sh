#!/bin/bash
{{options}}
#
# Made by `rollenv train`. Submit it with: sbatch FILE

HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PID={{pid}}
export HEAD PID
rm -f "$PID"
srun --kill-on-bad-exit=1 --ntasks-per-node=1 {{step}} bash {{node}} &

# Slurm sends SIGTERM before the time limit and at preemption: the training saves a checkpoint.
trap 'kill -TERM "$(cat "$PID")" || kill $!' TERM
while true; do
    wait $!
    CODE=$?
    kill -0 $! 2> /dev/null || break # else a signal ended the wait
done
if [ $CODE != 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt {{requeue}} ]; then
    echo "rollenv: exit code $CODE; job $SLURM_JOB_ID is queued again and continues from its last checkpoint" >&2
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $CODE
