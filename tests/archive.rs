//! `export` and `import`: an archive has all of a snapshot but secrets, and is refused unless it is as we write it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use agent_snapshot::snapshot::Snapshot;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::RowAccessor as _;
use serde_json::{Value, json};
use tar::{EntryType, Header};

use crate::support::*;

const NAMES: [&str; 3] = ["a.tar", "a.tar.gz", "a.tar.zst"];

/// A snapshot in which a secret was read, changed, copied and renamed, and other files were changed.
fn prepared() -> Place {
    let place = Place::new();
    place.write("edited", "old\n");
    place.write(".env", "TOKEN=planted-old");
    place.write("key.pem", "-----BEGIN PRIVATE KEY-----\nplanted-key\n");
    place.write("cert.pem", "-----BEGIN CERTIFICATE-----\nno-secret\n");
    place.write(&format!("deep/{0}/{0}/file", "long".repeat(40)), "long\n");
    place.make_bundle(|| {
        place.write("edited", "new\n");
        place.write(&format!("deep/{0}/{0}/file", "long".repeat(40)), "longer\n");
        place.write("copy", "TOKEN=planted-old");
        place.write(".env", "TOKEN=planted-new");
        place.write("cert.pem", "no-secret-either");
        symlink("edited", place.at("link")).unwrap();
        symlink("/nowhere/".repeat(20), place.at("long-link")).unwrap();
        fs::rename(place.at("key.pem"), place.at("key.txt")).unwrap();
    });
    edit(&place.out, |manifest| {
        manifest["command"] = json!(["sh", "-c", "X_TOKEN=planted-word run --password planted-option"]);
        let argv = json!(["run", "--api-key=planted-argument"]);
        manifest["processes"] = json!([{"id": 1, "pid": 2, "exe": "/bin/run", "argv": argv, "cwd": "/"}]);
        manifest["id"] = json!("abcdefghijklmnopqrstuvwxyz");
    });
    place
}

fn edit(snapshot: &Path, change: impl FnOnce(&mut Value)) {
    let path = snapshot.join("manifest.json");
    let mut manifest = json(&path);
    change(&mut manifest);
    fs::write(path, serde_json::to_vec(&manifest).unwrap()).unwrap();
}

fn export_run(place: &Place, file: impl AsRef<OsStr>, options: &[&str]) -> Run {
    let line = ["export".as_ref(), place.out.as_os_str(), file.as_ref()];
    place.run(line.into_iter().chain(options.iter().map(AsRef::as_ref)))
}

fn export(place: &Place, name: &str, options: &[&str]) -> PathBuf {
    let file = place.base().join(name);
    export_run(place, &file, options).expect(0);
    file
}

fn import(place: &Place, file: &Path, options: &[&OsStr]) -> Run {
    place.run(["import".as_ref(), file.as_os_str()].into_iter().chain(options.iter().copied()))
}

fn unpacked(archive: &Path) -> Vec<u8> {
    let mut file = fs::File::open(archive).unwrap();
    let mut bytes = Vec::new();
    match archive.extension().unwrap().to_str().unwrap() {
        "gz" => flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap(),
        "zst" => zstd::Decoder::new(file).unwrap().read_to_end(&mut bytes).unwrap(),
        _ => file.read_to_end(&mut bytes).unwrap(),
    };
    bytes
}

/// The files of an archive.
fn members(archive: &Path) -> BTreeMap<String, Vec<u8>> {
    let bytes = unpacked(archive);
    let mut tar = tar::Archive::new(bytes.as_slice());
    let read = |entry: std::io::Result<tar::Entry<&[u8]>>| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        (entry.path().unwrap().display().to_string(), content)
    };
    tar.entries().unwrap().map(read).collect()
}

/// All bytes of all rows of a file of blobs, of those that no record names, too.
fn rows(blobs: &[u8]) -> Vec<u8> {
    let reader = SerializedFileReader::new(bytes::Bytes::copy_from_slice(blobs)).unwrap();
    let rows = reader.get_row_iter(None).unwrap();
    rows.flat_map(|row| {
        let row = row.unwrap();
        [row.get_string(0).unwrap().as_bytes(), row.get_bytes(2).unwrap().data()].concat()
    })
    .collect()
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn library(place: &Place) -> PathBuf {
    place.home.join(".local")
}

#[test]
fn every_verb_reads_what_came_through_an_archive() {
    for (name, options) in
        NAMES.iter().zip([&["--no-redact"][..], &["--no-redact"], &["--no-redact", "--expand"]])
    {
        let place = prepared();
        let archive = export(&place, name, options);
        let imported = place.base().join("imported");
        import(&place, &archive, &[imported.as_os_str()]).expect(0);
        assert_eq!(names_in(&imported), ["blobs.parquet", "manifest.json"]);
        let without_mark = |snapshot: &Path| {
            let mut manifest = json(&snapshot.join("manifest.json"));
            let mark = manifest.as_object_mut().unwrap().remove("imported");
            (manifest, mark)
        };
        assert_eq!(without_mark(&imported), (without_mark(&place.out).0, Some(json!(true))), "{name}");
        let env = place.at(".env");
        for (verb, flags) in [
            ("diff", &["--root"][..]),
            ("verify", &[]),
            ("check", &[]),
            ("report", &["--markdown"]),
            ("cat", &[env.to_str().unwrap(), "--before"]),
        ] {
            let [was, is] = [&place.out, &imported].map(|snapshot| place.verb_on(verb, snapshot, flags));
            assert_eq!((was.status, was.stdout), (is.status, is.stdout), "{name}: {verb}: {}", is.stderr);
        }
        let shown = place.verb_on("show", &imported, &[]).expect(0).stdout;
        assert!(shown.contains(", imported"), "{shown}");
        place.verb_on("attest", &imported, &["--allow-incomplete"]).expect(0);
        let run = place.verb_on("restore", &imported, &["--before"]).expect(3);
        assert!(run.stderr.contains("was imported: restore it in place with --foreign"), "{run:#?}");
        place.verb_on("restore", &imported, &["--before", "--foreign"]).expect(0);
        assert_eq!(fs::read(&env).unwrap(), b"TOKEN=planted-old");
        let tree = place.base().join("tree");
        place.run(["branch".as_ref(), imported.as_os_str(), tree.as_os_str()]).expect(0);
        let built = tree.join(place.at("edited").strip_prefix("/").unwrap());
        assert_eq!(fs::read(built).unwrap(), b"new\n");
    }
}

#[test]
fn an_archive_is_imported_into_the_library_once_and_never_undone() {
    let place = prepared();
    let archive = export(&place, "a.tar.zst", &["--no-redact"]);
    let run = import(&place, &archive, &[]).expect(0);
    assert_eq!(run.stdout, "imported abcdefgh (agent-snapshot show abcdefgh)\n");
    assert!(import(&place, &archive, &[]).expect(1).stderr.contains("abcdefgh is in the library already"));
    assert!(place.run(["log", "--all"]).expect(0).stdout.contains("(imported)"));
    for verb in ["show", "verify", "diff"] {
        place.run([verb, "abcdefgh"]).expect(0);
    }
    assert_eq!(place.run(["fsck"]).expect(0).stderr, "");
    place.run(["undo", "--all"]).expect(1);
    assert!(place.run(["undo", "abcdefgh"]).expect(1).stderr.contains("abcdefgh was imported"));
    assert_eq!(fs::read(place.at("edited")).unwrap(), b"new\n");
    place.run(["delete", "abcdefgh"]).expect(0);
    // What an import that was killed leaves is in nobody's way.
    fs::create_dir(library(&place).join("state/agent-snapshot/snapshots/abcdefgh")).unwrap();
    import(&place, &archive, &[]).expect(0);
}

#[test]
fn the_same_snapshot_gives_the_same_bytes() {
    let place = prepared();
    for name in NAMES {
        for options in [&["--force"][..], &["--force", "--no-redact", "--expand"]] {
            let first = fs::read(export(&place, name, options)).unwrap();
            let archive = export(&place, name, options);
            assert!(fs::read(&archive).unwrap() == first, "{name}");
            assert_eq!(fs::metadata(&archive).unwrap().mode() & 0o7777, 0o600);
            let imported = place.base().join("imported");
            import(&place, &archive, &[imported.as_os_str()]).expect(0);
            let again = place.base().join(format!("again-{name}"));
            let line = ["export".as_ref(), imported.as_os_str(), again.as_os_str()];
            place.run(line.into_iter().chain(options.iter().map(AsRef::as_ref))).expect(0);
            assert!(fs::read(&again).unwrap() == first, "{name} exported again");
            fs::remove_dir_all(&imported).unwrap();
        }
    }
    let run =
        place.command().args(["export".as_ref(), place.out.as_os_str(), "-".as_ref()]).output().unwrap();
    assert!(run.stdout == fs::read(export(&place, "b.tar", &[])).unwrap());
}

/// Thirty secrets, each with where it is; a script that uses them, and its variables.
#[allow(clippy::type_complexity, reason = "one use")]
fn plant(place: &Place) -> (Vec<(String, &'static str)>, String, Vec<(&'static str, String)>) {
    let mut planted = Vec::new();
    let mut secret = |place: &'static str| {
        planted.push((format!("pl4nted-{:02}-secret", planted.len()), place));
        planted.last().unwrap().0.clone()
    };
    for name in ["read/.env", "read/.npmrc", "read/.netrc", "read/.ssh/id_rsa", "read/.aws/credentials"] {
        place.write(name, secret("a file that is read"));
    }
    for name in ["read/.pypirc", "read/.docker/config.json", "read/gh/hosts.yml", "read/.kube/config"] {
        place.write(name, format!("x{}", secret("a file that is read")));
    }
    place.write("read/key.pem", format!("-----BEGIN RSA PRIVATE KEY-----\n{}", secret("a key that is read")));
    for name in ["changed/.env.local", "changed/.git-credentials", "changed/.config/gcloud/adc.json"] {
        place.write(name, secret("a file before its change"));
    }
    place.write("changed/.npmrc", secret("a file that is removed"));
    place.write("renamed/.env", secret("a file that is renamed"));
    place.write("linked/.netrc", secret("a file with a hard link"));
    fs::hard_link(place.at("linked/.netrc"), place.at("linked/notes")).unwrap();
    place.write("pointed/.env", secret("a file behind a symlink"));
    symlink(".env", place.at("pointed/settings")).unwrap();
    // The command line of the recording itself has no secret: the shell puts them in.
    let script = "cat $(find read -type f) linked/notes pointed/settings >/dev/null
         cp read/.netrc copied-without-a-change
         for file in $(find changed -type f); do cp $file saved; echo $ADDED >> $file; done; rm changed/.npmrc saved
         cp linked/.netrc copied; echo more >> linked/notes
         mv renamed/.env renamed/plain
         echo $NEW > new.env; mv new.env .env
         printf -- '-----BEGIN PRIVATE KEY-----\\n%s' $KEY > new.pem
         ln -s https://me:$SYMLINK@host.invalid/ url
         ln -s -- --token=$OPTION_LINK option
         env API_TOKEN=$ASSIGNMENT true; sh -c \"/bin/true --password $NESTED\"; /bin/true --api-key=$OPTION
         /bin/true https://me:$URL@host.invalid/; env DB_PASSWORD=\"$QUOTED\" sh -c \"exec /bin/true --secret $EXEC\"
         /bin/true -H \"Authorization: Bearer $HEADER\"; /bin/true --token $WORD"
        .to_owned();
    let names = ["ADDED", "NEW", "KEY", "SYMLINK", "OPTION_LINK", "ASSIGNMENT", "NESTED", "OPTION", "URL"];
    let names = names.into_iter().chain(["QUOTED", "EXEC", "HEADER", "WORD"]);
    let variables = names.map(|name| (name, secret(name))).collect();
    (planted, script, variables)
}

/// All bytes of an archive: as it is, unpacked, and those of its rows.
fn all_bytes(archive: &Path) -> Vec<u8> {
    let raw = fs::read(archive).unwrap();
    // Perhaps all contents are withheld.
    let rows = members(archive).get("blobs.parquet").map(|blobs| rows(blobs)).unwrap_or_default();
    [raw, unpacked(archive), rows].concat()
}

#[test]
fn no_byte_of_an_archive_has_a_secret() {
    // Also if nothing was withheld from the recording.
    for options in [&["--no-redact"][..], &[]] {
        let place = Place::new();
        let (planted, script, variables) = plant(&place);
        assert_eq!(planted.len(), 30);
        let mut recording = place.recording();
        let output = recording.args(options).args(["sh", "-euc", &script]).envs(variables).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let with_all = all_bytes(&export(&place, "all.tar", &["--no-redact"]));
        for (secret, of) in planted.iter().filter(|_| !options.is_empty()) {
            assert!(contains(&with_all, secret), "{of} was not planted: {secret}");
        }
        for name in NAMES {
            let archive = export(&place, name, &["--expand"]);
            let bytes = all_bytes(&archive);
            for (secret, of) in &planted {
                assert!(!contains(&bytes, secret), "{name}, {options:?}: has {of}: {secret}");
            }
            let imported = place.base().join("imported");
            import(&place, &archive, &[imported.as_os_str()]).expect(0);
            let snapshot = Snapshot::open(&imported).unwrap();
            let states = snapshot.files().iter().flat_map(|record| [&record.before, &record.after]);
            for present in states.filter_map(|state| state.present()) {
                if present.blob_omitted.is_some() {
                    assert_eq!((&present.digest, &present.blob), (&None, &None));
                }
            }
            fs::remove_dir_all(imported).unwrap();
        }
    }
}

#[test]
fn what_is_withheld_is_named() {
    let place = prepared();
    let run = export_run(&place, "-", &[]).expect(0);
    for withheld in [".env", "copy", "key.pem", "key.txt"] {
        assert!(run.stderr.contains(place.at(withheld).to_str().unwrap()), "{run:#?}");
    }
    assert!(
        !run.stderr.contains("cert.pem") && run.stderr.contains("values in command lines were masked"),
        "{run:#?}"
    );
    let run = export_run(&place, "a.tar", &["--json"]).expect(0);
    let told: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(told["withheld"].as_array().unwrap().len(), 4, "{told}");
    assert_eq!((&told["masked"], &told["file"]), (&json!(true), &json!("a.tar")));
    let manifest = members(&place.home.join("a.tar"))["manifest.json"].clone();
    let manifest = String::from_utf8(manifest).unwrap();
    assert!(manifest.contains(r#""--api-key=<REDACTED>"],"redacted":true"#), "{manifest}");
}

#[test]
fn what_was_withheld_can_be_provided() {
    let place = prepared();
    let archive = export(&place, "a.tar", &[]);
    let imported = place.base().join("imported");
    import(&place, &archive, &[imported.as_os_str()]).expect(0);
    let old = place.base().join("old=env");
    fs::write(&old, "TOKEN=planted-old").unwrap();
    let key = place.base().join("key");
    fs::write(&key, "-----BEGIN PRIVATE KEY-----\nplanted-key\n").unwrap();
    let restore = |provided: &[String]| {
        let options = ["--before", "--foreign", "--force"].map(str::to_owned);
        let options =
            options.into_iter().chain(provided.iter().flat_map(|one| ["--provide".to_owned(), one.clone()]));
        place.run(["restore".to_owned(), imported.display().to_string()].into_iter().chain(options))
    };
    let given = |name: &str, file: &Path| format!("{}={}", place.at(name).display(), file.display());
    let run = restore(&[]).expect(1);
    let lines: Vec<_> = run.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{run:#?}");
    assert!(lines[0].contains("content is unavailable (--provide PATH=FILE gives it)"), "{run:#?}");
    assert!(lines[1].contains("/.env: it was withheld") && lines[2].contains("/key.pem: it was withheld"));
    assert!(restore(&[given(".env", &old)]).expect(1).stderr.contains("/key.pem"));

    for (provided, why) in [
        (given(".env", &key), "it had 17 bytes before the command, not 40"),
        (given("edited", &old), "it had 4 bytes before the command, not 17"),
        (given("copy", &old), "nothing was there before the command"),
        (given("nothing", &old), "no record of that path"),
        (given(".env", Path::new("/nowhere")), "No such file"),
        (given(".env", Path::new("/")), "not a regular file"),
        ("words".to_owned(), "it must be PATH=FILE"),
    ] {
        let run = restore(&[provided]).expect(2);
        assert!(run.stderr.contains(why) && run.stderr.lines().count() == 1, "{run:#?}");
    }
    let same_length = place.base().join("same");
    fs::write(&same_length, "odd\n").unwrap();
    let run = restore(&[given("edited", &same_length)]).expect(2);
    assert!(run.stderr.contains("it was sha256:"), "{run:#?}");
    assert_eq!(fs::read(place.at(".env")).unwrap(), b"TOKEN=planted-new");

    restore(&[given(".env", &old), given("key.pem", &key)]).expect(0);
    assert_eq!(fs::read(place.at(".env")).unwrap(), b"TOKEN=planted-old");
    assert_eq!(fs::read(place.at("key.pem")).unwrap(), fs::read(&key).unwrap());
    assert_eq!(fs::read(place.at("edited")).unwrap(), b"old\n");
}

#[test]
fn an_undo_takes_what_is_provided() {
    let place = Place::new();
    place.write("large", "0123456789");
    place.command().args(["run", "--quiet", "--max-blob-bytes", "4", "rm", "large"]).output().unwrap();
    let undo =
        |options: &[&str]| -> Run { place.command().args(["undo"]).args(options).output().unwrap().into() };
    let run = undo(&[]).expect(1);
    assert!(run.stderr.contains("--provide PATH=FILE"), "{run:#?}");
    let backup = place.base().join("backup");
    fs::write(&backup, "0123456789").unwrap();
    undo(&["--provide", &format!("large={}", backup.display())]).expect(0);
    assert_eq!(fs::read(place.at("large")).unwrap(), b"0123456789");
}

#[test]
fn an_expanded_archive_is_a_tree_for_tar() {
    if !has("tar") {
        return;
    }
    let place = prepared();
    let archive = export(&place, "a.tar.gz", &["--expand", "--no-redact"]);
    let there = place.base().join("there");
    fs::create_dir(&there).unwrap();
    let tar = Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&there).output().unwrap();
    assert!(tar.status.success() && tar.stderr.is_empty(), "{tar:?}");
    let inside = |side: &str, name: &str| {
        there.join("files").join(side).join(place.at(name).strip_prefix("/").unwrap())
    };
    let long = format!("deep/{0}/{0}/file", "long".repeat(40));
    for (side, name, content) in [
        ("before", "edited", "old\n"),
        ("after", "edited", "new\n"),
        ("before", ".env", "TOKEN=planted-old"),
        ("after", ".env", "TOKEN=planted-new"),
        ("before", long.as_str(), "long\n"),
        ("after", long.as_str(), "longer\n"),
    ] {
        assert_eq!(fs::read_to_string(inside(side, name)).unwrap(), content, "{side} {name}");
    }
    assert_eq!(fs::read_link(inside("after", "link")).unwrap(), Path::new("edited"));
    assert_eq!(fs::read_link(inside("after", "long-link")).unwrap().as_os_str().len(), 180);
    assert!(!inside("before", "copy").exists() && !inside("after", "key.pem").exists());
    // The bundle beside it is one.
    fs::remove_dir_all(there.join("files")).unwrap();
    place.verb_on("verify", &there, &[]).expect(0);
}

#[test]
fn bad_input_is_one_sentence_and_nothing_is_written() {
    let place = prepared();
    let archive = export(&place, "a.tar", &[]);
    let directory = place.base().join("full");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("x"), "x").unwrap();
    let link = place.base().join("link.tar");
    symlink(&archive, &link).unwrap();
    let before = (fs::read(&archive).unwrap(), names_in(place.base()));
    let [out, file, full, link] =
        [&place.out, &archive, &directory, &link].map(|path| path.to_str().unwrap().to_owned());
    let zeros = "0".repeat(64);
    for (line, status, why) in [
        (vec!["export", &out, &file], 2, "exists: --force replaces it"),
        (vec!["export", &out, &link, "--force"], 2, "is not a regular file"),
        (vec!["export", &out, "x.zip"], 2, "ends in none of .tar, .tar.gz and .tar.zst"),
        (vec!["export", &out, "/nowhere/x.tar"], 125, "write /nowhere/x.tar: No such file"),
        (vec!["export", &out, "-", "--json"], 2, "--json is about a file"),
        (vec!["export", &full, "x.tar"], 3, "holds no manifest.json"),
        (vec!["export", "nothing", "x.tar"], 3, "nothing"),
        (vec!["import", "/nowhere"], 3, "open /nowhere: No such file"),
        (vec!["import", &full], 2, "is a directory, not an archive"),
        (vec!["import", &file, &full], 2, "is not empty: name a new or an empty directory"),
        (vec!["import", &file, &file], 2, "is not a directory"),
        (vec!["import", &file, "--sha256", "abc"], 2, "is not 64 hexadecimal digits"),
        (vec!["import", &file, "--sha256", &zeros], 3, "is not the expected archive: its digest is sha256:"),
        (vec!["import", &file, "new", "--sha256", &zeros], 3, "is not the expected archive"),
    ] {
        let run = place.run(&line);
        assert_eq!(run.status, status, "{line:?}: {run:#?}");
        assert!(run.stderr.contains(why) && run.stderr.lines().count() == 1, "{line:?}: {run:#?}");
        assert!(run.stdout.is_empty(), "{line:?}: {run:#?}");
        assert!(!library(&place).exists() && !place.home.join("new").exists(), "{line:?}");
        assert!(names_in(&place.home).is_empty(), "{line:?}: {:?}", names_in(&place.home));
    }
    let run = place.run(["export", &out, "x.tar", "--compress", "xz"]).expect(2);
    assert!(run.stderr.contains("none, gz, zst"), "{run:#?}");
    assert_eq!((fs::read(&archive).unwrap(), names_in(place.base())), before);
    let digest = place.run(["export", &out, "x.tar"]).expect(0).stdout;
    let digest = digest.trim().rsplit_once("sha256:").unwrap().1.to_owned();
    place.run(["import", "x.tar", "new", "--sha256", &digest.to_uppercase()]).expect(0);
}

#[test]
fn only_what_has_ended_is_exported_and_only_a_recording_goes_into_the_library() {
    let place = prepared();
    let archive = export(&place, "a.tar", &[]);
    let bytes = fs::read(&archive).unwrap();
    edit(&place.out, |manifest| manifest["running"] = json!(true));
    let run = export_run(&place, "b.tar", &[]).expect(1);
    assert!(run.stderr.contains("is still being recorded") && !place.home.join("b.tar").exists(), "{run:#?}");
    edit(&place.out, |manifest| {
        manifest.as_object_mut().unwrap().remove("running");
        manifest["kind"] = json!("rescue");
    });
    let rescue = export(&place, "rescue.tar", &[]);
    let run = import(&place, &rescue, &[]).expect(2);
    assert!(
        run.stderr.contains("has a rescue: name a directory for it") && !library(&place).exists(),
        "{run:#?}"
    );
    import(&place, &rescue, &[place.base().join("rescue").as_os_str()]).expect(0);
    edit(&place.out, |manifest| {
        manifest["kind"] = json!("recording");
        manifest["recovered"] = json!(true);
    });
    let recovered = export(&place, "recovered.tar", &[]);
    import(&place, &recovered, &[]).expect(0);
    assert!(place.run(["log", "--all"]).expect(0).stdout.contains("imported"));

    let mut child = place.command();
    let directory = place.base().join("piped");
    child.args(["import".as_ref(), "-".as_ref(), directory.as_os_str()]).stdin(Stdio::piped());
    let mut child = child.stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(child.wait().unwrap().success() && directory.join("manifest.json").exists());
}

#[test]
fn a_full_disk_leaves_nothing() {
    let place = Place::new();
    let small = place.base().join("small");
    let Some(_mounted) = SmallFilesystem::at(&small, "size=3m") else { return };
    let mut random = Random::new(7);
    let noise: Vec<u8> = (0..8 << 20).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
    place.write("noise", "");
    place.make_bundle(|| place.write("noise", &noise));
    let file = small.join("a.tar");
    let run = export_run(&place, &file, &[]).expect(125);
    assert!(run.stderr.contains("a.tar: No space left") && run.stderr.lines().count() == 1, "{run:#?}");
    assert!(names_in(&small).is_empty());
    let archive = export(&place, "a.tar", &[]);
    let run = import(&place, &archive, &[small.join("new").as_os_str()]).expect(125);
    assert!(run.stderr.contains("write to") && run.stderr.lines().count() == 1, "{run:#?}");
    assert!(names_in(&small).is_empty());
}

/// A header for an entry.
fn header(name: &str, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_size(size);
    header.set_mode(0o600);
    header.set_entry_type(EntryType::Regular);
    header.set_cksum();
    header
}

fn entry(header: &Header, content: &[u8]) -> Vec<u8> {
    let mut bytes = [header.as_bytes(), content].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn of_type(name: &str, entry_type: EntryType) -> Vec<u8> {
    let mut header = header(name, 0);
    header.set_entry_type(entry_type);
    header.set_cksum();
    entry(&header, b"")
}

fn with_header(name: &str, content: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut header = header(name, content.len() as u64);
    change(&mut header);
    header.set_cksum();
    entry(&header, content)
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zst(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// The entries of a tar without its end, each with its header.
fn entries(tar: &[u8]) -> Vec<Vec<u8>> {
    let (mut entries, mut at) = (Vec::new(), 0);
    while tar[at..at + 512] != [0; 512] {
        let size =
            usize::try_from(Header::from_byte_slice(&tar[at..at + 512]).entry_size().unwrap()).unwrap();
        let end = at + 512 + size.next_multiple_of(512);
        entries.push(tar[at..end].to_vec());
        at = end;
    }
    entries
}

/// Changes the header of an entry.
fn rewritten(entry: &[u8], change: impl FnOnce(&mut Header)) -> Vec<u8> {
    let mut header = Header::from_byte_slice(&entry[..512]).clone();
    change(&mut header);
    header.set_cksum();
    [header.as_bytes(), &entry[512..]].concat()
}

/// Archives with a tree that is not as `export` writes it, and what is said of each.
fn hostile_trees(expanded: &[u8]) -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let parts = entries(expanded);
    let of = |entry: &[u8]| Header::from_byte_slice(&entry[..512]).clone();
    let number =
        |wanted: &dyn Fn(&Header) -> bool| parts.iter().position(|entry| wanted(&of(entry))).unwrap();
    let is_in_tree = |header: &Header| header.path_bytes().starts_with(b"files/");
    let file =
        number(&|header| is_in_tree(header) && header.entry_type().is_file() && header.size().unwrap() > 0);
    let symlink = number(&|header| is_in_tree(header) && header.entry_type().is_symlink());
    let long = number(&|header| header.entry_type().is_gnu_longname());
    let with = |at: usize, entry: Vec<u8>| {
        let mut parts = parts.clone();
        parts[at] = entry;
        [parts.concat(), vec![0; 1024]].concat()
    };
    let before = |at: usize, entry: Vec<u8>| with(at, [entry, parts[at].clone()].concat());
    let named = |at: usize, name: &[u8]| {
        with(
            at,
            rewritten(&parts[at], |header| {
                let field = &mut header.as_old_mut().name;
                field.fill(0);
                field[..name.len()].copy_from_slice(name);
            }),
        )
    };
    let long_name = |text: &[u8]| {
        with_header("././@LongLink", text, |header| header.set_entry_type(EntryType::GNULongName))
    };
    let mut changed = parts[file].clone();
    changed[512] ^= 1;
    vec![
        ("a file of the tree twice", before(file, parts[file].clone()), "or not in its place"),
        ("a file of the tree too early", before(1, parts[file].clone()), "is missing"),
        ("another content", with(file, changed), "another content"),
        ("a file of no record", named(file, b"files/after/etc/shadow"), "no part of the snapshot"),
        ("a file of neither state", named(file, b"files/x"), "no part of the snapshot"),
        ("a file that leads out of the tree", named(file, b"files/after/../../x"), "leads out"),
        (
            "a directory for a file",
            with(
                file,
                rewritten(&parts[file][..512], |header| {
                    header.set_entry_type(EntryType::Directory);
                    header.set_size(0);
                }),
            ),
            "another type",
        ),
        (
            "a symlink for a file",
            with(
                file,
                rewritten(&parts[file][..512], |header| {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_size(0);
                    header.as_old_mut().linkname[0] = b'/';
                }),
            ),
            "another type",
        ),
        (
            "a hard link in the tree",
            with(
                file,
                rewritten(&parts[file][..512], |header| {
                    header.set_entry_type(EntryType::Link);
                    header.set_size(0);
                }),
            ),
            "is a link",
        ),
        (
            "a device in the tree",
            with(
                file,
                rewritten(&parts[file][..512], |header| {
                    header.set_entry_type(EntryType::Block);
                    header.set_size(0);
                }),
            ),
            "is a device",
        ),
        (
            "a file of another length",
            with(
                file,
                with_header("x", b"", |header| {
                    header.as_old_mut().name = of(&parts[file]).as_old().name;
                }),
            ),
            "another length",
        ),
        (
            "another target",
            with(
                symlink,
                rewritten(&parts[symlink], |header| {
                    header.as_old_mut().linkname[0] ^= 1;
                }),
            ),
            "another target",
        ),
        (
            "a symlink with a content",
            with(symlink, rewritten(&parts[symlink], |header| header.set_size(1))),
            "has a content",
        ),
        (
            "a long name of the manifest",
            before(0, long_name(b"manifest.json\0")),
            "begins with manifest.json",
        ),
        ("a long name of the blobs", before(1, long_name(b"blobs.parquet\0")), "twice, or not in its place"),
        ("a long name that leads out", with(long, long_name(b"../../etc/x\0")), "leads out"),
        ("a long name with a NUL", with(long, long_name(b"files/a\0b\0")), "NUL byte"),
        ("a long name without an end", with(long, long_name(b"files/after/x")), "extended header"),
        ("two long names", before(long, parts[long].clone()), "extended header"),
        ("a long name of nothing", [parts[..=long].concat(), vec![0; 1024]].concat(), "is cut off"),
        (
            "a huge long name",
            with(long, rewritten(&parts[long], |header| header.set_size(1 << 30))),
            "extended header",
        ),
        (
            "a pax header in the tree",
            before(
                file,
                with_header("files/x", b"17 path=/etc/x\n", |header| {
                    header.set_entry_type(EntryType::XHeader);
                }),
            ),
            "extended header",
        ),
        ("a tree that is cut off", parts[..=file].concat(), "is cut off"),
    ]
}

#[test]
fn hostile_archives_are_refused_and_nothing_is_written() {
    let place = prepared();
    let archive = export(&place, "a.tar", &["--no-redact"]);
    let (whole, members) = (fs::read(&archive).unwrap(), members(&archive));
    let expanded = fs::read(export(&place, "expanded.tar", &["--no-redact", "--expand"])).unwrap();
    let (manifest, blobs) = (&members["manifest.json"], &members["blobs.parquet"]);
    let own = |name: &str, content: &[u8]| entry(&header(name, content.len() as u64), content);
    let first = own("manifest.json", manifest);
    let second = own("blobs.parquet", blobs);
    let end = vec![0; 1024];
    let between = |other: Vec<u8>| [first.clone(), other, second.clone(), end.clone()].concat();
    let with_manifest = |change: &dyn Fn(&mut Value)| {
        let mut value: Value = serde_json::from_slice(manifest).unwrap();
        change(&mut value);
        [own("manifest.json", &serde_json::to_vec(&value).unwrap()), second.clone(), end.clone()].concat()
    };
    let flipped = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let pax = |record: &str| {
        with_header("././@PaxHeader", record.as_bytes(), |header| header.set_entry_type(EntryType::XHeader))
    };
    let mut huge = Header::new_gnu();
    huge.clone_from(&header("blobs.parquet", u64::MAX >> 2));
    let negative = with_header("blobs.parquet", b"", |header| header.as_old_mut().size = [0xff; 12]);
    let wide = with_header("blobs.parquet", b"", |header| {
        header.as_old_mut().size = [0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    });
    let hidden = with_header("blobs.parquet", blobs, |header| header.as_old_mut().name[20] = b'x');
    let no_number =
        with_header("blobs.parquet", blobs, |header| header.as_old_mut().size = *b"zzzzzzzzzzz\0");
    let mut broken_gz = gz(&whole);
    let at = broken_gz.len() - 6;
    broken_gz[at] ^= 1;
    let mut broken_zst = zst(&whole);
    let at = broken_zst.len() / 2;
    broken_zst[at] ^= 0xff;
    let bomb = [first.clone(), header("blobs.parquet", 1 << 36).as_bytes().to_vec()].concat();
    let zeros = [whole.clone(), vec![0; 3 << 20]].concat();
    let size = whole.len();
    let archives: Vec<(&str, Vec<u8>, &str)> = vec![
        ("nothing", vec![], "is cut off"),
        ("no tar", b"hello ".repeat(200), "wrong checksum"),
        ("only an end", end.clone(), "is empty"),
        ("cut in a header", whole[..300].to_vec(), "is cut off"),
        ("cut in the manifest", whole[..700].to_vec(), "is cut off"),
        ("cut in the blobs", whole[..size - 2048].to_vec(), "is cut off"),
        ("without an end", whole[..size - 1024].to_vec(), "is cut off"),
        ("with half an end", whole[..size - 512].to_vec(), "is cut off"),
        ("more after half an end", [first.clone(), vec![0; 512], second.clone()].concat(), "after its end"),
        ("more after the end", [whole.clone(), b"x".to_vec()].concat(), "after its end"),
        ("a second tar", [whole.clone(), whole.clone()].concat(), "after its end"),
        ("zeros after the end", zeros, "after its end"),
        ("wrong checksum", flipped(150), "wrong checksum"),
        ("a flipped bit in a name", flipped(3), "wrong checksum"),
        ("a flipped bit in the blobs", flipped(512 + manifest.len().next_multiple_of(512) + 512 + 60), ""),
        ("a second manifest", between(first.clone()), "manifest.json twice"),
        ("second blobs", between(second.clone()), "blobs.parquet twice"),
        ("blobs first", [second.clone(), first.clone(), end.clone()].concat(), "begins with blobs.parquet"),
        ("without blobs", [first.clone(), end.clone()].concat(), "is missing"),
        ("empty blobs", between(own("blobs.parquet", b""))[..].to_vec(), "twice"),
        ("an unknown name", between(own("README", b"x")), "no part of the snapshot"),
        ("a name in a directory", between(own("x/manifest.json", b"x")), "no part of the snapshot"),
        ("a name with a dot", between(own("./manifest.json", b"x")), "no part of the snapshot"),
        ("absolute", between(own("/etc/passwd", b"x")), "absolute"),
        ("above", between(own("../x", b"x")), "leads out"),
        ("above in the middle", between(own("x/../../y", b"x")), "leads out"),
        ("an empty name", between(own("", b"x")), "no part of the snapshot"),
        ("a hidden name", [first.clone(), hidden, end.clone()].concat(), "NUL byte"),
        ("a symlink", between(of_type("blobs.parquet", EntryType::Symlink)), "is a link"),
        ("a hard link", between(of_type("blobs.parquet", EntryType::Link)), "is a link"),
        ("a device", between(of_type("blobs.parquet", EntryType::Char)), "is a device"),
        ("a block device", between(of_type("blobs.parquet", EntryType::Block)), "is a device"),
        ("a fifo", between(of_type("blobs.parquet", EntryType::Fifo)), "is a device or a pipe"),
        ("a directory", between(of_type("blobs.parquet", EntryType::Directory)), "is a directory"),
        ("sparse", between(of_type("blobs.parquet", EntryType::GNUSparse)), "is a sparse file"),
        ("an unknown type", between(of_type("blobs.parquet", EntryType::new(b'Z'))), "unknown type"),
        ("a pax path", between(pax("17 path=/etc/x\n")), "extended header"),
        ("a pax size", between(pax("10 size=9\n")), "extended header"),
        ("a global pax header", between(of_type("pax", EntryType::XGlobalHeader)), "extended header"),
        ("a GNU long name", between(of_type("././@LongLink", EntryType::GNULongName)), "extended header"),
        ("a GNU long link", between(of_type("././@LongLink", EntryType::GNULongLink)), "extended header"),
        ("a huge size", [first.clone(), huge.as_bytes().to_vec()].concat(), "more than its manifest.json"),
        ("a negative size", [first.clone(), negative].concat(), "size that no file can have"),
        ("a size of more than eight bytes", [first.clone(), wide].concat(), "size that no file can have"),
        ("a size that is no number", [first.clone(), no_number].concat(), "size that no file can have"),
        ("a huge manifest", header("manifest.json", 1 << 40).as_bytes().to_vec(), "too large"),
        ("a bomb", gz(&bomb), "more than its manifest.json"),
        ("a zstd bomb", zst(&bomb), "more than its manifest.json"),
        ("gz cut off", gz(&whole)[..200].to_vec(), ""),
        ("gz with another member", [gz(&whole), gz(b"x")].concat(), "after its compressed data"),
        ("gz with a wrong checksum", broken_gz, "damaged"),
        ("zstd that is damaged", broken_zst, ""),
        ("zstd with another frame", [zst(&whole), zst(b"x")].concat(), "after its compressed data"),
        ("zstd in zstd", zst(&zst(&whole)), "no tar"),
        ("no JSON", [own("manifest.json", b"{}"), end.clone()].concat(), "missing field"),
        ("a missing blob", with_manifest(&|value| value["files"][0]["after"]["blob"] = json!("x")), ""),
        (
            "another digest",
            with_manifest(&|value| {
                let files = value["files"].as_array_mut().unwrap();
                let file = files.iter_mut().find(|file| file["after"]["digest"].is_string()).unwrap();
                file["after"]["digest"] = json!(format!("sha256:{}", "0".repeat(64)));
            }),
            "does not have the digest",
        ),
        ("a path that leads out", with_manifest(&|value| value["files"][0]["path"] = json!("/x/../y")), ""),
        ("a relative path", with_manifest(&|value| value["files"][0]["path"] = json!("x")), "not absolute"),
        ("a later version", with_manifest(&|value| value["format_version"] = json!(99)), "not supported"),
    ];
    let archives: Vec<_> = archives.into_iter().chain(hostile_trees(&expanded)).collect();
    assert!(archives.len() > 80);
    let file = place.base().join("hostile");
    let dir = place.base().join("dir");
    for (what, bytes, why) in archives {
        fs::write(&file, bytes).unwrap();
        for target in [&[dir.as_os_str()][..], &[]] {
            let run = import(&place, &file, target);
            assert_eq!(run.status, 3, "{what}: {run:#?}");
            assert!(run.stderr.contains(why) && run.stderr.lines().count() == 1, "{what}: {run:#?}");
            assert!(run.stdout.is_empty() && !dir.exists() && !library(&place).exists(), "{what}");
        }
    }
    let bad_id = with_manifest(&|value| value["id"] = json!("../../../x"));
    fs::write(&file, bad_id).unwrap();
    let run = import(&place, &file, &[]).expect(3);
    assert!(run.stderr.contains("which no recording of a library has"), "{run:#?}");
}
