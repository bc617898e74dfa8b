//! `agent-snapshot-bash`: what bash alone prints and how it ends, with a recording in the library.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use agent_snapshot::snapshot::{Operation, Snapshot, SnapshotKind, WarningKind};
use regex::Regex;

use crate::support::{
    BINARY, MECHANISMS, NOBODY, Place, Run, SHELL, SmallFilesystem, User, bytes, can_mount, chmod,
    copy_program, give_away, has, needs_root, open_pty, program, status, wait,
};

/// A place in which a bash was found, and what the user's own settings would be.
fn place_of(user: User) -> Option<Place> {
    if !Path::new("/bin/bash").exists() {
        println!("skipped: there is no /bin/bash");
        return None;
    }
    let place = Place::of(user);
    fs::create_dir(runtime(&place)).unwrap();
    if user == User::Nobody {
        give_away(&runtime(&place));
    }
    Some(place)
}

/// Where a user's programs leave what may be lost at a restart.
fn runtime(place: &Place) -> PathBuf {
    place.base().join("runtime")
}

/// The recorded shell, and bash alone.
const BOTH: [&str; 2] = [SHELL, "/bin/bash"];

fn shell(place: &Place, program: &str) -> Command {
    // Both have to be beside each other.
    place.executable(BINARY.as_ref());
    let mut command = place.program(program);
    if program != SHELL {
        command.arg0("bash");
    }
    command.env("XDG_RUNTIME_DIR", runtime(place)).env("AGENT_SNAPSHOT_MECHANISM", "auto");
    command.env_remove("AGENT_SNAPSHOT").env_remove("BASH_ENV").env("LC_ALL", "C.UTF-8");
    command
}

/// What a shell does with a command line.
fn run(place: &Place, line: &str) -> Output {
    shell(place, SHELL).args(["-c", line]).output().unwrap()
}

fn with_input(command: &mut Command, input: &str) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A shell that reads nothing may have ended.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

/// The recordings in the library of a place.
fn snapshots(place: &Place) -> Vec<Snapshot> {
    let entries =
        fs::read_dir(place.home.join(".local/state/agent-snapshot/snapshots")).into_iter().flatten();
    let snapshots = entries.map(|entry| Snapshot::open(&entry.unwrap().path()).unwrap());
    snapshots.filter(|snapshot| snapshot.header().kind == SnapshotKind::Recording).collect()
}

#[track_caller]
fn only_snapshot(place: &Place) -> Snapshot {
    let mut snapshots = snapshots(place);
    assert_eq!(snapshots.len(), 1);
    snapshots.remove(0)
}

/// What was printed, without process ids.
fn transcript(output: &Output) -> (String, String, i32) {
    let text = |bytes: &[u8]| {
        let pid = Regex::new(r"\(\d+\)|: +\d{2,} ").unwrap();
        pid.replace_all(&String::from_utf8_lossy(bytes), "PID").into_owned()
    };
    (text(&output.stdout), text(&output.stderr), status(output))
}

const SCRIPT: &str = "echo \"$0 $# $*\" >&2; false | true; echo not with pipefail; exit 7\n";

/// Arguments, separated by `|`; standard input; whether it is recorded.
const FORMS: [(&str, &str, bool); 47] = [
    ("-c|echo out; echo err >&2; exit 3", "", true),
    ("-c|printf '<%s>' \"$0\" \"$@\"|zero|one|two words|", "", true),
    ("-c|echo \"$0 $- $# $SHLVL $BASH_EXECUTION_STRING\"", "", true),
    ("-lc|shopt -q login_shell && echo login; echo $0", "", true),
    ("-c|-l|shopt -q login_shell && echo login|opencode|/tmp", "", true),
    ("--login|-c|shopt -q login_shell && echo login", "", true),
    ("-login|--norc|-c|shopt -q login_shell && echo login", "", true),
    ("-eo|pipefail|-c|false :: true; echo not reached", "", true),
    ("-euo|pipefail|script|word", "", true),
    ("-c|-O|extglob|+o|history|case aa in +(a)) echo matched;; esac", "", true),
    ("-xc|echo traced", "", true),
    ("--posix|-c|set -o", "", true),
    ("-r|-c|cd /", "", true),
    ("-n|-c|echo never", "", true),
    ("-s|one|two", "echo $0 $1 $2; exit 4", true),
    ("", "echo typed; false", true),
    ("-", "echo typed", true),
    ("--", "echo typed", true),
    ("-e", "echo one\nfalse\necho two\n", true),
    ("script", "", true),
    ("./script|one|two words", "", true),
    ("--|script", "", true),
    ("-eo|pipefail|./script", "", true),
    ("/no/such/script", "", true),
    (".", "", true),
    ("-c|cat", "passed on\n", true),
    ("-c|exec cat -", "passed on\n", true),
    ("-c|read x; echo got $x; exec cat", "one\ntwo\n", true),
    ("-c|if", "", true),
    ("-c|echo 'unterminated", "", true),
    ("-c|no-such-command --here", "", true),
    ("-c|./directory", "", true),
    ("-c|", "", true),
    ("-c|kill -9 $$", "", true),
    ("-c|kill -TERM $$", "", true),
    ("-c|trap 'echo bye; exit 5' TERM; kill -TERM $$", "", true),
    ("-c|sh -c 'kill -SEGV $$'; echo $?", "", true),
    ("-c|yes :: head -n 2", "", true),
    ("-ic|echo $-", "", true),
    ("--rcfile|rc|-i", "echo $from_rc\n", false),
    ("--version", "", false),
    ("--help", "", false),
    ("--no-such-option|-c|true", "", false),
    ("-Z|-c|true", "", true),
    ("-o|no-such-option|-c|true", "", true),
    ("-c", "", false),
    ("--rcfile", "", false),
];

#[test]
fn each_form_of_arguments_is_taken_as_by_bash_alone() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        place.write("script", SCRIPT);
        place.write("rc", "from_rc=here PS1=\n");
        place.write("directory/file", "");
        let mut expected = 0;
        for (arguments, input, is_recorded) in FORMS {
            let arguments = arguments.replace("::", "\u{1}");
            let arguments = arguments.split('|').filter(|_| !arguments.is_empty());
            let arguments: Vec<String> = arguments.map(|argument| argument.replace('\u{1}', "|")).collect();
            let [recorded, alone] =
                BOTH.map(|program| transcript(&with_input(shell(&place, program).args(&arguments), input)));
            assert_eq!(recorded, alone, "{user:?}: bash {arguments:?}");
            expected += usize::from(is_recorded);
            assert_eq!(snapshots(&place).len(), expected, "{user:?}: bash {arguments:?}");
        }
        let commands: Vec<_> =
            snapshots(&place).iter().map(|snapshot| snapshot.header().command.clone()).collect();
        assert!(commands.contains(&["bash", "-c", "if"].map(|word| word.as_bytes().to_vec()).to_vec()));
    }
}

/// Prompts, and what is typed there.
type Typed<'a> = &'a [(&'a str, &'a str)];

/// What a shell shows at a terminal of its own, where each line is typed once its prompt is there, and its status.
fn at_terminal(place: &Place, program: &str, arguments: &[&str], typed: Typed<'_>) -> (String, i32) {
    let (mut master, slave) = open_pty();
    let mut command = shell(place, "setsid");
    command.args(["--ctty", "--wait"]).arg(place.executable(program.as_ref())).args(arguments);
    command.envs([("PS1", "$ "), ("TERM", "dumb"), ("HISTFILE", "")]);
    command.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
    let mut child = command.spawn().unwrap();
    drop(command);
    let (mut shown, mut from) = (String::new(), 0);
    let steps = typed.iter().map(|(prompt, line)| (Some(*prompt), *line));
    for (prompt, line) in steps.chain([(None, "")]) {
        while prompt.is_none_or(|prompt| !shown[from..].contains(prompt)) {
            let mut bytes = [0; 4096];
            // EIO when the last process has closed the terminal. What that process wrote last may still be there after
            // the first one: n_tty_read (Linux 6.18) checks for input before it checks the other end.
            let Some(count @ 1..) = (0..2).find_map(|_| master.read(&mut bytes).ok()) else { break };
            shown.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        from = shown.len();
        if prompt.is_some() {
            master.write_all(format!("{line}\n").as_bytes()).unwrap();
        }
    }
    let status = wait(&mut child).code().unwrap_or(-1);
    (shown, status)
}

#[test]
fn at_a_terminal_nothing_is_added() {
    if !has("setsid") {
        return;
    }
    let interactive = [("$ ", "echo typed"), ("$ ", "exit 3")];
    let forms: [(&[&str], Typed<'_>, bool); 8] = [
        (&["--norc"], &interactive, false),
        (&["--norc", "-s", "word"], &interactive, false),
        (&["--norc", "-i"], &interactive, false),
        (&["--norc", "-ic", "echo $-; exit 4"], &[], true),
        (
            &["-c", "tty -s && echo terminal; read -p 'name? ' x; echo hello $x; exit 5"],
            &[("name? ", "me")],
            true,
        ),
        (&["-c", "test -t 0 -a -t 1 -a -t 2 && echo all; rm f; echo x > f"], &[], true),
        (&["-lc", "kill -9 $$"], &[], true),
        (&["script"], &[("more? ", "yes")], true),
    ];
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        place.write("f", "");
        place.write("script", "read -p 'more? ' x; echo $x\n");
        let mut expected = 0;
        for (arguments, typed, is_recorded) in forms {
            let [recorded, alone] =
                [SHELL, "bash"].map(|program| at_terminal(&place, program, arguments, typed));
            assert_eq!(recorded, alone, "{user:?}: bash {arguments:?}");
            expected += usize::from(is_recorded);
            assert_eq!(snapshots(&place).len(), expected, "{user:?}: bash {arguments:?}");
        }
    }
}

#[test]
fn changes_are_recorded_and_undone() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        place.write("f", "first\n");
        assert!(run(&place, "echo second > f; mkdir d").status.success());
        let snapshot = only_snapshot(&place);
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "f"), true), b"first\n");
        // The other program of ours: what it changes is not the shell's doing.
        let undo = format!("{} undo > said && cat f", place.executable(BINARY.as_ref()).display());
        let output = run(&place, &undo);
        assert_eq!(transcript(&output), ("first\n".to_owned(), String::new(), 0), "{user:?}");
        assert!(!place.at("d").exists());
        let undoing = snapshots(&place).into_iter().find(|other| other.header().id != snapshot.header().id);
        let undoing = undoing.unwrap();
        let d = undoing.find(&place.path("d"));
        assert!(d.is_none(), "{user:?}: {d:?}");
        let f = place.file(&undoing, "f");
        assert!(!f.operations.contains(Operation::Write), "{f:?}");
    }
}

#[test]
fn shell_inside_a_recording_belongs_to_it() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        let own = place.executable(SHELL.as_ref());
        std::os::unix::fs::symlink(&own, place.at("bash")).unwrap();
        for inner in [own.display().to_string(), "./bash".to_owned()] {
            let script = format!("{inner} -c '{inner} -c \"echo x > f; echo \\$0\"; exit 3'");
            let library = place.home.join(".local/state/agent-snapshot");
            let mut commands =
                [shell(&place, SHELL), shell(&place, place.at("bash").to_str().unwrap()), place.command()];
            commands[2].args(["run", "--quiet", "--", "bash"]);
            for command in &mut commands {
                let output = command.args(["-c", &script]).output().unwrap();
                assert_eq!(
                    transcript(&output),
                    ("bash\n".to_owned(), String::new(), 3),
                    "{inner} in {command:?}"
                );
                let snapshot = only_snapshot(&place);
                place.file(&snapshot, "f");
                let beside = place.executable(BINARY.as_ref());
                assert!(snapshot.find(beside.as_os_str().as_encoded_bytes()).is_none(), "a lookup of ours");
                fs::remove_dir_all(&library).unwrap();
            }
        }
    }
}

/// What runs a command in a sandbox, as agents and their users do; only those that can be set up here.
fn sandboxes(place: &Place) -> Vec<String> {
    let seal = place.executable(&program("seal")).display().to_string();
    let home = place.home.display();
    let bwrap = "bwrap --ro-bind / / --unshare-all --die-with-parent";
    let all = [
        seal.clone(),
        bwrap.to_owned(),
        format!("{bwrap} --proc /proc --dev /dev"),
        format!("{bwrap} --tmpfs /proc"),
        format!("{bwrap} --tmpfs {home} --tmpfs /var/tmp --clearenv {seal}"),
        "unshare -rmpf --mount-proc".to_owned(),
        "env -i".to_owned(),
    ];
    all.into_iter().filter(|sandbox| place.can_run(&["sh", "-c", &format!("{sandbox} true")])).collect()
}

#[test]
fn shell_in_a_sandbox_inside_a_recording_is_bash_and_silent() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        let ours = own(&place);
        for sandbox in sandboxes(&place) {
            for mechanism in MECHANISMS {
                let run = |shell: &str| {
                    let line = format!("{sandbox} {shell} -c 'echo \"$0 $-\"; exit 3'; echo $?");
                    let output = place.recorder(mechanism).args(["sh", "-c", &line]).output().unwrap();
                    (transcript(&output), fs::remove_dir_all(&place.out)).0
                };
                let expected = ("bash hBc\n3\n".to_owned(), String::new(), 0);
                assert_eq!(run(&ours), expected, "{user:?} {mechanism}: {sandbox}");
            }
        }
    }
}

#[test]
fn shell_in_a_sandbox_that_forbids_recordings_is_silent_in_a_session() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        let ours = own(&place);
        let seal = place.executable(&program("seal")).display().to_string();
        let bwrap = format!("bwrap --ro-bind / / --dev /dev --unshare-all --die-with-parent {seal}");
        if !place.can_run(&["sh", "-c", &format!("{bwrap} true")]) {
            continue;
        }
        let run = |sandbox: &str, session: &str| {
            let mut command = shell(&place, "sh");
            let line = format!("{sandbox} {ours} -c 'echo $0; exit 3'");
            transcript(&command.args(["-c", &line]).env("CODEX_THREAD_ID", session).output().unwrap())
        };
        let silent = ("bash\n".to_owned(), String::new(), 3);
        // Nothing can be written, and nothing remembered.
        assert_eq!([run(&bwrap, "thread"), run(&bwrap, "thread")], [silent.clone(), silent.clone()]);
        let (_, said, _) = run(&bwrap, "");
        assert!(said.starts_with("agent-snapshot: ") && said.lines().count() == 1, "{said}");
        // What can be remembered is said once.
        let (out, said, status) = run(&seal, "thread");
        assert_eq!((out.as_str(), status), ("bash\n", 3));
        assert!(said.contains("; the command runs unrecorded") && said.lines().count() == 1, "{said}");
        assert_eq!(run(&seal, "thread"), silent, "{user:?}");
        assert_eq!(snapshots(&place).len(), 0);
    }
}

#[test]
fn recording_is_titled_by_the_line_that_a_sandbox_was_to_run() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        let ours = own(&place);
        let list = |args: &[&str]| {
            let output = place.command().arg("log").args(args).arg("--json").output().unwrap();
            let log: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            log["recordings"].as_array().unwrap().clone()
        };
        let eval = "shopt -u extglob || true && eval 'rm -r src' && pwd -P >| where";
        for sandbox in sandboxes(&place) {
            place.write("src/f", "content\n");
            // Only what the sandbox binds writable can be removed.
            let bind = format!("--bind {0} {0}", place.work.display());
            let last = if sandbox.contains("--clearenv") { "--clearenv" } else { "--unshare-all" };
            let sandbox = sandbox.replace(last, &format!("{bind} {last}"));
            let line = format!("{sandbox} {ours} -c \"{eval}\"");
            assert_eq!(status(&run(&place, &line)), 0, "{line}");
            assert!(!place.at("src").exists());
            let newest = &list(&["--limit", "1"])[0];
            assert_eq!(newest["title"], "rm -r src", "{line}");
            assert_eq!(newest["command"][2], line);
            let id = newest["id"].as_str().unwrap();
            for verb in [&["log", "--limit", "1"][..], &["show", id], &["history", "src/f"], &["undo", id]] {
                let shown = place.command().args(verb).output().unwrap();
                let shown = String::from_utf8_lossy(&[shown.stdout, shown.stderr].concat()).into_owned();
                assert!(shown.contains("rm -r src") && !shown.contains("extglob"), "{verb:?}: {shown}");
            }
            let long = place.command().args(["show", "--long", id]).output().unwrap();
            assert!(String::from_utf8_lossy(&long.stdout).contains("Started by  bash -c "), "{long:?}");
        }
        // A command that starts several, or has more to do, keeps its own.
        for line in [
            format!("{ours} -c 'echo a > a'; {ours} -c 'echo b > b'"),
            format!("echo c > c && {ours} -c 'echo d > d'"),
        ] {
            assert_eq!(status(&run(&place, &line)), 0);
            let newest = &list(&["--limit", "1"])[0];
            assert_eq!((newest.get("title"), &newest["command"][2]), (None, &line.into()));
        }
    }
}

#[test]
fn shell_inside_a_recording_touches_nothing_of_ours() {
    let Some(place) = place_of(User::Current) else { return };
    for mechanism in MECHANISMS {
        // Another installation, whose calls are recorded as any program's.
        copy_program(SHELL, place.at("agent-snapshot-bash"));
        let mut command = place.recorder(mechanism);
        command.args(["./agent-snapshot-bash", "-c", "echo x > f"]);
        assert_eq!(transcript(&command.output().unwrap()), (String::new(), String::new(), 0));
        let snapshot = place.snapshot();
        // It must not take the other one of ours for bash.
        let looked_up = ["agent-snapshot existence", "agent-snapshot-bash read+existence+execute"];
        assert_eq!(place.recorded(&snapshot), [&looked_up[..], &["f write"]].concat(), "{mechanism}");
        let outside = snapshot.files().iter().filter(|file| {
            [&place.home, &place.config, &runtime(&place)]
                .iter()
                .any(|directory| file.path.starts_with(directory.as_os_str().as_encoded_bytes()))
        });
        assert_eq!(outside.map(|file| String::from_utf8_lossy(&file.path)).collect::<Vec<_>>(), [""; 0]);
        let warnings = snapshot.header().warnings.iter();
        assert!(!warnings.map(|warning| warning.kind).any(|kind| kind == WarningKind::NestedTracer));
        fs::remove_dir_all(&place.out).unwrap();
    }
}

/// The ways in which a package has `agent-snapshot-bash`: a link to the other program, or a script that tells that its name.
#[test]
fn program_called_by_the_name_of_a_shell_is_ours() {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/wheel/scripts/agent-snapshot-bash");
    let Some(place) = place_of(User::Current) else { return };
    let bin = place.home.join("bin");
    fs::create_dir_all(bin.join("linked")).unwrap();
    copy_program(BINARY, bin.join("agent-snapshot"));
    copy_program(SCRIPT, bin.join("agent-snapshot-bash"));
    for (name, target) in [("agent-snapshot-bash", "../agent-snapshot"), ("bash", "../agent-snapshot")] {
        std::os::unix::fs::symlink(target, bin.join("linked").join(name)).unwrap();
    }
    std::os::unix::fs::symlink("../agent-snapshot-bash", bin.join("linked/sh")).unwrap();
    let line = "echo \"$0 $*\"; echo x > f; exit 4";
    let arguments = ["-c", line, "zero", "agent-snapshot-bash", "two words"];
    let alone = shell(&place, "/bin/bash").args(arguments).output().unwrap();
    let called = ["agent-snapshot-bash", "linked/agent-snapshot-bash", "linked/bash", "linked/sh"];
    for (before, name) in called.into_iter().enumerate() {
        let ours = bin.join(name).display().to_string();
        let output = shell(&place, &ours).arg0(&ours).args(arguments).output().unwrap();
        assert_eq!(transcript(&output), transcript(&alone), "{name}");
        assert_eq!(snapshots(&place).len(), before + 1, "{name}");
        // A script of the name of ours is one.
        fs::write(place.at("agent-snapshot-bash"), "echo script $1").unwrap();
        let output = shell(&place, &ours).arg0(&ours).args(["agent-snapshot-bash", "one"]).output().unwrap();
        assert_eq!(transcript(&output), ("script one\n".to_owned(), String::new(), 0), "{name}");
        fs::remove_file(place.at("agent-snapshot-bash")).unwrap();
        let of_script = snapshots(&place)
            .into_iter()
            .max_by(|one, other| one.header().started_at.cmp(&other.header().started_at));
        fs::remove_dir_all(of_script.unwrap().path()).unwrap();
    }
    // By any other name it is the program that has the verbs.
    std::os::unix::fs::symlink("agent-snapshot", bin.join("ours")).unwrap();
    let version = place.program(bin.join("ours").display().to_string()).arg("--version").output().unwrap();
    assert!(version.stdout.starts_with(b"agent-snapshot "), "{version:?}");
}

/// A step of a session is titled by the line that a shell of ours was given, whichever way it was called.
#[test]
fn shell_by_a_link_adds_the_title_in_a_session() {
    let Some(place) = place_of(User::Current) else { return };
    let bin = place.home.join("bin");
    fs::create_dir(&bin).unwrap();
    copy_program(BINARY, bin.join("agent-snapshot"));
    std::os::unix::fs::symlink("agent-snapshot", bin.join("agent-snapshot-bash")).unwrap();
    let ours = bin.join("agent-snapshot-bash").display().to_string();
    let script = "import subprocess, sys\nsubprocess.run([sys.argv[1], '-c', 'echo x > f'])";
    let agent = ["session", "--", "python3", "-c", script, &ours];
    let output =
        place.program(bin.join("agent-snapshot").display().to_string()).args(agent).output().unwrap();
    assert_eq!(transcript(&output), (String::new(), String::new(), 0));
    let log = place.command().args(["log", "--json", "--reads", "--all"]).output().unwrap();
    let log: serde_json::Value = serde_json::from_slice(&log.stdout).unwrap();
    let changed: Vec<_> =
        log["recordings"].as_array().unwrap().iter().filter(|entry| entry["created"] == 1).collect();
    assert_eq!(changed.len(), 1, "{log:#}");
    assert_eq!(changed[0]["title"], "echo x > f", "{log:#}");
}

#[test]
fn real_bash_is_found_where_a_link_to_ours_comes_first() {
    let Some(place) = place_of(User::Current) else { return };
    if !can_mount() {
        return;
    }
    fs::create_dir(place.at("first")).unwrap();
    std::os::unix::fs::symlink(SHELL, place.at("first/bash")).unwrap();
    fs::create_dir(place.at("second")).unwrap();
    // Another installation of ours, and then the real one.
    fs::create_dir(place.at("copy")).unwrap();
    copy_program(SHELL, place.at("copy/agent-snapshot-bash"));
    std::os::unix::fs::symlink("../copy/agent-snapshot-bash", place.at("second/bash")).unwrap();
    // And one whose shell is a link to its program.
    fs::create_dir(place.at("linked")).unwrap();
    copy_program(BINARY, place.at("linked/agent-snapshot"));
    std::os::unix::fs::symlink("agent-snapshot", place.at("linked/bash")).unwrap();
    fs::create_dir(place.at("third")).unwrap();
    copy_program("/bin/bash", place.at("third/bash"));
    let script = "mount --bind \"$1\" /bin/bash && PATH=\"$2\" exec bash -c 'echo \"$0 runs\"; : > f'";
    let path = format!("{0}/first::{0}/second:{0}/linked:{0}/third:/usr/bin:/bin", place.work.display());
    let mut command = place.program("unshare");
    command.args(["-m", "sh", "-c", script, "sh", SHELL, &path]);
    let output = command.output().unwrap();
    assert_eq!(transcript(&output), ("bash runs\n".to_owned(), String::new(), 0));
    place.file(&only_snapshot(&place), "f");
    let nowhere = script.replace("exec bash", "exec /bin/bash");
    let output =
        place.program("unshare").args(["-m", "sh", "-c", &nowhere, "sh", SHELL, "/nowhere"]).output();
    let said = "agent-snapshot: execute bash: there is no /bin/bash, and no other one in PATH\n";
    assert_eq!(transcript(&output.unwrap()), (String::new(), said.to_owned(), 127));
}

#[test]
fn sandbox_that_starts_our_shell_is_recorded_by_the_bwrap_in_path() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        if !place.can_run(&["bwrap", "--bind", "/", "/", "true"]) {
            return;
        }
        let ours = own(&place);
        let link = place.home.join("bwrap");
        std::os::unix::fs::symlink(&ours, &link).unwrap();
        let path = format!("{}:{}", place.home.display(), std::env::var("PATH").unwrap());
        let bwrap = |arguments: &[&str]| {
            let mut command = shell(&place, "bwrap");
            command.env("PATH", &path).arg0("bwrap").args(arguments);
            command
        };
        let sandbox = ["--bind", "/", "/", "--unshare-pid", "--dev", "/dev", "--"];
        // What starts no shell of ours with a command is none of the agent's.
        let output = bwrap(&[&sandbox[..], &["sh", "-c", "echo other > other"]].concat()).output().unwrap();
        assert_eq!(transcript(&output), (String::new(), String::new(), 0));
        let version = bwrap(&["--version"]).output().unwrap();
        assert!(version.stdout.starts_with(b"bubblewrap "), "{version:?}");
        assert!(snapshots(&place).is_empty());
        let line = "cat; echo newer > f; echo said; exit 3";
        let output = with_input(&mut bwrap(&[&sandbox[..], &[&ours, "-c", line]].concat()), "typed\n");
        assert_eq!(transcript(&output), ("typed\nsaid\n".to_owned(), String::new(), 3));
        let snapshot = only_snapshot(&place);
        assert!(snapshot.header().complete, "{:?}", snapshot.header().warnings);
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "f"), false), b"newer\n");
        assert_eq!(snapshot.header().title.as_deref(), Some(line.as_bytes()));
    }
}

#[test]
fn process_that_outlives_the_command_delays_nothing() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        place.prepare("mkfifo go");
        let line = "(read x; echo $x) > late 2>&1 < go & echo back; exit 3";
        let output = run(&place, line);
        assert_eq!(transcript(&output), ("back\n".to_owned(), String::new(), 3));
        assert!(only_snapshot(&place).header().running);
        let go = place.write_to_fifo("go", "on\n");
        place.prepare("while ! test -s late; do :; done");
        drop(go);
        assert_eq!(fs::read_to_string(place.at("late")).unwrap(), "on\n");
        // One that has the pipe keeps it open, as alone.
        for program in BOTH {
            let mut command = shell(&place, program);
            let line = "(read x < go; echo $x) & echo back";
            let mut child = command.args(["-c", line]).stdout(Stdio::piped()).spawn().unwrap();
            assert!(wait(&mut child).success());
            let _go = place.write_to_fifo("go", "last\n");
            let mut said = String::new();
            child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
            assert_eq!(said, "back\nlast\n", "{program}");
        }
    }
}

#[test]
fn user_and_configuration_turn_it_off() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        let config = place.config.join("agent-snapshot/config.toml");
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        let configure = |text: &str| {
            fs::write(&config, text).unwrap();
            give_away_to(*user, &place.config);
        };
        configure("[library]\nmax-size = \"1GiB\"\n[shell]\nunrecorded = [\"printf\", \"/bin/true\"]\n");
        let quiet = |line: &str, out: &str| {
            assert_eq!(transcript(&run(&place, line)), (out.to_owned(), String::new(), 0), "{line}");
        };
        quiet("printf x", "x");
        quiet("A=1 B='two words' /usr/bin/printf x", "x");
        quiet("cd / && printf x", "x");
        quiet("/bin/true", "");
        assert_eq!(snapshots(&place).len(), 0);
        quiet("true; printf x", "x");
        assert_eq!(snapshots(&place).len(), 0);
        quiet("echo; printf x", "\nx");
        quiet("echo printf", "printf\n");
        assert_eq!(snapshots(&place).len(), 2);
        let off =
            shell(&place, SHELL).env("AGENT_SNAPSHOT", "off").args(["-c", "echo off"]).output().unwrap();
        assert_eq!(transcript(&off), ("off\n".to_owned(), String::new(), 0));
        assert_eq!(snapshots(&place).len(), 2);
        // A recording that was asked for says so, and goes on.
        configure("[shell]\nunrecorded = 1\n");
        let asked: Run = place.command().args(["run", "--", "printf", "x"]).output().unwrap().into();
        let said = asked.expect(0).stderr;
        assert!(said.contains("config.toml: line 2: ") && said.lines().count() == 1, "{said}");
        assert_eq!(snapshots(&place).len(), 3);
    }
}

fn give_away_to(user: User, path: &Path) {
    if user == User::Nobody {
        give_away(path);
    }
}

/// A command in an agent's session.
fn in_session(place: &Place, session: &str, line: &str) -> Output {
    shell(place, SHELL).env("CLAUDE_CODE_SESSION_ID", session).args(["-c", line]).output().unwrap()
}

#[test]
fn bad_configuration_is_named_once_a_session() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        let config = place.config.join("agent-snapshot/config.toml");
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        give_away_to(*user, &place.config);
        let (file, before) = (config.display(), "agent-snapshot: read");
        for (number, (text, why)) in [
            (
                "[shell]\nunrecorded = \"sudo\"\n",
                "line 2: invalid type: string \"sudo\", expected a sequence",
            ),
            ("[shell]\n\nunrecordet = []\n", "line 3: unknown field `unrecordet`, expected `unrecorded`"),
            ("\u{0}", "line 1: "),
        ]
        .into_iter()
        .enumerate()
        {
            fs::write(&config, text).unwrap();
            let output = run(&place, "echo ran; exit 3");
            let (stdout, said, status) = transcript(&output);
            assert!(said.starts_with(&format!("{before} {file}: {why}")), "{said}");
            assert_eq!((stdout.as_str(), said.lines().count(), status), ("ran\n", 1, 3));
            assert_eq!(run(&place, "echo ran; exit 3").stderr, output.stderr, "without a session each time");
            let session = format!("session {number}");
            assert_eq!(in_session(&place, &session, "exit 3").stderr, output.stderr);
            assert_eq!(in_session(&place, &session, "exit 3").stderr, b"");
        }
        assert_eq!(snapshots(&place).len(), 12, "they are recorded all the same");
        fs::remove_file(&config).unwrap();
        fs::create_dir(&config).unwrap();
        let said = transcript(&run(&place, "true")).1;
        assert_eq!(said, format!("{before} {file}: not a regular file\n"));
    }
}

#[test]
fn what_can_not_be_recorded_runs_and_is_told_once_a_session() {
    for user in User::all() {
        let Some(place) = place_of(*user) else { return };
        let library = place.base().join("library");
        fs::write(&library, "").unwrap();
        give_away_to(*user, &library);
        let run = |session: Option<&str>, runtime: &Path, line: &str| {
            let mut command = shell(&place, SHELL);
            command.env("AGENT_SNAPSHOT_LIBRARY", &library).env("XDG_RUNTIME_DIR", runtime);
            session.map(|session| command.env("AGENT_SNAPSHOT_SESSION", session));
            transcript(&command.args(["-c", line]).output().unwrap())
        };
        let said = format!(
            "agent-snapshot: make {}: File exists (os error 17); the command runs unrecorded\n",
            library.display()
        );
        let told = ("ran\n".to_owned(), said, 3);
        let silent = ("ran\n".to_owned(), String::new(), 3);
        let (line, own) = ("echo ran; exit 3", runtime(&place));
        assert_eq!([run(None, &own, line), run(None, &own, line)], [told.clone(), told.clone()]);
        let long = "x".repeat(5000);
        for session in ["one", "two/../..", &long] {
            assert_eq!(
                [run(Some(session), &own, line), run(Some(session), &own, line)],
                [told.clone(), silent.clone()]
            );
        }
        // Of two faults one is told now, and the other one next time.
        let config = place.config.join("agent-snapshot/config.toml");
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        fs::write(&config, "[").unwrap();
        give_away_to(*user, &place.config);
        let said = |_| run(Some("both"), &own, line).1;
        let [first, second, third] = [0, 1, 2].map(said);
        assert!(first.contains("config.toml: line 1: ") && first.lines().count() == 1, "{first}");
        assert_eq!([second, third], [told.1.clone(), String::new()]);
        fs::remove_file(&config).unwrap();
        // Where others may write, nothing is believed.
        chmod(own.join("agent-snapshot"), 0o777);
        let session = format!("session {}", place.base().display());
        let tmp = PathBuf::from(format!("/tmp/agent-snapshot-{}", uid(*user)));
        let before = names_in(&tmp);
        assert_eq!(
            [run(Some(&session), &own, line), run(Some(&session), &own, line)],
            [told.clone(), silent]
        );
        for name in names_in(&tmp).iter().filter(|name| !before.contains(name)) {
            fs::remove_file(tmp.join(name)).unwrap();
        }
    }
}

fn uid(user: User) -> u32 {
    if user == User::Nobody { NOBODY } else { nix::unistd::geteuid().as_raw() }
}

fn names_in(directory: &Path) -> Vec<std::ffi::OsString> {
    fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn full_disk_costs_one_line_and_the_recording() {
    // No inode for the library, none for a snapshot, no room for the journal, none for the old bytes.
    for options in ["nr_inodes=1", "nr_inodes=4", "size=4k", "size=1m"] {
        for user in User::all() {
            let Some(place) = place_of(*user) else { return };
            let mount = place.base().join("small");
            let options = format!("{options},mode=700,uid={}", uid(*user));
            let Some(_small) = SmallFilesystem::at(&mount, &options) else { return };
            if options.starts_with("size=4k") {
                fs::write(mount.join("fill"), [0; 4096]).unwrap();
            }
            let script = "for i in 1 2 3 4 5; do echo $i >> big; done; cat small; rm big; exit 3";
            let outputs = BOTH.map(|program| {
                place.write("big", vec![7; 4 << 20]);
                place.write("small", "small\n");
                let mut command = shell(&place, program);
                command.env("AGENT_SNAPSHOT_LIBRARY", mount.join("library"));
                transcript(&command.args(["-c", script]).output().unwrap())
            });
            let [(out, said, status), alone] = outputs;
            assert_eq!((out, status), (alone.0, alone.2), "{options} {said}");
            assert_eq!(said.lines().count(), 1, "{options}: {said}");
            assert!(said.starts_with("agent-snapshot: "), "{options}: {said}");
            println!("{options}: {said}");
        }
    }
}

#[test]
fn home_that_is_missing_read_only_or_foreign_is_no_obstacle() {
    // The home is foreign to root; nobody owns it otherwise.
    let script = r#"
        uid=$1 kind=$2 home=$3 shell=$4 library=/var/tmp/agent-snapshot-$1
        mkdir -p $library && mount -t tmpfs -o uid=$uid,gid=$uid,mode=700 tmpfs $library && mount -t tmpfs tmpfs /root || exit
        [ $uid != 0 ] || library=/root/.local/state/agent-snapshot
        case $kind in
        missing) unset HOME;;
        read-only) mount -t tmpfs -o ro,uid=$uid tmpfs $home; library=/var/tmp/agent-snapshot-$uid;;
        foreign) chown 65534 $home;;
        esac
        unset XDG_CONFIG_HOME
        setpriv --reuid=$uid --regid=$uid --clear-groups "$shell" -c 'echo ran; : > f; exit 3'
        echo $?; ls $library/snapshots | wc -l; ls -A $home"#;
    if !can_mount() || !has("setpriv") {
        return;
    }
    for (user, kind) in [
        (User::Nobody, "missing"),
        (User::Nobody, "read-only"),
        (User::Current, "missing"),
        (User::Current, "read-only"),
        (User::Current, "foreign"),
    ] {
        let Some(place) = place_of(user) else { return };
        let own = place.executable(SHELL.as_ref());
        let mut command = Command::new("unshare");
        place.isolate(&mut command);
        command
            .args(["-m", "sh", "-c", script, "sh", &uid(user).to_string(), kind])
            .arg(&place.home)
            .arg(own);
        let output = command.env("XDG_RUNTIME_DIR", runtime(&place)).output().unwrap();
        // Where the library was mounted, unless it is somebody's.
        let _ = fs::remove_dir(format!("/var/tmp/agent-snapshot-{}", uid(user)));
        let expected = ("ran\n3\n1\n".to_owned(), String::new(), 0);
        assert_eq!(transcript(&output), expected, "{user:?} {kind}");
    }
}

#[test]
fn set_id_program_that_loses_its_privilege_is_told_with_the_way_out() {
    if !needs_root("a set-ID program of another user") {
        return;
    }
    let Some(place) = place_of(User::Nobody) else { return };
    let id = ["/usr/bin/id", "/bin/id"].into_iter().find(|id| Path::new(id).exists()).unwrap();
    copy_program(id, place.at("id"));
    chmod(place.at("id"), 0o4755);
    let alone = transcript(&shell(&place, "/bin/bash").args(["-c", "./id -u"]).output().unwrap());
    if alone.0 != "0\n" {
        println!("skipped: set-ID programs have no privilege here");
        return;
    }
    let program = place.at("id");
    let what =
        format!("agent-snapshot: {} has lost its set-ID privilege because it is recorded", program.display());
    let config = place.config.join("agent-snapshot/config.toml");
    let way_out = format!(
        "; to run it unrecorded, add unrecorded = [\"id\"] to [shell] in {}, or set AGENT_SNAPSHOT=off\n",
        config.display()
    );
    let recorded = transcript(&run(&place, "./id -u; ./id -u; exit 3"));
    let user = format!("{NOBODY}\n{NOBODY}\n");
    assert_eq!(recorded, (user.clone(), format!("{what}{way_out}"), 3));
    fs::write(&config, "[shell]\nunrecorded = [\"id\"]\n").unwrap();
    assert_eq!(transcript(&run(&place, "./id -u")), alone);
    // A plain recording has no such way out, and where it had no privilege, it has lost none.
    let output = place.command().args(["run", "--", "sh", "-c", "./id -u; ./id -u"]).output().unwrap();
    assert_eq!(transcript(&output), (user.clone(), format!("{what}\n"), 0));
    let without =
        shell(&place, "setpriv").args(["--no-new-privs", &own(&place), "-c", "./id -u; ./id -u"]).output();
    assert_eq!(transcript(&without.unwrap()), (user, String::new(), 0));
}

fn own(place: &Place) -> String {
    place.executable(SHELL.as_ref()).display().to_string()
}
