//! The first snapshot of a recording that goes on in the background, and the last one, which replaces it.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use agent_snapshot::snapshot::{FileRecord, Snapshot, WarningKind};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::support::{
    LEVELS, MECHANISMS, Place, Run, User, assert_same, bytes, describe, kill, lost, scan, tracer_of,
};

/// A web server that also takes files and removes them. It says its port when it serves.
const SERVER: &str = r#"
import http.server, os, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_PUT(self):
        with open(self.path[1:], "wb") as file:
            file.write(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(201); self.end_headers()
    def do_DELETE(self):
        os.remove(self.path[1:])
        self.send_response(204); self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// A server that outlives the recorded command.
struct Server {
    port: u16,
    pid: i32,
}

impl Server {
    /// Records a command that removes `docs`, starts a server and ends; returns when the front has ended.
    fn record(place: &Place, options: &[&str], more: &str) -> Server {
        place.write("docs/read", "one\n");
        place.write("docs/written", "two\n");
        place.write("docs/sub/deep", "three\n");
        place.write("docs/large", vec![7; 3 << 20]);
        place.write("server.py", SERVER);
        place.write("untouched", "as ever\n");
        place.prepare("mkfifo ready");
        let script = format!(
            "rm -rf docs; cat untouched; {more}
             python3 server.py > ready 2> log &
             read port < ready; echo $port $!"
        );
        let mut command = place.recording();
        command.args(["--quiet", "--survivors", "background"]).args(options).args(["sh", "-c", &script]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success(), "{said}");
        let (port, pid) = said.lines().last().unwrap().split_once(' ').unwrap();
        Server { port: port.parse().unwrap(), pid: pid.parse().unwrap() }
    }

    /// The body of the answer, which must be a success.
    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        write!(stream, "{method} /{path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 20"), "{method} {path}: {answer}");
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn end(&self) {
        signal::kill(Pid::from_raw(self.pid), Signal::SIGTERM).unwrap();
    }

    fn end_recording(&self, place: &Place) -> Snapshot {
        self.end();
        place.wait_for_lock();
        place.snapshot()
    }

    /// The process that records it.
    fn tracer(&self) -> i32 {
        tracer_of(self.pid).unwrap()
    }

    /// Kills the process that records it; returns when nobody has the lock.
    fn kill_tracer(&self, place: &Place) {
        kill(self.tracer());
        place.wait_for_lock();
    }
}

fn exists(file: &FileRecord) -> [bool; 2] {
    [&file.before, &file.after].map(|state| state.present().is_some())
}

#[track_caller]
fn verify(place: &Place) {
    let verified = place.verb("verify", &[]);
    assert_eq!(verified.status, 0, "{verified:?}");
}

#[test]
fn first_snapshot_serves_every_verb() {
    for &user in User::all() {
        let place = Place::of(user);
        let server = Server::record(&place, &[], "");
        let first = place.snapshot();
        assert!(first.header().running && first.header().complete, "{:?}", first.header().warnings);
        assert_eq!(first.header().exit_status, 0);
        assert_eq!(exists(place.file(&first, "docs/read")), [true, false]);
        assert_eq!(bytes(&first, place.file(&first, "docs/large"), true), vec![7; 3 << 20]);
        let read = place.at("docs/read");
        let read = read.to_str().unwrap();
        for (verb, flags, expected) in [
            ("show", &[][..], "while processes of it were running"),
            ("cat", &["--before", read], "one\n"),
            ("diff", &[], "-one\n"),
            ("restore", &["--dry-run"], ""),
            ("restore", &["--before", "--dry-run"], "docs/read"),
        ] {
            let run = place.verb(verb, flags);
            assert_eq!(run.status, 0, "{verb} {flags:?}: {run:?}");
            assert!(run.stdout.contains(expected), "{verb} {flags:?}: {run:?}");
        }
        verify(&place);
        assert!(!place.at("docs").exists());
        // Neither may another recording replace it, nor is there anything to recover.
        let recorder = server.tracer();
        let refused = place.verb("recover", &[]);
        assert_eq!(refused.status, 125, "{refused:?}");
        assert!(refused.stderr.contains(&format!("is being recorded by process {recorder}")), "{refused:?}");
        assert_eq!(place.record_with(&[], "true").status.code(), Some(125));
        assert!(!server.end_recording(&place).header().running);
    }
}

#[test]
fn what_an_undo_puts_back_meanwhile_is_no_change_of_the_tree() {
    for &user in User::all() {
        for keep in LEVELS {
            let place = Place::of(user);
            let server = Server::record(&place, &["--keep", keep], "echo new > made; mkdir empty;");
            let first = place.snapshot();
            let paths = ["docs", "made", "empty"].map(|name| place.at(name).into_os_string());
            let undone = place.command().args(["restore", "--before"]).arg(&place.out).args(paths).output();
            let undone: Run = undone.unwrap().into();
            assert_eq!(undone.status, 0, "{undone:?}");
            assert!(!place.at("made").exists() && !place.at("empty").exists());
            assert_eq!(server.ask("GET", "docs/read", ""), "one\n");
            assert!(server.ask("GET", "docs/sub/", "").contains("deep"));
            server.ask("PUT", "docs/written", "by the server");
            server.ask("PUT", "later", "new");
            server.ask("DELETE", "untouched", "");
            let last = server.end_recording(&place);
            assert!(!last.header().running);
            assert_eq!(last.header().id, first.header().id);
            assert_eq!(lost(&last), [], "{:?}", last.header().warnings);
            verify_bytes(&last);
            for name in ["docs/read", "docs/large", "docs/sub", "docs/sub/deep", "made", "empty"] {
                let [first, last] = [&first, &last].map(|snapshot| place.file(snapshot, name));
                assert_eq!(first.after, last.after, "{keep}: {name}");
                assert_eq!(first.before, last.before, "{keep}: {name}");
            }
            let written = place.file(&last, "docs/written");
            assert_eq!(bytes(&last, written, true), b"two\n");
            assert_eq!(exists(written), [true, true]);
            assert_eq!(exists(place.file(&last, "docs")), [true, true]);
            assert_eq!(exists(place.file(&last, "later")), [false, true]);
            assert_eq!(exists(place.file(&last, "untouched")), [true, false]);
            assert_eq!(bytes(&last, place.file(&last, "untouched"), true), b"as ever\n");
            // It writes by a descriptor from before the first snapshot.
            let log = place.file(&last, "log").after.present().unwrap().size;
            assert_eq!(log, fs::metadata(place.at("log")).unwrap().len());
            assert!(log > 0);
        }
    }
}

/// Reads every content of a snapshot.
fn verify_bytes(snapshot: &Snapshot) {
    for file in snapshot.files() {
        for present in [&file.before, &file.after].into_iter().filter_map(|state| state.present()) {
            if let Some(key) = &present.blob {
                snapshot.read_blob(key, present.digest.as_ref(), &mut Vec::new()).unwrap();
            }
        }
    }
}

#[test]
fn what_is_being_renamed_when_the_command_ends_is_neither_lost_nor_said_to_be_changed_by_others() {
    // The command ends while these are renamed on and on.
    let on_and_on = "rename(\"f$i\", \"f\" . ($i + 1)); rename(\"d$i\", \"d\" . ($i + 1));
        rename(\"a\", \"b\"); open(my $f, \"<\", \"b/x\"); rename(\"b\", \"a\"); open(my $g, \"<\", \"a/x\");";
    for at in (20..100).step_by(20) {
        let place = Place::new();
        place.prepare(
            "mkfifo going; mkdir a d0; echo x > a/x; echo one > d0/one; head -c 200000 /dev/zero > f0",
        );
        let before = describe(&scan(&place.work), |_| false);
        let script = format!(
            "perl -e 'for my $i (0..300) {{ if ($i == {at}) {{ open(my $go, \">\", \"going\"); close $go }} {on_and_on} }}' \
             > /dev/null 2>&1 & read x < going; true"
        );
        let mut command = place.recording();
        command.args(["--quiet", "--survivors", "background", "sh", "-c", &script]).stdout(Stdio::null());
        assert!(command.status().unwrap().success());
        place.wait_for_lock();
        let snapshot = place.snapshot();
        assert_eq!(lost(&snapshot), [], "{:#?}", snapshot.header().warnings);
        place.verb("restore", &["--before"]).expect(0);
        assert_same(&describe(&scan(&place.work), |_| false), &before, "undone");
    }
}

#[test]
fn killing_the_recorder_leaves_the_first_snapshot_whole() {
    for mechanism in MECHANISMS {
        let place = Place::new();
        let server = Server::record(&place, &["--mechanism", mechanism], "");
        server.ask("PUT", "docs", "a file now");
        server.ask("DELETE", "untouched", "");
        server.kill_tracer(&place);
        let first = place.snapshot();
        assert!(first.header().running);
        verify_bytes(&first);
        assert_eq!(bytes(&first, place.file(&first, "docs/read"), true), b"one\n");
        // What came after it is recovered beside it, with all that came before.
        let recovered = place.verb("recover", &[]);
        assert_eq!(recovered.status, 0, "{recovered:?}");
        let beside = PathBuf::from(format!("{}-recovered-1", place.out.display()));
        let snapshot = Snapshot::open(&beside).unwrap();
        assert!(snapshot.header().recovered && !snapshot.header().running);
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "untouched"), true), b"as ever\n");
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "docs/large"), true), vec![7; 3 << 20]);
        assert_eq!(place.snapshot().header().id, first.header().id);
        assert_eq!(place.names_in_out(), ["blobs.parquet", "manifest.json"]);
        assert_eq!(place.verb("recover", &[]).status, 0);
    }
}

/// Ends a recording whose recorder is killed at its `number`th `call` from now on; whether there was one, and
/// whether the first snapshot is left.
fn kill_at(call: &str, number: usize) -> (bool, bool) {
    let place = Place::new();
    let server = Server::record(&place, &[], "");
    server.ask("PUT", "later", "new");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-p", &server.tracer().to_string(), "-o", "/dev/null", "-e"]);
    strace.arg(format!("trace={call}")).arg("-e").arg(format!("inject={call}:signal=KILL:when={number}"));
    let mut strace = strace.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(strace.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("attached"), "{line}");
    server.end();
    strace.wait().unwrap();
    place.wait_for_lock();
    let snapshot = place.snapshot();
    verify_bytes(&snapshot);
    let running = snapshot.header().running;
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "docs/large"), true), vec![7; 3 << 20]);
    assert_eq!(snapshot.find(&place.path("later")).is_some(), !running);
    let was_killed = running || place.names_in_out() != ["blobs.parquet", "manifest.json"];
    let recovered = place.verb("recover", &[]);
    assert_eq!(recovered.status, 0, "{recovered:?}");
    assert_eq!(place.names_in_out(), ["blobs.parquet", "manifest.json"]);
    let beside = PathBuf::from(format!("{}-recovered-1", place.out.display()));
    assert_eq!(beside.exists(), running, "{recovered:?}");
    (was_killed, running)
}

#[test]
fn killing_the_recorder_while_it_replaces_the_first_snapshot_leaves_one_of_the_two() {
    let place = Place::new();
    if !place.can_run(&["strace", "-V"]) {
        return;
    }
    let mut left = Vec::new();
    for call in ["linkat", "fchmod", "renameat", "renameat2", "unlinkat"] {
        for number in 1.. {
            let (was_killed, running) = kill_at(call, number);
            if !was_killed {
                break;
            }
            left.push((call, number, running));
        }
    }
    // Both files get a temporary name, then their own, and the rest is removed.
    assert!(left.contains(&("linkat", 2, true)), "{left:?}");
    assert!(left.iter().any(|(call, number, _)| call.starts_with("renameat") && *number == 2), "{left:?}");
    assert!(left.contains(&("unlinkat", 1, false)), "{left:?}");
}

#[test]
fn directory_that_the_command_removes_gets_both_snapshots() {
    let place = Place::new();
    let remove = format!("rm -rf '{}';", place.out.display());
    let server = Server::record(&place, &[], &remove);
    assert!(place.snapshot().header().running);
    server.ask("PUT", "later", "new");
    let last = server.end_recording(&place);
    assert!(!last.header().running);
    assert_eq!(bytes(&last, place.file(&last, "later"), false), b"new");
    assert_eq!(bytes(&last, place.file(&last, "docs/read"), true), b"one\n");
    assert!(!lost(&last).contains(&WarningKind::ExternalChange));
}
