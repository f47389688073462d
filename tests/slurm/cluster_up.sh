#!/usr/bin/env bash
# Start a private Slurm on this machine, all on loopback, as root or as an ordinary user.
#   cluster_up.sh DIR PORT NODES CPUS GPUS
# Needs Debian's slurmctld, slurmd and slurm-client.  Afterwards: export SLURM_CONF=DIR/slurm.conf
set -euo pipefail
dir=$1 port=$2 nodes=$3 cpus=$4 gpus=$5
host=$(hostname -s)
conf=$dir/slurm.conf gres=
[ "$gpus" = 0 ] || gres=gpu:$gpus
# A failed start says why, and leaves nothing running.
trap '[ $? = 0 ] || give_up' EXIT
# shellcheck disable=SC2329  # the trap calls it
give_up() {
  echo "Slurm did not come up; its logs:" >&2
  tail -n 20 "$dir"/log/*.log >&2 || true
  "$(dirname "$0")/cluster_down.sh" "$dir"
}
mkdir -p "$dir"/{state,log,run}

{
  cat <<CONF
ClusterName=hpcfl
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
# One user, one machine: nobody to authenticate against, so no munge daemon.
AuthType=auth/none
CredType=cred/none
# Ids of its own: what killed ranks left in /dev/shm is named after their jobs.
FirstJobId=$((1 + RANDOM * 1000))
# A requeued job waits for so long and a second more; less than 5 would be taken for 120.
AuthInfo=cred_expire=8
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
# The PMIx plugins of two slurmds would collide in a common folder.
TmpFS=$dir/tmp.%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
# Nodes claim more CPUs than this machine may have.
SlurmdParameters=config_overrides
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=2,batch_sched_delay=0,defer_batch=0
# As on clusters: urgent jobs preempt, and the victim first gets its --signal.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
KillWait=30
MinJobAge=600
# A node that is gone is noticed soon.
SlurmdTimeout=20
CompleteWait=0
MessageTimeout=60
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
GresTypes=gpu
CONF
  for ((i = 1; i <= nodes; i++)); do
    echo "NodeName=node$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + i))" \
      "CPUs=$cpus RealMemory=1000000 ${gres:+Gres=$gres} State=UNKNOWN"
  done
  echo "PartitionName=normal Nodes=ALL Default=YES DefaultTime=10 PriorityTier=1 GraceTime=120"
  echo "PartitionName=urgent Nodes=ALL DefaultTime=10 PriorityTier=10 PreemptMode=OFF"
} >"$conf"

# Slurm believes in a GPU that has a character device: copies of /dev/null, or the consoles where
# those cannot be made.
device=$dir/gpu
for ((i = 0; i < gpus; i++)); do
  mknod -m 666 "$device$i" c 1 3 2>/dev/null || device=/dev/tty
done
[ -z "$gres" ] ||
  echo "NodeName=node[1-$nodes] Name=gpu File=${device}[0-$((gpus - 1))]" >"$dir/gres.conf"

export SLURM_CONF=$conf
slurmctld -c
for ((i = 1; i <= nodes; i++)); do
  mkdir -p "$dir/spool.node$i" "$dir/tmp.node$i"
  slurmd -N "node$i"
done
for ((try = 0; try < 1200; try++)); do
  idle=$(sinfo -h -N -p normal -o %T | grep -c '^idle$' || true)
  [ "$idle" = "$nodes" ] && exit 0
  sleep 0.1
done
exit 1
