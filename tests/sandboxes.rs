//! Sandboxes as people use them, each around a recording and with one inside: bubblewrap, unshare, Anthropic's
//! sandbox-runtime, rootless podman, and roots made by hand and by debootstrap.
//!
//! A command prints, ends and leaves what it does without us; what it did is recorded whole and undone exactly. Each
//! sandbox is tried alone first: where it does not work here, the test says so and is skipped. Neighbours:
//! `record/views.rs` and `record/namespaces.rs` say what is recorded for which mount.

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{
    BINARY, Place, User, assert_same, debian, describe_recorded, give_away, has, is_root, needs_root, scan,
    shown,
};
use crate::truth::{gaps, record_exactly};

/// What is done in each sandbox, `$1` being a file that the sandbox protects.
const JOB: &str = r#"cat f; echo more >> f; echo new > new; rm gone; mv dir moved; cat moved/x; ln -s f link
    chmod 600 mode; mkdir -p made/below; echo x > made/below/x; rm -r made; cat link; ls
    echo no > "$1"; exit 7"#;

/// The tree that it is done to.
const TREE: &str =
    "echo f > f; echo gone > gone; echo mode > mode; mkdir dir; echo x > dir/x; mkdir ../inside";

/// A sandbox: the command that runs `words` in it, in the directory of the place. There `work` and `inside` can be
/// written.
type Sandbox<'a> = &'a dyn Fn(&Place, &[String]) -> Vec<String>;

fn text(path: impl Into<PathBuf>) -> String {
    path.into().into_os_string().into_string().unwrap()
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The job as a command.
fn job(protected: &str) -> Vec<String> {
    strings(&["sh", "-c", JOB, "sh", protected])
}

/// What a place holds, without times and inode numbers.
fn left(place: &Place) -> Vec<String> {
    let tree = scan(&place.work);
    let line = |(path, entry): (&Vec<u8>, &crate::support::Entry)| {
        let name = path.strip_prefix(place.work.as_os_str().as_encoded_bytes()).unwrap();
        let at = &entry.present;
        format!("{} {:o} {:?} {:?}", name.escape_ascii(), at.mode, at.target, entry.content)
    };
    tree.iter().map(line).collect()
}

/// What a command said and how it ended, the directory of its place aside.
fn said(place: &Place, output: &Output) -> String {
    shown(output).replace(place.base().to_str().unwrap(), "BASE")
}

/// What is run before all else, recorder and sandbox alike.
type Outer<'a> = &'a [&'a str];

/// Words as a command of the user of a place, or of the one who runs the tests if `outer` changes the user.
fn command(place: &Place, outer: Outer<'_>, words: &[String]) -> Command {
    let words = [&strings(outer), words].concat();
    let mut command = if outer.is_empty() { place.program(&words[0]) } else { Command::new(&words[0]) };
    place.isolate(&mut command);
    command.args(&words[1..]);
    command
}

/// Checks one sandbox with a recording inside and around one; `protected` is a path in it that the job can't write.
fn check<P: Deref<Target = Place>>(
    set_up: &dyn Fn() -> P,
    sandbox: Sandbox<'_>,
    protected: &dyn Fn(&Place) -> String,
) {
    check_below(&[], set_up, sandbox, protected);
}

/// The same below `outer`.
fn check_below<P: Deref<Target = Place>>(
    outer: Outer<'_>,
    set_up: &dyn Fn() -> P,
    sandbox: Sandbox<'_>,
    protected: &dyn Fn(&Place) -> String,
) {
    let sandboxed = |place: &Place, words: &[String]| command(place, outer, &sandbox(place, words));
    let alone = set_up();
    let bare = sandboxed(&alone, &job(&protected(&alone))).output();
    let Ok(bare) = bare.map_err(|error| println!("skipped: {error}")) else { return };
    if bare.status.code() != Some(7) {
        return println!("skipped: the sandbox does not work here: {}", shown(&bare));
    }
    record_inside(&set_up(), &alone, &bare, &sandboxed, protected);

    let around = set_up();
    let recorder = around.recorder("auto");
    let recorder = std::iter::once(recorder.get_program()).chain(recorder.get_args());
    let recorder = recorder.map(|word| word.to_owned().into_string().unwrap());
    let words = recorder.chain(sandbox(&around, &job(&protected(&around))));
    let (output, _) = record_exactly(&around, &mut command(&around, outer, &words.collect::<Vec<_>>()));
    assert_eq!(said(&around, &output), said(&alone, &bare), "recorded from outside");
    around.verb("restore", &[]).expect(0);
    assert_eq!(left(&around), left(&alone), "recorded from outside");
}

/// Records the job inside of the sandbox, and compares that with how it was `alone`.
fn record_inside(
    inside: &Place,
    alone: &Place,
    bare: &Output,
    sandboxed: &dyn Fn(&Place, &[String]) -> Command,
    protected: &dyn Fn(&Place) -> String,
) {
    let before = describe_recorded(&scan(&inside.work));
    let binary = text(inside.executable(Path::new(BINARY)));
    let out = text(inside.base().join("inside/out"));
    let options = strings(&[&binary, "--snapshot-dir", &out, "--quiet", "--"]);
    let traced = sandboxed(inside, &[&options[..], &strings(&["true"])].concat()).output().unwrap();
    if !traced.status.success() {
        return println!("skipped: nothing can be traced inside: {}", shown(&traced));
    }
    let recorded = [&options[..], &job(&protected(inside))].concat();
    let output = sandboxed(inside, &recorded).output().unwrap();
    assert_eq!(said(inside, &output), said(alone, bare), "recorded inside");
    assert_eq!(left(inside), left(alone), "recorded inside");
    let snapshot = agent_snapshot::snapshot::Snapshot::open(Path::new(&out)).unwrap();
    assert_eq!(gaps(&snapshot), Vec::<String>::new(), "recorded inside");
    // Each container is a machine of its own.
    let undo = strings(&[&binary, "restore", "--before", "--foreign", &out]);
    let undone = sandboxed(inside, &undo).output().unwrap();
    assert!(undone.status.success(), "{}", shown(&undone));
    assert_same(&describe_recorded(&scan(&inside.work)), &before, "undone inside");
}

/// A place of `user` with the tree.
fn place(user: User) -> Box<Place> {
    let place = Box::new(Place::of(user));
    place.prepare(TREE);
    place
}

/// Checks a sandbox as everyone who can use it.
fn check_each(sandbox: Sandbox<'_>) {
    for user in User::all() {
        check(&|| place(*user), sandbox, &|place| text(place.home.join("protected")));
    }
}

/// bubblewrap with a root that can't be written to, and more options.
fn bubblewrap(options: &[&str]) -> Vec<String> {
    strings(&[&["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"], options].concat())
}

#[test]
#[ignore = "slow: whole sandboxes"]
fn slow_sandbox_of_bubblewrap() {
    check_each(&|place, words| {
        let [work, inside] = [place.work.clone(), place.base().join("inside")].map(text);
        let sandbox = bubblewrap(&[
            "--bind",
            &work,
            &work,
            "--bind",
            &inside,
            &inside,
            "--unshare-all",
            "--new-session",
            "--die-with-parent",
        ]);
        [&sandbox, words].concat()
    });
}

#[test]
#[ignore = "slow: whole sandboxes"]
fn slow_sandbox_of_bubblewrap_with_other_names() {
    check_each(&|place, words| {
        let [work, base, inside] =
            [place.work.clone(), place.base().to_owned(), place.base().join("inside")].map(text);
        let sandbox = bubblewrap(&[
            "--tmpfs",
            "/run",
            "--bind",
            &work,
            "/run/work",
            "--ro-bind",
            &base,
            &base,
            "--bind",
            &inside,
            &inside,
            "--unshare-pid",
            "--chdir",
            "/run/work",
        ]);
        [&sandbox, words].concat()
    });
}

#[test]
#[ignore = "slow: whole sandboxes"]
fn slow_sandbox_of_unshare() {
    let enter = r#"mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; mount --bind "$2" /mnt; cd /mnt; shift 2; exec "$@""#;
    check_each(&|place, words| {
        let [work, home] = [place.work.clone(), place.home.clone()].map(text);
        [&strings(&["unshare", "-rmpf", "--mount-proc", "sh", "-euc", enter, "sh", &home, &work]), words]
            .concat()
    });
}

#[test]
#[ignore = "slow: whole sandboxes"]
fn slow_sandbox_of_sandbox_runtime() {
    if !has("srt") {
        return;
    }
    let set_up = |user| {
        let place = place(user);
        let writable = [place.work.clone(), place.base().join("inside")].map(text);
        let settings = serde_json::json!({
            "network": { "allowedDomains": [], "deniedDomains": [] },
            "filesystem": { "denyRead": [], "allowWrite": writable, "denyWrite": [] },
        });
        fs::write(place.home.join(".srt-settings.json"), settings.to_string()).unwrap();
        if user == User::Nobody {
            give_away(&place.home);
        }
        place
    };
    let quoted = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
    // In the sandbox of root /proc shows another PID namespace, so that nothing can be traced inside.
    for user in User::all() {
        check(
            &|| set_up(*user),
            &|_, words| {
                let line: Vec<String> = words.iter().map(quoted).collect();
                strings(&["srt", "-c", &line.join(" ")])
            },
            &|place| text(place.home.join("protected")),
        );
    }
}

/// Makes a root at `root` with the programs of the job and ours: files that are copied, no package.
fn make_root(place: &Place, root: &Path) {
    let script = r#"root=$1; binary=$2
        for name in bin dev etc proc root tmp work inside; do mkdir -p "$root/$name"; done
        echo root:x:0:0:root:/root:/bin/sh > "$root/etc/passwd"
        copy() { mkdir -p "$root${2%/*}"; cp -L "$1" "$root$2"; }
        for name in sh cat rm mv ln chmod mkdir ls true; do copy "/usr/bin/$name" "/bin/$name"; done
        copy "$binary" /bin/agent-snapshot
        for program in "$root"/bin/*; do ldd "$program" | grep -o "/[^ ]*"; done | sort -u | grep -v "^$root" |
            while read library; do copy "$library" "$library"; done"#;
    let mut make = place.program("sh");
    make.args(["-euc", script, "sh"]).arg(root).arg(place.executable(Path::new(BINARY)));
    let output = make.output().unwrap();
    assert!(output.status.success(), "{}", shown(&output));
}

/// The words for a root that has our program at /bin/agent-snapshot, and `inside` at /inside.
fn in_root(place: &Place, words: &[String]) -> Vec<String> {
    let binary = text(place.executable(Path::new(BINARY)));
    let inside = text(place.base().join("inside"));
    let word = |word: &String| {
        if *word == binary { "/bin/agent-snapshot".to_owned() } else { word.replace(&inside, "/inside") }
    };
    words.iter().map(word).collect()
}

#[test]
#[ignore = "slow: whole sandboxes"]
fn slow_sandbox_of_a_chroot() {
    if !needs_root("chroot(2)") {
        return;
    }
    // A root beside the directory, which is mounted in it.
    let enter = r#"mount --bind "$1" "$3/work"; mount --bind "$2" "$3/inside"; mount -t proc proc "$3/proc"
        root=$3; shift 3; exec chroot "$root" sh -c 'cd /work; exec "$@"' sh "$@""#;
    let set_up = || {
        let place = place(User::Current);
        make_root(&place, &place.base().join("root"));
        // What nothing can be made in, by root either.
        fs::remove_dir(place.base().join("root/dev")).unwrap();
        place
    };
    check(
        &set_up,
        &|place, words| {
            let [work, inside, root] =
                [place.work.clone(), place.base().join("inside"), place.base().join("root")].map(text);
            let unshare = ["unshare", "-mpf", "sh", "-euc", enter, "sh", &work, &inside, &root];
            [&strings(&unshare), &in_root(place, words)[..]].concat()
        },
        &|_| "/dev/protected".to_owned(),
    );
}

#[test]
#[ignore = "slow: whole sandboxes"]
fn slow_sandbox_of_a_chroot_without_a_namespace() {
    if !needs_root("chroot(2)") {
        return;
    }
    // The root is what is changed, and nothing is mounted: no /proc, and no recording inside.
    let set_up = || {
        let place = Box::new(Place::new());
        make_root(&place, &place.work);
        place.prepare(&format!("mkdir ../inside; cd root; {}", TREE.replace("; mkdir ../inside", "")));
        place
    };
    check(
        &set_up,
        &|place, words| {
            let root = text(place.work.clone());
            let words = in_root(place, words);
            [&strings(&["chroot", &root, "sh", "-c", r#"cd /root; exec "$@""#, "sh"]), &words[..]].concat()
        },
        &|_| "/nowhere/protected".to_owned(),
    );
}

#[test]
#[ignore = "slow: whole sandboxes"]
fn slow_sandbox_of_debootstrap() {
    let Some(debian) = debian(None) else { return };
    let enter = r#"mount --bind "$3" "$3"; mkdir -p "$3/work" "$3/inside"; mount -o remount,bind,ro "$3"; mount --bind "$1" "$3/work"; mount --bind "$2" "$3/inside"
        mount -t proc proc "$3/proc"; mount -t tmpfs tmpfs "$3/tmp"; cp "$4" "$3/tmp/agent-snapshot"
        root=$3; shift 4; exec chroot "$root" sh -c 'cd /work; exec "$@"' sh "$@""#;
    check(
        &|| place(User::Current),
        &|place, words| {
            let [work, inside] = [place.work.clone(), place.base().join("inside")].map(text);
            let debian = text(debian.clone());
            let unshare = ["unshare", "-mpf", "sh", "-euc", enter, "sh", &work, &inside, &debian, BINARY];
            let words =
                in_root(place, words).into_iter().map(|word| word.replace("/bin/agent", "/tmp/agent"));
            strings(&unshare).into_iter().chain(words).collect()
        },
        &|_| "/etc/protected".to_owned(),
    );
}

/// A place of an ordinary user, an image in the storage of that user's podman, and the pause process that holds its
/// namespaces, which ends with it.
struct Podman {
    place: Box<Place>,
    outer: Vec<&'static str>,
}

impl Podman {
    /// The words before everything of an ordinary user: where cgroups are in hybrid mode, which crun refuses, root
    /// hides that.
    fn outer() -> Vec<&'static str> {
        let hide = r#"if [ -d /sys/fs/cgroup/unified ]; then umount -l /sys/fs/cgroup/unified; fi
            exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@""#;
        if is_root() { vec!["unshare", "-m", "sh", "-euc", hide, "sh"] } else { Vec::new() }
    }

    fn words(place: &Place, words: &[&str]) -> Vec<String> {
        let run = format!("XDG_RUNTIME_DIR={}", text(place.base().join("run")));
        [&strings(&["env", &run, "podman", "--log-level", "error"]), &strings(words)[..]].concat()
    }

    /// Imports a root of files that are copied here.
    fn new() -> Podman {
        let place = place(User::ordinary());
        make_root(&place, &place.base().join("root"));
        // Ours is mounted: the storage copies an image for each container.
        place.prepare(
            "mkdir -m 700 ../run; : > ../root/bin/agent-snapshot
            tar -C ../root --owner=0 --group=0 -cf ../root.tar .; rm -r ../root",
        );
        let podman = Podman { place, outer: Podman::outer() };
        let archive = text(podman.place.base().join("root.tar"));
        let import = Podman::words(&podman.place, &["import", "--quiet", &archive, "job"]);
        let output = command(&podman.place, &podman.outer, &import).output().unwrap();
        assert!(output.status.success(), "{}", shown(&output));
        podman
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let migrate = Podman::words(&self.place, &["system", "migrate"]);
        let _ = command(&self.place, &self.outer, &migrate).output();
    }
}

impl Deref for Podman {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

#[test]
#[ignore = "slow: whole sandboxes"]
fn slow_sandbox_of_rootless_podman() {
    if !has("podman") {
        return;
    }
    check_below(
        &Podman::outer(),
        &Podman::new,
        &|place, words| {
            let ours = place.executable(Path::new(BINARY));
            let volumes = [
                (place.work.clone(), "/work"),
                (place.base().join("inside"), "/inside"),
                (ours, "/bin/agent-snapshot:ro"),
            ];
            let volumes = volumes.map(|(from, to)| format!("--volume={}:{to}", text(from)));
            let run =
                ["run", "--rm", "--network=none", "--cgroups=disabled", "--read-only", "--workdir=/work"];
            let volumes = volumes.each_ref().map(String::as_str);
            let podman = Podman::words(place, &[&run[..], &volumes, &["localhost/job"]].concat());
            [podman, in_root(place, words)].concat()
        },
        &|_| "/protected".to_owned(),
    );
}
