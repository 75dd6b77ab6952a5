#!/usr/bin/env bash
# convergence.sh - what each mode ends with at equal tokens: validation loss, mean over seeds, and
# the relative gap to the first arm with the same seed.
#
# usage: bench/convergence.sh [--bin FOLDER] [--data FILE] [--out FOLDER] [--seeds N] [--steps N]
#                             [--workers N] [--common 'OPTIONS'] ARM ...
#
# An ARM is a mode and, where wanted, options of `rubato launch` that it has alone:
#   bench/convergence.sh sync 'ssp:4 --lr 1.5e-3' 'async --sync-warmup 100' 'diloco:20 --lr 3e-3'
# Without arms: those of docs/MODES.md, on a small model that 2 cores train in a minute an arm and
# seed. --common options go to all arms; what an arm says itself comes last and counts. Each worker makes --steps steps in every arm,
# so that all arms read the same number of tokens.
# A run whose command line has a result in --out already is not run again: the same command with one
# more arm costs one arm. Logs and run folders are there, too. Exit code 1 when a run failed.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$here/build/bin data=$here/data/gcide.txt out=runs/convergence seeds=3 steps=3000 workers=4
common='--model gpt2:2x64x2 --seq-len 64 --batch 8 --lr 2e-3 --warmup 100'
arms=()

usage() {
    sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'
}
while [ $# -gt 0 ]; do
    case $1 in
    --bin | --data | --out | --seeds | --steps | --workers | --common)
        [ $# -ge 2 ] || { echo "convergence.sh: $1 needs a value" >&2; exit 2; }
        printf -v "${1#--}" '%s' "$2"
        shift 2
        ;;
    --help) usage; exit 0 ;;
    --*) echo "convergence.sh: unknown option $1; see --help" >&2; exit 2 ;;
    *) arms+=("$1"); shift ;;
    esac
done
[ ${#arms[@]} -gt 0 ] || arms=(sync ssp:4 async
    'diloco:20 --lr 4e-3 --beta2 0.99 --outer-lr 1 --outer-momentum 0.5' 'sync --lr 4e-3')
if [ ! -r "$data" ]; then
    echo "convergence.sh: no $data: scripts/demo prepares it, or give --data" >&2
    exit 66
fi
mkdir -p "$out" || exit 73
table=$out/table.txt
: >"$table"
failed=false

run() { # run ARM SEED: its validation loss on standard output
    local arm=$1 seed=$2 words command folder log
    read -ra words <<<"$common --mode $arm"
    command=("$bin/rubato" launch --servers 1 --workers "$workers" --threads 1 --data "$data"
        --steps "$steps" --seed "$seed" --eval-every 0 --eval-batches 64 --sample-tokens 0
        --progress off --log-level warn "${words[@]}")
    folder=$out/$(printf '%s' "${command[*]}" | cksum | cut -d' ' -f1)-seed$seed
    log=$folder.log
    if [ "$(head -n 1 "$log" 2>/dev/null)" != "${command[*]}" ] || ! grep -q '^result:' "$log"; then
        echo "${command[*]}" >"$log"
        "${command[@]}" --run-dir "$folder" >>"$log" 2>&1 </dev/null
    fi
    sed -n 's/^result: val_loss=\([^ ]*\).*/\1/p' "$log"
}

# Seeds outermost: after half of the time each arm has half of its runs.
for seed in $(seq "$seeds"); do
    for i in "${!arms[@]}"; do
        loss=$(run "${arms[$i]}" "$seed")
        if [ -z "$loss" ]; then
            echo "convergence.sh: ${arms[$i]}, seed $seed failed; see the logs in $out" >&2
            failed=true
            continue
        fi
        echo "seed $seed: $loss ${arms[$i]}" >&2
        printf '%s\t%s\t%s\t%s\n' "$i" "$seed" "$loss" "${arms[$i]}" >>"$table"
    done
done

echo "$workers workers, $steps steps each, $seeds seeds, $common"
awk -F'\t' '
function sigma(sum, squares, n,    spread) { # over n - 1
    spread = squares - sum * sum / n # rounding can make it negative
    return n > 1 ? sprintf("%.4f", sqrt((spread > 0 ? spread : 0) / (n - 1))) : "-"
}
$1 == 0 { base[$2] = $3 }
{
    name[$1] = $4; n[$1]++; sum[$1] += $3; squares[$1] += $3 * $3
    if ($2 in base) {
        gap = ($3 / base[$2] - 1) * 100
        pairs[$1]++; gaps[$1] += gap; gap_squares[$1] += gap * gap
    }
    most = $1 > most ? $1 : most
}
END {
    printf "%9s %8s %8s %8s  %s\n", "val_loss", "sigma", "gap %", "sigma", "arm"
    for (i = 0; i <= most; i++) {
        if (!n[i]) continue
        printf "%9.4f %8s ", sum[i] / n[i], sigma(sum[i], squares[i], n[i])
        if (pairs[i])
            printf "%+8.2f %8s", gaps[i] / pairs[i], sigma(gaps[i], gap_squares[i], pairs[i])
        else printf "%8s %8s", "-", "-"
        printf "  %s\n", name[i]
    }
}' "$table"
if $failed; then exit 1; fi
