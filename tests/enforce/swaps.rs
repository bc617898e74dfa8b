//! Programs that change what their calls name while those are judged.

use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::support::{Place, User, has, program, stdout};

/// How long each is tried, in seconds.
fn seconds(default: &str) -> String {
    std::env::var("SWAPS_SECONDS").unwrap_or_else(|_| default.to_owned())
}

fn place(user: User) -> Place {
    let place = Place::of(user);
    place.write("open/file", "fine\n");
    place.write("shut/file", "secret\n");
    for (directory, status) in [("open", 0), ("shut", 7)] {
        let name = format!("{directory}/program");
        place.write(&name, format!("#!/bin/sh\nexit {status}\n"));
        place.prepare(&format!("chmod 755 {name}"));
    }
    place
}

/// All of what is in a directory, with what a change of it would change.
fn state(directory: &Path) -> Vec<String> {
    let mut lines: Vec<_> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            let times = (stat.mtime(), stat.mtime_nsec());
            format!("{path:?} {:o} {} {times:?}", stat.mode(), stat.size())
        })
        .collect();
    lines.sort();
    lines
}

const RULES: [&str; 6] = ["--deny-read", "shut", "--deny-write", "shut", "--deny-exec", "shut"];

const SCENARIOS: [&str; 23] = [
    "read",
    "how",
    "steal",
    "write",
    "mode",
    "times",
    "remove",
    "rename",
    "make",
    "link",
    "shared",
    "mapped",
    "symlinks",
    "exchanges",
    "descriptors",
    "through",
    "absent",
    "table",
    "directory",
    "execute",
    "lend",
    "successor",
    "unpin",
];

/// Runs a scenario with rules that are enforced, and shows that it does not reach what they forbid.
fn try_scenario(user: User, scenario: &str, mechanism: &str, seconds: &str) {
    let place = place(user);
    let swaps = place.executable(&program("swaps"));
    let before = state(&place.at("shut"));
    let script = format!("IS_ENFORCED=1 exec {} {scenario} {seconds}", swaps.display());
    let options = [&["--enforce", "--mechanism", mechanism], &RULES[..]].concat();
    let output = place.record_with(&options, &script);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "kept often\n", "{scenario} {user:?} {mechanism}: {output:?}");
    assert_eq!(state(&place.at("shut")), before, "{scenario} {user:?} {mechanism}");
}

#[test]
fn what_is_judged_is_what_is_used() {
    for scenario in SCENARIOS {
        for &user in User::all() {
            try_scenario(user, scenario, "auto", &seconds("0.3"));
        }
    }
}

/// Whoever opens what somebody else exchanges at that moment may be ended.
#[test]
fn descriptor_of_another_process_leads_to_nothing_forbidden() {
    for &user in User::all() {
        let place = place(user);
        let swaps = place.executable(&program("swaps"));
        let script = format!("{} another {}; true", swaps.display(), seconds("1"));
        let output = place.record_with(&[&["--enforce"], &RULES[..]].concat(), &script);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(["", "kept often\n"].contains(&said.as_str()), "{user:?} {output:?}");
    }
}

/// Who is ended has not got it before.
#[test]
fn what_is_linked_by_a_descriptor_is_what_was_judged() {
    for &user in User::all() {
        let place = place(user);
        let swaps = place.executable(&program("swaps"));
        let script =
            format!("for i in 1 2 3; do {} link-descriptor {}; done; true", swaps.display(), seconds("1"));
        let output = place.record_with(&["--enforce", "--deny-read", "shut"], &script);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!said.contains("leaked"), "{user:?} {output:?}");
    }
}

#[test]
fn a_file_without_a_name_gets_one_in_a_program_with_threads() {
    if !has("python3") {
        return;
    }
    let script = "exec python3 -c '
import os, threading
over = threading.Event()
other = threading.Thread(target=over.wait, daemon=True)
other.start()
file = os.open(\".\", os.O_TMPFILE | os.O_RDWR)
os.write(file, b\"made\")
os.link(f\"/proc/self/fd/{file}\", \"new\", src_dir_fd=file, follow_symlinks=True)
over.set()
print(open(\"new\").read())'";
    for &user in User::all() {
        let place = place(user);
        let output =
            place.record_with(&[&["--enforce", "--allow-write", "@workspace"], &RULES[..]].concat(), script);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "made\n", "{user:?} {output:?}");
    }
}

#[test]
fn program_of_another_process_is_no_name_to_change_by() {
    for &user in User::all() {
        let protected: &[&str] = &["--enforce", "--deny-write", "shut"];
        for (rules, seconds, expected) in
            [(&[][..], "20".to_owned(), "leaked\n"), (protected, seconds("1"), "kept often\n")]
        {
            let place = place(user);
            let swaps = place.executable(&program("swaps"));
            place.prepare(&format!("cp {0} open/swaps; cp {0} shut/swaps", swaps.display()));
            // A copy: what is changed may be the program itself, which others use.
            let output = place.record_with(rules, &format!("open/swaps programs {seconds}"));
            assert_eq!(stdout(&output), expected, "{user:?} {output:?}");
        }
    }
}

#[test]
fn all_that_protects_is_needed() {
    for scenario in SCENARIOS.into_iter().chain(["another", "link-descriptor"]) {
        let place = place(User::Current);
        let output = place.program(program("swaps")).args([scenario, "20"]).output();
        let said = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
        assert_eq!(said, "leaked\n", "{scenario}");
    }
}

#[test]
#[ignore = "slow: each race for a time"]
fn slow_swaps_reach_nothing() {
    for scenario in SCENARIOS {
        for mechanism in ["auto", "stops"] {
            try_scenario(User::Current, scenario, mechanism, &seconds("60"));
        }
    }
}

#[test]
fn addresses_are_used_as_judged() {
    for &user in User::all() {
        let place = place(user);
        let [open, shut] = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
        let datagrams = UdpSocket::bind(shut.local_addr().unwrap()).unwrap();
        datagrams.set_nonblocking(true).unwrap();
        let [open_port, shut_port] = [&open, &shut].map(|socket| socket.local_addr().unwrap().port());
        let swaps = place.executable(&program("swaps"));
        std::thread::spawn(move || open.incoming().for_each(drop));
        for scenario in ["contact", "send"] {
            let script = format!(
                "export OPEN_PORT={open_port} SHUT_PORT={shut_port}; exec {} {scenario} {}",
                swaps.display(),
                seconds("0.3")
            );
            let output = place.record_with(&["--enforce", &format!("--deny-net=:{shut_port}")], &script);
            assert_eq!(String::from_utf8_lossy(&output.stdout), "kept often\n", "{scenario} {output:?}");
            std::fs::remove_dir_all(&place.out).unwrap();
        }
        assert!(datagrams.recv(&mut [0; 8]).is_err());
    }
}
