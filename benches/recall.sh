#!/bin/bash
# Time of everyday commands bare, recorded with --recall, and recalled, as a table; ccache beside a compiler.
#
#   benches/recall.sh [ROUNDS]
#
# Builds the release binary (or takes AGENT_SNAPSHOT_BINARY), and needs cc, make, python3, npm, git, cargo and ccache. What
# the commands install is fetched once, before anything is measured. The table has medians, in milliseconds: bare, the first
# run, one that is recalled with its outputs in place, and one that is recalled after they were removed.
set -eu
rounds=${1:-5}
repository=$(cd "$(dirname "$0")/.." && pwd)
binary=${AGENT_SNAPSHOT_BINARY:-}
if [ -z "$binary" ]; then
    cargo build --release --quiet --manifest-path "$repository/Cargo.toml"
    binary=${CARGO_TARGET_DIR:-$repository/target}/release/agent-snapshot
fi
base=$(mktemp -d)
trap 'rm -rf "$base"' EXIT
export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}
unset CARGO_TARGET_DIR RUSTFLAGS
export HOME=$base/home XDG_CONFIG_HOME=$base/config GIT_CONFIG_GLOBAL=/dev/null CCACHE_DIR=$base/ccache PYTHONHASHSEED=0
mkdir -p "$HOME" "$XDG_CONFIG_HOME/agent-snapshot" "$base"/{c,node,python,crate,many}
printf '[recall]\ntrust = ["/proc/meminfo", "/proc/self/statm"]\n' > "$XDG_CONFIG_HOME/agent-snapshot/config.toml"
exec 3>&1 >"$base/log" 2>&1

cd "$base/c"
for number in $(seq 20); do
    { echo '#include <stdio.h>'; echo '#include "all.h"'; echo "int part$number(int n) { return printf(\"%d\", n + $number); }"; } > "part$number.c"
    echo "int part$number(int n);" >> all.h
done
echo 'int main(void) { return 0; }' > main.c
printf 'OBJECTS = $(patsubst %%.c,%%.o,$(wildcard *.c))\nprogram: $(OBJECTS)\n\t$(CC) -o $@ $(OBJECTS)\n%%.o: %%.c all.h\n\t$(CC) -O2 -c -o $@ $<\ntest: program\n\t./program\n' > Makefile
cd "$base/node"
npm init -y
npm install --silent --no-audit --no-fund typescript@5 eslint@8
echo 'export const n: number = 3; console.log(n);' > a.ts
echo '{"root":true,"rules":{"no-unused-vars":1}}' > .eslintrc.json
echo 'var x = 1;' > b.js
cd "$base/python"
python3 -m venv tools
tools/bin/pip install --quiet pytest
printf 'def test():\n    assert True\n' > test_one.py
cd "$base/crate"
cargo init --quiet --name small .
git clone --quiet "$repository" "$base/clone"
for number in $(seq 50000); do
    [ $((number % 500)) -ne 1 ] || mkdir -p "$base/many/$((number / 500))"
    echo "$number" > "$base/many/$(((number - 1) / 500))/$number"
done
# What was changed a moment ago is read again.
sleep 3

# name | directory | how its outputs are removed | command
workloads='make test, nothing to build|c|:|make test
make, 21 C files|c|rm -f *.o program|make program
cc -O2, one file|c|rm -f part1.o|cc -O2 -c -o part1.o part1.c
tsc|node|rm -rf out|node_modules/.bin/tsc --outDir out a.ts
eslint|node|:|node_modules/.bin/eslint b.js
pytest|python|:|tools/bin/python -m pytest -q
python -m compileall|python|rm -rf __pycache__|python3 -m compileall -q test_one.py
cargo build, nothing to build|crate|:|cargo build --quiet --offline
git archive|clone|rm -f ../archive.tar|git archive -o ../archive.tar HEAD
cat of 50,000 files|many|:|cat -- */*'

# How many milliseconds a command takes, after its outputs are removed (or not).
timed() {
    local before=$1
    shift
    for _ in $(seq "$rounds"); do
        bash -c "$before" > /dev/null
        local start=$EPOCHREALTIME
        "$@" < /dev/null > /dev/null 2>&1
        echo $(((${EPOCHREALTIME/./} - ${start/./}) / 100))
    done | sort -n | awk '{ all[NR] = $1 } END { printf "%.1f", all[int((NR + 1) / 2)] / 10 }'
}

echo '| command | bare | first run | recalled | recalled, with outputs to put back |' >&3
echo '|---|---|---|---|---|' >&3
while IFS='|' read -r name directory before command; do
    cd "$base/$directory"
    recall=("$binary" run --recall --allow-random -- bash -c "exec $command")
    bare=$(timed "$before" bash -c "exec $command")
    first=$(timed "$before; $binary recall clear" "${recall[@]}")
    # What the first run has made is seen by the second.
    bash -c "$before"; "${recall[@]}" < /dev/null > /dev/null 2>&1; "${recall[@]}" < /dev/null > /dev/null 2>&1
    recalled=$(timed : "${recall[@]}")
    again=$(timed "$before" "${recall[@]}")
    "${recall[@]:0:4}" --report summary -- "${recall[@]:5}" < /dev/null > "$base/said" 2>&1 || true
    grep -q 'recalled from' "$base/said" || again+=" (not recalled)"
    [ "$before" != : ] || again='-'
    echo "| $name | $bare | $first | $recalled | $again |" >&3
done <<< "$workloads"

cd "$base/c"
first=$(timed 'rm -f part1.o; ccache --clear' ccache cc -O2 -c -o part1.o part1.c)
again=$(timed 'rm -f part1.o' ccache cc -O2 -c -o part1.o part1.c)
echo "| ccache cc -O2, one file | | $first | | $again |" >&3
