#!/bin/bash
# test_launch.sh RUBATO - proves what `rubato launch` promises about its children: who gets which
# flags, whose line carries which name, how progress is shown, which process is named as the first
# to fail, that none is left behind, and which exit code comes out.
#
# Servers and workers are played by small shell programs in a folder given with --bin, so that each
# case decides how they behave. Waits are bounded loops on files; nothing asserts on time.
set -u
rubato=$1
work=$(mktemp -d)
launcher='' second='' # in the background
cleanup() {
    for pid in $launcher $second; do kill -TERM "$pid" 2>/dev/null; done
    rm -rf "$work"
}
trap cleanup EXIT
set -m # so that SIGINT is not ignored by what runs in the background
case_name=none
echo text >"$work/corpus.txt"

fail() {
    echo "test_launch.sh: $case_name: $*" >&2
    sed 's/^/  out: /' "$work/out" >&2
    sed 's/^/  err: /' "$work/err" >&2
    exit 1
}
expect_code() { [ "$1" -eq "$2" ] || fail "exit code $1, expected $2"; }
expect_in() { grep -qF -e "$2" "$work/$1" || fail "'$2' is not in $1"; }
expect_not_in() { ! grep -qF -e "$2" "$work/$1" || fail "'$2' is in $1"; }

wait_for() { # until the command succeeds
    for _ in $(seq 600); do
        "$@" && return 0
        sleep 0.05
    done
    fail "waited in vain for: $*"
}
pids_known() { [ "$(cat "$work"/pids/* 2>/dev/null | wc -w)" -eq "$1" ]; }
all_gone() {
    for pid in $(cat "$work"/pids/*); do
        # A process that init has not reaped yet is as good as gone.
        case "$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null)" in
        '' | Z* | X*) ;;
        *) return 1 ;;
        esac
    done
}
expect_none_left() { all_gone || fail "children are left: $(cat "$work"/pids/*)"; }

begin() { # begin NAME: a new case
    case_name=$1
    echo "$case_name"
    launcher='' second=''
    rm -rf "$work/bin" "$work/pids" "$work/case"
    mkdir -p "$work/bin" "$work/pids" "$work/case"
    : >"$work/out"
    : >"$work/err"
}
# In the body, $n is the process's number in order of its start among its kind (not the launcher's
# number), $dir the case's folder.
play() { # play server|worker 'BODY'
    cat >"$work/bin/rubato-$1" <<PROGRAM
#!/bin/bash
dir=$work/case
n=0
while ! mkdir "\$dir/$1-\$n" 2>/dev/null; do n=\$((n + 1)); done
echo \$\$ >"$work/pids/$1-\$n"
printf '%s\n' "\$@" >"\$dir/$1-\$n/args"
env >"\$dir/$1-\$n/env"
$2
PROGRAM
    chmod +x "$work/bin/rubato-$1"
}
launch() { # one that hangs is a failure, 124
    timeout --foreground 60 "$rubato" launch --bin "$work/bin" --data "$work/corpus.txt" "$@" \
        >"$work/out" 2>"$work/err"
}
launch_behind() {
    "$rubato" launch --bin "$work/bin" --data "$work/corpus.txt" "$@" >"$work/out" 2>"$work/err" &
    launcher=$!
}
until_done='while [ ! -e $dir/done ]; do sleep 0.05; done'

begin "flags, names, environment"
play server "echo \"server \$n speaks\" >&2; $until_done"
play worker 'echo "worker speaks" >&2; echo "result: val_loss=1 steps=7"
    printf "no newline" >&2
    mkdir "$dir/end-$n"; [ -d "$dir/end-0" ] && [ -d "$dir/end-1" ] && touch "$dir/done"; exit 0'
RUBATO_STEPS=7 RUBATO_JOIN=elsewhere:1 launch --servers 2 --workers 2 --shards 3 --insecure \
    '--prompt=--odd text'
expect_code $? 0
expect_none_left
[ "$(sort -u "$work/out")" = "result: val_loss=1 steps=7" ] || fail "standard output changed"
[ "$(wc -l <"$work/out")" -eq 2 ] || fail "a line of standard output is lost or doubled"
for name in "server 0" "server 1"; do expect_in err "[$name] server"; done
for name in "worker 0" "worker 1"; do
    expect_in err "[$name] worker speaks"
    expect_in err "[$name] no newline"
done
listening=$(cat "$work"/case/server-*/args | grep -c '^--listen=127.0.0.1:[1-9][0-9]*$')
[ "$listening" -eq 1 ] || fail "$listening processes listen"
address=$(cat "$work"/case/server-*/args | sed -n 's/^--listen=//p')
[ "$(cat "$work"/case/*/args | grep -cFx -e "--join=$address")" -eq 3 ] || fail "others do not join"
for args in "$work"/case/server-*/args; do
    grep -qx -e '--shards=3' "$args" || fail "a server lacks --shards"
    ! grep -q -e '--data' "$args" || fail "a server was given --data"
done
for args in "$work"/case/worker-*/args; do
    for flag in "--data=$work/corpus.txt" --progress=line '--prompt=--odd text'; do
        grep -qFx -e "$flag" "$args" || fail "a worker lacks $flag"
    done
    grep -q -e '^--threads=[1-9]' "$args" || fail "a worker lacks --threads"
    ! grep -q -e '--shards' "$args" || fail "a worker was given --shards"
done
for folder in "$work"/case/server-? "$work"/case/worker-?; do
    for flag in --steps=7 --servers=2 --workers=2 --insecure; do
        grep -qFx -e "$flag" "$folder/args" || fail "${folder##*/} lacks $flag"
    done
    ! grep -q '^RUBATO_' "$folder/env" || fail "RUBATO_ variables reached ${folder##*/}"
done

steps='for i in $(seq 50); do echo "step $i/50 | loss 2" >&2; done; echo "result: x"; echo late >&2'
begin "progress: the first line and the last, when it is no terminal"
play server 'exit 0'
play worker "$steps"
launch
expect_code $? 0
expect_in err "step 1/50"
expect_in err "step 50/50"
[ "$(grep -c '^step ' "$work/err")" -lt 10 ] || fail "progress is not thinned out"
expect_in err "[worker 0] late"

begin "progress: every line with --progress line"
play server 'exit 0'
play worker "$steps"
launch --progress line
expect_code $? 0
[ "$(grep -c '^step ' "$work/err")" -eq 50 ] || fail "lines of progress are missing"

begin "progress: one live line on a terminal"
if script -qec true /dev/null >/dev/null 2>&1; then
    play server 'exit 0'
    play worker 'echo "step 1/2" >&2; sleep 0.2; echo "noise" >&2; sleep 0.2; echo "step 2/2" >&2
        sleep 0.2; echo "result: x"'
    command="$rubato launch --bin $work/bin --data $work/corpus.txt"
    script -qec "$command" /dev/null >"$work/out" </dev/null
    expect_code $? 0
    erase=$(printf '\r\033[K')
    expect_in out "${erase}[worker 0] noise"
    expect_in out "$(printf '\rstep 2/2\033[K')"
    [ "$(grep -c 'step 1/2' "$work/out")" -ge 1 ] || fail "the live line was not drawn"
    tr '\r' '\n' <"$work/out" | grep -q '^result: x' || fail "the result has no line of its own"
fi

begin "a long line arrives whole"
play server 'exit 0'
play worker 'head -c 100000 /dev/zero | tr "\0" x; echo; head -c 40000 /dev/zero | tr "\0" y >&2'
launch
expect_code $? 0
[ "$(head -n 1 "$work/out" | tr -d '\n' | wc -c)" -eq 100000 ] || fail "standard output was cut"
[ "$(tr -cd y <"$work/err" | wc -c)" -eq 40000 ] || fail "standard error was cut"

begin "the first to fail is named, the others end"
play server "trap 'exit 0' TERM; sleep 1000 & wait"
play worker 'if [ $n -eq 1 ]; then echo "bad token" >&2; exit 65; fi
    trap "exit 69" TERM; sleep 1000 & wait'
launch --servers 2 --workers 2 --lease 0.5
expect_code $? 65
expect_in err "bad token"
tail -n 1 "$work/err" | grep -q '^\[launch\] worker [01] failed first: exit 65 (bad data)$' ||
    fail "the last line does not name the culprit"
expect_none_left

begin "who only lost its peer is not the culprit"
play server "$until_done; exit 69"
play worker 'touch $dir/done; sleep 0.3; exit 78'
launch --lease 0.5
expect_code $? 78
expect_in err "worker 0 failed first: exit 78 (options disagree)"
expect_none_left

begin "a signal is 128 + n, and a stubborn process is killed"
play server "trap '' TERM; while :; do sleep 0.1; done"
play worker 'kill -SEGV $$'
launch --lease 0.5
expect_code $? 139
expect_in err "worker 0 failed first: signal 11"
expect_in err "server 0 has not ended by itself"
expect_none_left

begin "a stopped process is woken to hear that it must end"
play server "trap 'exit 0' TERM; sleep 1000 & wait"
play worker 'if [ $n -eq 1 ]; then exit 65; fi
    trap "touch $dir/heard; exit 0" TERM; kill -STOP $$; while :; do sleep 0.1; done'
launch --workers 2 --lease 0.5
expect_code $? 65
[ -e "$work/case/heard" ] || fail "the stopped worker did not hear SIGTERM"
expect_none_left

begin "where the job goes on without a worker, its death ends nothing"
play server "$until_done"
play worker 'if [ $n -eq 1 ]; then kill -KILL $$; fi
    while ! grep -q "may go on" $dir/../err; do sleep 0.05; done
    mkdir "$dir/end-$n"; [ -d "$dir/end-0" ] && [ -d "$dir/end-2" ] && touch "$dir/done"; exit 0'
launch --workers 3 --backup-workers 1 --lease 0.5
expect_code $? 0
[ "$(grep -c 'ended: signal 9 (Killed); the job may go on without it' "$work/err")" -eq 1 ] ||
    fail "the worker's death is not told in one line"
expect_not_in err "failed first"
expect_none_left

begin "there the servers' exit code counts"
play server "$until_done; exit 69"
play worker 'if [ $n -eq 1 ]; then exit 74; fi
    while ! grep -q "may go on" $dir/../err; do sleep 0.05; done; touch "$dir/done"; exit 69'
launch --workers 3 --mode async
expect_code $? 69
expect_in err "server 0 failed first: exit 69"
expect_none_left

begin "there a worker is named when none is left"
play server "trap 'exit 0' TERM; while :; do sleep 0.1; done"
play worker 'exit 74'
launch --workers 2 --mode async --lease 0.5
expect_code $? 0
play server "while :; do sleep 0.1; done"
launch --workers 2 --mode async --lease 0.5
expect_code $? 74
expect_in err " failed first: exit 74"
expect_none_left

begin "a user's mistake ends all at once in any mode"
for mode in sync async; do
    play server "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    play worker 'if [ $n -eq 1 ]; then exit 66; fi; trap "exit 0" TERM; while :; do sleep 0.1; done'
    launch --workers 2 --mode $mode --lease 300 # whose grace is longer than launch() waits
    expect_code $? 66
    expect_in err " failed first: exit 66"
    expect_none_left
    rm -rf "$work/case"/*
done

begin "servers that outlast the workers are ended"
play server 'sleep 1000'
play worker 'exit 0'
launch --lease 0.5
expect_code $? 143
expect_in err "server 0 failed first: signal 15"
expect_none_left

begin "SIGTERM goes to all once"
play server "trap 'touch \$dir/server-term; exit 0' TERM; sleep 1000 & wait"
play worker 'trap "touch \$dir/worker-term-\$n; exit 0" TERM; sleep 1000 & wait'
launch_behind --workers 2
wait_for pids_known 3
sleep 0.2
kill -TERM $launcher
wait $launcher
expect_code $? 143
for file in server-term worker-term-0 worker-term-1; do
    [ -e "$work/case/$file" ] || fail "no SIGTERM came: $file"
done
expect_none_left

begin "a second SIGINT kills"
play server "trap '' TERM; touch \$dir/up-s; while :; do sleep 0.1; done"
play worker "trap 'touch \$dir/term' TERM; touch \$dir/up-w; while :; do sleep 0.1; done"
launch_behind
wait_for test -e "$work/case/up-s" -a -e "$work/case/up-w"
kill -INT $launcher
wait_for test -e "$work/case/term"
kill -INT $launcher
wait $launcher
expect_code $? 130
expect_none_left

begin "children do not outlive a killed launcher"
play server 'while :; do sleep 0.1; done'
play worker 'while :; do sleep 0.1; done'
launch_behind --workers 2
wait_for pids_known 3
kill -KILL $launcher
wait $launcher 2>/dev/null
wait_for all_gone

begin "another port when the coordinator's is taken"
play server 'if mkdir "$dir/taken" 2>/dev/null; then exit 73; fi; '"$until_done"
play worker 'while [ ! -d "$dir/server-1" ]; do sleep 0.05; done; touch "$dir/done"'
launch
expect_code $? 0
[ "$(cat "$work"/case/server-?/args | grep -e --listen | sort -u | wc -l)" -eq 2 ] ||
    fail "the second try took the same port"
expect_not_in err "failed first"
expect_none_left

begin "a given address that is taken is an error"
play server 'exit 73'
play worker 'trap "exit 0" TERM; sleep 1000 & wait'
launch --listen 127.0.0.1:1 --lease 0.5
expect_code $? 73
expect_in err "server 0 failed first: exit 73"

begin "two launchers, two ports, on both of which one can listen"
play server 'listen="import socket, sys, time
host, port = sys.argv[1].split(\":\")
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    s.bind((host, int(port)))
    s.listen()
except OSError:
    sys.exit(73)
open(sys.argv[2], \"w\").close()
time.sleep(1000)"
    trap "exit 0" TERM
    while [ ! -e "$dir/go" ]; do sleep 0.05; done
    python3 -c "$listen" "${1#*=}" "$dir/listening-$n" &
    while [ ! -e "$dir/done" ] && kill -0 $! 2>/dev/null; do sleep 0.05; done
    if [ -e "$dir/done" ]; then kill $!; exit 0; fi
    wait $!'
play worker "$until_done"
launch_behind
wait_for pids_known 2
first=$launcher
launch_behind
second=$first
wait_for pids_known 4
touch "$work/case/go"
wait_for test -e "$work/case/listening-0" -a -e "$work/case/listening-1"
[ "$(cat "$work"/case/server-?/args | grep -e --listen | sort -u | wc -l)" -eq 2 ] ||
    fail "both listen at one port"
touch "$work/case/done"
wait $launcher
expect_code $? 0
wait $second
expect_code $? 0
expect_not_in err "taken meanwhile"

begin "user errors"
refused() { # refused CODE TEXT ARGUMENT...
    local code=$1 text=$2
    shift 2
    "$rubato" "$@" >"$work/out" 2>"$work/err"
    expect_code $? "$code"
    expect_in err "$text"
}
refused 2 "did you mean 'launch'" lunch
refused 2 "unknown command 'xyzzyplugh'" xyzzyplugh
refused 2 "usage: rubato"
refused 2 "did you mean --workers" launch --worker 2
refused 2 "--data" launch --workers 2
refused 66 "--data" launch --data "$work/nowhere"
refused 66 "--val-data" launch --data "$work/corpus.txt" --val-data "$work/nowhere"
refused 2 "no program rubato-server" launch --data "$work/corpus.txt" --bin "$work/nowhere"
refused 2 "keygen" keygen
refused 2 "no arguments" options --all
"$rubato" keygen "$work/key" >"$work/out" 2>"$work/err"
expect_code $? 0
[ "$(stat -c %a "$work/key")" = 600 ] || fail "the key's mode is not 0600"
grep -Eqx '[0-9a-f]{64}' "$work/key" || fail "the key is not 64 hexadecimal digits"
refused 73 "$work/key" keygen "$work/key"

begin "help"
for words in --help "help launch" "launch --help" "help keygen" "keygen --help" "options --help"; do
    # shellcheck disable=SC2086 # the words are to be split
    "$rubato" $words >"$work/out" 2>"$work/err"
    expect_code $? 0
    expect_in out "usage: rubato"
done
"$rubato" launch --help >"$work/out"
for text in "examples:" "--bin" "--mode" "--listen"; do expect_in out "$text"; done
"$rubato" --version >"$work/out"
grep -Eqx 'rubato [0-9]+\.[0-9]+\.[0-9]+' "$work/out" || fail "--version"
