//! The Debian package: made, installed over this system in an overlay, and used there.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{BINARY, Place, can_mount, has, shown};

/// What a user does after the installation, in a root directory of its own.
const USE: &str = r#"
dpkg --install /package.deb >&2
agent-snapshot --version
for page in agent-snapshot agent-snapshot-undo agent-snapshot-bash; do man -w "$page"; done
man agent-snapshot-restore | grep -o 'Put back the state after the command' | head -n 1

. /usr/share/bash-completion/completions/agent-snapshot
COMP_WORDS=(agent-snapshot ver) COMP_CWORD=1
_agent__snapshot agent-snapshot ver agent-snapshot
echo "${COMPREPLY[@]}"
head -n 1 /usr/share/zsh/vendor-completions/_agent-snapshot
grep -c __fish_agent_snapshot_needs_command /usr/share/fish/vendor_completions.d/agent-snapshot.fish >/dev/null
grep -m 1 ^Copyright /usr/share/doc/agent-snapshot/copyright

base="$(mktemp -d)"
export HOME="$base" AGENT_SNAPSHOT_LIBRARY="$base/library"
mkdir "$base/work"
cd "$base/work"
echo first > file
agent-snapshot --snapshot-dir ../snap sh -c 'echo second > file'
agent-snapshot diff ../snap | grep '^[-+][a-z]'
agent-snapshot restore --before ../snap >/dev/null 2>&1
cat file
agent-snapshot-bash -c 'rm file'
agent-snapshot undo >/dev/null 2>&1
cat file

files="$(dpkg --listfiles agent-snapshot)"
dpkg --remove agent-snapshot >&2
for file in $files; do [ -d "$file" ] || ls "$file" 2>/dev/null || true; done
"#;

const SEEN: &str = "\
agent-snapshot VERSION
/usr/share/man/man1/agent-snapshot.1.gz
/usr/share/man/man1/agent-snapshot-undo.1.gz
/usr/share/man/man1/agent-snapshot-bash.1.gz
Put back the state after the command
verify
#compdef agent-snapshot
Copyright: 2026 the agent-snapshot developers
-first
+second
first
first
";

/// Mounts an overlay of `/` and runs a script in it.
const INSIDE: &str = r#"
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/internal" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/internal" "$1/root"
for directory in proc dev; do mount --rbind "/$directory" "$1/root/$directory"; done
cp "$2" "$1/root/package.deb"
# Small images leave out man pages.
rm -f "$1"/root/etc/dpkg/dpkg.cfg.d/*
exec chroot "$1/root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 bash -euo pipefail -c "$3"
"#;

#[test]
#[ignore = "slow: links the programs, and installs a package"]
fn slow_debian_package_is_installed_and_used() {
    let programs = ["cargo-deb", "dpkg", "dpkg-shlibdeps", "man"];
    if !can_mount() || !programs.into_iter().all(has) || !Path::new("/var/lib/dpkg/status").exists() {
        return;
    }
    let built = Path::new(BINARY).parent().unwrap();
    let profile = built.file_name().and_then(|name| name.to_str()).unwrap();
    let made = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/deb"))
        .arg(if profile == "debug" { "dev" } else { profile })
        .env("CARGO_TARGET_DIR", built.parent().unwrap())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", shown(&made));
    let package = String::from_utf8(made.stdout).unwrap();

    let place = Place::new();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-euc", INSIDE, "sh"])
        .arg(&place.work)
        .args([package.trim(), USE])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    let seen = SEEN.replace("VERSION", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), seen, "{}", shown(&output));
}

#[test]
fn changelog_of_the_package_begins_with_the_version() {
    let changelog = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/changelog")).unwrap();
    let first = concat!("agent-snapshot (", env!("CARGO_PKG_VERSION"), "-1) unstable; urgency=medium\n");
    assert!(changelog.starts_with(first), "{changelog}");
}
