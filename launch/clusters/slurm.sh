#!/usr/bin/env bash
# A cluster that Slurm gives out: `sbatch slurm.sh`.
#
# You never used Ray? This job starts one Ray process on each node that Slurm gives it. They find each other, `tributary
# train` uses them all, and they end with it. Shortly before the time limit the run is saved, and the job goes back to
# the queue; when Slurm starts it again, the run goes on.
#
# It needs this folder and its virtual environment where every node sees them. On the login node, once:
#
#   python3 -m venv .venv && .venv/bin/python -m pip install --constraint constraints.txt --editable .
#
# Copy this file, change what is marked CHANGE, and in this folder: sbatch my-slurm.sh
# A run that has ended goes on, with the settings below, by: RUN=runs/slurm-17 sbatch my-slurm.sh
#
#SBATCH --job-name=tributary
#SBATCH --nodes=2            # CHANGE
#SBATCH --cpus-per-task=16   # CHANGE: cores of each node
#SBATCH --mem-per-cpu=2G     # CHANGE: an actor takes about 1 GB, more with a large network or many environments
#SBATCH --time=24:00:00      # CHANGE: the longest stretch between two waits in the queue
##SBATCH --array=1-5         # CHANGE: with one # less, a job for each of these seeds, in runs/slurm-JOB/seed-N
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:USR1@120  # seconds before the time limit, to save in; Slurm may be a minute early
#SBATCH --requeue --open-mode=append

start=(pong)              # CHANGE: what a new run begins with: a preset, an environment's id, or --config FILE
settings=()               # CHANGE: what is different in this run, as in (--total-frames 40M --lr 5e-4)
storage=                  # CHANGE: a URL such as s3://bucket/runs, for a copy of each run that survives this disk
source .venv/bin/activate # CHANGE: with `module load` before it, if that is how you come by Python

job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}
run=$(realpath -m "${RUN:-runs/slurm-$job}")
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    job=${job}_$SLURM_ARRAY_TASK_ID
    run=$run/seed-$SLURM_ARRAY_TASK_ID
    settings+=(--seed "$SLURM_ARRAY_TASK_ID")
fi
copy=${run##*/}
[[ $copy == seed-* ]] && copy=$(basename "${run%/*}")/$copy
[[ -n $storage ]] && settings+=(--storage "${storage%/}/$copy")

# Beside the run: what Ray says, and the token that the nodes know each other by. Nobody else gets in.
folder=$run.ray
mkdir -p "$folder" && chmod 700 "$folder"
(umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' > "$folder/token")
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/token RAY_USAGE_STATS_ENABLED=0
# The cores are the job's. At Ray's niceness of 15 the jobs of others on the same node would come first.
export RAY_worker_niceness=0

# When a job is cancelled or preempted, all of its processes get SIGTERM at once, and are killed half a minute later.
# Those that have it blocked live until then, and the run can be saved.
deaf=(python -c 'import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.execvp(sys.argv[1], sys.argv[1:])')

ray_here() { # COMMAND…: Ray on this node, with what the job has of it, until SIGUSR2 comes
    trap '' TERM
    trap 'kill -KILL $! 2> /dev/null' USR2
    # Short, as paths of sockets must be, and for nobody else's eyes; /tmp/ray may be another user's.
    local temporary memory=() megabytes=${SLURM_MEM_PER_NODE:-$((${SLURM_MEM_PER_CPU:-0} * SLURM_CPUS_PER_TASK))}
    temporary=$(mktemp -d /tmp/ray.XXXXXX)
    ((megabytes)) && memory=(--memory=$(((megabytes - 1024) << 20)))
    "$@" --block --temp-dir="$temporary/ray" --num-cpus="$SLURM_CPUS_PER_TASK" --object-store-memory=$((1 << 30)) \
        --dashboard-agent-listen-port=0 "${memory[@]}" &
    wait
    trap '' USR2
    # Its processes may not all have ended yet.
    for _ in {1..20}; do
        rm -rf "$temporary" 2> /dev/null && break
        sleep 0.5
    done
}

start_ray() { # LOG NODES WHICH OPTIONS…: Ray on so many nodes, and wait for it
    : > "$folder/$1.log"
    srun --export=ALL --cpus-per-task="$SLURM_CPUS_PER_TASK" --nodes="$2" --ntasks="$2" "$3" --label \
        bash -c "$(declare -f ray_here); ray_here \"\$@\"" ray "${deaf[@]}" ray start "${@:4}" &>> "$folder/$1.log" &
    steps+=($!)
    for ((i = 0; i < 3000; i++)); do
        (($(grep -c 'Ray runtime started' "$folder/$1.log") == $2)) && return
        [[ -z $asked ]] && kill -0 "${steps[-1]}" 2> /dev/null || break
        sleep 0.2
    done
    end 1 "error: Ray did not start on all nodes; see $folder/$1.log"
}

end() { # CODE WHY: leave nothing running
    trap '' USR1
    trap 'requeue=' TERM
    echo "$2"
    # Until none is left: one that comes just before bash waits there would be lost.
    for _ in {1..30}; do
        kill -USR2 "${steps[@]}" 2> /dev/null || break
        sleep 0.5
    done
    rm -f "$folder/token"
    [[ -n $requeue ]] && { scontrol requeue "$requeue" || exit 1; }
    exit "$1"
}

ask() { # WHO: the run to finish its rollouts, save and end. A SIGHUP more changes nothing, where a SIGINT would.
    asked=$1
    [[ -n $training ]] && kill -HUP "$training" 2> /dev/null
}

steps=() asked='' training='' requeue=''
trap 'ask time' USR1
trap 'ask slurm' TERM

# The head's address as Slurm has it: a node may have several.
node=$(scontrol show node --oneliner "$SLURMD_NODENAME" | sed 's/.* NodeAddr=\([^ ]*\).*/\1/')
address=$(getent ahostsv4 "$node" | awk '$1 !~ /^127\./ {print $1; exit}')
# Ports that are free: by itself Ray takes the same ones for all jobs of a node.
port=$(python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
start_ray head 1 --nodelist="$SLURMD_NODENAME" --head --node-ip-address="${address:-$(hostname -I | cut -d' ' -f1)}" \
    --port=0 --ray-client-server-port="$port" --include-dashboard=false
address=$(sed -n "s/.*ray start --address='\(.*\)'.*/\1/p" "$folder/head.log")
((SLURM_JOB_NUM_NODES > 1)) &&
    start_ray workers $((SLURM_JOB_NUM_NODES - 1)) --exclude="$SLURMD_NODENAME" --address="$address"

checkpoints() { ls "$run/checkpoints" 2> /dev/null; }
before=$(checkpoints)
if [[ $before == *.index* ]]; then
    # Modules of yours that `start` named.
    what=(--resume "$run" --trust-imports)
else
    # An earlier start of this job that saved nothing.
    ((${SLURM_RESTART_COUNT:-0})) && [[ -d $run ]] && mv "$run" "$run.empty-$SLURM_RESTART_COUNT"
    what=("${start[@]}" --run-dir "$run")
fi
"${deaf[@]}" tributary train "${what[@]}" --address "$address" "${settings[@]}" &
training=$!
[[ -n $asked ]] && ask "$asked"
# A signal ends `wait`, and not what it waits for.
while kill -0 "$training" 2> /dev/null; do wait "$training"; done
wait "$training"
code=$?

# 130: interrupted and saved. A job that was cancelled stays so; one that was preempted Slurm itself queues again.
[[ $code == 130 && $asked == time ]] || end $code "ended with code $code"
[[ $(checkpoints) != "$before" ]] || end 1 "error: nothing was learned within the time limit; give --time more"
requeue=$job
end 0 "saved before the time limit; back to the queue"
