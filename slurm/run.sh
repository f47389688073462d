#!/usr/bin/env bash
# Run one job under Slurm until it is done, however often it is preempted, out of time or killed.
#
#   sbatch [options] slurm/run.sh JOB.yaml [key=value ...]             or the name of a packaged job
#   sbatch --ntasks-per-node=8 --gpus-per-node=8 slurm/run.sh ...      8 ranks, a GPU each
#   sbatch -N 4 --ntasks-per-node=4 --gpus-per-node=4 slurm/run.sh ... 16 ranks on 4 nodes
#
# The same command goes on with the same run, also as a new Slurm job and on other numbers of nodes.
# Submit from the directory that the job's paths are relative to.  hpcfl is taken from .venv there,
# or else from the environment that was active at submission.  A sweep, SWEEP.yaml, is run on one
# node and all GPUs that the job has there.  The directory of a run is resumed.  From the environment:
#   HPCFL_OUT         the run directory; default as `hpcfl run` and `hpcfl sweep` take it
#   HPCFL_MPI         srun's --mpi: pmi2 (default; MPICH and those like it) or pmix (Open MPI)
#   HPCFL_MAX_STARTS  how many starts in a row may end without a new checkpoint; default 3
#   HPCFL_WAIT_S      how long a start waits for ranks of an earlier one that are alive on a node which
#                     Slurm lost; default 900 (their watchdog ends them after comm.timeout_s, 600)
#   HPCFL_SITE        a shell script that is sourced first: modules, an environment or a container,
#                     options of srun, variables; see slurm/sites/example.sh
#   HPCFL_COMMAND     the words that start hpcfl; default hpcfl
#   HPCFL_SRUN        options of srun for the ranks, such as --cpu-bind=cores
#   HPCFL_TASK        what the first argument is: job, sweep or run (a directory); default as
#                     `hpcfl check ARGUMENT --kind` says
#   HPCFL_SEED        the seed of the run, which is one of several
#   HPCFL_INDEX       set by slurm/array.sh: the number of the task, a seed or a point of a sweep
#   HPCFL_PACK        with HPCFL_INDEX: so many points of a sweep are run by a task
#   HPCFL_STAGE, HPCFL_DATA, HPCFL_SCRATCH   set by slurm/staged.sh: files to be copied to the nodes
#
# This file alone decides whether a job is requeued: the other scripts end by starting it.  A start
# that left a new checkpoint is always followed by another; starts without one are counted, also
# those that Slurm itself requeued, in OUT.JOBID.starts beside the run directory.
#
#SBATCH --job-name=hpcfl
#SBATCH --cpus-per-task=1
#SBATCH --time=04:00:00
#SBATCH --requeue
# A requeued job goes on in the same file.
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
# To this shell, which hands it on to the ranks: finish the round, write a checkpoint, exit 75.  The
# lead must cover the longest round and a checkpoint.
#SBATCH --signal=B:USR1@120
set -euo pipefail

if [ $# = 0 ] || [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "usage: sbatch [options] slurm/run.sh JOB.yaml [key=value ...]" >&2
  exit 2
fi

say() { echo "$(date '+%F %T') job $id: $*"; }

# Slurm may be too busy to answer.
insist() {
  local pause
  for pause in 1 2 4; do
    "$@" && return
    sleep "$pause" || true # a signal meanwhile is no reason to give up
  done
  "$@"
}

# SIGTERM too may reach this shell (preemption, scancel).  Untrapped it would end at once, and the
# ranks with it, before their checkpoint.  HPCFL_ASKED: the script that started this one was asked.
asked=${HPCFL_ASKED:-} asked_s=$SECONDS caught='' child=''
# shellcheck disable=SC2329  # the trap calls it
stop() {
  [ -n "$asked" ] || asked_s=$SECONDS
  asked=1 caught=1
  if [ -n "$child" ]; then
    kill -USR1 "$child" 2>/dev/null || true # srun hands it on to the ranks, or has ended
  fi
}
trap stop USR1 TERM

# Run a command, to which signals are handed on; its exit code is left in status.  Bash runs no trap
# before a command in the foreground has ended.
follow() {
  "$@" &
  child=$!
  if [ -n "$asked" ]; then
    stop
  fi
  while true; do
    caught='' status=0
    wait "$child" || status=$?
    # A signal cuts the wait short, with a status above 128.
    if [ -z "$caught" ] || [ "$status" -le 128 ]; then
      break
    fi
  done
  child=''
}

if [ -d .venv/bin ]; then
  PATH=$PWD/.venv/bin:$PATH
fi
# In a function, whose arguments the sourced file may use as its own.
load_site() {
  local file=$HPCFL_SITE code=0
  [[ $file == */* ]] || file=./$file # else it would be looked for in PATH
  if ! [ -f "$file" ] || ! [ -r "$file" ]; then
    echo "run.sh: HPCFL_SITE: $HPCFL_SITE is missing or cannot be read from $PWD; name a shell" \
      "script as slurm/sites/example.sh, or unset HPCFL_SITE" >&2
    exit 2
  fi
  # Scripts that activate environments use unset variables and commands that fail.
  set +euo pipefail
  # shellcheck source=/dev/null
  . "$file"
  code=$?
  set -euo pipefail
  if [ "$code" != 0 ]; then
    echo "run.sh: HPCFL_SITE: $HPCFL_SITE ended with exit code $code; repair what it says above" >&2
    exit 2
  fi
}
if [ -n "${HPCFL_SITE:-}" ]; then
  load_site
fi
read -ra hpcfl <<<"${HPCFL_COMMAND:-hpcfl}"
read -ra options <<<"${HPCFL_SRUN:-}"
# What glibc keeps free for each thread holds larger free blocks apart: over thousands of rounds a
# rank would take up to a third more memory than it needs.
if [[ ${GLIBC_TUNABLES:-} != *tcache_count* ]]; then
  export GLIBC_TUNABLES=${GLIBC_TUNABLES:+$GLIBC_TUNABLES:}glibc.malloc.tcache_count=0
fi
# Of an array, the id of its last task is that of the whole array: requeued by it, all would be.
id=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_JOB_ID:-}" ] || id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
most=${HPCFL_MAX_STARTS:-3} patience=${HPCFL_WAIT_S:-900}
for number in "$most" "$patience"; do
  if ! [[ $number =~ ^[1-9][0-9]*$ ]]; then
    say "HPCFL_MAX_STARTS or HPCFL_WAIT_S: found $number, expected a whole number above 0"
    exit 2
  fi
done

# srun does not inherit --cpus-per-task since Slurm 22.05.  Once a rank has left, those that would
# wait for it for ever are ended, but not at once: also ranks that leave with one exit code do so a
# moment apart, and with --kill-on-bad-exit=1 srun kills the last of them and returns 143.
step=(srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=0 --wait=15
  "${options[@]}")

# Where nothing can be started, no job of a chain is to try it.
refuse() {
  [ $# = 1 ] || echo "run.sh: ${*:2}" >&2
  if [ -n "${HPCFL_CHAIN:-}" ]; then
    scancel --quiet --name="$HPCFL_CHAIN" --state=PENDING --user="$(id -un)"
  fi
  exit "$1"
}

task=${HPCFL_TASK:-}
if [ -z "$task" ]; then
  task=$("${hpcfl[@]}" check "$1" --kind) || refuse $?
fi
pack=${HPCFL_PACK:-1} sweep=
if [ -n "${HPCFL_INDEX:-}" ]; then
  case $task in
    sweep)
      for word in "$@"; do
        case $word in
          --only | --only=* | --points | --points=*) refuse 2 "$word: an array runs points of the" \
            "whole sweep; put those that you want into a sweep file of their own" ;;
        esac
      done
      first=$((HPCFL_INDEX * pack))
      set -- "$@" --points "$first-$((first + pack - 1))" --parallel "$pack"
      ;;
    job)
      if [ "$pack" != 1 ]; then
        refuse 2 "HPCFL_PACK packs the points of a sweep; make one with the axis seed"
      fi
      HPCFL_SEED=$HPCFL_INDEX
      ;;
    run) refuse 2 "$1 is the directory of a run; an array is of a job or a sweep" ;;
  esac
fi
case $task in
  sweep)
    sweep=1
    if [ -n "${HPCFL_STAGE:-}${HPCFL_SEED:-}" ]; then
      refuse 2 "$1 is a sweep; HPCFL_STAGE and HPCFL_SEED are for a job: the axes of a sweep may" \
        "have the seed, and its job the folder of the data"
    fi
    listed=$("${hpcfl[@]}" sweep "$@" ${HPCFL_OUT:+--out "$HPCFL_OUT"} --where) || refuse $?
    mapfile -t runs <<<"$listed"
    out=${HPCFL_OUT:-$(dirname "${runs[0]}")}
    command=("${hpcfl[@]}" sweep "$@" --out "$out")
    ;;
  run)
    if [ -n "${HPCFL_OUT:-}${HPCFL_STAGE:-}${HPCFL_SEED:-}" ]; then
      refuse 2 "$1 is the directory of a run, which is resumed there, with its data; leave out" \
        "HPCFL_OUT, HPCFL_STAGE and HPCFL_SEED, or name a job"
    fi
    out=${1%/}
    runs=("$out")
    command=("${hpcfl[@]}" resume "$@")
    ;;
  job) ;;
  *) refuse 2 "HPCFL_TASK: found $task, expected job, sweep or run" ;;
esac
if [ "$task" = job ]; then
  out=${HPCFL_OUT:-}
  if [ -z "$out" ]; then
    # By what the user said alone: neither a seed nor the disks of the nodes make another.
    out=$("${hpcfl[@]}" check "$@" --where) || refuse $?
    out=$out${HPCFL_SEED:+-seeds}
  fi
  if [ -n "${HPCFL_SEED:-}" ]; then
    out=$out/seed$HPCFL_SEED
    set -- "$@" "seed=$HPCFL_SEED"
  fi
  if [ -n "${HPCFL_STAGE:-}" ]; then
    # Data must stay where the run found them; states may move, to a folder that the site clears.
    # Behind the user's settings, as one of these may be the whole section.
    states=store.dir=${SLURM_TMPDIR:-$HPCFL_SCRATCH}
    for word in "$@"; do
      case $word in
        store.dir=* | store=*) states= ;;
        data.root=*) refuse 2 "$word: staged data are read from the nodes; HPCFL_DATA says from where" \
          "they are copied" ;;
      esac
    done
    set -- "$@" "data.root=$HPCFL_SCRATCH" ${states:+"$states"}
  fi
  runs=("$out")
  command=("${hpcfl[@]}" run "$@" --out "$out" --continue)
fi

# The committed checkpoints of this job's runs: other tasks of an array may run other points of the
# same sweep.  Those of round 0 are no progress.
committed() {
  local run
  for run in "${runs[@]}"; do
    if [ -d "$run/checkpoints" ]; then
      # find fails if a checkpoint is pruned meanwhile.
      find -H "$run/checkpoints" -name manifest.json ! -path '*/00000000/*' || true
    fi
  done | sort
}

# How many starts in a row, this one included, began at the same checkpoints.  All jobs of a chain
# count as one.
before=$(committed)
mark=$(cksum <<<"$before")
counter=${out%/}.${HPCFL_CHAIN:-$id}.starts
starts=1
if [ -r "$counter" ] && [ -n "${HPCFL_CHAIN:-}${SLURM_RESTART_COUNT:-}" ]; then
  IFS=: read -r counted seen <"$counter" || true # damaged or empty: begin to count again
  if [ "${seen:-}" = "$mark" ] && [[ ${counted:-} =~ ^[0-9]+$ ]]; then
    starts=$((counted + 1))
  fi
fi

# Copy the files to a disk of every node's own.  One job of a node copies while the others wait; the
# lock is on the folder, and goes with the process.  A copy that is cut short must not look like one
# that is whole.
stage() {
  local data file files try
  IFS=: read -ra files <<<"$HPCFL_STAGE"
  data=$(realpath -m "${HPCFL_DATA:-data}")
  for file in "${files[@]}"; do
    if ! [ -r "$data/$file" ]; then
      say "staging: $data/$file is missing; make it by hpcfl data prepare, or set HPCFL_DATA to" \
        "the folder that holds it"
      status=2
      return
    fi
  done
  for try in 1 2 3; do
    # shellcheck disable=SC2016  # the nodes' shells are to expand it
    follow env -u SLURM_GPUS_PER_NODE -u SLURM_GPUS_PER_TASK -u SLURM_TRES_PER_TASK \
      srun --nodes="$SLURM_NNODES" --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --mpi=none \
      --gres=none --kill-on-bad-exit=0 bash -uc '
      attempt() {
        # Without the lock: a cp that outlives this shell would keep it.
        said=$(exec 9<&- && LC_ALL=C exec "$@" 2>&1) && return
        echo "staging on $SLURMD_NODENAME: $said" >&2
        [ -z "${part:-}" ] || rm -f "$part"
        case $said in
          *"No space left"* | *"quota exceeded"* | *"Read-only file system"* | *"put/output error"*)
            exit 74 ;;
        esac
        exit 1
      }
      # Other data may have the same size.  Whole seconds: not all disks keep their fractions.
      stamp() { stat -Lc "%s %Y" "$1"; }
      data=$1 scratch=$2
      shift 2
      attempt mkdir -p "$scratch"
      exec 9<"$scratch"
      locked=1
      flock 9 || locked= # a file system without locks
      for file in "$@"; do
        source=$data/$file target=$scratch/$file
        [ -z "$locked" ] || rm -f "$target".part.* # of copies that were killed
        if [ ! -e "$target" ] || [ "$(stamp "$source")" != "$(stamp "$target")" ]; then
          part=$target.part.$SLURM_JOB_ID.$SLURM_NODEID
          attempt cp --preserve=timestamps "$source" "$part"
          attempt mv "$part" "$target"
        fi
      done' stage "$data" "$HPCFL_SCRATCH" "${files[@]}"
    if [ -n "$asked" ] || [ "$status" = 0 ] || [ "$status" = 74 ]; then
      return
    fi
    say "staging: exit code $status, try $try of 3"
    sleep "$try" || true
  done
}

# Any other exit code: there is no such file, or no locks on this file system.
held() {
  local code=0
  [ -e "$1" ] || return
  flock --shared --nonblock -E 99 "$1" true || code=$?
  [ "$code" = 99 ]
}

# On a node that Slurm has given up, ranks of an earlier start may live on, until their watchdog finds
# that others are gone.  Rank 0 holds the lock of the run directory, every rank its files of states.
wait_for_earlier() {
  local lock run left locks=("$out/lock") end=$((SECONDS + patience))
  status=0
  for run in "${runs[@]}"; do
    locks+=("$run/lock" "$run"/stores/*.h5 "$run"/stores/shared/*.h5)
  done
  for lock in "${locks[@]}"; do
    if held "$lock"; then
      left=$((end > SECONDS ? end - SECONDS : 0))
      say "another start of this run is alive: it holds $lock; wait up to $left s for its end"
      follow flock --shared --timeout "$left" -E 99 "$lock" true
      if [ "$status" != 0 ]; then
        return
      fi
    fi
  done
}

# Start the ranks, and wait for them.
run_attempt() {
  local start
  if [ -n "$sweep" ]; then
    # One task, which starts the runs itself.  srun would take over how the job's GPUs were asked
    # for, which may be more than one node has, or fewer than this one.  Since Slurm 23.11
    # SLURM_TRES_PER_TASK says that, too.
    unset SLURM_GPUS_PER_TASK SLURM_NTASKS_PER_GPU SLURM_TRES_PER_TASK
    step+=(--nodes=1 --ntasks=1 --mpi=none --nodelist="$SLURMD_NODENAME"
      ${SLURM_GPUS_ON_NODE:+--gpus="$SLURM_GPUS_ON_NODE"})
  else
    step+=(--mpi="${HPCFL_MPI:-pmi2}")
    # The ranks' step gets a number of its own in every start (a requeued job counts from 0 again).
    # MPICH names the memory that ranks of a node share after job and step: they would meet in what
    # those of a start that was killed left in /dev/shm, and fail.
    for ((start = 0; start < ${SLURM_RESTART_COUNT:-0}; start++)); do
      # Without GPUs, however they were asked for.  If it fails, the ranks can mostly start even so.
      env -u SLURM_GPUS_PER_NODE \
        srun --nodes=1 --ntasks=1 --mpi=none --overlap --gres=none true || true
    done
  fi
  follow "${step[@]}" "${command[@]}"
}

# Warn of a time limit that leaves no time between the start-up and the signal.  Of the lead, only
# what the environment says is known here.
warn_of_limit() {
  local fields limit lead=${SBATCH_SIGNAL:-@${HPCFL_LEAD_S:-120}}
  fields=$(scontrol show job -o "$SLURM_JOB_ID" || true)
  if [[ $lead =~ @([0-9]+)$ ]]; then
    lead=${BASH_REMATCH[1]}
    if [[ $fields =~ \ StartTime=([0-9T:-]+)\ EndTime=([0-9T:-]+)\  ]]; then
      limit=$(($(date -d "${BASH_REMATCH[2]}" +%s) - $(date -d "${BASH_REMATCH[1]}" +%s)))
      if [ "$limit" -lt $((lead + 120)) ]; then
        say "the time limit of $limit s is not well above $lead s, the lead of the signal to stop" \
          "unless sbatch was given another --signal, which Slurm does not tell: no time is left for" \
          "rounds; raise --time, or shorten the lead (SBATCH_SIGNAL=B:USR1@SECONDS sbatch ...)"
      fi
    fi
  fi
}

# Whether there is something to go on with, now or in the next job of a chain: left in again.
judge() {
  local moved=
  [ "$(cksum <<<"$(committed)")" = "$mark" ] || moved=1
  case $status in
    0) ;;
    # The job, the arguments or the files are wrong, or the run diverged: so it would be again.
    2 | 3) say "exit code $status, not requeued" ;;
    74) say "exit code 74, not requeued: a disk is full, over its quota, read-only or fails; make" \
      "room or repair it, then submit again" ;;
    130) say "exit code 130, interrupted by hand, not requeued" ;;
    75) again=${again:-stopped with a checkpoint} ;;
    # A rank was killed, a node was lost, no rank could be started, or the program is wrong.
    *)
      if [ -n "$again" ]; then
        :
      elif [ -n "$asked" ] && [ "$status" -gt 128 ]; then
        # While it was still starting, by a signal that it did not know yet.
        again="stopped by exit code $status"
      elif [ -n "$moved" ]; then
        again="exit code $status after new checkpoints"
      elif [ "$status" -gt 128 ] || [ -n "$before" ]; then
        again="exit code $status and no checkpoint since the start"
      else
        say "exit code $status and no checkpoint since the start, not requeued"
      fi
      ;;
  esac
  if [ -n "$again" ] && [ -z "$moved" ] && [ "$starts" -ge "$most" ]; then
    say "$again, not requeued: $starts starts in a row came to no new checkpoint (HPCFL_MAX_STARTS)"
    if [ -n "$asked" ]; then
      say "the signal to stop came $asked_s s after the start: raise --time, or shorten the lead" \
        "(sbatch --signal=B:USR1@SECONDS)"
    fi
    again=
  fi
}

again='' status=0
if [ "$starts" -gt "$most" ]; then
  say "start $starts: not begun, $((starts - 1)) starts in a row came to no new checkpoint" \
    "(HPCFL_MAX_STARTS)"
  status=1
elif ! { mkdir -p "$(dirname "$out")" && echo "$starts:$mark" >"$counter"; }; then
  say "$counter: the number of starts cannot be written"
  status=74
else
  say "start $((${SLURM_RESTART_COUNT:-0} + 1)): ${command[*]}," \
    "${SLURM_NTASKS:-1} rank(s) on $SLURM_JOB_NODELIST"
  warn_of_limit
  if [ -n "${HPCFL_STAGE:-}" ] && [ -z "$asked" ]; then
    stage
    if [ -z "$asked" ] && [ "$status" != 0 ] && [ "$status" != 2 ] && [ "$status" != 74 ]; then
      again="staging failed with exit code $status"
    fi
  fi
  if [ "$status" = 0 ] && [ -z "$asked" ]; then
    wait_for_earlier
    if [ -z "$asked" ] && [ "$status" != 0 ]; then
      status=1 again="another start of this run is still alive"
    fi
  fi
  if [ -n "$asked" ]; then
    status=75 again="stopped before the ranks were started"
  elif [ "$status" = 0 ]; then
    run_attempt
  fi
  judge
fi
if [ -n "${HPCFL_CHAIN:-}" ]; then
  # The next job of the chain goes on, also when this one was cancelled.  Where there is nothing to
  # go on with, none is to wait for its nodes.
  if [ -n "$again" ]; then
    say "$again, left to the next job of the chain"
  else
    scancel --quiet --name="$HPCFL_CHAIN" --state=PENDING --user="$(id -un)"
    rm -f "$counter"
  fi
  exit "$status"
fi
# A job that was cancelled is no longer RUNNING, and stays cancelled.  One that Slurm has requeued
# already, perhaps on other nodes, is no longer this script's.  No answer says nothing.
answer=$(insist squeue -h -j "$id" -O State:20,RestartCnt:20 || true)
read -r state restarts <<<"$answer" || true
if [ "${restarts:-${SLURM_RESTART_COUNT:-0}}" != "${SLURM_RESTART_COUNT:-0}" ]; then
  say "${again:-exit code $status}, but requeued already"
elif [ -z "$again" ]; then
  if [ "$state" = RUNNING ]; then # else Slurm may be about to requeue it, and the count goes on
    rm -f "$counter"
  fi
elif [ "${state:-RUNNING}" = RUNNING ]; then
  # Slurm does not requeue a job that ends by itself, even in its grace time.
  say "$again, requeued"
  insist scontrol requeue "$id"
else
  say "$again, but cancelled"
fi
exit "$status"
