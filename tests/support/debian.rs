//! Roots made by debootstrap, once for all runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{has, needs_root, shown};

/// The root of a Debian release, by default of this machine's; if it can't be made, the reason of a skip is printed.
///
/// A sandbox of another test looks at all mounts: what debootstrap mounts is seen by it alone.
pub fn debian(suite: Option<&str>) -> Option<PathBuf> {
    if !needs_root("debootstrap") || !has("debootstrap") {
        return None;
    }
    let name = format!("debian{}", suite.map_or(String::new(), |suite| format!("-{suite}")));
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if !root.exists() {
        let script = r#"suite=${2:-$(. /etc/os-release; echo "$VERSION_CODENAME")}
            mirror=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' \
                /etc/apt/sources.list /etc/apt/sources.list.d/* 2> /dev/null | head -n 1)
            rm -rf "$1.new"; debootstrap --variant=minbase "$suite" "$1.new" $mirror >&2; mv "$1.new" "$1""#;
        let mut made = Command::new("unshare");
        made.args(["-m", "sh", "-euc", script, "sh"]).arg(&root).args(suite);
        let made = made.output().unwrap();
        if !made.status.success() {
            println!("skipped: debootstrap can't reach what it needs: {}", shown(&made));
            return None;
        }
    }
    Some(root)
}
