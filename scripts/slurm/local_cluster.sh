#!/usr/bin/env bash
# A real Slurm cluster on one machine, for tests: slurmctld, and a slurmd for each of several nodes.
#
#   local_cluster.sh start        install Slurm if it is missing, start, wait until every node is idle
#   local_cluster.sh stop         end all jobs and daemons; the logs stay
#   local_cluster.sh status       nodes and jobs; exit status 0 when every node can take jobs
#   local_cluster.sh crash NODE   kill all that runs on a node, as if its power failed; start brings it back
#   eval "$(local_cluster.sh env)"   lets sbatch, srun and scontrol of this shell find the cluster
#
# Nodes are n0, n1, ...: the first ones have GPUs and are in the partition gpu, the others are in the
# partition cpu, and all are in the partition main. Each has a hostname, an /etc/hosts and a /dev/shm of its
# own. Everything lives in one folder and listens on the loopback alone; nothing in /etc is read or changed.
# It needs root and Debian (or Ubuntu). Settings, with their defaults:
: "${LOCAL_CLUSTER_DIR:=/tmp/msdata-slurm}"  # config, logs, state and sockets; a short path
: "${LOCAL_CLUSTER_NODES:=4}"
: "${LOCAL_CLUSTER_GPU_NODES:=2}"            # how many of the nodes have GPUs
: "${LOCAL_CLUSTER_GPUS:=4}"                 # GPUs of each of them; they are fake
: "${LOCAL_CLUSTER_CPUS:=16}"                # CPUs of each node; they are shared, whatever there is
: "${LOCAL_CLUSTER_PORT:=17817}"             # the first of 1 + NODES ports
set -euo pipefail

dir=$LOCAL_CLUSTER_DIR
last=$((LOCAL_CLUSTER_NODES - 1))
packages=(slurmctld slurmd slurm-client munge)
export SLURM_CONF=$dir/etc/slurm.conf PATH=$PATH:/usr/sbin:/sbin

say() { echo "local_cluster: $*" >&2; }
die() { say "$*"; exit 1; }

install_packages() {
    local program missing=
    for program in slurmctld slurmd sbatch munged; do
        command -v "$program" >/dev/null || missing=1
    done
    [[ -n $missing ]] || return 0
    say "installing ${packages[*]}"
    # The packages want to start their services; the cluster is started here instead.
    local -a install=(apt-get -qq install --yes --no-install-recommends "${packages[@]}")
    export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
    {
        timeout 300 "${install[@]}" || { timeout 120 apt-get -qq update && timeout 300 "${install[@]}"; }
    } >"$dir/log/install.log" 2>&1 || die "apt-get failed, see $dir/log/install.log"
}

check_ports() {
    local port
    for ((port = LOCAL_CLUSTER_PORT; port <= LOCAL_CLUSTER_PORT + LOCAL_CLUSTER_NODES; port++)); do
        if (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            die "port $port is taken: set LOCAL_CLUSTER_PORT"
        fi
    done
}

write_config() {
    local n gpu=0
    # slurmd calls srun back at the address its packets come from, so all nodes have one address.
    {
        echo "127.0.0.1 localhost $(hostname -s)"
        for ((n = 0; n <= last; n++)); do echo "127.0.0.1 n$n"; done
    } >"$dir/etc/hosts"
    for ((n = 0; n <= last; n++)); do mkdir -p "$dir"/{spool,tmp}/"n$n"; done
    # A GPU must be a device file whose name ends with a number.
    for ((gpu = 0; gpu < LOCAL_CLUSTER_GPUS; gpu++)); do ln -sfn /dev/null "$dir/dev/nvidia$gpu"; done
    if [[ ! -s $dir/munge/key ]]; then (umask 077 && head -c 128 /dev/urandom >"$dir/munge/key"); fi
    cat >"$SLURM_CONF" <<END
ClusterName=local
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$LOCAL_CLUSTER_PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$dir/munge/socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
TmpFS=$dir/tmp/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd-%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
# A node that was set down comes back while its slurmd lives.
ReturnToService=2
JobRequeue=1
# Fast enough for tests.
SchedulerParameters=sched_min_interval=200000,batch_sched_delay=0,bf_interval=1
KillWait=5
MinJobAge=3600
InactiveLimit=0
SlurmdTimeout=30
END
    : >"$dir/etc/gres.conf"
    for ((n = 0; n <= last; n++)); do
        local gres=
        if ((n < LOCAL_CLUSTER_GPU_NODES)); then
            gres="Gres=gpu:$LOCAL_CLUSTER_GPUS Weight=10" # jobs without GPUs take other nodes first
            echo "NodeName=n$n Name=gpu File=$dir/dev/nvidia[0-$((LOCAL_CLUSTER_GPUS - 1))]" >>"$dir/etc/gres.conf"
        fi
        echo "NodeName=n$n NodeAddr=127.0.0.1 Port=$((LOCAL_CLUSTER_PORT + 1 + n))" \
            "CPUs=$LOCAL_CLUSTER_CPUS RealMemory=16384 $gres State=UNKNOWN" >>"$SLURM_CONF"
    done
    {
        echo "PartitionName=main Nodes=n[0-$last] Default=YES"
        if ((LOCAL_CLUSTER_GPU_NODES > 0)); then
            echo "PartitionName=gpu Nodes=n[0-$((LOCAL_CLUSTER_GPU_NODES - 1))]"
        fi
        if ((LOCAL_CLUSTER_GPU_NODES < LOCAL_CLUSTER_NODES)); then
            echo "PartitionName=cpu Nodes=n[$LOCAL_CLUSTER_GPU_NODES-$last]"
        fi
    } >>"$SLURM_CONF"
    # slurmd wants a control group plugin even where none is used; this one starts without any mounted.
    echo "CgroupPlugin=cgroup/v1" >"$dir/etc/cgroup.conf"
}

runs() { # runs PID NAME: whether that process lives; a zombie does not
    local stat
    stat=$(cat "/proc/${1:-none}/stat" 2>/dev/null) && [[ $stat == "$1 ($2)"* && $stat != *") Z "* ]]
}

pid_of() { # pid_of NAME PIDFILE: prints the process id where the daemon lives
    local pid
    pid=$(cat "$2" 2>/dev/null) && runs "$pid" "$1" && echo "$pid"
}

start_node() {
    # shellcheck disable=SC2016 # the inner shell expands it, inside the new namespaces
    unshare --mount --uts --ipc bash -ec '
        hostname "$1"
        mount --bind "$2/etc/hosts" /etc/hosts
        mount -t tmpfs tmpfs /dev/shm
        readlink /proc/self/ns/uts >"$2/run/uts-$1"
        exec slurmd -f "$2/etc/slurm.conf" -N "$1"' - "$1" "$dir"
}

is_ready() {
    local states
    states=$(timeout 5 sinfo --noheader --Node --partition=main --format=%T 2>/dev/null) || return 1
    [[ $(grep --count --line-regexp --extended-regexp 'idle|mixed|allocated' <<<"$states") == "$LOCAL_CLUSTER_NODES" ]]
}

start() {
    [[ $UID == 0 ]] || die "it needs root, for Slurm's packages and for namespaces"
    # A start that fails leaves nothing running.
    trap 'if (($?)); then stop; fi' EXIT
    mkdir -p "$dir"/{etc,run,log,state,spool,dev,munge,tmp}
    chmod 755 "$dir" "$dir"/{etc,run,log,dev,spool,munge}
    install_packages
    local n
    if ! pid_of slurmctld "$dir/run/slurmctld.pid" >/dev/null; then
        check_ports
        write_config
    fi
    if ! pid_of munged "$dir/run/munged.pid" >/dev/null; then
        munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/run/munged.pid" \
            --log-file="$dir/log/munged.log" --seed-file="$dir/munge/seed" 2>>"$dir/log/munged.err" ||
            die "munged failed, see $dir/log/munged.log"
    fi
    pid_of slurmctld "$dir/run/slurmctld.pid" >/dev/null || slurmctld -f "$SLURM_CONF" ||
        die "slurmctld failed, see $dir/log/slurmctld.log"
    for ((n = 0; n <= last; n++)); do
        pid_of slurmd "$dir/run/slurmd-n$n.pid" >/dev/null || start_node "n$n" ||
            die "the slurmd of n$n failed, see $dir/log/slurmd-n$n.log"
    done
    for ((n = 0; n < 300; n++)); do
        if is_ready; then
            say "$LOCAL_CLUSTER_NODES nodes are ready (SLURM_CONF=$SLURM_CONF)"
            return 0
        fi
        sleep 0.1
    done
    sinfo --Node --format='%N %T %E' >&2 || true
    die "not ready after 30 s, see $dir/log"
}

crash() { # crash NODE: a node is all that runs under its hostname
    local space process
    space=$(cat "$dir/run/uts-$1" 2>/dev/null) || return 0
    [[ $space != "$(readlink /proc/self/ns/uts)" ]] || die "$1 has no namespace of its own"
    rm -f "$dir/run/uts-$1"
    for process in /proc/[0-9]*; do
        if [[ $(readlink "$process/ns/uts" 2>/dev/null) == "$space" ]]; then
            kill -KILL "${process#/proc/}" 2>/dev/null || true
        fi
    done
}

end_daemons() { # end_daemons NAME PIDFILE...: TERM, and KILL for what is left 5 s later
    local name=$1 file pid i
    local -A left=()
    for file in "${@:2}"; do
        if pid=$(pid_of "$name" "$file"); then
            left[$pid]=1
            kill -TERM "$pid" 2>/dev/null || true
        fi
    done
    for ((i = 0; i < 50 && ${#left[@]} > 0; i++)); do
        sleep 0.1
        for pid in "${!left[@]}"; do runs "$pid" "$name" || unset "left[$pid]"; done
    done
    for pid in "${!left[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
}

stop() {
    if [[ ! -f $SLURM_CONF ]]; then
        say "nothing to stop in $dir"
        return 0
    fi
    local i files=()
    if pid_of slurmctld "$dir/run/slurmctld.pid" >/dev/null; then
        timeout 5 scancel --user=root 2>/dev/null || true
        for ((i = 0; i < 80; i++)); do
            [[ -n $(timeout 5 squeue --noheader --states=running,completing,configuring 2>/dev/null) ]] || break
            sleep 0.1
        done
    fi
    for ((i = 0; i <= last; i++)); do files+=("$dir/run/slurmd-n$i.pid"); done
    end_daemons slurmctld "$dir/run/slurmctld.pid"
    end_daemons slurmd "${files[@]}"
    for ((i = 0; i <= last; i++)); do crash "n$i"; done # what jobs left behind
    end_daemons munged "$dir/run/munged.pid"
    say "stopped; the logs are in $dir/log"
}

case ${1:-} in
    start) start ;;
    stop) stop ;;
    status) sinfo --Node --long && squeue && is_ready ;;
    crash) crash "${2:?which node}" ;;
    env) echo "export SLURM_CONF=$SLURM_CONF" ;;
    *) die "usage: $0 start|stop|status|env|crash NODE" ;;
esac
