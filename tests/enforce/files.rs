//! Paths: by which name a file may not be changed or read, and what must not be in the way of ordinary commands.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{enforced, refused};
use crate::support::{Place, User, give_away, has, stderr, works};

/// The content of the files that rules are about.
const OLD: &str = "old\n";

/// A place with an `outside` beside the workspace: a file, another name of one that is in the workspace, a directory.
fn place_of(user: User) -> Place {
    let place = Place::of(user);
    let outside = place.base().join("outside");
    fs::create_dir_all(outside.join("d")).unwrap();
    for name in ["old", "linked", "d/old"] {
        fs::write(outside.join(name), OLD).unwrap();
    }
    fs::hard_link(outside.join("linked"), place.at("other")).unwrap();
    if user == User::Nobody {
        give_away(place.base());
    }
    place
}

/// What is outside, by name, with modes.
fn outside(place: &Place) -> Vec<(String, u32, String)> {
    use std::os::unix::fs::PermissionsExt as _;
    let root = place.base().join("outside");
    let mut all: Vec<_> = walkdir::WalkDir::new(&root)
        .into_iter()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.path().strip_prefix(&root).unwrap().display().to_string();
            let mode = entry.metadata().unwrap().permissions().mode();
            (name, mode, fs::read_to_string(entry.path()).unwrap_or_default())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn no_change_outside_of_the_workspace_happens() {
    for (script, expected) in [
        ("echo x > ../outside/new", &["allow-write outside/new write"][..]),
        ("echo x > ../outside/old", &["allow-write outside/old write"]),
        ("echo x >> ../outside/old", &["allow-write outside/old write"]),
        ("rm -f ../outside/old", &["allow-write outside/old delete"]),
        ("rmdir ../outside/e || mkdir ../outside/e", &["allow-write outside/e write"]),
        ("chmod 600 ../outside/old", &["allow-write outside/old metadata"]),
        ("chmod 700 ../outside", &["allow-write outside metadata"]),
        (
            "touch -d 2020-01-01 ../outside/old",
            &["allow-write outside/old metadata", "allow-write outside/old write"],
        ),
        ("truncate -s 0 ../outside/old", &["allow-write outside/old write"]),
        ("ln -s x ../outside/s", &["allow-write outside/s write"]),
        ("mkfifo ../outside/p", &["allow-write outside/p write"]),
        // By a symlink, a descriptor, a directory that is no longer called so.
        ("ln -s ../outside l; echo x > l/new", &["allow-write outside/new write"]),
        ("ln -s ../outside/old l; ln -s l m; echo x >> m", &["allow-write outside/old write"]),
        ("cd -P /proc/self/cwd/../outside; echo x > new", &["allow-write outside/new write"]),
        ("exec 3< ../outside/old; echo x > /proc/self/fd/3", &["allow-write outside/old write"]),
        ("exec 3< ../outside; echo x > /proc/self/fd/3/new", &["allow-write outside/new write"]),
        // By another name of the file.
        ("ln ../outside/old l; echo x >> l", &["allow-write outside/old metadata"]),
        ("ln ../outside/old l; chmod 600 l", &["allow-write outside/old metadata"]),
        ("ls -l ../outside/linked; echo x >> other", &["allow-write outside/linked write"]),
        // Into the workspace, and out of it.
        ("mv ../outside/old .", &["allow-write outside/old delete"]),
        ("echo x > a; mv a ../outside/a", &["allow-write outside/a write"]),
        ("echo x > a; mv a ../outside/old", &["allow-write outside/old write"]),
        ("mv ../outside/d ../outside/e", &["allow-write outside/d delete", "allow-write outside/e write"]),
        ("mv ../outside o", &["allow-write outside delete"]),
        ("mkdir d; echo x > d/f; mv d ../outside/e", &["allow-write outside/e write"]),
        ("echo x > a; ln a ../outside/a", &["allow-write outside/a write"]),
    ] {
        for &user in User::all() {
            let place = place_of(user);
            let before = outside(&place);
            let output = enforced(&place, &["--allow-write", "@workspace"], &format!("{script}\necho on"));
            assert!(output.status.success() && output.stdout.ends_with(b"on\n"), "{script}: {output:?}");
            assert!(stderr(&output).contains("ermission denied"), "{script} as {user:?}: {output:?}");
            assert_eq!(refused(&place), expected, "{script} as {user:?}");
            assert_eq!(outside(&place), before, "{script} as {user:?}");
        }
    }
}

#[test]
fn nothing_is_refused_that_the_kernel_refuses_or_that_changes_nothing() {
    for script in [
        "mkdir -p ../outside/d; rm -f ../outside/absent ../absent/x; rm -rf ../outside/absent",
        "rmdir ../outside 2>&1 | grep -q 'not empty'",
        "mkdir ../outside 2>&1 | grep -q exists",
        "ln -s x ../outside/old 2>&1 | grep -q exists",
        "ln ../outside/old ../outside/linked 2>&1 | grep -q exists",
        "(set -C; echo x > ../outside/old) 2>&1 | grep -qi exist",
        "echo x 2>&1 > ../absent/new | true; (echo x > ../absent/new) 2>&1 | grep -qi 'no\\(nexistent\\|t\\| such\\)'",
        "(echo x > ../outside) 2>&1 | grep -qi 'directory'",
        "mv ../outside/absent . 2>&1 | grep -q 'No such'",
        "chmod 600 ../outside/absent 2>&1 | grep -q 'No such'",
        "chmod 600 ../outside/old/ 2>&1 | grep -q 'Not a directory'",
        "mkfifo ../outside/new/ 2>&1 | grep -q 'No such'",
        "echo x > a; mv -T a ../outside/new/ 2>&1 | grep -q 'Not a directory'",
        "mv -T ../outside/old ../outside/old/x 2>&1 | grep -q 'Not a directory'",
        "mv -T ../outside/d ../outside/d/x 2>&1 | grep -q 'subdirectory of itself'",
        "cat ../outside/old; ls -lR ../outside; cd ../outside; test -w old",
        "echo x > /dev/null; echo x > /dev/zero; echo x | tee /dev/full 2> /dev/null | cat",
        "mkfifo p; cat p & echo x > p; wait",
        "echo x > a; mv a b; mkdir -p c/d; mv c e; ln b e/b; echo y >> e/b; rm -r e b",
    ] {
        for &user in User::all() {
            let place = place_of(user);
            let before = outside(&place);
            let output = enforced(&place, &["--allow-write", "@workspace"], script);
            assert_eq!(refused(&place), [""; 0], "{script} as {user:?}: {output:?}");
            assert_eq!(output.status.code(), Some(0), "{script} as {user:?}: {output:?}");
            assert_eq!(outside(&place), before, "{script} as {user:?}");
        }
    }
}

#[test]
fn what_permissions_deny_has_the_error_of_the_kernel_and_is_no_refusal() {
    let place = place_of(User::ordinary());
    let sticky = place.base().join("sticky");
    fs::create_dir(&sticky).unwrap();
    fs::write(sticky.join("of-root"), OLD).unwrap();
    crate::support::chmod(&sticky, 0o1777);
    crate::support::chmod(place.base().join("outside/old"), 0o444);
    crate::support::chmod(place.base().join("outside/d"), 0o555);
    let script = "echo x > ../outside/old; rm -f ../outside/d/old; echo x > ../outside/d/new";
    enforced(&place, &["--allow-write", "@workspace"], script);
    assert_eq!(refused(&place), [""; 0]);
    if crate::support::is_root() {
        enforced(
            &place,
            &["--allow-write", "@workspace"],
            "rm -f ../sticky/of-root; chmod 600 ../sticky/of-root",
        );
        assert_eq!(refused(&place), [""; 0]);
    }
}

#[test]
fn what_may_not_be_read_is_read_by_no_name() {
    let denied = "deny-read ../secret secret read";
    for (script, expected) in [
        ("cat ../secret", &[denied][..]),
        ("cat ../work/../secret", &[denied]),
        ("ln -s ../secret s; ln -s s t; cat t", &[denied]),
        ("ln ../secret h; cat h", &["deny-read ../secret secret metadata"]),
        ("mv ../secret x; cat x", &["deny-read ../secret secret delete"]),
        ("mv before x; cat x; ln x y; rm x; cat y", &[denied]),
        ("cat before", &[denied]),
        ("rm ../secret; cat before; mv before ../secret", &[denied]),
        ("cat < /proc/self/cwd/../secret", &[denied]),
        ("cp ../secret c; test -e c && cat c", &[denied]),
        ("dd if=../secret of=c; cat c", &[denied]),
        ("cat ../secret; cat ../secret", &[denied]),
        // Its attributes are not its content.
        ("ls -l ../secret; test -r ../secret; stat ../secret", &[]),
        ("cat ../public", &[]),
        ("mkdir d; mv d e; cat e/x; cat absent ../absent", &[]),
    ] {
        for &user in User::all() {
            let place = Place::of(user);
            let secret = place.base().join("secret");
            fs::write(&secret, "top").unwrap();
            fs::write(place.base().join("public"), "pub").unwrap();
            fs::hard_link(&secret, place.at("before")).unwrap();
            if user == User::Nobody {
                give_away(place.base());
            }
            let output = enforced(&place, &["--deny-read", "../secret"], &format!("{script}\ntrue"));
            assert!(output.status.success(), "{script}: {output:?}");
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(!printed.contains("top"), "{script} as {user:?}: {output:?}");
            assert_eq!(refused(&place), expected, "{script} as {user:?}");
            assert_eq!(fs::read(&secret).unwrap(), b"top", "{script} as {user:?}");
        }
    }
}

#[test]
fn a_glob_means_the_files_that_were_met_by_such_a_name() {
    for (script, expected) in [
        ("cat a.key", &["deny-read *.key work/a.key read"][..]),
        ("mv a.key x; cat x", &["deny-read *.key work/a.key delete"]),
        ("ln a.key x; cat x", &["deny-read *.key work/a.key metadata"]),
        ("mv d e; cat e/b.key", &["deny-read *.key work/e/b.key read"]),
        ("mv a.key c.key; rm c.key; cat before", &["deny-read *.key work/a.key read"]),
        // Another file, though it may have the number of the first.
        ("rm a.key; echo x > x; cat x", &[]),
        ("mv a.key b.key; rm b.key; echo x > y; cat y", &[]),
    ] {
        let place = Place::new();
        place.write("a.key", "top");
        place.hard_link("a.key", "before");
        place.write("d/b.key", "top");
        let output = enforced(&place, &["--deny-read", "*.key"], &format!("{script}\ntrue"));
        assert!(!String::from_utf8_lossy(&output.stdout).contains("top"), "{script}: {output:?}");
        assert_eq!(refused(&place), expected, "{script}");
    }
}

#[test]
fn a_directory_with_something_that_may_not_be_changed_is_not_renamed() {
    let place = Place::new();
    place.write("d/sub/keep", OLD);
    place.write("e/f", OLD);
    let output = enforced(&place, &["--deny-write", "keep"], "mv d x; mv e y; ls");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "d\ny\n");
    assert_eq!(
        refused(&place),
        ["deny-write keep work/d/sub/keep delete", "deny-write keep work/x/sub/keep write"]
    );
}

#[test]
fn with_allow_read_nothing_else_is_read_or_listed() {
    for &user in User::all() {
        let place = place_of(user);
        let rules = ["--allow-read", "@workspace", "--allow-read", "@system"];
        let script =
            "cat ../outside/old; ls ../outside; ls -ld ../outside; ls; cat other; echo x > new; cat new";
        let output = enforced(&place, &rules, script);
        assert!(output.status.success(), "{output:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("linked\n"), "{output:?}");
        assert_eq!(
            refused(&place),
            ["allow-read outside directory", "allow-read outside/old read"],
            "{user:?}"
        );
    }
}

#[test]
fn rules_themselves_and_our_program_are_protected() {
    let place = Place::new();
    let config = place.config.join("agent-snapshot");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), "").unwrap();
    fs::write(place.base().join("policy.toml"), "deny-read = [\"x\"]\n").unwrap();
    place.write(".agent-snapshot.toml", "");
    let script = format!(
        "echo > ../policy.toml; ln ../policy.toml p; echo > p; mv ../policy.toml q; echo >> ../config/agent-snapshot/config.toml
         mv ../config/agent-snapshot ../config/other; echo > .agent-snapshot.toml; echo > ../out/x; chmod 700 {0}; echo > /proc/$$/mem",
        crate::support::BINARY
    );
    let output = enforced(&place, &["--policy", "../policy.toml"], &script);
    let mut refused = refused(&place);
    refused.retain(|line| !line.ends_with("/mem write"));
    let ours =
        format!("protected {} metadata", Path::new(crate::support::BINARY).canonicalize().unwrap().display());
    let mut expected = vec![
        "protected config/agent-snapshot delete",
        "protected config/agent-snapshot/config.toml write",
        "protected out/x write",
        "protected policy.toml delete",
        "protected policy.toml metadata",
        "protected policy.toml write",
        "protected work/.agent-snapshot.toml write",
    ];
    // The kernel has another reason to refuse it to somebody else.
    if fs::metadata(crate::support::BINARY).unwrap().uid() == rustix::process::geteuid().as_raw() {
        expected.push(&ours);
    }
    expected.sort_unstable();
    assert_eq!(refused, expected, "{output:?}");
    assert_eq!(fs::read(place.base().join("policy.toml")).unwrap(), b"deny-read = [\"x\"]\n");
}

#[test]
fn everyday_commands_see_no_difference() {
    if !(has("git") && has("make") && has("python3")) {
        return;
    }
    let script = "
        mkdir repo; cd repo; git init -q; echo 1 > f; git add f; git commit -qm x; git gc -q; git checkout -qb b
        printf 'all:\\n\\tmkdir -p d/e; cp f d/e; ln -sf d l; mv d k; rm -rf k l\\n' > Makefile; make -s
        python3 -c 'import json, tempfile; tempfile.TemporaryFile().write(b\"x\"); open(\"j\", \"w\").write(json.dumps(1))'
        cp -a f g; tar cf t.tar f g; tar xf t.tar; sed -i s/1/2/ f; git stash -q; git stash pop -q; find . | wc -l > n
        python3 -c 'open(\"certificate.pem\", \"x+\").write(\"CERTIFICATE\")'; cat certificate.pem
        python3 -c 'open(\"own.pem\", \"x+\").write(\"CERTIFICATE\"); open(\"own.pem\").read()'; rm own.pem
        T=$(mktemp -d); echo x > $T/x; rm -r $T";
    for &user in User::all() {
        let place = Place::of(user);
        let rules = ["--allow-write", "@workspace", "--allow-write", "@tmp", "--deny-read", "@secrets"];
        let mut command = place.recording();
        for (name, value) in [("AUTHOR", "a"), ("COMMITTER", "c")] {
            command.env(format!("GIT_{name}_NAME"), value).env(format!("GIT_{name}_EMAIL"), "a@example.org");
        }
        command.args(["--strict", "--enforce"]).args(rules).args(["sh", "-euc", script]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{user:?}: {output:?}");
        assert_eq!(stderr(&output), "", "{user:?}");
        assert_eq!(refused(&place), [""; 0], "{user:?}");
    }
}

#[test]
fn opens_that_can_not_be_decided_at_once_are_as_alone() {
    if !has("python3") {
        return;
    }
    let script =
        "echo y > f; mkfifo p; cat f > p & cat p /proc/self/cwd/f < /dev/null; wait; exec python3 -c '
import ctypes, signal, threading
def read(name):
    with open(name) as f: assert f.read() == \"y\\n\"
many = [threading.Thread(target=lambda: [read(\"f\") for _ in range(50)]) for _ in range(4)]
for one in many: one.start()
for one in many: one.join()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
libc = ctypes.CDLL(None, use_errno=True)
for _ in range(500):
    fd = libc.open(b\"/proc/self/cwd/f\", 0)
    assert fd >= 0, ctypes.get_errno()
    libc.close(fd)
signal.setitimer(signal.ITIMER_REAL, 0)
print(\"done\")'";
    for &user in User::all() {
        let place = Place::of(user);
        for mechanism in ["auto", "stops"] {
            let options = ["--strict", "--mechanism", mechanism, "--deny-read", "absent"];
            let output = enforced(&place, &options, &format!("rm -f f p; {script}"));
            assert_eq!(
                String::from_utf8_lossy(&output.stdout),
                "y\ny\ndone\n",
                "{user:?} {mechanism} {output:?}"
            );
            std::fs::remove_dir_all(&place.out).unwrap();
        }
    }
}

#[test]
fn a_change_waits_for_no_thread_that_has_opened_something_and_runs() {
    if !has("python3") {
        return;
    }
    let script = "mkdir d; echo x > d/f; exec python3 -c '
import os
(ready, is_ready), (over, is_over) = os.pipe(), os.pipe()
if os.fork() == 0:
    os.read(ready, 1)
    os.rename(\"d\", \"e\")
    os.write(is_over, b\"x\")
    os._exit(0)
os.set_blocking(over, False)
os.open(\"d/f\", os.O_RDONLY)
os.write(is_ready, b\"x\")
while True:
    try: os.read(over, 1)
    except BlockingIOError: continue
    break
print(os.wait()[1], os.listdir(\"e\"))'";
    let place = Place::new();
    let output = enforced(&place, &["--strict", "--deny-read", "absent"], script);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0 ['f']\n", "{output:?}");
}

/// Which threads are in a call when their process ends is chance, so it is tried often.
#[test]
fn what_a_thread_wanted_to_change_that_was_killed_before_is_no_refusal() {
    if !has("python3") {
        return;
    }
    let script = "echo x > f; exec python3 -c '
import os, threading
file = os.open(\"f\", os.O_RDWR)
begun = threading.Barrier(9)
def change(call):
    call()
    begun.wait()
    while True: call()
for _ in range(4):
    threading.Thread(target=change, args=[lambda: os.fchmod(file, 0o644)], daemon=True).start()
    threading.Thread(target=change, args=[lambda: os.chmod(\"f\", 0o644)], daemon=True).start()
begun.wait()
os._exit(0)'";
    for &user in User::all() {
        for _ in 0..25 {
            let place = Place::of(user);
            let output = enforced(&place, &["--strict", "--allow-write", "@workspace"], script);
            assert!(output.status.success(), "{user:?} {output:?}");
            assert_eq!(refused(&place), [] as [String; 0], "{user:?}");
        }
    }
}

#[test]
fn a_read_only_mount_has_the_error_of_the_kernel_and_no_refusal() {
    let script = "mount --bind ../outside m && mount -o remount,bind,ro m && cd m
        for i in old linked d/old new; do (echo x > $i); done 2>&1 | grep -c 'Read-only'
        (chmod 600 old; touch d/old; rm -f old; mkdir d/e; mv old k; ln -s a d/b) 2>&1 | grep -c 'Read-only'";
    for &user in User::all() {
        let place = place_of(user);
        place.write("m/x", "");
        if user == User::Nobody {
            give_away(place.base());
        }
        let namespace = ["unshare", "-Urm", "sh", "-c"];
        if !works(place.program(namespace[0]).args(&namespace[1..]).arg("mount --bind . .")) {
            return;
        }
        let mut command = place.recording();
        command.args(["--enforce", "--allow-write", "@workspace"]).args(namespace).arg(script);
        let output = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "4\n6\n", "{user:?}: {output:?}");
        assert_eq!(refused(&place), [""; 0], "{user:?}");
    }
}

#[test]
fn what_the_output_was_redirected_to_is_opened_by_its_descriptor() {
    for &user in User::all() {
        let place = place_of(user);
        for stdout in ["/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"] {
            let mut command = place.recording();
            command.args(["--strict", "--enforce", "--allow-write", "@workspace"]);
            command.args(["sh", "-c", &format!("echo 1; echo 2 >> {stdout}; echo x | tee -a {stdout}")]);
            let file = fs::File::options().append(true).open(place.base().join("outside/old")).unwrap();
            let status = command.stdout(file).status().unwrap();
            assert!(status.success(), "{stdout} as {user:?}: {status}");
            assert_eq!(refused(&place), [""; 0], "{stdout} as {user:?}");
        }
    }
}

/// Makes repositories `main`, with the linked working tree `linked`, and `super`, with the submodule `super/sub`.
const REPOSITORIES: &str = "git init -q main; git -C main commit -q --allow-empty -m one
    git -C main worktree add -q ../linked; git init -q super
    git -C super -c protocol.file.allow=always submodule --quiet add ../main sub";
const COMMIT: &str =
    "echo x > f && git add f && git -c user.name=a -c user.email=a@example.org commit -qm two";

/// Runs a script in a directory, with rules that allow to write in its workspace.
fn in_workspace(place: &Place, directory: &str, script: &str) -> std::process::Output {
    let mut command = place.recording();
    command.current_dir(place.at(directory)).args(["--enforce", "--allow-write", "@workspace"]);
    command.args(["sh", "-c", script]).output().unwrap()
}

#[test]
fn gits_directory_elsewhere_is_a_part_of_the_workspace() {
    for &user in User::all() {
        for (directory, git) in [("linked", "main/.git"), ("super/sub", "super/.git/modules/sub")] {
            let place = Place::of(user);
            place.prepare(REPOSITORIES);
            let output = in_workspace(&place, directory, COMMIT);
            assert!(output.status.success(), "{directory}: {output:?}");
            let recorded = place.snapshot().header().git_directory.clone();
            assert_eq!(recorded, Some(place.path(git)), "{directory}");
            let run = place.verb("check", &["--allow-write", "@workspace"]);
            assert_eq!(run.status, 0, "{directory}: {run:?}");
            // Beside it, nothing is.
            let script = format!("echo x > {}/new", place.at(git).parent().unwrap().display());
            assert_ne!(in_workspace(&place, directory, &script).status.code(), Some(0), "{directory}");
        }
    }
}

/// What a command may have written in the workspace makes no other repository a part of it.
#[test]
fn a_file_that_names_gits_directory_allows_nothing() {
    let planted = [
        ("the directory of another working tree", "echo gitdir: ../main/.git > .git"),
        ("that of another linked one", "echo gitdir: ../main/.git/worktrees/other > .git"),
        (
            "a directory that names another common one",
            "cp -r ../main/.git/worktrees/linked fake; echo $PWD/../main/.git > fake/commondir
             echo $PWD/.git > fake/gitdir; echo gitdir: fake > .git",
        ),
        (
            "a directory whose objects are elsewhere",
            "mkdir -p fake; echo ref: refs/heads/x > fake/HEAD; git config -f fake/config core.worktree ..
             echo $PWD/../main/.git > fake/commondir; echo gitdir: fake > .git",
        ),
    ];
    for (what, script) in planted {
        let place = Place::new();
        place.prepare(REPOSITORIES);
        place.prepare("git -C main worktree add -q ../other");
        place.prepare(&format!("cd linked; rm .git; {script}"));
        let before = place.prepare("cd main/.git; find . | sort");
        in_workspace(&place, "linked", COMMIT);
        assert_eq!(place.snapshot().header().git_directory, None, "{what}");
        in_workspace(&place, "linked", "echo x > ../main/.git/new");
        assert_eq!(place.prepare("cd main/.git; find . | sort"), before, "{what}");
    }
    // A repository that was set apart does not say whose it is.
    let place = Place::new();
    place.prepare("git init -q --separate-git-dir apart tree");
    in_workspace(&place, "tree", COMMIT);
    assert_eq!(place.snapshot().header().git_directory, None);
}

#[test]
fn what_was_allowed_is_asked_again_once_something_else_is_there() {
    // By then, all files are older than a step of the clock.
    let read = |path: &str| format!("for i in $(seq 50); do cat {path} 2>&1; done > /dev/null");
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\\nb3BlbnNzaC1rZXktdjEA\\n";
    for (path, change, expected) in [
        ("f", "ln f b.key", &["deny-read *.key work/b.key read"][..]),
        ("none", "ln -s shut/f none", &["deny-read shut work/shut/f read"]),
        ("none", "ln -s a.key none", &["deny-read *.key work/a.key read"]),
        ("d/f", "ln -sfn shut d", &["deny-read shut work/shut/f read"]),
        ("open/f", "mv open o; ln -s shut open", &["deny-read shut work/shut/f read"]),
        ("f", &format!("printf '%b' '{key}' >&3"), &["deny-read @secrets work/f read"]),
        ("f", "echo new > f; mv f g; mv g f; chmod 600 f", &[]),
    ] {
        for mechanism in ["auto", "stops"] {
            let place = Place::new();
            place.prepare(
                "mkdir shut open one; for f in f shut/f open/f one/f a.key; do echo $f > $f; done; ln -s one d",
            );
            let script = format!("exec 3>>f; {}\n{change}\ncat {path}; true", read(path));
            let rules = ["--deny-read", "shut", "--deny-read", "*.key", "--deny-read", "@secrets"];
            let rules = [&["--mechanism", mechanism][..], &rules].concat();
            let output = enforced(&place, &rules, &script);
            assert!(output.status.success(), "{change}: {output:?}");
            assert_eq!(refused(&place), expected, "{change} by {mechanism}: {output:?}");
        }
    }
}
