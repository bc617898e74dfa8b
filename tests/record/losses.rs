//! Bytes that can't be kept, since the disk is full, the file unreadable or longer than the limit: the
//! command's call goes on and the user is told at once, or the call is refused and nothing is destroyed.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};

use agent_snapshot::snapshot::{BlobOmitted, WarningKind};

use crate::support::{MECHANISMS, Place, SmallFilesystem, User, bytes, chmod, lost, stderr, stdout};

/// Bytes that no compression shortens.
fn noise(length: usize) -> Vec<u8> {
    let mut noise = vec![0; length];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).unwrap();
    noise
}

/// A recording of a script, which ends though it waits for what never comes.
fn recording(place: &Place, mechanism: &str, on_loss: &str, script: &str) -> Command {
    let mut command = place.recording();
    command.args(["--quiet", "--timeout", "100s", "--mechanism", mechanism, "--on-loss", on_loss]);
    // What it reads takes no space.
    command.args(["--max-read-bytes", "0", "sh", "-c", script]);
    command
}

#[test]
fn warn_names_what_is_lost_while_the_command_runs() {
    for mechanism in MECHANISMS {
        let place = Place::new();
        let Some(_small) = SmallFilesystem::at(&place.out, "size=4m") else { return };
        for number in 0..6 {
            place.write(&format!("big{number}"), noise(6 << 20));
        }
        place.prepare("mkfifo told");
        // If it were told at the end alone, nobody would ever open the FIFO.
        let script = "rm big0; read line < told; echo $line; rm big?";
        let mut command = recording(&place, mechanism, "warn", script);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let lost_at = |name: &str| {
            let path = place.at(name).display().to_string();
            format!("agent-snapshot: the old bytes of {path} are lost: there is no space for them")
        };
        assert_eq!(said.next().unwrap().unwrap(), lost_at("big0"), "{mechanism}");
        fs::write(place.at("told"), "told\n").unwrap();
        let rest: Vec<_> = said.map(Result::unwrap).collect();
        assert_eq!(rest[..2], [lost_at("big1"), lost_at("big2")], "{mechanism}");
        // The others are counted, at most once a second.
        let more = rest[2..].iter().map(|line| {
            let count = line.strip_prefix("agent-snapshot: the old bytes of ").unwrap();
            let count =
                count.strip_suffix(" more files are lost").or(count.strip_suffix(" more file are lost"));
            count.unwrap().parse::<u32>().unwrap()
        });
        assert_eq!(more.sum::<u32>(), 3, "{mechanism}: {rest:?}");
        let output = child.wait_with_output().unwrap();
        assert_eq!((stdout(&output), output.status.code()), ("told\n".into(), Some(0)), "{mechanism}");
        let snapshot = place.snapshot();
        assert_eq!(lost(&snapshot), [WarningKind::ContentOmitted], "{mechanism}");
        let big = place.file(&snapshot, "big0").before.present().unwrap();
        assert_eq!(big.blob_omitted, Some(BlobOmitted::NoSpace), "{mechanism}");
    }
}

#[test]
fn refuse_fails_each_call_that_would_destroy_bytes() {
    let calls = [
        ("rm big", "cannot remove"),
        (": > big", "cannot create"),
        ("echo more >> big", "cannot create"),
        ("mv -f small big", "cannot move"),
        ("truncate -s 0 big", "cannot open"),
        ("python3 -c 'open(\"big\", \"r+b\").write(b\"x\")'", "OSError"),
        ("cp small big", "cannot create regular file"),
    ];
    for mechanism in MECHANISMS {
        let place = Place::new();
        let Some(_small) = SmallFilesystem::at(&place.out, "size=4m") else { return };
        let content = noise(6 << 20);
        place.write("big", &content);
        place.write("small", "small\n");
        place.write("tiny", "tiny\n");
        for (call, complaint) in calls {
            let script = format!("({call}); echo $?; rm tiny; echo new > tiny");
            let output = recording(&place, mechanism, "refuse", &script).output().unwrap();
            let what = format!("{call} by {mechanism}: {output:?}");
            assert!(stderr(&output).contains("No space left on device"), "{what}");
            assert!(stderr(&output).contains(complaint), "{what}");
            assert_ne!(stdout(&output), "0\n", "{what}");
            let big = place.at("big").display().to_string();
            let refused = format!("of {big} was refused, since its bytes can't be kept: ");
            let line = stderr(&output).lines().find(|line| line.contains(&refused)).map(str::to_owned);
            assert!(line.is_some_and(|line| line.ends_with("record with --on-loss warn")), "{what}");
            assert!(fs::read(place.at("big")).unwrap() == content, "{what}");
            assert_eq!(fs::read(place.at("small")).unwrap(), b"small\n", "{what}");
            let snapshot = place.snapshot();
            assert_eq!(lost(&snapshot), [], "{what}");
            assert!(place.file(&snapshot, "tiny").before.present().unwrap().blob.is_some(), "{what}");
            assert!(place.recorded(&snapshot).contains(&"big existence".to_owned()), "{what}");
        }
    }
}

#[test]
fn refuse_lets_a_call_fail_that_destroys_nothing() {
    let place = Place::new();
    let Some(_small) = SmallFilesystem::at(&place.out, "size=4m") else { return };
    place.write("big", noise(6 << 20));
    place.write("small", "small\n");
    // O_EXCL, RENAME_NOREPLACE, and what only changes attributes or names.
    let script = "set -C; (: > big); mv -n small big; chmod 600 big; touch -c -d @1 big; ln big other
        mv big moved; mv moved big; cat big > /dev/null";
    let output = recording(&place, "auto", "refuse", script).output().unwrap();
    let said = stderr(&output);
    assert!(!said.contains("refused") && !said.contains("No space"), "{said}");
    assert!(said.contains("cannot create big: File exists"), "{said}");
    assert_eq!(fs::metadata(place.at("big")).unwrap().mtime(), 1);
    assert!(place.at("small").exists() && place.at("other").exists());
}

#[test]
fn refuse_loses_nothing_when_several_processes_fill_the_disk_together() {
    for mechanism in MECHANISMS {
        let place = Place::new();
        let Some(_small) = SmallFilesystem::at(place.base(), "size=18m") else { return };
        for directory in [&place.work, &place.home, &place.config] {
            fs::create_dir(directory).unwrap();
        }
        let mut contents = Vec::new();
        for process in 0..4 {
            fs::create_dir(place.at(format!("d{process}"))).unwrap();
            for number in 0..40 {
                let name = format!("d{process}/f{number}");
                let content = noise([3_000, 70_000, 20_000, 300_000][number % 4]);
                place.write(&name, &content);
                contents.push((name, content));
            }
        }
        let script = "
            for f in d0/f*; do rm $f; done 2> /dev/null &
            for f in d1/f*; do (: > $f); done 2> /dev/null &
            for f in d2/f*; do echo x > d2/new; mv -f d2/new $f; done 2> /dev/null &
            for f in d3/f*; do dd if=/dev/zero of=$f bs=1000 count=1 conv=notrunc; done 2> /dev/null &
            wait; cat /dev/zero > filler 2> /dev/null; echo done";
        let output = recording(&place, mechanism, "refuse", script).output().unwrap();
        assert_eq!((stdout(&output), output.status.code()), ("done\n".into(), Some(0)), "{output:?}");
        let snapshot = place.snapshot();
        // The bytes after may be missing: nothing destroys them.
        let (mut there, mut kept) = (0, 0);
        for (name, content) in &contents {
            if fs::read(place.at(name)).is_ok_and(|now| now == *content) {
                there += 1;
            } else {
                assert!(bytes(&snapshot, place.file(&snapshot, name), true) == *content, "{name}");
                kept += 1;
            }
        }
        assert!(there > 10 && kept > 10, "{mechanism}: {there} there, {kept} kept");
        assert!(stderr(&output).contains("more calls were refused"), "{}", stderr(&output));
    }
}

#[test]
fn unreadable_file_is_lost_or_refused() {
    for mechanism in MECHANISMS {
        for (on_loss, status, says) in [
            ("warn", "0\n", "are lost: they can't be read\n"),
            ("refuse", "1\n", "was refused, since its bytes can't be kept: they can't be read; "),
        ] {
            let place = Place::of(User::ordinary());
            place.write("secret", "secret\n");
            chmod(place.at("secret"), 0);
            let script = "rm -f secret; echo $?";
            let output = recording(&place, mechanism, on_loss, script).output().unwrap();
            let what = format!("{on_loss} by {mechanism}: {output:?}");
            assert_eq!(stdout(&output), status, "{what}");
            assert!(stderr(&output).contains(says), "{what}");
            assert_eq!(place.at("secret").exists(), on_loss == "refuse", "{what}");
            assert_eq!(stderr(&output).contains("Permission denied"), on_loss == "refuse", "{what}");
            assert_eq!(lost(&place.snapshot()).is_empty(), on_loss == "refuse", "{what}");
        }
    }
}

#[test]
fn file_beyond_the_limit_is_lost_or_refused() {
    for user in User::all() {
        for (on_loss, status, says) in [
            ("warn", "0\n", "are lost: the file is larger than --max-blob-bytes\n"),
            ("refuse", "1\n", "the file is larger than --max-blob-bytes; to lose them instead"),
        ] {
            let place = Place::of(*user);
            place.write("long", noise(200_000));
            place.write("short", noise(50_000));
            let mut command = place.recording();
            command.args(["--max-blob-bytes", "100k", "--on-loss", on_loss]);
            let output = command.args(["sh", "-c", "rm short; rm long; echo $?"]).output().unwrap();
            let what = format!("{on_loss} as {user:?}: {output:?}");
            assert_eq!(stdout(&output), status, "{what}");
            assert!(stderr(&output).contains(says), "{what}");
            assert_eq!(stderr(&output).contains("File too large"), on_loss == "refuse", "{what}");
            assert_eq!(place.at("long").exists(), on_loss == "refuse", "{what}");
            assert!(!place.at("short").exists(), "{what}");
        }
    }
}

#[test]
fn refuse_gives_back_the_space_that_it_did_not_need() {
    let place = Place::new();
    place.write("file", noise(100_000));
    let output = place.record_with(&["--on-loss", "refuse"], "rm file");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let blobs = fs::metadata(place.out.join("blobs.parquet")).unwrap();
    assert!(blobs.blocks() * 512 < blobs.len() + (64 << 10), "{blobs:?}");
}
