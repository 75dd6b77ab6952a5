#!/usr/bin/env bash
# links.sh - Rubato and PyTorch DDP over real links: two workers in network namespaces of their
# own, joined by a bridge, each cable shaped by tbf in both directions. Both train the same model
# from the same first weights on the same batches in the same order, so that losses compare step by
# step.
#
# usage: bench/links.sh [--rate LIST] [--arms LIST] [--arm 'NAME=FLAGS']... [--steps N]
#                       [--placement beside|apart] [--limit SECONDS] [--compute f32|bf16|auto]
#                       [--model NAME] [--lr X] [--warmup N] [--seed N] [--eval-every N]
#                       [--eval-batches N] [--bin FOLDER] [--data FILE] [--python PROGRAM]
#                       [--out FOLDER] [--list]
#
# --rate       links, one after the other: rates as tc writes them (100mbit, 1gbit), or none for
#              links that are not shaped (default none,100mbit)
# --arms       what is run over each (default: all; --list prints them). Those called ddp... are
#              PyTorch's, skipped where --python (default python3) has no torch
# --arm        one more: NAME=flags of rubato-server, or a hook of links_ddp.py where NAME begins
#              with ddp
# --placement  beside (default): a server process beside each worker, as somebody with two machines
#              would start them (DDP has no third one, either); half of what a worker exchanges
#              stays on its machine. apart: one server on a third machine, whose cable carries all
# --steps      of each worker in each arm (default 200), at a constant rate after the warm-up, so
#              that curves compare at any time. --limit (default 1200) ends an arm so many seconds
#              after its first step; what it has done until then counts
# --compute    number type of the products, in both systems (default bf16)
# --model      a GPT-2 (default gpt2:small: 6 layers, 384 channels, 10.8M values). Batches are 8 x
#              256 bytes
#
# The table and results.jsonl in --out (default runs/links) are of all arms that were run there; see
# links_report.py for the columns. An arm whose command has a result in --out already is not run
# again. Times leave out validation.
# Needs Linux, root, iproute2 with tc, and python3. Exit codes: 0; 1 when an arm failed; 2 usage; 66
# no data or programs; 74 a link is faster than its rate; 77 no right to make namespaces; 128 + n
# after signal n.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$here/build/bin data=$here/data/gcide.txt out=runs/links python=python3 placement=beside
rate=none,100mbit arms='' steps=200 limit=1200 compute=bf16 model=gpt2:small lr=1e-3 warmup=20
seed=1 eval_every=10 eval_batches=4 list=false

# The built-in arms, in this order.
names=(none bf16 int8 int4 worker-int4 worker-powersgd local8 local8-int4 diloco20 diloco20-flat
    ddp ddp-fp16 ddp-powersgd ddp-powersgd10)
diloco='--mode diloco:20 --outer-lr 1 --outer-momentum 0.5'
declare -A flags=(
    [none]='--push none --pull none'
    [bf16]='--push bf16 --pull bf16'
    [int8]='--push int8 --pull delta-int8'
    [int4]='--push int4:sr,had --pull delta-int4'
    [worker-int4]='--optimizer worker:adamw --push int4:sr,had'
    [worker-powersgd]='--optimizer worker:adamw --push powersgd:4,shared,ef --dense-warmup 10'
    [local8]='--mode local:8 --push int8 --pull delta-int8'
    [local8-int4]='--mode local:8 --push int4:sr,had --pull delta-int4'
    [diloco20]="$diloco --push int8 --pull delta-int8"
    [diloco20-flat]="$diloco --fragments 10 --overlap 1 --push int8 --pull delta-int8"
    [ddp]=none
    [ddp-fp16]=fp16
    [ddp-powersgd]=powersgd:4:2
    [ddp-powersgd10]=powersgd:4:10
)

say() {
    echo "links.sh: $*" >&2
}
refuse() {
    say "$*"
    exit 2
}
usage() {
    sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'
}
add_arm() { # NAME=FLAGS
    local name=${1%%=*}
    case $name in
    '' | [!a-zA-Z]* | *[!a-zA-Z0-9._-]*)
        refuse "--arm $1: wanted is NAME=FLAGS; a name begins with a letter and has letters," \
            "digits, '.', '_' and '-' only" ;;
    esac
    [[ $1 == *=?* ]] || refuse "--arm $1: wanted is NAME=FLAGS"
    flags[$name]=${1#*=}
    arms=${arms:+$arms,}$name
}
while [ $# -gt 0 ]; do
    case $1 in --*=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" ;; esac
    case $1 in
    --help) usage; exit 0 ;;
    --list) list=true; shift; continue ;;
    --rate | --arms | --arm | --steps | --placement | --model | --limit | --compute | --lr | \
        --warmup | --seed | --eval-every | --eval-batches | --bin | --data | --python | --out)
        [ $# -ge 2 ] || refuse "$1 needs a value" ;;
    *) refuse "unknown option $1; see --help" ;;
    esac
    case $1 in
    --arm) add_arm "$2" ;;
    --arms) arms=$2${arms:+,$arms} ;;
    *) name=${1#--}; printf -v "${name//-/_}" '%s' "$2" ;;
    esac
    shift 2
done
if $list; then
    for name in "${names[@]}"; do printf '%-16s %s\n' "$name" "${flags[$name]}"; done
    exit 0
fi
[ -n "$arms" ] || arms=$(IFS=,; echo "${names[*]}")
IFS=, read -ra arm_list <<<"$arms"
IFS=, read -ra rates <<<"$rate"

check_options() {
    local name value
    for name in steps limit warmup eval_every eval_batches; do
        [[ ${!name} =~ ^[1-9][0-9]*$ ]] ||
            refuse "--${name//_/-} ${!name}: allowed are whole numbers from 1 on"
    done
    [[ $seed =~ ^[0-9]+$ ]] || refuse "--seed $seed: allowed are whole numbers"
    [[ $placement =~ ^(beside|apart)$ ]] || refuse "--placement $placement: beside or apart"
    [[ $compute =~ ^(f32|bf16|auto)$ ]] || refuse "--compute $compute: f32, bf16 or auto"
    [[ $model =~ ^gpt2:[a-zA-Z0-9.]+$ ]] || refuse "--model $model: a gpt2:NAME or gpt2:LxCxH"
    for value in "${rates[@]}"; do
        [[ $value =~ ^(none|[1-9][0-9]*[kmg]bit)$ ]] ||
            refuse "--rate $value: none, or a number with kbit, mbit or gbit"
    done
    for value in "${arm_list[@]}"; do
        [ -n "${flags[$value]:-}" ] || refuse "no arm '$value'; see --list, or add it by --arm"
    done
    [ -r "$data" ] || { say "no $data: scripts/demo prepares it, or give --data"; exit 66; }
    for name in rubato rubato-server rubato-worker; do
        [ -x "$bin/$name" ] || { say "no $bin/$name: build it, or give --bin"; exit 66; }
    done
}
check_options
data=$(realpath "$data") bin=$(realpath "$bin")
mkdir -p "$out" || exit 73
out=$(realpath "$out")
unset "${!RUBATO_@}"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
arm_total=$((${#rates[@]} * ${#arm_list[@]})) arm_number=0
# shellcheck source=bench/links_net.sh
. "$here/bench/links_net.sh"
# shellcheck source=bench/links_arm.sh
. "$here/bench/links_arm.sh"

end_all() {
    local code=$?
    trap - EXIT
    trap '' INT TERM HUP
    arm_stop
    net_remove
    exit "$code"
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

failed=false
net_require
arm_first_weights
for link in "${rates[@]}"; do
    net_make "$link"
    for arm in "${arm_list[@]}"; do
        arm_number=$((arm_number + 1))
        arm_run "$link" "$arm" || failed=true
    done
    net_remove
done
python3 "$here/bench/links_report.py" "$out" || failed=true
if $failed; then exit 1; fi
