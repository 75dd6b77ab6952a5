#!/usr/bin/env bash
# loss_study.sh - what compression costs in loss: each codec's recipe against bf16 at equal steps,
# mean over seeds with its standard error, held to the bounds that docs/COMPRESSION.md states.
#
# usage: bench/loss_study.sh [--bin FOLDER] [--data FILE] [--out FOLDER] [--all] [--flag VALUE ...]
#
# Trains a GPT-2 of 1M parameters on the bytes of a text, 2 workers, 2,000 steps a run, 3 seeds, in two
# settings, each by one `rubato compare` with a bf16 of its own, whose reports lie in --out:
#   calm  --lr 1e-3, the default: runs that differ in a rounding alone end about 0.001 from each
#         other, so that what int8, int4 and delta-int4 cost can be seen
#   fast  --lr 3e-3, the best for bf16 here, where such runs end up to 0.015 apart: the recipes whose
#         cost depends on how fast the weights move
# The arms with a bound and their controls take about half an hour on 2 quiet cores; --all adds what
# else has been tried, and three times that. Runs that are in --out already are not made again: Ctrl-C
# leaves a report of what there is, the same command goes on, and with --all it makes only what is
# more. Other flags go to `rubato compare`, --seeds 1 say.
# Exit code 1 when a run failed, or an arm is over its bound by more than two standard errors.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
bin=$here/build/bin data=$here/data/gcide.txt out=runs/loss-study all=false
others=() own='--optimizer worker:1bit-adam'
job=(--model gpt2:5x128x4 --seq-len 64 --batch 4 --workers 2 --steps 2000 --beta1 0.9 --beta2 0.99
    --warmup 100 --lr-min-ratio 0.05 --eval-every 500 --eval-batches 512 --seeds 3)

usage() {
    sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//'
}

# The arms: most that the mean difference to bf16 may be (or -), a name, and the arm's options. Those
# of bf16 are controls: what recipes change besides the codec.
calm() {
    cat <<TEXT
0.002 int8: --push int8
0.01  int4: --push int4:sr,had
0.003 delta-int4: --pull delta-int4
TEXT
}
calm_others() {
    cat <<TEXT
- fp8: --push fp8
- int4 both ways: --push int4:sr,had --pull delta-int4
- int4, feedback: --push int4:sr,had,ef
- int4, LoCo: --push int4,ef=loco
TEXT
}
fast() {
    cat <<TEXT
-     bf16, no clip: --clip 0
-     bf16, frozen v: --freeze-v-after 500
0.01  1-bit Adam: $own --push onebit,ef --dense-warmup 500
0.05  top-k 1 %: $own --push topk:0.01,ef --dense-warmup 300 --density-schedule 900 --beta1 0.5
TEXT
}
fast_others() {
    local top='--dense-warmup 200 --density-schedule 200'
    cat <<TEXT
- bf16, beta1 0.5: --beta1 0.5
- int4, moments: $own --push int4:sr,had --dense-warmup 200
- onebit: --push onebit --dense-warmup 200
- onebit, feedback: --push onebit,ef --dense-warmup 200
- onebit, frozen v: --push onebit,ef --dense-warmup 500 --freeze-v-after 500
- 1-bit Adam, no clip: $own --push onebit,ef --dense-warmup 500 --clip 0
- 1-bit Adam, beta1 0.5: $own --push onebit,ef --dense-warmup 500 --beta1 0.5
- 1-bit Adam, 200 steps: $own --push onebit,ef --dense-warmup 200
- powersgd 4: --push powersgd:4,ef --dense-warmup 200
- powersgd 4, moments: $own --push powersgd:4,ef --dense-warmup 500
- randk 1 %: --push randk:0.01
- randk 1 %, feedback: --push randk:0.01,ef
- top-k, no feedback: --push topk:0.01 $top
- top-k, feedback: --push topk:0.01,ef $top
- top-k, LoCo: --push topk:0.01,ef=loco $top
- top-k, frozen v: --push topk:0.01,ef $top --freeze-v-after 200
- top-k, gradients both ways: --optimizer worker:adamw --push topk:0.01,ef $top
- top-k, beta1 0.9: $own --push topk:0.01,ef $top
- top-k, short fall: $own --push topk:0.01,ef $top --beta1 0.5
- top-k, 600 falling: $own --push topk:0.01,ef --dense-warmup 200 --density-schedule 600 --beta1 0.5
- top-k, of whole blocks: $own --push topk:0.01,global,ef $top --beta1 0.5
TEXT
}

while [ $# -gt 0 ]; do
    case $1 in
    --bin | --data | --out)
        [ $# -ge 2 ] || { echo "loss_study.sh: $1 needs a value" >&2; exit 2; }
        printf -v "${1#--}" '%s' "$2"
        shift 2
        ;;
    --all) all=true; shift ;;
    --help) usage; exit 0 ;;
    *) others+=("$1"); shift ;;
    esac
done
if [ ! -r "$data" ]; then
    echo "loss_study.sh: no $data: scripts/demo prepares it, or give --data" >&2
    exit 66
fi

# What one setting's table says of its bounds. A row is an arm's name and numbers, two blanks or more
# between them.
verdict() {
    awk -F '  +' -v code="$3" '
        NR == FNR {
            split($0, parts, ":")
            bound = parts[1]
            sub(/ .*/, "", bound)
            sub(/^[^ ]* */, "", parts[1])
            most[parts[1]] = bound
            next
        }
        FNR == 1 {
            for (i = 1; i <= NF; i++) column[$i] = i
        }
        $1 in most && most[$1] != "-" && NF > 8 {
            delta = $column["delta"]
            noise = 2 * $column["se"]
            verdict = "NO"
            if (delta != "-" && delta <= most[$1] + noise) verdict = "within the noise"
            if (delta != "-" && delta <= most[$1] + 0) verdict = "yes"
            printf "%s: %s nats above bf16 (standard error %s), wanted <= %s: %s\n", $1, delta,
                   $column["se"], most[$1], verdict
            if (verdict == "NO") code = 1
        }
        END { exit code }' "$1" "$2"
}

# study NAME LR: all arms of a setting.
study() {
    local folder=$out/$1 code
    mkdir -p "$folder" || exit 73
    {
        "$1"
        ! $all || "$1_others"
    } >"$folder/bounds.txt"
    sed 's/^[^ ]* *//' "$folder/bounds.txt" >"$folder/arms.txt"
    "$bin/rubato" compare --data "$data" --out "$folder" --resume --arms "$folder/arms.txt" \
        "${job[@]}" --lr "$2" ${others[@]+"${others[@]}"} | tee "$folder/table.txt"
    code=${PIPESTATUS[0]}
    [ "$code" -le 1 ] || exit "$code"
    echo
    verdict "$folder/bounds.txt" "$folder/table.txt" "$code"
}

code=0
study calm 1e-3 || code=1
study fast 3e-3 || code=1
exit "$code"
