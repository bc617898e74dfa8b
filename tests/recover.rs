//! Recordings of which everything was killed, and what `recover` makes of their journals.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agent_snapshot::snapshot::journal::{Frame, Reader};
use agent_snapshot::snapshot::layout::JOURNAL;
use agent_snapshot::snapshot::{FileRecord, Operation, Snapshot, Warning, WarningKind};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::support::{
    BINARY, MECHANISMS, Place, Random, SmallFilesystem, User, assert_same, bytes, command_of,
    describe_recorded, kill, needs_root, rounds, scan, trace_verb, tracer_of, wait,
};

/// Kills both processes of a recording, neither of which notices that the other is gone.
fn kill_all(child: &mut Child) {
    let front = child.id().cast_signed();
    let tracer = command_of(front).and_then(tracer_of);
    signal::kill(Pid::from_raw(front), Signal::SIGSTOP).unwrap();
    tracer.map(kill);
    kill(front);
    wait(child);
    // The pipe ends with the last tracee.
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_string(&mut String::new()).unwrap();
    }
}

/// Records a script that stays when it is done; returns then.
fn record_and_stay(place: &Place, options: &[&str], script: &str) -> Child {
    let script = format!("{script}\necho done; exec sleep 1000");
    let mut command = place.recording();
    command.args(["--quiet"]).args(options).args(["sh", "-c", &script]);
    // A log of these tests that grows would be a change.
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "done\n");
    child
}

fn frames(place: &Place) -> Vec<Frame> {
    let journal = fs::File::open(place.out.join(JOURNAL)).unwrap();
    Reader::new(journal).unwrap().into_iter().flatten().map(Result::unwrap).collect()
}

/// Waits until the journal says that nothing is held by a descriptor alone.
fn wait_until_stored(place: &Place) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut held = HashSet::new();
        let mut stored = BTreeMap::new();
        for frame in frames(place) {
            match frame {
                Frame::Held(inode) => drop(held.insert(inode)),
                Frame::Stored(content) => drop(stored.insert(content.inode, content.number)),
                Frame::Group(complete, _) => {
                    held.retain(|inode| stored.get(inode).is_none_or(|number| *number > complete))
                }
                _ => {}
            }
        }
        if held.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "only a descriptor holds {held:?}");
        std::thread::yield_now();
    }
}

/// A place with a large and a small file, of whose recording everything was killed after `script`.
fn killed_after(script: &str) -> Place {
    let place = Place::new();
    place.write("large", noise(1, 300_000));
    place.write("small", "small\n");
    record_and_kill(&place, &[], script);
    place
}

/// Records a script, and kills everything when it is done.
fn record_and_kill(place: &Place, options: &[&str], script: &str) {
    let mut child = record_and_stay(place, options, script);
    wait_until_stored(place);
    kill_all(&mut child);
    assert!(!place.out.join("manifest.json").exists());
}

/// Opens a snapshot that has the bytes which `f` had before.
#[track_caller]
fn open_with_precious_file(place: &Place, path: &Path) -> Snapshot {
    let snapshot = Snapshot::open(path).unwrap();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "f"), true), b"precious\n");
    snapshot
}

/// Bytes that no compression and no deduplication makes fewer.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed + 1);
    (0..length).map(|_| u8::try_from(random.below(256)).unwrap()).collect()
}

/// A tree with a file for each way in which a command destroys.
fn prepare(place: &Place) {
    place.prepare(
        "mkdir -p d/sub gone/sub; echo small > small; : > empty; truncate -s 100M sparse
         printf x | dd of=sparse bs=1 seek=5000000 conv=notrunc 2> /dev/null
         echo truncated > truncated; echo from > from; echo onto > onto; echo f > d/sub/f
         ln -s target link; echo h > h1; ln h1 h2; echo mode > mode; echo q > gone/sub/q; : > touched
         echo 1 > swapped1; echo 2 > swapped2; mkfifo fifo",
    );
    for (seed, name, length) in [
        (1, "large", 300_000),
        (2, "read_then_removed", 300_000),
        (3, "d/large", 100_000),
        (4, "in_place", 500_000),
        (5, "large_in_place", 3_000_000),
        (6, "read_then_changed", 3_000_000),
        (7, "larger_than_a_row", 20_000_000),
    ] {
        place.write(name, noise(seed, length));
    }
    place.prepare("cp large twin");
}

const DESTROY: &str = r#"
    cat read_then_removed read_then_changed small > /dev/null
    rm small large twin read_then_removed empty sparse larger_than_a_row
    echo new > truncated
    for name in in_place large_in_place read_then_changed; do
        printf y | dd of=$name bs=1 seek=100 conv=notrunc 2> /dev/null
    done
    mv from onto; mv d moved; rm moved/large; mv moved moved_again
    ln -sf other link; rm h1; chmod 600 mode; touch -d @1 touched; rm -r gone; rm fifo
    mkdir -p made/sub; echo made > made/sub/file; echo made > made/removed; rm made/removed
    python3 -c 'import ctypes; ctypes.CDLL(None).renameat2(-100, b"swapped1", -100, b"swapped2", 2)'
"#;

#[test]
fn everything_that_was_destroyed_is_recovered() {
    for mechanism in MECHANISMS {
        for user in User::all() {
            let place = Place::of(*user);
            prepare(&place);
            let before = scan(&place.work);
            record_and_kill(&place, &["--mechanism", mechanism], DESTROY);
            let run = place.verb("recover", &[]).expect(0);
            assert!(run.stdout.starts_with("recovered "), "{run:?}");
            let snapshot = place.snapshot();
            let header = snapshot.header();
            assert!(header.recovered && !header.complete);
            assert!(header.started_at <= header.finished_at, "{header:?}");
            let lost: Vec<_> = header.warnings.iter().map(|warning| (warning.kind, warning.count)).collect();
            assert_eq!(lost, [(WarningKind::ExternalChange, 1)], "{header:#?}");
            let (onto, moved) = (place.file(&snapshot, "onto"), place.file(&snapshot, "made"));
            assert_eq!(onto.renamed_from.as_deref(), Some(place.path("from").as_slice()));
            assert!(moved.before.present().is_none() && moved.after.present().is_some());
            assert_eq!(place.names_in_out(), ["blobs.parquet", "manifest.json"]);
            // Forth, where it is, and back.
            place.verb("verify", &[]).expect(0);
            place.verb("restore", &["--before"]).expect(0);
            assert_same(&describe_recorded(&scan(&place.work)), &describe_recorded(&before), mechanism);
        }
    }
}

#[test]
fn content_that_was_only_read_so_far_is_on_file_before_it_is_destroyed() {
    for destroy in ["rm f", "printf x | dd of=f conv=notrunc 2> /dev/null"] {
        for length in [10, 300_000, 3_000_000] {
            let place = Place::new();
            place.write("f", noise(1, length));
            record_and_kill(&place, &[], &format!("cat f > /dev/null; {destroy}"));
            place.verb("recover", &[]).expect(0);
            let snapshot = place.snapshot();
            assert!(bytes(&snapshot, place.file(&snapshot, "f"), true) == noise(1, length), "{destroy}");
        }
    }
}

#[test]
fn tracked_files_are_recovered() {
    let place = Place::new();
    place.prepare("git init -q; echo clean > clean; echo dirty > dirty; git add .; git commit -qm x");
    place.write("dirty", "changed since\n");
    record_and_kill(&place, &[], "rm clean; echo > dirty");
    place.verb("recover", &[]).expect(0);
    let snapshot = place.snapshot();
    let [clean, dirty] = ["clean", "dirty"].map(|name| place.file(&snapshot, name));
    assert!(clean.git.as_ref().unwrap().oid.is_some() && dirty.git.as_ref().unwrap().dirty);
    assert_eq!(bytes(&snapshot, clean, true), b"clean\n");
    assert_eq!(bytes(&snapshot, dirty, true), b"changed since\n");
    assert_eq!(snapshot.header().git_repositories.len(), 1);
    assert!(snapshot.header().git_repositories[0].dirty);
}

#[test]
fn file_that_was_only_appended_to_from_outside_is_not_missing() {
    let place = Place::new();
    place.write("log", "before\n");
    let log = fs::OpenOptions::new().append(true).open(place.at("log")).unwrap();
    let mut command = place.recording();
    command.args(["--quiet", "sh", "-c", "echo more >&2; echo done; exec sleep 1000"]);
    let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    kill_all(&mut child);
    let run = place.verb("recover", &[]).expect(0);
    assert!(!run.stdout.contains("not recovered"), "{run:?}");
    assert_eq!(fs::read(place.at("log")).unwrap(), b"before\nmore\n");
    assert!(place.file(&place.snapshot(), "log").inherited);
}

#[test]
fn processes_are_recovered() {
    let place = Place::new();
    record_and_kill(&place, &[], "(echo x > f; true); sh -c 'echo y > g; exit 3'");
    place.verb("recover", &[]).expect(0);
    let snapshot = place.snapshot();
    let header = snapshot.header();
    assert_eq!((header.exit_status, header.exit_signal.as_deref()), (137, Some("SIGKILL")));
    let ends: Vec<_> = header.processes.iter().map(|process| process.exit_status).collect();
    // The end of the last one destroys nothing, and waits to be written.
    assert_eq!(ends, [None, Some(0), None], "{header:#?}");
    assert!(header.processes.iter().all(|process| process.image.exe.starts_with(b"/")), "{header:#?}");
    assert_eq!(place.file(&snapshot, "f").processes, [2]);
    assert_eq!(place.file(&snapshot, "g").processes, [3]);
}

#[test]
fn content_that_was_still_being_copied_is_named() {
    let place = killed_after("rm small large");
    // As if the recorder had been killed before it had written a row group.
    let frames = frames(&place);
    let group = frames.iter().find_map(|frame| match frame {
        Frame::Group(_, footer) => Some(footer.start),
        _ => None,
    });
    let journal = fs::OpenOptions::new().write(true).open(place.out.join(JOURNAL)).unwrap();
    journal.set_len(group.unwrap()).unwrap();
    let run = place.verb("recover", &[]).expect(1);
    let large = place.at("large").display().to_string();
    assert!(run.stdout.contains(&format!("not recovered: the bytes of {large}, which")), "{run:?}");
    let snapshot = place.snapshot();
    let named = snapshot.header().warnings.iter().filter(|warning| warning.detail.contains(&large));
    let kinds: Vec<_> = named.map(|warning| (warning.kind, warning.lost)).collect();
    assert_eq!(kinds, [(WarningKind::ContentOmitted, true)]);
    let record = place.file(&snapshot, "large");
    assert!(record.operations.contains(Operation::Delete));
    assert!(record.before.present().unwrap().blob_omitted.is_some());
    place.verb("restore", &["--before", &place.at("small").display().to_string()]).expect(0);
    assert_eq!(fs::read(place.at("small")).unwrap(), b"small\n");
}

/// Destroys files in two processes, by the ways that the words of its argument name.
const DESTROYER: &str = "
import os, sys
ways = sys.argv[1].split()
half = os.fork() == 0
for at, way in list(enumerate(ways))[half::2]:
    name = f'repo/f{at}' if at % 2 else f'f{at}'
    other = f'{name}-{way}'
    if way == 'remove':
        os.unlink(name)
    elif way == 'truncate':
        os.truncate(name, 0)
    elif way == 'rewrite':
        open(name, 'wb').write(b'new')
    elif way == 'patch':
        with open(name, 'r+b') as file:
            file.seek(os.path.getsize(name) // 2)
            file.write(b'NEW')
    elif way == 'replace':
        open(other, 'wb').write(b'new')
        os.rename(other, name)
    elif way == 'rename':
        os.rename(name, other)
        open(other, 'ab').write(b'more')
    elif way == 'read':
        open(name, 'rb').read()
        os.unlink(name)
if half:
    os._exit(0)
os.wait()
print('done', flush=True)
sys.stdin.read()
";

const WAYS: [&str; 7] = ["remove", "truncate", "rewrite", "patch", "replace", "rename", "read"];

/// Whom SIGKILL ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Victim {
    Front,
    Group,
    Tracer,
    All,
}

/// Makes files of 1 byte to 10 MiB, half of them tracked by Git; their contents.
fn make_files(place: &Place, random: &mut Random, count: usize) -> BTreeMap<String, Vec<u8>> {
    place.prepare("git init -q repo");
    let mut wanted = BTreeMap::new();
    for at in 0..count {
        let length = match random.below(200) {
            0 => 10 << 20,
            1..10 => 70_000 + random.below(1_000_000),
            10..30 => 1 + random.below(70_000),
            _ => 1 + random.below(3_000),
        };
        let name = if at % 2 == 1 { format!("repo/f{at}") } else { format!("f{at}") };
        let content = noise(at as u64, length);
        place.write(&name, &content);
        wanted.insert(name, content);
    }
    place.prepare("cd repo; git add .; git -c user.name=n -c user.email=e commit -qm files");
    wanted
}

/// Kills at a moment that the progress of the command decides, and checks that every byte is where it was, in the
/// snapshot, or named as still being copied, which only a kill of all may leave.
fn kill_once(template: &Place, wanted: &BTreeMap<String, Vec<u8>>, random: &mut Random, victim: Victim) {
    let place = Place::new();
    template.prepare(&format!("cp -a . {}", place.work.display()));
    let ways: Vec<_> = (0..wanted.len()).map(|_| WAYS[random.below(WAYS.len())]).collect();
    let until = random.below(wanted.len());
    let mechanism = ["auto", "stops"][random.below(2)];
    println!("{victim:?} at {until}, {mechanism}");
    let mut command = place.recording();
    command.args(["--quiet", "--mechanism", mechanism, "python3", "-c", DESTROYER, &ways.join(" ")]);
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let front = child.id().cast_signed();
    let name = if until % 2 == 1 { format!("repo/f{until}") } else { format!("f{until}") };
    while fs::metadata(place.at(&name)).is_ok_and(|metadata| {
        let at = fs::metadata(template.at(&name)).unwrap();
        metadata.len() == at.len() && metadata.modified().unwrap() == at.modified().unwrap()
    }) {
        assert!(child.try_wait().unwrap().is_none(), "it has ended early");
        std::thread::yield_now();
    }
    match victim {
        Victim::Front => drop(kill(front)),
        Victim::Group => drop(kill(-front)),
        Victim::Tracer => drop(command_of(front).and_then(tracer_of).map(kill)),
        Victim::All => kill_all(&mut child),
    }
    wait(&mut child);
    place.wait_for_lock();
    let mut missing = HashSet::new();
    if victim == Victim::All {
        let run = place.verb("recover", &["--json"]);
        let said: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
        missing
            .extend(said["missing"].as_array().unwrap().iter().map(|path| path.as_str().unwrap().to_owned()));
        run.expect(i32::from(!missing.is_empty()));
    }
    let snapshot = place.snapshot();
    let header = snapshot.header();
    assert_eq!(header.killed, matches!(victim, Victim::Front | Victim::Group));
    assert_eq!(header.recovered, matches!(victim, Victim::Tracer | Victim::All));
    for (way, (name, wanted)) in ways_of(wanted, &ways).into_iter().zip(wanted) {
        if missing.contains(&place.at(name).display().to_string()) {
            assert!(wanted.len() > 64 << 10, "{name} is small");
            continue;
        }
        let record = snapshot.find(&place.path(name));
        let recorded = record
            .filter(|record| record.before.present().is_some_and(|before| before.blob.is_some()))
            .map(|record| bytes(&snapshot, record, true));
        match recorded {
            Some(recorded) => assert!(recorded == *wanted, "{name} has other bytes"),
            None => {
                let live = fs::read(place.at(name)).ok();
                // What was still being copied is no loss if Git has it.
                let is_pinned =
                    |record: &FileRecord| record.git.as_ref().is_some_and(|git| git.oid.is_some());
                if victim == Victim::All && wanted.len() > 64 << 10 && record.is_some_and(is_pinned) {
                    let mut cat = place.program(BINARY);
                    let output = cat.arg("cat").arg(&place.out).arg(place.at(name)).arg("--before").output();
                    assert!(output.unwrap().stdout == *wanted, "{name} has other bytes in Git");
                    continue;
                }
                let what = || format!("{way} {name} of {} bytes: {record:?}", wanted.len());
                assert!(live.as_ref() == Some(wanted), "destroyed and not recorded: {}", what());
            }
        }
    }
}

/// The way in which each file is destroyed, in the order of their names.
fn ways_of<'w>(wanted: &BTreeMap<String, Vec<u8>>, ways: &[&'w str]) -> Vec<&'w str> {
    let number = |name: &String| name.rsplit('f').next().unwrap().parse::<usize>().unwrap();
    wanted.keys().map(|name| ways[number(name)]).collect()
}

fn kill_at_random(rounds: usize, files: usize) {
    let mut random = Random::seeded();
    let template = Place::new();
    let wanted = make_files(&template, &mut random, files);
    for round in 0..rounds {
        let victim = [Victim::Front, Victim::Group, Victim::Tracer, Victim::All][round % 4];
        kill_once(&template, &wanted, &mut random, victim);
    }
}

#[test]
fn killed_at_any_moment_every_byte_is_recorded_or_named() {
    kill_at_random(8, 100);
}

#[test]
#[ignore = "slow: 2,000 files, killed KILLS times"]
fn slow_killed_at_any_moment_every_byte_is_recorded_or_named() {
    let rounds = std::env::var("KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(12);
    kill_at_random(rounds, 2000);
}

#[test]
fn recovery_that_is_killed_at_any_call_can_be_repeated() {
    let place = killed_after("rm large small; echo made > made");
    let kept = keep(&place);
    let again = || {
        place.prepare(&format!(
            "rm -rf {0} {0}-recovered-*; cp -a {1} {0}",
            place.out.display(),
            kept.display()
        ))
    };
    let (calls, status) = trace_verb(&place, "recover", &[], |_, _| {});
    assert_eq!(status, Some(0));
    let mut at = 1;
    while at < calls {
        again();
        trace_verb(&place, "recover", &[], |pid, calls| {
            if calls == at {
                kill(pid.as_raw());
            }
        });
        place.verb("recover", &[]).expect(0);
        let snapshot = place.snapshot();
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "large"), true), noise(1, 300_000), "call {at}");
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "small"), true), b"small\n");
        assert!(!place.out.join(JOURNAL).exists() && !place.out.join(".gitignore").exists());
        // The first ones load the program.
        at += if at < 60 { 20 } else { 3 };
    }
}

#[test]
fn cut_journal_is_that_of_a_shorter_recording() {
    let place = Place::new();
    place.write("large", noise(1, 100_000));
    record_and_kill(&place, &[], "echo x > f; mkdir d; mv f d/g; rm large; ln -s x l; rm -r d");
    let mut whole = fs::read(place.out.join(JOURNAL)).unwrap();
    // Zeros follow the last frame.
    whole.truncate(whole.iter().rposition(|byte| *byte != 0).unwrap() + 1);
    let kept = keep(&place);
    let mut records = 0;
    for cut in (0..whole.len()).step_by(37) {
        put_back(&place, &kept);
        fs::write(place.out.join(JOURNAL), &whole[..cut]).unwrap();
        let run = place.verb("recover", &[]);
        let is_missing = run.stdout.contains("not recovered: ");
        let run = run.expect(i32::from(is_missing));
        let recovered = Snapshot::open(&place.out).map(|snapshot| snapshot.files().len());
        match recovered {
            Ok(now) => {
                assert!(now >= records, "{cut}: {now} of {records}");
                records = now;
            }
            Err(_) => assert!(run.stderr.contains("had changed nothing yet") && records == 0, "{run:?}"),
        }
    }
    assert!(records >= 4, "{records}");
}

#[test]
fn next_recording_recovers_the_killed_one_beside_itself() {
    let place = Place::new();
    place.write("f", "precious\n");
    record_and_kill(&place, &[], "rm f");
    let output = place.record_with(&[], "echo next > g");
    let said = String::from_utf8(output.stderr).unwrap();
    let beside = place.base().join("out-recovered-1");
    assert!(said.contains("was killed") && said.contains(&beside.display().to_string()), "{said}");
    let recovered = open_with_precious_file(&place, &beside);
    let next = place.snapshot();
    assert!(next.find(&place.path("g")).is_some() && !next.header().recovered);
    assert_ne!(next.header().id, recovered.header().id);
    // One that had changed nothing leaves nothing.
    fs::remove_dir_all(&place.out).unwrap();
    record_and_kill(&place, &[], "true > /dev/null");
    assert!(place.record_with(&[], "true").status.success());
    assert!(!place.base().join("out-recovered-2").exists());
}

#[test]
fn older_snapshot_stays_beside_a_recovered_one() {
    let place = Place::new();
    place.write("f", "precious\n");
    let older = place.record("echo old > old").header().id.clone();
    let mut child = record_and_stay(&place, &[], "rm f");
    kill_all(&mut child);
    // It is not taken for the later one.
    let show = place.verb("show", &[]).expect(3);
    assert!(show.stderr.contains("agent-snapshot recover"), "{show:?}");
    place.verb("recover", &[]).expect(0);
    place.verb("show", &[]).expect(0);
    assert_eq!(place.snapshot().header().id, older);
    open_with_precious_file(&place, &place.base().join("out-recovered-1"));
    assert_eq!(place.names_in_out(), ["blobs.parquet", "manifest.json"]);
    let again = place.verb("recover", &[]).expect(0);
    assert!(again.stderr.contains("nothing to recover"), "{again:?}");
}

#[test]
fn flipped_bit_of_a_journal_costs_one_path_and_is_told() {
    flip_bits(24);
}

#[test]
#[ignore = "slow: hundreds of recoveries"]
fn slow_flipped_bit_of_a_journal_costs_one_path_and_is_told() {
    flip_bits(rounds(300));
}

fn flip_bits(tries: usize) {
    let place = Place::new();
    let wanted: BTreeMap<String, Vec<u8>> = (0..30)
        .map(|number| (format!("f{number}"), noise(number, if number % 10 == 0 { 200_000 } else { 500 })))
        .collect();
    for (name, content) in &wanted {
        place.write(name, content);
    }
    record_and_kill(&place, &[], "rm f?; for i in $(seq 10 29); do echo new > f$i; done");
    let mut whole = fs::read(place.out.join(JOURNAL)).unwrap();
    whole.truncate(whole.iter().rposition(|byte| *byte != 0).unwrap() + 1);
    let kept = keep(&place);
    let line = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    // Each frame has a head of twelve bytes, which begins with the length of its body, and a last byte.
    let length = |at: usize| u32::from_le_bytes(whole[at..at + 4].try_into().unwrap()) as usize;
    let heads: Vec<usize> = std::iter::successors(Some(line), |at| {
        Some(at + 12 + length(*at) + 1).filter(|next| *next < whole.len())
    })
    .collect();
    assert!(heads.len() > 60, "{heads:?}");
    let mut random = Random::seeded();
    let mut damages = 0;
    for number in 0..tries {
        put_back(&place, &kept);
        let bit = match number % 2 {
            0 => (heads[random.below(heads.len())] * 8) + random.below(12 * 8),
            _ => random.below((whole.len() - line) * 8) + line * 8,
        };
        let mut changed = whole.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        fs::write(place.out.join(JOURNAL), &changed).unwrap();
        let run = place.verb("recover", &[]);
        let snapshot = place.snapshot();
        let is_recovered = |(name, content): &(&String, &Vec<u8>)| {
            let record = snapshot.files().iter().find(|record| record.path == place.path(name));
            record.is_some_and(|record| {
                record.before.present().is_some_and(|present| present.blob.is_some())
                    && bytes(&snapshot, record, true) == **content
            })
        };
        let lost = wanted.iter().filter(|file| !is_recovered(file)).count();
        assert!(lost <= 1, "bit {bit}: {lost} lost: {run:?}");
        let aside = place.out.join(".agent-snapshot-damaged-1");
        if run.status == 0 {
            // The byte that ends a frame.
            assert!(
                lost == 0 && !aside.exists() && !run.stdout.contains("not recovered"),
                "bit {bit}: {run:?}"
            );
            continue;
        }
        damages += 1;
        assert!(run.status == 1 && run.stdout.contains("damaged bytes of the journal"), "bit {bit}: {run:?}");
        let warns = |warning: &Warning| warning.lost && warning.detail.contains("of the journal are damaged");
        assert!(snapshot.header().warnings.iter().any(warns), "{:?}", snapshot.header().warnings);
        // It stays until somebody says otherwise.
        place.verb("recover", &[]).expect(1);
        assert_eq!(fs::read(aside.join(JOURNAL)).unwrap(), changed);
        place.verb("verify", &[]).expect(0);
        place.verb("recover", &["--discard"]).expect(0);
        place.verb("recover", &[]).expect(0);
        assert_eq!(place.names_in_out(), ["blobs.parquet", "manifest.json"]);
    }
    assert!(damages > tries / 2, "{damages}");
}

/// Flips a bit of these bytes in the journal, and returns what that is then.
fn damage(place: &Place, content: &[u8]) -> Vec<u8> {
    let path = place.out.join(JOURNAL);
    let mut journal = fs::read(&path).unwrap();
    let at = journal.windows(content.len()).position(|bytes| bytes == content).unwrap();
    journal[at] ^= 1;
    fs::write(path, &journal).unwrap();
    journal
}

/// A copy of what a killed recording has left, beside it.
fn keep(place: &Place) -> PathBuf {
    let kept = place.base().join("kept");
    place.prepare(&format!("cp -a {} {}", place.out.display(), kept.display()));
    kept
}

/// Puts it back as it was then.
fn put_back(place: &Place, kept: &Path) {
    place.prepare(&format!("rm -rf {0}; cp -a {1} {0}", place.out.display(), kept.display()));
}

#[test]
fn bytes_that_only_a_damaged_journal_had_are_never_taken_from_the_file() {
    let place = Place::new();
    place.write("f", "precious");
    record_and_kill(&place, &[], "chmod 600 f; printf 12345678 > f");
    damage(&place, b"precious");
    let told = place.verb("recover", &[]).expect(1);
    let path = String::from_utf8(place.path("f")).unwrap();
    assert!(told.stdout.contains(&format!("not recovered: the bytes of {path}")), "{told:?}");
    let snapshot = place.snapshot();
    let before = place.file(&snapshot, "f").before.present().unwrap();
    assert!(before.blob.is_none() && before.blob_omitted.is_some(), "{before:?}");
}

#[test]
fn recovery_of_a_damaged_journal_that_is_killed_can_be_repeated() {
    let place = Place::new();
    place.write("f", "precious\n");
    record_and_kill(&place, &[], "rm f; echo > g");
    let journal = damage(&place, b"precious\n");
    let kept = keep(&place);
    let (calls, _) = trace_verb(&place, "recover", &[], |_, _| {});
    for kill_at in (0..calls).step_by(9) {
        put_back(&place, &kept);
        trace_verb(&place, "recover", &[], |pid, call| {
            if call >= kill_at {
                let _ = signal::kill(pid, Signal::SIGKILL);
            }
        });
        // Until it is said that it may go, nothing of it is.
        place.verb("recover", &[]).expect(1);
        let aside = ["1", "2"]
            .map(|number| place.out.join(format!(".agent-snapshot-damaged-{number}")).join(JOURNAL));
        let found = aside.iter().filter_map(|path| fs::read(path).ok()).collect::<Vec<_>>();
        assert!(found == [journal.clone()], "killed at the call {kill_at}: {:?}", place.names_in_out());
        assert!(place.snapshot().files().iter().any(|file| file.path == place.path("f")));
    }
}

#[test]
fn damaged_journal_moves_with_its_snapshot() {
    let place = Place::new();
    place.write("f", "precious\n");
    record_and_kill(&place, &[], "rm f; echo > g");
    let journal = damage(&place, b"precious\n");
    let told = place.verb("recover", &[]).expect(1);
    let path = String::from_utf8(place.path("f")).unwrap();
    assert!(told.stdout.contains(&format!("not recovered: the bytes of {path}")), "{told:?}");
    place.record("echo > h");
    assert_eq!(place.names_in_out(), ["blobs.parquet", "manifest.json"]);
    let beside = place.out.with_file_name("out-recovered-1");
    let aside = beside.join(".agent-snapshot-damaged-1");
    assert_eq!(fs::read(aside.join(JOURNAL)).unwrap(), journal);
}

#[test]
fn journal_that_cannot_be_recovered_is_refused_in_one_sentence() {
    let place = Place::new();
    let say = |run: crate::support::Run, status: i32, words: &str| {
        let run = run.expect(status);
        assert!(run.stderr.contains(words) && run.stderr.lines().count() == 1, "{run:?}");
    };
    say(place.verb("recover", &[]), 3, "No such file");
    fs::create_dir(&place.out).unwrap();
    say(place.verb("recover", &[]), 1, "no journal");
    say(place.verb("recover", &["--discard"]), 1, "no journal");
    fs::remove_dir(&place.out).unwrap();
    place.write("f", "precious\n");
    record_and_kill(&place, &[], "rm f");
    say(place.verb("show", &[]), 3, "agent-snapshot recover ");
    let whole = fs::read(place.out.join(JOURNAL)).unwrap();
    for (text, words) in [("agent-snapshot journal 9\n", "version 9"), ("something\n", "is none")] {
        fs::write(place.out.join(JOURNAL), text).unwrap();
        say(place.verb("recover", &[]), 3, words);
        say(place.record_with(&[], "true").into(), 125, words);
    }
    fs::write(place.out.join(JOURNAL), &whole).unwrap();
    if needs_root("a journal of another user") {
        std::os::unix::fs::chown(place.out.join(JOURNAL), Some(1), None).unwrap();
        say(place.verb("recover", &[]), 125, "is user 1's");
        std::os::unix::fs::chown(place.out.join(JOURNAL), Some(0), None).unwrap();
    }
    place.verb("recover", &[]).expect(0);
    assert_eq!(bytes(&place.snapshot(), place.file(&place.snapshot(), "f"), true), b"precious\n");
}

#[test]
fn journal_of_a_living_recorder_is_left_alone() {
    let place = Place::new();
    place.write("f", "precious\n");
    let mut child = record_and_stay(&place, &[], "rm f");
    let front = child.id();
    for flags in [&[][..], &["--discard"]] {
        let run = place.verb("recover", flags).expect(125);
        assert!(run.stderr.contains(&format!("is being recorded by process {front}")), "{run:?}");
    }
    // The recorder survives its front, and commits.
    kill(front.cast_signed());
    wait(&mut child);
    let run = place.verb("recover", &[]).expect(0);
    assert!(run.stderr.contains("nothing to recover"), "{run:?}");
    assert_eq!(bytes(&place.snapshot(), place.file(&place.snapshot(), "f"), true), b"precious\n");
}

#[test]
fn second_recovery_waits_for_the_first() {
    let place = Place::new();
    place.write("f", "precious\n");
    record_and_kill(&place, &[], "rm f");
    let lock = fs::File::open(&place.out).unwrap();
    let lock = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive).unwrap();
    let mut command = place.command();
    let mut second = command.arg("recover").arg(&place.out).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(second.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("waiting for another process that recovers"), "{said}");
    drop(lock);
    assert!(wait(&mut second).success());
    assert_eq!(bytes(&place.snapshot(), place.file(&place.snapshot(), "f"), true), b"precious\n");
}

#[test]
fn discarding_removes_the_journal_and_nothing_else() {
    let place = Place::new();
    place.write("large", noise(1, 3_000_000));
    let older = place.record("echo x > f").header().id.clone();
    let mut child = record_and_stay(&place, &[], "printf x | dd of=large conv=notrunc 2> /dev/null");
    kill_all(&mut child);
    place.verb("recover", &["--discard"]).expect(0);
    assert_eq!(place.names_in_out(), ["blobs.parquet", "manifest.json"]);
    assert_eq!(place.snapshot().header().id, older);
}

#[test]
fn git_shows_nothing_of_a_recording_that_runs() {
    let place = Place::new();
    place.prepare("git init -q");
    let seen =
        place.command().args(["--snapshot-dir", "out", "--", "git", "status", "--short"]).output().unwrap();
    assert_eq!((seen.status.success(), seen.stdout), (true, Vec::new()));
    assert!(!place.at("out/.gitignore").exists() && place.at("out/manifest.json").exists());
}

#[test]
fn command_that_is_not_executed_leaves_no_journal() {
    let place = Place::new();
    place.write("script", "#!/no/interpreter\n");
    place.prepare("chmod +x script");
    assert_eq!(place.recording().arg(place.at("script")).status().unwrap().code(), Some(127));
    assert!(!place.out.exists());
}

#[test]
fn full_disk_leaves_the_journal() {
    if !crate::support::can_mount() {
        return;
    }
    let place = Place::new();
    place.write("large", noise(1, 6_000_000));
    record_and_kill(&place, &[], "rm large");
    let script = r#"
        cp -a "$1/out" "$1/kept"; mount -t tmpfs -o size=10m none "$1/out"; cp -a "$1/kept/." "$1/out/"
        "$2" recover "$1/out"; echo $?; ls -A "$1/out"
        mount -o remount,size=64m "$1/out"; "$2" recover "$1/out" && "$2" cat "$1/out" "$1/work/large" --before | cmp - "$1/copy" && echo same
    "#;
    fs::write(place.base().join("copy"), noise(1, 6_000_000)).unwrap();
    let run = place.run_unshared(script);
    assert!(run.stdout.starts_with("125\n") && run.stdout.contains(JOURNAL), "{run:?}");
    assert!(run.stdout.contains("same"), "{run:?}");
    assert!(run.stderr.contains("No space left on device"), "{run:?}");
}

#[test]
fn small_files_are_in_the_journal_for_as_long_as_there_is_room() {
    let place = Place::new();
    let Some(_small) = SmallFilesystem::at(&place.out, "size=12m,mode=700") else { return };
    place.write("small", "precious\n");
    let mut child = record_and_stay(&place, &[], "rm small");
    kill_all(&mut child);
    place.verb("recover", &[]).expect(0);
    let snapshot = place.snapshot();
    assert_eq!(bytes(&snapshot, place.file(&snapshot, "small"), true), b"precious\n");
}

#[test]
fn bytes_for_which_the_journal_had_no_room_are_named() {
    let place = Place::new();
    let Some(_small) = SmallFilesystem::at(&place.out, "size=1m,mode=700") else { return };
    for i in 0..30 {
        place.write(&format!("f{i:02}"), noise(i, 60_000));
    }
    let mut child = record_and_stay(&place, &[], "rm f*");
    kill_all(&mut child);
    let larger = ["-o", "remount,size=64m"];
    assert!(Command::new("mount").args(larger).arg(&place.out).status().unwrap().success());
    let run = place.verb("recover", &[]).expect(1);
    let snapshot = place.snapshot();
    let mut missing = 0;
    for i in 0..30 {
        let name = format!("f{i:02}");
        let record = place.file(&snapshot, &name);
        if run.stdout.contains(&format!("the bytes of {}, which found no space", place.at(&name).display())) {
            missing += 1;
        } else {
            assert_eq!(bytes(&snapshot, record, true), noise(i, 60_000), "{name}");
        }
    }
    assert!((1..30).contains(&missing), "{run:?}");
    assert!(!snapshot.header().complete);
}

#[test]
fn recovered_snapshot_is_moved_out_of_the_way_of_the_next_recording() {
    let place = Place::new();
    place.write("f", "precious\n");
    record_and_kill(&place, &[], "rm f");
    place.verb("recover", &[]).expect(0);
    let output = place.record_with(&[], "echo next > g");
    let said = String::from_utf8(output.stderr).unwrap();
    let aside = place.base().join("out-recovered-1");
    assert!(said.contains(&format!("it is in {} now", aside.display())), "{said}");
    open_with_precious_file(&place, &aside);
    assert!(place.snapshot().find(&place.path("g")).is_some());
    // One that was not recovered is replaced, as ever.
    assert!(place.record_with(&[], "true").status.success());
    assert!(!place.base().join("out-recovered-2").exists());
}

#[test]
fn recoveries_at_once_wait_for_each_other() {
    let place = Place::new();
    place.write("f", "precious\n");
    record_and_kill(&place, &[], "rm f");
    let kept = keep(&place);
    for _ in 0..10 {
        put_back(&place, &kept);
        let recover = || {
            let mut command = place.command();
            command.arg("recover").arg(&place.out).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let children: Vec<_> = (0..4).map(|_| recover()).collect();
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
        }
        let snapshot = place.snapshot();
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "f"), true), b"precious\n");
    }
}

#[test]
fn fifo_in_the_place_of_a_journal_is_not_opened() {
    let place = Place::new();
    fs::create_dir(&place.out).unwrap();
    place.prepare(&format!("mkfifo {}", place.out.join(JOURNAL).display()));
    place.verb("show", &[]).expect(3);
    assert_eq!(place.record_with(&[], "true").status.code(), Some(125));
}

#[test]
fn front_recovers_into_a_directory_that_the_command_had_removed() {
    for large in [false, true] {
        let place = Place::new();
        place.write("small", "precious\n");
        place.write("large", noise(1, 3_000_000));
        let what = if large { "small large" } else { "small" };
        let mut child = record_and_stay(&place, &[], &format!("rm {what}; rm -rf ../out"));
        let front = child.id().cast_signed();
        kill(command_of(front).and_then(tracer_of).unwrap());
        assert_eq!(wait(&mut child).code(), Some(125));
        let snapshot = place.snapshot();
        assert_eq!(bytes(&snapshot, place.file(&snapshot, "small"), true), b"precious\n");
        if large {
            assert_eq!(bytes(&snapshot, place.file(&snapshot, "large"), true), noise(1, 3_000_000));
        }
        assert_eq!(place.names_in_out(), ["blobs.parquet", "manifest.json"]);
    }
}
