# links_arm.sh - one arm of links.sh, which reads this file: starts the processes, each on its
# machine, watches them, and leaves in OUT/RATE/ARM what links_report.py reads:
#   arm.txt         what was run, and its outcome (done, limit, failed, skipped): lines "NAME VALUE"
#   metrics.jsonl   an object a step, of rank 0 (Rubato's worker, or links_ddp.py)
#   wire.txt        lines "STEPS MACHINE SENT RECEIVED": bytes of its cable, when so many were made
#   *.log           what each process printed
# shellcheck shell=bash
: "${out:?read by links.sh}" "${bin:?}" "${data:?}" "${python:?}" "${here:?}" "${placement:?}"
: "${model:?}" "${steps:?}" "${limit:?}" "${lr:?}" "${warmup:?}" "${seed:?}" "${compute:?}"
: "${eval_every:?}" "${eval_batches:?}" "${arm_total:?}" "${arm_number:?}" "${machines:?}"
: "${flags[*]:?}"

start_limit=120 # seconds, beside --limit, that an arm may take for its first step
arm_pids=() arm_names=()
arm_seconds=0 arm_counted=0 # of the arms that were run, to tell the time that is left
shape=(--model "$model" --seq-len 256 --batch 8)

arm_stop() {
    local pid tries alive
    [ ${#arm_pids[@]} -gt 0 ] || return 0
    kill -TERM "${arm_pids[@]}" 2>/dev/null
    for ((tries = 0; tries < 50; tries++)); do
        alive=false
        for pid in "${arm_pids[@]}"; do kill -0 "$pid" 2>/dev/null && alive=true; done
        $alive || break
        sleep 0.1
    done
    kill -KILL "${arm_pids[@]}" 2>/dev/null
    for pid in "${arm_pids[@]}"; do wait "$pid" 2>/dev/null; done
    arm_pids=() arm_names=()
}

# Random weights, written by a job whose learning rate is 0; every arm starts from them.
arm_first_weights() {
    init=$out/init-${model#gpt2:}-seed$seed
    [ -s "$init/model.safetensors" ] && return
    timeout 300 "$bin/rubato" launch --bin "$bin" "${shape[@]}" --workers 1 --threads 1 --steps 1 \
        --lr 0 --warmup 0 --seed "$seed" --data "$data" --eval-batches 1 --sample-tokens 0 \
        --progress off --log-level warn --run-dir "$init" >"$init.log" 2>&1 </dev/null && return
    tail -n 5 "$init.log" >&2
    say "cannot make the first weights"
    exit 1
}

start() { # NAME MACHINE COMMAND...
    (net_exec "$2" "${@:3}") >"$folder/$1.log" 2>&1 </dev/null &
    arm_pids+=($!)
    arm_names+=("$1")
}

# In both: the two workers come last, since note_wire() counts on it.
start_rubato() { # FLAGS...
    local i address
    local job=("${shape[@]}" --workers 2 --steps "$steps" --seed "$seed" --schedule constant
        --lr "$lr" --warmup "$warmup" --insecure "$@")
    if [ "$placement" = beside ]; then
        address=$(net_address 0):29600
        job+=(--servers 2)
        start server.0 a "$bin/rubato-server" --listen "$address" --index 0 "${job[@]}"
        start server.1 b "$bin/rubato-server" --join "$address" --index 1 --insecure
    else
        address=$(net_address 2):29600
        start server.0 s "$bin/rubato-server" --listen "$address" "${job[@]}"
    fi
    for i in 0 1; do
        start "worker.$i" "${machines[$i]}" "$bin/rubato-worker" --join "$address" --index "$i" \
            --insecure --data "$data" --threads 1 --compute "$compute" --init "$init" \
            --eval-every "$eval_every" --eval-batches "$eval_batches" --sample-tokens 0 \
            --progress off --run-dir "$folder"
    done
}

start_ddp() { # HOOK
    local i type=$compute
    if [ "$type" = auto ]; then # what Rubato takes on this chip
        type=f32
        grep -qw amx_bf16 /proc/cpuinfo && type=bf16
    fi
    for i in 0 1; do
        start "rank.$i" "${machines[$i]}" "$python" "$here/bench/links_ddp.py" --rank "$i" \
            --batch 8 --seq-len 256 --steps "$steps" --warmup "$warmup" --seed "$seed" --lr "$lr" \
            --compute "$type" --eval-every "$eval_every" --eval-batches "$eval_batches" \
            --hook "$1" --address "$(net_address 0):29700" --interface eth0 --init "$init" \
            --data "$data" --run-dir "$folder"
    done
}

step_reached() {
    local line
    line=$(tail -n 2 "$folder/metrics.jsonl" 2>/dev/null | grep -o '"step":[0-9]*' | tail -n 1)
    echo "${line#\"step\":}"
}

# The bytes of each worker's cable so far: on the line of eth0, received first and sent ninth.
note_wire() { # STEPS
    local i pid line fields
    for i in 0 1; do
        pid=${arm_pids[-2 + i]}
        line=$(grep eth0: "/proc/$pid/net/dev" 2>/dev/null) || continue
        read -ra fields <<<"${line#*eth0:}"
        echo "$1 ${machines[$i]} ${fields[8]} ${fields[0]}" >>"$folder/wire.txt"
    done
}

clock() { # SECONDS as m:ss
    printf '%d:%02d' $(($1 / 60)) $(($1 % 60))
}

show_progress() { # STEPS SECONDS since the first step
    local left='?' all='?' mean
    if [ "$1" -gt 0 ]; then
        left=$(($2 * (steps - $1) / $1))
        if [ $(($2 + left)) -gt "$limit" ]; then left=$((limit > $2 ? limit - $2 : 0)); fi
        mean=$(((arm_seconds + $2 + left) / (arm_counted + 1)))
        all=$(clock $((left + mean * (arm_total - arm_number))))
        left=$(clock "$left")
    fi
    echo "$title: step $1/$steps, $(clock "$2"), eta $left, of all arms $all" >&2
}

# Notes the processes that have ended. True once that settles the outcome: a process that failed, or
# all that are done.
processes_settle() {
    local i code
    for i in "${!arm_pids[@]}"; do
        if [ -n "${ended[$i]:-}" ] || kill -0 "${arm_pids[$i]}" 2>/dev/null; then continue; fi
        wait "${arm_pids[$i]}"
        code=$?
        ended[i]=$code
        [ $code -eq 0 ] && continue
        outcome=failed
        if [ $code -eq 77 ]; then outcome=skipped; fi
        reason="${arm_names[$i]} ended with code $code: $(tail -n 1 "$folder/${arm_names[$i]}.log")"
        return 0
    done
    [ ${#ended[@]} -eq ${#arm_pids[@]} ] || return 1
    outcome='done'
}

# Until the arm has an outcome.
watch_arm() {
    local since=$SECONDS shown=$SECONDS step last=''
    local -a ended=()
    until processes_settle; do
        step=$(step_reached)
        step=${step:-0}
        if [ "$step" != "$last" ]; then
            if [ "${last:-0}" = 0 ]; then since=$SECONDS; fi # the first step is made
            last=$step
            note_wire "$step"
        fi
        if [ "$step" = 0 ] && [ $((SECONDS - since)) -ge $((limit + start_limit)) ]; then
            outcome=failed reason="no step after $((SECONDS - since)) seconds"
            return
        fi
        if [ "$step" != 0 ] && [ $((SECONDS - since)) -ge "$limit" ]; then
            outcome=limit
            return
        fi
        if [ $((SECONDS - shown)) -ge 10 ]; then
            shown=$SECONDS
            show_progress "$step" $((SECONDS - since))
        fi
        sleep 0.2
    done
}

arm_run() { # RATE ARM: fails when the arm does
    local started=$SECONDS words title="[$arm_number/$arm_total] $1 $2" outcome='' reason=''
    local command load
    folder=$out/$1/$2
    read -ra words <<<"${flags[$2]}"
    command="$placement $compute $model $steps $limit $seed $lr $warmup $eval_every $eval_batches"
    command+=" $data ${words[*]}"
    if grep -qxE 'outcome (done|limit)' "$folder/arm.txt" 2>/dev/null &&
        grep -qxF "command $command" "$folder/arm.txt"; then
        echo "$title: there already" >&2
        return 0
    fi
    rm -rf "$folder"
    mkdir -p "$folder"
    read -r load _ </proc/loadavg
    echo "$title: ${words[*]}" >&2
    case $2 in ddp*) start_ddp "${words[0]}" ;; *) start_rubato "${words[@]}" ;; esac
    watch_arm
    arm_stop
    arm_seconds=$((arm_seconds + SECONDS - started))
    arm_counted=$((arm_counted + 1))
    printf '%s\n' "rate $1" "arm $2" "flags ${words[*]}" "placement $placement" \
        "compute $compute" "model $model" "outcome $outcome" "reason $reason" \
        "load_before $load" "command $command" >"$folder/arm.txt"
    [ -z "$reason" ] || say "$1 $2: $reason"
    [ "$outcome" != failed ]
}
