#!/bin/sh
# What a guest of roce.py boots into, as its first process: brings up eth0 and a RoCE device on it,
# runs its share of five jobs, tells what happened on the console, and powers off. "me=1" on the
# kernel's command line is the guest with the server, "me=2" the one with the workers.
# Console lines: "fact NAME VALUE" and "log NAME|LINE"; roce.py judges them.
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
me=$(sed -n 's/.*me=\([12]\).*/\1/p' /proc/cmdline)
counter=/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts
run_seconds=150

fact() {
    echo "fact $*"
}

# wait_for COMMAND...: until it succeeds, 40 s at most.
wait_for() {
    tries=0
    until "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 400 ] || return 1
        sleep 0.1
    done
}

network() {
    for module in crc32_generic rdma_rxe ib_uverbs virtio_pci virtio_net; do
        modprobe $module
    done
    /usr/sbin/ip link set lo up
    wait_for test -e /sys/class/net/eth0
    # Room for RoCE's largest packet, 4096 bytes and headers.
    /usr/sbin/ip link set eth0 mtu 4200
    /usr/sbin/ip addr add 10.77.0.$me/24 dev eth0
    /usr/sbin/ip link set eth0 up
    /usr/sbin/rdma link add rxe0 type rxe netdev eth0
    wait_for grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state
    fact link "$(cat /sys/class/net/eth0/operstate)"
    ulimit -l unlimited
}

sent_packets() {
    cat $counter 2>/dev/null || echo 0
}

# process NAME COMMAND...: its exit code becomes a fact; its log is printed.
process() {
    log=$1
    shift
    timeout -s KILL $run_seconds "$@" >"/tmp/$log" 2>&1
    fact "$log.exit" $?
    sed "s/^/log $log|/" "/tmp/$log"
}

# kill_worker1 NAME TEXT FILE: once the text is in the file.
kill_worker1() {
    wait_for grep -q "$2" "$3"
    for pid in $(pidof rubato-worker); do
        tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q -- '--index 1 ' || continue
        kill -KILL "$pid" && fact "$1.killed" 1
    done
}

# job NAME PORT TLS STEPS [OPTION...]: this guest's processes of one job.
job() {
    name=$1 port=$2 tls=$3 steps=$4
    shift 4
    before=$(sent_packets)
    if [ "$me" = 1 ]; then
        process "$name.server" rubato-server --listen 10.77.0.1:"$port" --insecure --tls "$tls" \
            --workers 2 --shards 2 --model gpt2:1x32x1 --seq-len 8 --batch 1 --steps "$steps" \
            --block-values 8192 --push none --pull none --lease 60 --join-timeout 120 "$@"
    else
        for index in 0 1; do
            process "$name.worker$index" rubato-worker --join 10.77.0.1:"$port" --insecure \
                --tls "$tls" --index $index --data /data.txt --threads 1 --eval-every 0 \
                --sample-tokens 0 --run-dir "/tmp/run.$name" --join-timeout 120 &
        done
        case $name in
        lost) kill_worker1 lost rubato.step /tmp/run.lost/metrics.jsonl ;;
        early) kill_worker1 early 'ucx: peer' /tmp/early.worker1 ;;
        esac
        wait
    fi
    fact "$name.sent" $(($(sent_packets) - before))
    if [ -e "/tmp/run.$name/model.safetensors" ]; then
        fact "$name.weights" "$(sha256sum <"/tmp/run.$name/model.safetensors" | cut -c1-64)"
        sed "s/^/log $name.metrics|/" "/tmp/run.$name/metrics.jsonl"
    fi
}

network
fact up "$(cut -d' ' -f1 /proc/uptime)"
fact kernel "$(uname -r)"
job tcp 29601 tcp 8
job rc 29602 rc 8
job lost 29603 rc 60 --mode async --sync-warmup 0
job early 29604 rc 8
/usr/sbin/rdma link del rxe0
job gone 29605 rc 8
fact done 1
poweroff -f
