//! Files by another name: what a command does to them is recorded as if it had used the name that they have outside.
//!
//! A view mounts `src` elsewhere, in a mount namespace of its own or in that of the recorder. The same script runs there
//! and, in a place beside it, by the names of outside; both recordings must show the same. Neighbours: `namespaces.rs`
//! and `mounts.rs` have what is not the same, such as filesystems that end with their namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use agent_snapshot::snapshot::{Operation, Snapshot};

use crate::support::{BINARY, Place, can_mount, numbered, shown, works};
use crate::truth::record_exactly;

/// What is done to `$1`, and to its directory `$2`.
const ONE_NAME: &str = r##"
    v=$1 d=$2
    cat "$v/f"; echo more >> "$v/f"; echo new > "$v/new"; rm "$v/gone"; chmod 600 "$v/mode"
    mv "$v/dir" "$v/moved"; cat "$v/moved/x"; ln "$v/g" "$v/hard"; ln -s hard "$v/soft"; cat "$v/soft"
    mkdir "$v/made"; test -e "$v/absent/x" || :; ls "$d"; echo x > "$d/x"; echo z > "$d/z"; rm "$d/y"
    cp /bin/true "$v/run"; "$v/run"; printf "#!/bin/sh\necho script\n" > "$v/script"; chmod 755 "$v/script"; "$v/script"
    cd "$v"; cat l; echo cwd > cwd; cat /proc/self/cwd/g; exec 4< g; cat /proc/self/fd/4; cat <&4; rm cwd"##;

/// What is done to one directory by two names, `$1` and `$2`.
const TWO_NAMES: &str = r#"
    v=$1 w=$2
    echo one >> "$v/f"; cat "$w/f"; rm "$w/gone"; echo again > "$v/gone"; chmod 600 "$w/mode"; cat "$v/mode"
    mv "$v/dir" "$v/moved"; cat "$w/moved/x"; echo y > "$w/moved/y"; mv "$w/moved" "$w/dir2"; rm "$v/dir2/x"
    ln "$v/g" "$v/hard"; echo z >> "$w/hard"; exec 5> "$v/held"; rm "$w/held"; echo lost >&5; : > "$w/l""#;

/// The last step of most views.
const RUN: &str = r#"exec "$@""#;

/// The same where the mounts would stay.
const RUN_AND_UNMOUNT: &str = r#"
    status=0; "$@" || status=$?
    if mountpoint -q src; then umount src; fi
    umount view; exit "$status""#;

/// Mounts `src` at `view` with root's files as those of user 1, and the other way round, through the calls that mount(8)
/// has only since util-linux 2.39.
const IDMAP: &str = r##"perl -e '
    pipe(my $ready, my $unshared); pipe(my $stay, my $go);
    my $pid = fork() // die;
    if (!$pid) { close $go; syscall(SYS_unshare, 0x10000000) == 0 or exit 1; syswrite $unshared, "."; sysread $stay, my $end, 1; exit }
    close $unshared; sysread($ready, my $there, 1) or die "no user namespace";
    for my $map ("uid_map", "gid_map") { open(my $out, ">", "/proc/$pid/$map") or die; syswrite $out, "0 1 1\n1 0 1\n" or die "$!" }
    open(my $users, "<", "/proc/$pid/ns/user") or die;
    my ($from, $to, $empty) = ("src", "view", "");
    my $tree = syscall(SYS_open_tree, -100, $from, 1);
    my $attributes = pack("QQQQ", 0x100000, 0, 0, fileno $users);
    syscall(SYS_mount_setattr, $tree, $empty, 0x1000, $attributes, 32) == 0 or die "mount_setattr: $!";
    syscall(SYS_move_mount, $tree, $empty, -100, $to, 4) == 0 or die "move_mount: $!"'"##;

/// A name that a table of mounts has to escape, with what looks escaped already.
macro_rules! odd {
    () => {
        "odd \n\t\\040#ü"
    };
}

/// What a root of its own needs.
const SYSTEM: &str = r#"
    cd root && mkdir usr proc dev work && ln -s usr/bin bin && ln -s usr/lib lib && ln -s usr/lib64 lib64 && cd ..
    for name in usr proc dev; do mount --rbind "/$name" "root/$name"; done"#;

/// Other names for what has names outside.
#[derive(Clone, Copy)]
struct View {
    /// The program that runs `enter`, if it isn't sh, with the words before it.
    sandbox: &'static str,
    /// Mounts, executes what its arguments say, and unmounts if that is necessary.
    enter: &'static [&'static str],
    script: &'static str,
    /// The arguments of `script` inside.
    inside: [&'static str; 2],
    /// The same in names of outside.
    outside: [&'static str; 2],
    /// Whether the recorder itself is where it is mounted.
    is_shared: bool,
}

impl View {
    /// The command that does `script` inside; its working directory is that of a place.
    fn command(&self, script: &str) -> Vec<String> {
        let [v, d] = self.inside;
        let enter = numbered(&self.enter.join("\n"));
        let words = self.sandbox.split_whitespace().chain(["sh", "-euc", &enter, "sh"]);
        words.chain(["sh", "-euc", script, "sh", v, d]).map(str::to_owned).collect()
    }

    /// A place with all that the scripts want.
    fn place() -> Place {
        let place = Place::new();
        let tree = r"mkdir -p src/dir src/d other view/d mid/view root
            for file in f g gone mode dir/x d/x d/y; do echo $file > src/$file; done; ln -s f src/l
            for file in x y; do echo other $file > other/$file; done; echo below > view/below";
        place.prepare(tree);
        place.prepare(concat!("mkdir '", odd!(), "'; cp -a src view '", odd!(), "'"));
        place
    }

    /// The recorder, in a namespace of its own where the command mounts in that of the recorder.
    fn recorder(&self, place: &Place) -> Command {
        let mut recorder = if self.is_shared {
            let mut unshare = place.program("unshare");
            unshare.args(["-m", BINARY]);
            unshare
        } else {
            place.command()
        };
        // mount(8) of the tests beside this one writes to /run/mount, and the paths in LD_LIBRARY_PATH may lead into a view.
        recorder.env_remove("LD_LIBRARY_PATH").arg("--snapshot-dir").arg(&place.out);
        recorder.args(["--ignore", "/run/mount", "--quiet", "--timeout", "300s", "--"]);
        recorder
    }

    /// Compares the recordings.
    fn check(&self) {
        let [setup, bare, plain, viewed] = [(); 4].map(|()| View::place());
        let sandboxed = |place: &Place, script| {
            let words = self.command(script);
            let unshare: &[&str] = if self.is_shared { &["unshare", "-m"] } else { &[] };
            let mut words = unshare.iter().copied().chain(words.iter().map(String::as_str));
            let mut command = place.program(words.next().unwrap());
            command.args(words);
            command
        };
        if !works(&mut sandboxed(&View::place(), ":")) {
            return;
        }
        let bare = sandboxed(&bare, self.script).output().unwrap();
        assert!(bare.status.success(), "it fails without us: {}", shown(&bare));
        let set_up = record(&setup, self.recorder(&setup).args(self.command(":")));
        let words = ["sh", "-euc", self.script, "sh", self.outside[0], self.outside[1]];
        let by_outer_names = record(&plain, self.recorder(&plain).args(words));
        let (output, snapshot) =
            record_exactly(&viewed, self.recorder(&viewed).args(self.command(self.script)));
        assert_eq!(shown(&output), shown(&bare));
        let mut expected = operations(&setup, &set_up);
        for (name, words) in operations(&plain, &by_outer_names) {
            expected.entry(name).or_default().extend(words);
        }
        assert_eq!(operations(&viewed, &snapshot), expected);
    }
}

/// Runs a recording that must succeed.
#[track_caller]
fn record(place: &Place, recording: &mut Command) -> Snapshot {
    let output = recording.output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
    place.snapshot()
}

/// What each recorded name below the directory of a place was used for.
fn operations(place: &Place, snapshot: &Snapshot) -> BTreeMap<String, BTreeSet<&'static str>> {
    let root = place.path("");
    let below = snapshot.files().iter().filter_map(|file| {
        let name = String::from_utf8_lossy(file.path.strip_prefix(root.as_slice())?).into_owned();
        Some((name, file.operations.iter().map(Operation::name).collect()))
    });
    below.collect()
}

const UNSHARED: View = View {
    sandbox: "unshare -rm",
    enter: &[],
    script: ONE_NAME,
    inside: ["view", "view/d"],
    outside: ["src", "src/d"],
    is_shared: false,
};

const SHARED: View = View { sandbox: "", is_shared: true, ..UNSHARED };

macro_rules! views {
    ($($name:ident: $view:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let view = $view;
                if view.is_shared && !can_mount() {
                    return;
                }
                view.check();
            }
        )*
    };
}

views! {
    bind_mount: View { enter: &["mount --bind src view", RUN], ..UNSHARED };
    bind_mount_by_both_names: View {
        enter: &["mount --bind src view", RUN],
        script: TWO_NAMES,
        inside: ["view", "src"],
        outside: ["src", "src"],
        ..UNSHARED
    };
    bind_mount_of_a_bind_mount: View {
        enter: &["mount --bind src mid; mount --bind mid view", RUN],
        ..UNSHARED
    };
    bind_mount_of_a_directory_in_a_bind_mount: View {
        enter: &["mount --bind . mid; mount --bind mid/src view", RUN],
        ..UNSHARED
    };
    bind_mount_within_a_bind_mount: View {
        enter: &["mount --bind src view; mount --bind other view/d", RUN],
        outside: ["src", "other"],
        ..UNSHARED
    };
    recursive_bind_mount: View {
        enter: &["mount --bind other src/d; mount --rbind src view", RUN],
        outside: ["src", "other"],
        ..UNSHARED
    };
    bind_mount_that_is_not_recursive: View {
        enter: &["mount --bind other src/d; mount --bind src view", RUN],
        ..UNSHARED
    };
    mount_over_a_mount: View {
        enter: &["mount --bind other view; mount --bind src view", RUN],
        ..UNSHARED
    };
    bind_mount_of_what_is_covered_later: View {
        enter: &["mount --bind src view; mount -t tmpfs x src; echo private > src/f", RUN],
        ..UNSHARED
    };
    moved_mount: View {
        // It fails in the end where an ordinary user can't note it in /run/mount.
        enter: &["mount --bind src mid; mount --move mid view 2> /dev/null || mountpoint -q view", RUN],
        ..UNSHARED
    };
    mount_that_is_gone: View {
        enter: &["mount -t tmpfs x src; umount src; mount --bind other src; umount src", RUN],
        inside: ["src", "src/d"],
        ..UNSHARED
    };
    mount_that_is_propagated: View {
        enter: &["mount --make-rshared /; mount --bind . mid; mount --bind src mid/view", RUN],
        ..UNSHARED
    };
    read_only_mount_beside_it: View {
        enter: &["mount --bind src view; mount --bind src src; mount -o remount,bind,ro src", RUN],
        ..UNSHARED
    };
    idmapped_mount: View { sandbox: "unshare -m", enter: &[IDMAP, RUN], ..UNSHARED };
    names_with_blanks_newlines_and_backslashes: View {
        enter: &[r#"mount --bind "${5%/*}/src" "$5""#, RUN],
        inside: [concat!(odd!(), "/view"), concat!(odd!(), "/view/d")],
        outside: [concat!(odd!(), "/src"), concat!(odd!(), "/src/d")],
        ..UNSHARED
    };
    another_root: View {
        enter: &["mount -t tmpfs x root", SYSTEM, "mount --bind src root/work", r#"exec /usr/sbin/chroot root "$@""#],
        inside: ["/work", "/work/d"],
        ..UNSHARED
    };
    another_root_below_a_bind_mount: View {
        enter: &["mount --rbind / root; mount --bind src root/mnt", r#"exec /usr/sbin/chroot root "$@""#],
        inside: ["/mnt", "/mnt/d"],
        ..UNSHARED
    };
    pivoted_root: View {
        enter: &[
            "mount -t tmpfs x root",
            SYSTEM,
            "mount --bind src root/work; mkdir root/old; cd root; /usr/sbin/pivot_root . old; cd /; umount -l old",
            RUN,
        ],
        inside: ["/work", "/work/d"],
        ..UNSHARED
    };
    namespace_that_is_entered: View {
        sandbox: "",
        enter: &[
            r#"mkfifo ../ready ../stop
            unshare -rm sh -euc 'mount --bind src view; echo $$ > ../ready; read line < ../stop' &
            read pid < ../ready; status=0
            nsenter --target "$pid" --user --preserve-credentials --mount sh -euc 'cd "$0"; exec "$@"' "$PWD" "$@" || status=$?
            echo > ../stop; wait; exit "$status""#,
        ],
        ..UNSHARED
    };
    directory_that_was_opened_before: View {
        sandbox: "",
        enter: &[r#"exec 3< src; exec unshare -rm sh -euc 'mount -t tmpfs x src; exec "$@"' sh "$@""#],
        inside: ["/proc/self/fd/3", "/proc/self/fd/3/d"],
        ..UNSHARED
    };
    namespace_in_a_namespace: View {
        enter: &[r#"mount --bind src mid; exec unshare -rm sh -euc 'mount --bind mid view; exec "$@"' sh "$@""#],
        ..UNSHARED
    };
    bubblewrap: View {
        sandbox: "bwrap --dev-bind / / --bind src /mnt --unshare-all --proc /proc",
        enter: &[RUN],
        inside: ["/mnt", "/mnt/d"],
        ..UNSHARED
    };
    bubblewrap_with_a_root_of_symlinks: View {
        sandbox: "bwrap --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
            --proc /proc --dev /dev --tmpfs /tmp --bind src /work --symlink work/d /d",
        enter: &[RUN],
        inside: ["/work", "/d"],
        ..UNSHARED
    };
    shared_bind_mount: View {
        enter: &["mount --bind src view", RUN_AND_UNMOUNT],
        ..SHARED
    };
    shared_bind_mount_that_stays: View { enter: &["mount --bind src view", RUN], ..SHARED };
    shared_bind_mount_by_both_names: View {
        enter: &["mount --bind src view", RUN_AND_UNMOUNT],
        script: TWO_NAMES,
        inside: ["view", "src"],
        outside: ["src", "src"],
        ..SHARED
    };
}
