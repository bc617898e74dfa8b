#!/bin/bash
# Time and bundle size of everyday commands, bare and at each level of --keep, as a table.
#
#   benches/levels.sh [ROUNDS]
#
# Builds the release binary, and needs npm, python3, git and cargo. What the commands install is fetched once,
# before anything is measured. Each round makes each measurement once, in turn; the table has the fastest, since other
# work on the machine only adds, and the size of the last.
set -eu
rounds=${1:-5}
repository=$(cd "$(dirname "$0")/.." && pwd)
cargo build --release --quiet --manifest-path "$repository/Cargo.toml"
binary=${CARGO_TARGET_DIR:-$repository/target}/release/agent-snapshot
base=$(mktemp -d)
trap 'rm -rf "$base"' EXIT
export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup} CARGO_INCREMENTAL=0
unset CARGO_TARGET_DIR RUSTFLAGS
export HOME=$base/home GIT_CONFIG_GLOBAL=/dev/null
mkdir "$HOME" "$base/node" "$base/python" "$base/crate"
exec 3>&1 >&2

# As people have it: what is installed is in a repository, and ignored there.
for directory in node python; do
    git init --quiet "$base/$directory"
    printf 'node_modules/\nvenv/\ntools/\nwheels/\n__pycache__/\n.pytest_cache/\n' > "$base/$directory/.gitignore"
done
cd "$base/node"
echo '{"private":true,"dependencies":{"express":"4"}}' > package.json
npm install --silent --no-audit --no-fund
cd "$base/python"
python3 -m venv tools
tools/bin/pip install --quiet pytest
tools/bin/pip download --quiet --dest wheels requests
mkdir project
for module in $(seq 20); do
    printf 'import pytest\n\n@pytest.mark.parametrize("n", range(10))\ndef test(n, tmp_path):\n    (tmp_path / "f").write_text(str(n))\n    assert n * %s %% %s == 0\n' "$module" "$module" > "project/test_$module.py"
done
cd "$base/crate"
cargo init --quiet --name small .
cargo add --quiet itoa smallvec
cargo fetch --quiet
git clone --quiet "$repository" "$base/clone"
git -C "$base/clone" branch --quiet old "$(git -C "$base/clone" rev-list --max-count 1 --skip 100 HEAD)"

# name | directory | what comes before it, unmeasured | command
workloads='npm install|node|rm -rf node_modules|npm install --silent --no-audit --no-fund --offline
pip install into a venv|python|rm -rf venv; python3 -m venv venv|venv/bin/pip install --quiet --no-index --find-links wheels requests
cargo build|crate|rm -rf target|cargo build --quiet --offline
pytest|python|rm -rf project/.pytest_cache project/__pycache__|tools/bin/pytest -q project
git checkout of another branch|clone|git checkout --quiet --detach origin/HEAD|git checkout --quiet old
rm -rf node_modules|node|npm install --silent --no-audit --no-fund --offline|rm -rf node_modules
cargo --version|crate|:|cargo --version'

while IFS='|' read -r name directory before command; do
    cd "$base/$directory"
    for _ in $(seq "$rounds"); do
        for level in bare all changes undo; do
            bash -c "$before" > /dev/null
            rm -rf "$base/snap"
            record=("$binary" --snapshot-dir "$base/snap" --quiet --keep "$level" --)
            test $level != bare || record=()
            start=${EPOCHREALTIME/./}
            "${record[@]}" bash -c "exec $command" > /dev/null < /dev/null
            end=${EPOCHREALTIME/./}
            size=0
            test $level = bare || size=$(cat "$base"/snap/* | wc -c)
            echo "$name|$level|$((end - start))|$size" | tee -a "$base/measured"
        done
    done
done <<< "$workloads"

awk -F'|' '
    function least(list,   count, numbers, i, found) {
        count = split(list, numbers, " ")
        found = numbers[1] + 0
        for (i = 2; i <= count; i++) if (numbers[i] + 0 < found) found = numbers[i] + 0
        return found
    }
    function size(bytes) {
        return bytes < 1e6 ? sprintf("%.0f kB", bytes / 1e3) : sprintf("%.1f MB", bytes / 1e6)
    }
    !($1 in seen) { seen[$1] = 1; names[++count] = $1 }
    { times[$1, $2] = times[$1, $2] " " $3; sizes[$1, $2] = $4 }
    END {
        print "| command | bare | `all` | `changes` | `undo` |"
        print "|---|---|---|---|---|"
        for (i = 1; i <= count; i++) {
            row = "| `" names[i] "` | " sprintf("%.2f s", least(times[names[i], "bare"]) / 1e6)
            split("all changes undo", levels, " ")
            for (j = 1; j <= 3; j++)
                row = row " | " sprintf("%.2f s, ", least(times[names[i], levels[j]]) / 1e6) size(sizes[names[i], levels[j]])
            print row " |"
        }
    }' "$base/measured" >&3
