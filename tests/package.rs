//! What `packaging/dist` makes: each package is installed without a network, in overlays of this system and of the oldest
//! Debian that its servers have, in an almost empty root or in a container, and used there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{BINARY, Place, can_mount, debian, has, shown};

/// The exit status of `packaging/dist` where its tools can't be installed (sysexits.h).
const EX_UNAVAILABLE: i32 = 69;

/// What a user does after each installation; `agent-snapshot` and `agent-snapshot-bash` are found in PATH.
const USE: &str = r#"
use() {
    agent-snapshot --version
    base="$(mktemp -d)"
    export HOME="$base" AGENT_SNAPSHOT_LIBRARY="$base/library"
    mkdir "$base/work"
    cd "$base/work"
    echo first > file
    agent-snapshot --snapshot-dir ../snap sh -c 'echo second > file'
    agent-snapshot diff ../snap | grep '^[-+][a-z]'
    agent-snapshot restore --before ../snap >/dev/null 2>&1
    cat file
    agent-snapshot-bash -c 'rm file; exit 3' || echo "status $?"
    agent-snapshot undo >/dev/null 2>&1
    cat file
    # An agent is given the program itself, not what a package manager puts before it.
    shell="$(agent-snapshot init claude-code --json | sed 's/.*"shell": *"\([^"]*\)".*/\1/')"
    "$shell" -c 'echo third > file'
    agent-snapshot log --limit 1 | grep -o 'echo third > file'
    od -An -c -N4 "${shell%-bash}" | tr -d ' '
}
"#;

const USED: &str = "\
agent-snapshot VERSION
-first
+second
first
status 3
first
echo third > file
177ELF
";

/// The Debian package, the two npm packages and the wheel, in an overlay of this system.
const SYSTEM: &str = r#"
dpkg --install /dist/*.deb >&2
for page in agent-snapshot agent-snapshot-undo agent-snapshot-bash; do man -w "$page"; done
man agent-snapshot-restore | grep -o 'Put back the state after the command' | head -n 1

. /usr/share/bash-completion/completions/agent-snapshot
COMP_WORDS=(agent-snapshot ver) COMP_CWORD=1
_agent__snapshot agent-snapshot ver agent-snapshot
echo "${COMPREPLY[@]}"
head -n 1 /usr/share/zsh/vendor-completions/_agent-snapshot
grep -c __fish_agent_snapshot_needs_command /usr/share/fish/vendor_completions.d/agent-snapshot.fish >/dev/null
grep -m 1 ^Copyright /usr/share/doc/agent-snapshot/copyright
(use)
files="$(dpkg --listfiles agent-snapshot)"
dpkg --remove agent-snapshot >&2
for file in $files; do [ -d "$file" ] || ls "$file" 2>/dev/null || true; done

npm install --silent --offline --global --prefix /npm /dist/agent-snapshot-linux-x64-*.tgz /dist/agent-snapshot-[0-9]*.tgz >&2
(PATH="/npm/bin:$PATH"; use)
kill="$(/npm/bin/agent-snapshot --snapshot-dir /tmp/killed sh -c 'kill -TERM $$' && echo 0 || echo $?)"
echo "status $kill"
yes | /npm/bin/agent-snapshot --snapshot-dir /tmp/pipe sh -c 'cat; echo "cat: $?" >&2' 2>/tmp/cat | head -n 1 || true
cat /tmp/cat
rm -r /npm/lib/node_modules/@agent-snapshot
/npm/bin/agent-snapshot --version 2>&1 || echo "status $?"

python3 -m pip install --quiet --disable-pip-version-check --no-index --target /wheel /dist/*.whl >&2
(PATH="/wheel/bin:$PATH"; use)
"#;

const SYSTEM_SEEN: &str = "\
/usr/share/man/man1/agent-snapshot.1.gz
/usr/share/man/man1/agent-snapshot-undo.1.gz
/usr/share/man/man1/agent-snapshot-bash.1.gz
Put back the state after the command
verify
#compdef agent-snapshot
Copyright: 2026 the agent-snapshot developers
USED\
USED\
status 143
y
cat: 141
agent-snapshot: the package @agent-snapshot/linux-x64 is not installed: npm installs it on Linux (x64, arm64) with optional dependencies
status 125
USED";

/// The Debian package where glibc is from 2020 and the static program from a newer one.
const OLD: &str = r"
dpkg --install /dist/*.deb >&2
(use)
";

/// The archive, in a root that contains only busybox and a static bash.
const ALONE: &str = r#"
cd /usr
tar -xzf /dist/*.tar.gz --strip-components 1
(use)
rm /bin/bash
agent-snapshot-bash -c true 2>&1 || echo "status $?"
"#;

const WITHOUT_BASH: &str = "\
agent-snapshot: execute bash: there is no /bin/bash, and no other one in PATH
status 127
";

/// Mounts an overlay of the root `$5` and runs a script in it.
const IN_OVERLAY: &str = r#"
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/internal" "$1/root"
mount -t overlay overlay -o "lowerdir=$5,upperdir=$1/upper,workdir=$1/internal" "$1/root"
for directory in proc dev; do mount --rbind "/$directory" "$1/root/$directory"; done
cp -r "$2" "$1/root/dist"
# Small images leave out man pages.
rm -f "$1"/root/etc/dpkg/dpkg.cfg.d/*
exec chroot "$1/root" env -i PATH="/usr/sbin:/usr/bin:/sbin:/bin:${4%/*}" LC_ALL=C.UTF-8 bash -euo pipefail -c "$3"
"#;

/// Makes a root that contains two static programs and runs a script in it.
const IN_EMPTY_ROOT: &str = r#"
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir bin dev etc proc tmp usr
cp /bin/busybox bin/busybox
cp /bin/bash-static bin/bash
for tool in cat env grep mkdir mktemp od rm sed sh tar tr; do ln -s busybox "bin/$tool"; done
echo 'root:x:0:0::/:/bin/sh' > etc/passwd
for directory in proc dev; do mount --rbind "/$directory" "$directory"; done
cp -r "$2" dist
exec chroot . env -i PATH=/usr/bin:/bin sh -euc "$3"
"#;

/// Builds the image of the archive, and one that takes the program from it, and uses both. Where cgroups are in hybrid mode,
/// which crun refuses, that is hidden.
const IN_CONTAINERS: &str = r#"
umount -l /sys/fs/cgroup/unified 2>/dev/null || true
cd "$1"
podman() { command podman --log-level error --root "$PWD/store" --runroot "$PWD/run" "$@"; }
run() {
    podman run --rm --network=none --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 \
        --volume "$PWD/library:/library" --env AGENT_SNAPSHOT_LIBRARY=/library "$@"
}
mkdir -p library root/bin root/etc root/tmp
podman build --quiet --build-arg VERSION="$4" --tag agent-snapshot --file "$5" "$2" >&2
run agent-snapshot --version >&2 || exit 69
cp /bin/busybox root/bin/
cp /bin/bash-static root/bin/bash
for tool in cat env grep mkdir mktemp od rm sed sh tr; do ln -s busybox "root/bin/$tool"; done
echo 'root:x:0:0::/:/bin/sh' > root/etc/passwd
printf '%s\n' 'FROM scratch' 'COPY --from=localhost/agent-snapshot /bin/ /bin/' 'COPY root/ /' > Containerfile
podman build --quiet --tag recorder . >&2
run recorder sh -euc "$3"
run recorder agent-snapshot run --quiet sh -c 'echo recorded > file'
run agent-snapshot log --all | grep -o 'echo recorded > file'
"#;

#[test]
#[ignore = "slow: links the program, and installs packages"]
fn slow_packages_are_installed_and_used() {
    let programs = ["cargo-deb", "dpkg", "dpkg-shlibdeps", "man", "npm", "node", "python3"];
    if !can_mount() || !programs.into_iter().all(has) || !Path::new("/var/lib/dpkg/status").exists() {
        return;
    }
    let Some(dist) = made() else { return };
    let used = USED.replace("VERSION", env!("CARGO_PKG_VERSION"));
    let node = Command::new("sh").args(["-c", "command -v node"]).output().unwrap();
    let node = String::from_utf8(node.stdout).unwrap();
    let run = |inside: &str, script: &str, root: &Path| {
        let place = Place::new();
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-euc", inside, "sh"])
            .args([place.work.as_os_str(), dist.as_os_str()])
            .args([&format!("{USE}{script}"), node.trim()])
            .arg(root)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", shown(&output));
        (String::from_utf8_lossy(&output.stdout).into_owned(), shown(&output))
    };
    let (seen, all) = run(IN_OVERLAY, SYSTEM, Path::new("/"));
    assert_eq!(seen, SYSTEM_SEEN.replace("USED", &used), "{all}");
    if let Some(old) = debian(Some("bullseye")) {
        let (seen, all) = run(IN_OVERLAY, OLD, &old);
        assert_eq!(seen, used, "{all}");
    }
    if Path::new("/bin/busybox").exists() && Path::new("/bin/bash-static").exists() {
        let (seen, all) = run(IN_EMPTY_ROOT, ALONE, Path::new(""));
        assert_eq!(seen, format!("{used}{WITHOUT_BASH}"), "{all}");
        if has("podman") {
            check_containers(&dist, &used);
        }
    } else {
        println!("skipped: busybox-static or bash-static is missing");
    }
}

fn check_containers(dist: &Path, used: &str) {
    let place = Place::new();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-euc", IN_CONTAINERS, "sh"])
        .args([place.work.as_os_str(), dist.as_os_str()])
        .args([&format!("{USE}(use)"), env!("CARGO_PKG_VERSION")])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/Containerfile"))
        .output()
        .unwrap();
    if output.status.code() == Some(EX_UNAVAILABLE) {
        println!("skipped: podman runs no container here: {}", shown(&output));
        return;
    }
    assert!(output.status.success(), "{}", shown(&output));
    let expected = format!("{used}echo recorded > file\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{}", shown(&output));
}

/// The directory of the packages, made with the profile of the tests; none if the tools can't be installed.
fn made() -> Option<PathBuf> {
    let built = Path::new(BINARY).parent().unwrap();
    let profile = built.file_name().and_then(|name| name.to_str()).unwrap();
    let target = built.parent().unwrap();
    let made = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/dist"))
        .arg(if profile == "debug" { "dev" } else { profile })
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    if made.status.code() == Some(EX_UNAVAILABLE) {
        println!("skipped: {}", shown(&made));
        return None;
    }
    assert!(made.status.success(), "{}", shown(&made));
    let version = env!("CARGO_PKG_VERSION");
    let names = [
        "SHA256SUMS".to_owned(),
        format!("agent-snapshot-{version}-x86_64-linux.tar.gz"),
        format!("agent-snapshot-{version}.cdx.json"),
        format!("agent-snapshot-{version}.tgz"),
        format!("agent-snapshot-linux-x64-{version}.tgz"),
        format!("agent-snapshot_{version}-1_amd64.deb"),
        format!(
            "agent_snapshot-{version}-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.musllinux_1_1_x86_64.whl"
        ),
    ];
    assert_eq!(String::from_utf8_lossy(&made.stdout).lines().collect::<Vec<_>>(), names, "{}", shown(&made));
    let bill: serde_json::Value =
        serde_json::from_slice(&fs::read(target.join("packages").join(&names[2])).unwrap()).unwrap();
    let components = bill["components"].as_array().unwrap();
    assert!(components.iter().any(|component| component["name"] == "parquet"), "{bill:#}");
    Some(target.join("packages"))
}

#[test]
fn changelog_of_the_package_begins_with_the_version() {
    let changelog = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/changelog")).unwrap();
    let first = concat!("agent-snapshot (", env!("CARGO_PKG_VERSION"), "-1) unstable; urgency=medium\n");
    assert!(changelog.starts_with(first), "{changelog}");
}
