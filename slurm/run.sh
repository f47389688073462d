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
# node and all GPUs that the job has there.  The directory of a run is resumed; options of a resume
# (--round, --out, key=value) are for the first start.  From the environment:
#   HPCFL_OUT         the run directory; default as `hpcfl run` and `hpcfl sweep` take it
#   HPCFL_MPI         srun's --mpi: pmi2 (default; MPICH and those like it) or pmix (Open MPI)
#   HPCFL_MAX_STARTS  how many starts in a row may end without a new checkpoint; default 3
#   HPCFL_WAIT_S      how long a start waits for ranks of an earlier one that are alive on a node which
#                     Slurm lost; default 900 (their watchdog ends them after comm.timeout_s, 600)
#   HPCFL_SITE        a shell script that is sourced first: modules, an environment or a container,
#                     options of srun, variables; see slurm/sites/example.sh
#   HPCFL_COMMAND     the words that start hpcfl; default hpcfl
#   HPCFL_SRUN        options of srun for the ranks, such as --cpu-bind=cores
#   HPCFL_TASK        what the first argument is: job, sweep or run (a directory); found out without
#   HPCFL_SEED        the seed of the run, which is one of several
#   HPCFL_INDEX       set by slurm/array.sh: the number of the task, a seed or a point of a sweep
#   HPCFL_PACK        with HPCFL_INDEX: so many points of a sweep are run by a task
#   HPCFL_STAGE, HPCFL_DATA, HPCFL_SCRATCH   set by slurm/staged.sh: files to be copied to the nodes
#
# What a start runs, and whether another follows, `hpcfl batch` decides (hpcfl/cli/batch.py).  Here are
# signals, srun, copies of data, and what Slurm says.  The other scripts end by starting this one.
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

# All is in functions: bash reads a script as it goes on, and this file may be replaced meanwhile.
say() { printf '%(%F %T)T job %s: %s\n' -1 "$id" "$*"; }

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
# ranks with it, before their checkpoint.
stop() {
  asked=${asked:-$SECONDS} caught=1
  if [ -n "$child" ]; then
    kill -USR1 "$child" 2>/dev/null || true # srun hands it on to the ranks, or has ended
  fi
}

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

# Have hpcfl set variables of this shell.  Signals to the whole job do not cut it short.
ask() {
  local answer
  answer=$(trap '' USR1 TERM && "${hpcfl[@]}" batch "$@") || return
  eval "$answer"
}

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

# Where there is nothing to go on with, no job of a chain is to wait for its nodes.
end_chain() {
  if [ -n "${HPCFL_CHAIN:-}" ]; then
    insist scancel --quiet --name="$HPCFL_CHAIN" --state=PENDING --user="$(id -un)" || true
  fi
}

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
  local lock run left locks=("$out/lock") end=$((SECONDS + wait_s))
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
        status=1
        return
      fi
    fi
  done
}

# Start the ranks, and wait for them.
run_attempt() {
  local start options step
  read -ra options <<<"${HPCFL_SRUN:-}"
  # srun does not inherit --cpus-per-task since Slurm 22.05.  Once a rank has left, those that would
  # wait for it for ever are ended, but not at once: also ranks that leave with one exit code do so a
  # moment apart, and with --kill-on-bad-exit=1 srun kills the last of them and returns 143.
  step=(srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --kill-on-bad-exit=0 --wait=15
    "${options[@]}")
  if [ "$kind" = sweep ]; then
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
    for ((start = 0; start < restarts; start++)); do
      # Without GPUs, however they were asked for.  If it fails, the ranks can mostly start even so.
      env -u SLURM_GPUS_PER_NODE \
        srun --nodes=1 --ntasks=1 --mpi=none --overlap --gres=none true || true
    done
  fi
  follow "${step[@]}" "${hpcfl[@]}" "${words[@]}"
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

# What Slurm says of this job, if it answers; empty otherwise.
look() {
  local answer
  answer=$(squeue -h -j "$id" -O State:20,RestartCnt:20 2>/dev/null) || true
  read -r state count <<<"$answer" && [ -n "$state" ]
}

# Whether the job is still this script's.  It is not where Slurm has requeued it, perhaps on other
# nodes, whatever srun has returned for a node that was lost; nor where it was cancelled.  No answer
# says nothing.
is_ours() {
  if [ "${count:-$restarts}" != "$restarts" ]; then
    say "requeued already: $reason"
  elif [ "${state:-RUNNING}" != RUNNING ]; then
    say "not requeued, the job is $state: $reason"
  else
    return 0
  fi
  return 1
}

# Slurm does not requeue a job that ends by itself, even in its grace time.  While its controller is
# away, for minutes perhaps, it does not end this job either.
requeue() {
  local pause error refused=0
  for pause in 1 2 4 8 15 30 60 60 60 60 60 60 0; do
    look || true
    is_ours || return 0
    # Said before: Slurm may end this script before the next line.
    [ "$pause" != 1 ] || say "to be requeued: $reason"
    if error=$(scontrol requeue "$id" 2>&1); then
      return
    fi
    if [ "$pause" = 1 ]; then
      say "Slurm does not requeue it: $error; it is asked again for some minutes"
    fi
    # A controller that answers refuses it, unless it is busy.
    [ -z "$state" ] || ((++refused < 4)) || break
    sleep "$pause" || true
  done
  say "not requeued: $reason; Slurm does not requeue it: $error; once it answers, type" \
    "scontrol requeue $id, or submit again"
}

main() {
  if [ $# = 0 ] || [ -z "${SLURM_JOB_ID:-}" ]; then
    echo "usage: sbatch [options] slurm/run.sh JOB.yaml [key=value ...]" >&2
    exit 2
  fi
  # HPCFL_ASKED: the script that started this one was asked to stop.
  asked=${HPCFL_ASKED:+0} caught='' child=''
  trap stop USR1 TERM
  if [ -d .venv/bin ]; then
    PATH=$PWD/.venv/bin:$PATH
  fi
  if [ -n "${HPCFL_SITE:-}" ]; then
    load_site
  fi
  read -ra hpcfl <<<"${HPCFL_COMMAND:-hpcfl}"
  # What glibc keeps free for each thread holds larger free blocks apart: over thousands of rounds a
  # rank would take up to a third more memory than it needs.
  if [[ ${GLIBC_TUNABLES:-} != *tcache_count* ]]; then
    export GLIBC_TUNABLES=${GLIBC_TUNABLES:+$GLIBC_TUNABLES:}glibc.malloc.tcache_count=0
  fi
  # Of an array, the id of its last task is that of the whole array: requeued by it, all would be.
  id=$SLURM_JOB_ID restarts=${SLURM_RESTART_COUNT:-0}
  [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID

  local first=() code=0
  if [ "$restarts" = 0 ] && [ -z "${HPCFL_CHAIN:-}" ]; then
    first=(--first) # Slurm may have given the number to another job, long ago
  fi
  kind='' out='' runs=() words=() counter='' wait_s=''
  ask begin "${first[@]}" "${HPCFL_CHAIN:-$id}" "$@" || code=$?
  if [ "$code" != 0 ]; then
    end_chain
    exit "$code"
  fi
  say "start $((restarts + 1)): ${hpcfl[*]} ${words[*]}, ${SLURM_NTASKS:-1} rank(s) on" \
    "$SLURM_JOB_NODELIST"
  warn_of_limit

  status=0 again='' reason='' state='' count=''
  local because=''
  if [ -n "${HPCFL_STAGE:-}" ] && [ -z "$asked" ]; then
    stage
    because="staging failed with exit code $status"
  fi
  if [ "$status" = 0 ] && [ -z "$asked" ]; then
    wait_for_earlier
    because="another start of this run is still alive"
  fi
  if [ -n "$asked" ]; then
    status=75 because="stopped before the ranks were started"
  elif [ "$status" = 0 ]; then
    because=''
    run_attempt
  fi
  reason="exit code $status"
  if [ "$status" != 0 ]; then
    # Where hpcfl does not answer, the next start may: `batch begin` bounds their number.
    ask end ${asked:+--asked "$asked"} --because "$because" "$counter" "$status" ||
      again=1 reason+=", of which hpcfl batch end can say nothing"
  fi

  if [ -n "$again" ]; then
    if [ -n "${HPCFL_CHAIN:-}" ]; then # the next job goes on, also where this one was cancelled
      say "left to the next job of the chain: $reason"
    else
      requeue
    fi
    return "$status"
  fi
  insist look || true
  if is_ours; then
    [ "$status" = 0 ] || say "not requeued: $reason"
    end_chain
    # Where Slurm does not answer, it may be about to requeue the job: then the count goes on.
    if [ -n "${HPCFL_CHAIN:-}$state" ]; then
      rm -f "$counter"
    fi
  fi
  return "$status"
}

# On one line, which bash has read as a whole.
main "$@"; exit
