//! `show` of real recordings.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Output, Stdio};

use crate::support::{Place, chmod, has, stderr};

fn show(place: &Place, flags: &[&str]) -> Output {
    place.command().arg("show").arg(&place.out).args(flags).output().unwrap()
}

fn text(output: &Output) -> &str {
    assert_eq!((output.status.code(), stderr(output).as_str()), (Some(0), ""), "{output:?}");
    std::str::from_utf8(&output.stdout).unwrap()
}

/// The names in the groups of what was changed.
fn changes(place: &Place) -> Vec<String> {
    let output = show(place, &[]);
    let lines = text(&output).lines().skip_while(|line| !line.is_empty());
    // What the shell and its loader read depends on who runs it.
    let lines = lines.take_while(|line| !line.starts_with("Only read") && !line.contains(" only looked up"));
    lines.filter(|line| !line.is_empty()).map(|line| line.trim().to_owned()).collect()
}

#[test]
fn changes_are_shown_in_groups() {
    let place = Place::new();
    let write = |name: &str, content: &str| fs::write(place.at(name), content).unwrap();
    fs::create_dir_all(place.at("src/deep")).unwrap();
    for name in ["src/a", "src/deep/b", "edited", "moved", "input", "mode", "replaced"] {
        write(name, name);
    }
    symlink("edited", place.at("link")).unwrap();
    chmod(place.at("mode"), 0o644);
    place.record(
        "rm -r src; echo longer content > edited; mv moved renamed; cat input; chmod 755 mode; \
         rm link; ln -s input link; mkdir dir; echo x > dir/made; echo t > temporary; rm temporary; \
         echo r > swap; mv swap replaced; touch input",
    );
    assert_eq!(
        changes(&place),
        [
            "Changed: 4",
            "15 B  edited  was 6 B",
            "link → input  was → edited",
            "4 B  mode  mode 0644 → 0755",
            "2 B  replaced  was 8 B, from swap",
            "Renamed: 1",
            "5 B  moved → renamed",
            "Created: 2",
            "dir/",
            "2 B  dir/made",
            "Deleted: 4",
            "src/",
            "5 B  src/a",
            "src/deep/",
            "10 B  src/deep/b",
            "Made and removed again: 2",
            "swap",
            "temporary",
            "Written or touched, but unchanged: 1",
            "5 B  input",
        ]
    );
}

#[test]
fn names_of_any_bytes_take_one_printable_line() {
    let place = Place::new();
    place.record(
        r#"printf x > "$(printf 'a\033[2J\nb')"; printf x > "$(printf 'caf\351')"; printf x > '"q" \'"#,
    );
    for flags in [&[][..], &["--long"], &["--processes"], &["--created"]] {
        let output = show(&place, flags);
        assert!(!text(&output).contains(|char: char| char != '\n' && char.is_control()), "{flags:?}");
    }
    let output = show(&place, &["--created"]);
    for name in [r#""a\033[2J\nb""#, r#""caf\351""#, r#""\"q\" \\""#] {
        assert!(text(&output).contains(&format!("  {name}\n")), "{name}: {}", text(&output));
    }
}

#[test]
fn closed_pipe_ends_show_without_a_message() {
    let place = Place::new();
    place.record(
        "mkdir d; i=0; while [ $i -lt 3000 ]; do : > d/a-rather-long-name-of-a-file-$i; i=$((i+1)); done",
    );
    for flags in [&["--long"][..], &["--json"], &["--created"]] {
        let mut command = place.command();
        command.arg("show").arg(&place.out).args(flags).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut first = [0; 10];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((child.wait().unwrap().signal(), said.as_str()), (Some(libc::SIGPIPE), ""), "{flags:?}");
    }
}

#[test]
fn processes_are_shown_as_a_tree() {
    let place = Place::new();
    place.record("sh -c 'cat /etc/passwd > copy; exit 3'; true");
    let output = show(&place, &["--processes"]);
    let tree = text(&output).split_once("\n\n").unwrap().1;
    assert!(tree.starts_with("1  sh -c 'sh -c "), "{tree}");
    assert!(tree.contains("\n2 └─ sh -c 'cat /etc/passwd > copy; exit 3'  exit 3, "), "{tree}");
    assert!(tree.contains("\n3   └─ cat /etc/passwd"), "{tree}");
    let used = show(&place, &["--process", "3", "--changed", "--created"]);
    assert_eq!(
        text(&used),
        "no such path is in the snapshot\n",
        "cat wrote through the descriptor that the shell had opened"
    );
}

#[test]
fn network_lists_who_used_which_address() {
    if !has("python3") {
        return;
    }
    let place = Place::new();
    place.write(
        "client.py",
        "import socket
a = socket.socket(); a.bind(('127.0.0.1', 0)); a.listen(); print(a.getsockname()[1], 'tcp')
for i in range(2): socket.socket().connect(a.getsockname())
try: socket.socket().bind(a.getsockname())
except OSError: pass
u = socket.socket(type=socket.SOCK_DGRAM); u.bind(('127.0.0.1', 0)); print(u.getsockname()[1], 'udp')
socket.socket(type=socket.SOCK_DGRAM).sendmsg([b'x'], [], 0, u.getsockname())
n = socket.socket(socket.AF_UNIX); n.bind('so\\ncket'); n.listen()
socket.socket(socket.AF_UNIX).connect('so\\ncket')
",
    );
    let output = place.record_with(&["--quiet"], "python3 client.py; exit");
    assert!(output.status.success(), "{output:?}");
    let ports = String::from_utf8(output.stdout).unwrap();
    let ports: Vec<_> = ports.lines().filter_map(|line| line.split_once(' ')).collect();
    let manifest = crate::support::json(&place.out.join("manifest.json"));
    let addresses = manifest["network"].as_array().unwrap();
    let client = addresses.iter().find(|used| used["address"] == "127.0.0.1").unwrap()["process"].to_string();

    // The C library may ask the name service cache who the user is.
    let is_ours = |line: &&str| !line.contains("/nscd/socket");
    let normal = |line: &str| {
        let mut line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        for (port, name) in &ports {
            line = line.replace(&format!(":{port} "), &format!(":{name} "));
        }
        let (start, rest) = line.split_once(&format!(" (process {client})")).unwrap_or((&line, ""));
        let used = start.rsplit_once(' ').unwrap_or((start, "")).0;
        format!("{used}{rest}").replace(&format!("{}/", place.work.display()), "")
    };
    let shown = show(&place, &["--network"]);
    let (header, list) = text(&shown).split_once("\n\n").unwrap();
    assert!(header.lines().any(|line| line.starts_with("Network ")), "{header}");
    let expected = [
        "connect 127.0.0.1:tcp, 2 times",
        "connect \"so\\ncket\"",
        "bind 127.0.0.1:0, 2 times",
        "bind 127.0.0.1:tcp, failed: Address already in use",
        "bind \"so\\ncket\"",
        "send 127.0.0.1:udp",
    ];
    assert_eq!(list.lines().filter(is_ours).map(normal).collect::<Vec<_>>(), expected, "{list}");
    // A filter for a process is one for its addresses, too.
    let of_client = show(&place, &["--network", "--process", &client]);
    assert!(expected.iter().all(|line| text(&of_client).lines().any(|used| normal(used) == *line)));
    let shell = show(&place, &["--network", "--process", "1"]);
    assert!(shell.stdout.starts_with(b"no socket address was used\n"), "{shell:?}");

    let output = show(&place, &["--network", "--json"]);
    let json: serde_json::Value = serde_json::from_str(text(&output)).unwrap();
    assert_eq!(json["network"], manifest["network"]);
}

#[test]
fn output_log_is_not_verified_as_an_input() {
    let place = Place::new();
    place.write("input", "in");
    let log = place.base().join("log");
    let mut command = place.recording();
    command.args(["sh", "-c", "cat; echo out; echo x > made; rm made"]);
    command.stdin(fs::File::open(place.at("input")).unwrap()).stdout(fs::File::create(&log).unwrap());
    assert!(command.stderr(std::process::Stdio::null()).status().unwrap().success());
    let verify = |flags: &[&str]| {
        let output = place.command().arg("verify").arg(&place.out).args(flags).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (status, said) = verify(&["--before"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains(", 1 path left out (the command's output went there): "), "{said}");
    // What came in through a descriptor is an input all the same; the log goes on to grow.
    place.write("input", "other");
    fs::write(&log, "more").unwrap();
    let paths = |said: &str| said.lines().filter(|line| line.starts_with("drift")).count();
    let ((status, before), (_, after)) = (verify(&["--before"]), verify(&[]));
    assert_eq!((status, paths(&before), paths(&after)), (Some(1), 1, 1), "{before}{after}");
}

#[test]
fn json_is_one_document_with_each_path_once() {
    let place = Place::new();
    place.write("old", "x");
    let snapshot = place.record("cat old; rm old; echo y > new; test ! -e missing");
    let output = show(&place, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(text(&output)).unwrap();
    let files = json["files"].as_array().unwrap();
    assert_eq!(files.len(), snapshot.files().len());
    let status = |name: &str| {
        let path = place.at(name).display().to_string();
        files.iter().find(|file| file["path"] == path.as_str()).map(|file| file["status"].clone())
    };
    assert_eq!(status("old"), Some("deleted".into()));
    assert_eq!(status("new"), Some("created".into()));
    assert_eq!(status("missing"), Some("existence".into()));
    let counted: u64 =
        json["counts"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(counted, files.len() as u64);
}

#[test]
fn show_mentions_an_interrupted_restore() {
    let place = Place::new();
    place.write("f", "old\n");
    place.record("echo new >f");
    let restored = place.command().arg("restore").arg(&place.out).arg("--before").output().unwrap();
    assert!(restored.status.success(), "{restored:?}");
    assert!(!text(&show(&place, &[])).contains("interrupted"));
    // As it was called until its restore had come to its end.
    let rescue = place.out.with_file_name("out-rescue-1");
    fs::rename(&rescue, rescue.with_extension("unfinished")).unwrap();
    let output = show(&place, &[]);
    let shown = text(&output);
    let line = shown.lines().find(|line| line.starts_with("Restore ")).unwrap_or_else(|| panic!("{shown}"));
    assert!(line.contains("interrupted") && line.contains("out-rescue-1.unfinished"), "{line}");
}
