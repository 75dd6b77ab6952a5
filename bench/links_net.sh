# links_net.sh - the network of links.sh, which reads this file: a namespace for each machine, and
# one with a bridge that joins their cables. Nothing of it touches the machine's own network.
#
# Each cable is shaped at both ends, where packets leave, so that a machine has the rate in each
# direction at the same time. Names carry this process's id; net_remove() removes them all.
# shellcheck shell=bash
: "${placement:?read by links.sh}" "${here:?}" "${out:?}"

net=rubato-links-$$
net_up=false
machines=(a b)
if [ "$placement" = apart ]; then machines+=(s); fi

net_require() { # exits with 77 when namespaces cannot be made here
    local program why=''
    for program in ip tc python3; do
        command -v "$program" >/dev/null || why="no $program here"
    done
    if [ -z "$why" ]; then
        why=$(ip netns add "$net-try" 2>&1 && ip netns del "$net-try" 2>&1) && return
        why="cannot make a network namespace${why:+ ($why)}"
    fi
    say "skipped: $why; needed are root, iproute2 with tc, and python3"
    exit 77
}

net_address() { # INDEX of a machine
    echo "10.77.0.$(($1 + 1))"
}

net_exec() { # MACHINE COMMAND...: in place of the shell that calls it, so that $! is the command's
    exec ip netns exec "$net-$1" "${@:2}"
}

net_cable() { # INDEX RATE
    local machine=${machines[$1]} shaper=(tbf rate "$2" burst 64kb latency 50ms)
    ip netns add "$net-$machine" &&
        ip -n "$net-bridge" link add name "port$1" type veth peer name eth0 netns "$net-$machine" &&
        ip -n "$net-bridge" link set "port$1" master bridge up &&
        ip -n "$net-$machine" addr add "$(net_address "$1")/24" dev eth0 &&
        ip -n "$net-$machine" link set lo up &&
        ip -n "$net-$machine" link set eth0 up || return 1
    [ "$2" = none ] && return
    tc -n "$net-bridge" qdisc add dev "port$1" root "${shaper[@]}" &&
        tc -n "$net-$machine" qdisc add dev eth0 root "${shaper[@]}"
}

net_make() { # RATE
    local index
    net_up=true
    if ! { ip netns add "$net-bridge" &&
        ip -n "$net-bridge" link add name bridge type bridge &&
        ip -n "$net-bridge" link set bridge up; }; then
        say "skipped: cannot make a bridge"
        exit 77
    fi
    for index in "${!machines[@]}"; do
        net_cable "$index" "$1" && continue
        say "skipped: cannot make a link of rate $1"
        exit 77
    done
    net_check "$1"
}

net_probe() { # FROM TO: indexes; Mb/s on standard output
    local address receiver got=$out/.probe
    local probe=$here/bench/links_probe.py
    address=$(net_address "$2")
    (net_exec "${machines[$2]}" python3 "$probe" receive "$address" 5001) >"$got" &
    receiver=$!
    (net_exec "${machines[$1]}" timeout 30 python3 "$probe" send "$address" 5001 2)
    wait "$receiver"
    cat "$got"
    rm -f "$got"
}

# No shaper is believed that was not measured: exits when a link carries more than its rate.
net_check() { # RATE
    local there back most
    there=$(net_probe 0 1)
    back=$(net_probe 1 0)
    echo "link $1: TCP gets ${there:-?} Mb/s from a to b, ${back:-?} back"
    case $1 in
    none) return ;;
    *kbit) most=${1%kbit}e-3 ;;
    *mbit) most=${1%mbit} ;;
    *) most=${1%gbit}e3 ;;
    esac
    awk -v a="$there" -v b="$back" -v most="$most" \
        'BEGIN { exit !(a > 0 && b > 0 && a <= 1.05 * most && b <= 1.05 * most) }' && return
    say "this machine does not hold a link to $1"
    exit 74
}

net_remove() {
    local machine
    $net_up || return 0
    for machine in "${machines[@]}" bridge; do
        ip netns del "$net-$machine" 2>/dev/null
    done
    net_up=false
}
