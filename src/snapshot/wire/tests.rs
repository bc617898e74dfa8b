use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::enforcement::*;
use super::super::manifest::*;
use super::super::network::*;
use super::super::samples::{created, header, present};
use super::*;

fn written(header: &Header, files: &[FileRecord]) -> String {
    let mut out = std::io::Cursor::new(Vec::new());
    write_manifest(&mut out, header, files).unwrap();
    String::from_utf8(out.into_inner()).unwrap()
}

fn value(record: &impl serde::Serialize) -> Value {
    serde_json::to_value(record).unwrap()
}

fn network_use(address: NetworkAddress) -> NetworkUse {
    NetworkUse { process: 1, operation: NetworkOperation::Connect, address, count: 3, errno: Some(111) }
}

fn refused(subject: RefusedSubject) -> RefusedUse {
    RefusedUse { subject, rule: "deny-read @secrets".to_owned(), process: 1, count: 2 }
}

/// A record and a header that use every key of the format.
fn everything() -> Manifest {
    let odd = b"/odd-\xff".to_vec();
    let exec = |exe: &[u8]| Exec {
        exe: exe.to_vec(),
        argv: vec![exe.to_vec(), b"-\xfe".to_vec()],
        argv_truncated: true,
        redacted: true,
        interpreters: vec![b"/bin/sh\xfd".to_vec()],
    };
    let git = GitStatus {
        root: odd.clone(),
        head: None,
        relative_path: b"dir/\xff".to_vec(),
        oid: Some("def456".to_owned()),
        tracked: true,
        dirty: false,
        ignored: false,
    };
    let state = Present {
        target: Some(b"to/\xff".to_vec()),
        rdev: Some(5),
        entries_digest: Some(Digest::Sha256([7; 32])),
        xattrs: [(b"user.\xff".to_vec(), vec![0, 1]), (b"user.plain".to_vec(), vec![])].into(),
        inode_flags: [InodeFlag::Append, InodeFlag::Nodump].into(),
        digest: Some(Digest::Sha256([8; 32])),
        blob: Some("before:/odd".to_owned()),
        blob_omitted: Some(BlobOmitted::TooLarge),
        ..present(12)
    };
    let header = Header {
        name: Some("name".to_owned()),
        session: Some("session".to_owned()),
        step: Some(3),
        command: vec![b"sh".to_vec(), odd.clone()],
        exit_signal: Some("SIGTERM".to_owned()),
        timed_out: true,
        imported: true,
        keep: Keep::Changes,
        existence_only: Some(2),
        start_cwd: odd.clone(),
        warnings: vec![Warning {
            kind: WarningKind::Chroot,
            lost: true,
            count: 2,
            detail: "detail".to_owned(),
            processes: vec![1],
        }],
        title: Some(b"rm -r src".to_vec()),
        working_tree: Some(b"/w".to_vec()),
        git_directory: Some(b"/main/.git".to_vec()),
        home: Some(b"/home/me".to_vec()),
        temporary_directory: Some(b"/scratch".to_vec()),
        suppressed: vec![Suppressed {
            rule: ".git".to_owned(),
            reads: 1,
            writes: 2,
            changed: vec![odd.clone(), b"/x".to_vec()],
            changes: Some(vec![LeftOutUse {
                path: odd.clone(),
                beneath: true,
                operations: Operation::Write.into(),
                process: 2,
            }]),
            changes_cut: true,
            read: Some(vec![LeftOutUse {
                path: odd.clone(),
                beneath: false,
                operations: Operation::Read.into(),
                process: 1,
            }]),
        }],
        private_mounts: vec![PrivateMount {
            fstype: "tmpfs".to_owned(),
            mount_point: odd.clone(),
            uses: 2,
            changes: 1,
        }],
        unseen: vec![odd.clone()],
        git_repositories: vec![GitRepository {
            branch: Some("main".to_owned()),
            branch_after: Some(String::new()),
            root: odd.clone(),
            head: None,
            dirty: true,
            head_after: Some("abc".to_owned()),
        }],
        network: vec![
            network_use(NetworkAddress::Inet("10.0.0.1:80".parse().unwrap())),
            network_use(NetworkAddress::Inet6("[fe80::1%3]:443".parse().unwrap())),
            network_use(NetworkAddress::Unix(odd.clone())),
            network_use(NetworkAddress::Unix(vec![])),
            network_use(NetworkAddress::Other("netlink".to_owned())),
        ],
        enforcement: Some(Enforcement {
            mode: EnforcementMode::End,
            rules: vec!["deny-read @secrets".to_owned()],
            landlock: vec!["allow-write".to_owned()],
            limits: vec!["a limit".to_owned()],
        }),
        refused: vec![
            refused(RefusedSubject::Path {
                path: odd.clone(),
                through: Some(odd.clone()),
                operation: Operation::Delete,
            }),
            refused(RefusedSubject::Address {
                address: NetworkAddress::Inet("10.0.0.1:80".parse().unwrap()),
                operation: NetworkOperation::Bind,
            }),
            refused(RefusedSubject::Address {
                address: NetworkAddress::Unix(odd.clone()),
                operation: NetworkOperation::Send,
            }),
        ],
        processes: vec![RecordedProcess {
            id: 1,
            pid: 100,
            parent: Some(1),
            image: exec(&odd).into(),
            cwd: odd.clone(),
            exit_status: Some(1),
            execs: vec![exec(b"/bin/env"), exec(&odd)],
            started_us: Some(0),
            ended_us: Some(u64::MAX),
        }],
        ..header()
    };
    let record = FileRecord {
        process_count: Some(17),
        inherited: true,
        changed_by_name: true,
        renamed_from: Some(odd.clone()),
        renamed_to: Some(b"/plain".to_vec()),
        before: State::Present(Box::new(state)),
        after: State::Absent { tombstone: true },
        git: Some(git.clone()),
        git_after: Some(git),
        ..created(&odd, State::Absent { tombstone: true })
    };
    let git_state = FileRecord { is_git_state: true, path: b"/repo/.git/HEAD".to_vec(), ..record.clone() };
    Manifest { header, files: vec![record, git_state] }
}

#[test]
fn network_has_the_keys_of_its_family() {
    let wire = |address| value(&network_use(address));
    let common = json!({"process": 1, "operation": "connect", "count": 3, "errno": 111});
    let with = |more: Value| {
        let mut all = common.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let inet = wire(NetworkAddress::Inet("10.0.0.1:80".parse().unwrap()));
    assert_eq!(inet, with(json!({"family": "inet", "address": "10.0.0.1", "port": 80})));
    let inet6 = wire(NetworkAddress::Inet6("[fe80::1%3]:443".parse().unwrap()));
    assert_eq!(inet6, with(json!({"family": "inet6", "address": "fe80::1%3", "port": 443})));
    let inet6 = wire(NetworkAddress::Inet6("[::1]:443".parse().unwrap()));
    assert_eq!(inet6, with(json!({"family": "inet6", "address": "::1", "port": 443})));
    let abstracted = wire(NetworkAddress::Unix(b"\0a".to_vec()));
    assert_eq!(abstracted, with(json!({"family": "unix", "path": "\0a"})));
    let odd = wire(NetworkAddress::Unix(b"\0\xff".to_vec()));
    assert_eq!(odd, with(json!({"family": "unix", "path": "\0\u{ff}", "path_bytes": "AP8="})));
    assert_eq!(wire(NetworkAddress::Unix(vec![])), with(json!({"family": "unix"})));
    assert_eq!(wire(NetworkAddress::Other("43".to_owned())), with(json!({"family": "43"})));
}

#[test]
fn network_that_contradicts_its_family_is_refused() {
    let read = |more: Value| {
        let mut object = json!({"process": 1, "operation": "bind", "count": 1});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value::<NetworkUse>(object).map(|used| used.address)
    };
    for wrong in [
        json!({}),
        json!({"family": "inet"}),
        json!({"family": "inet", "address": "10.0.0.1"}),
        json!({"family": "inet", "address": "::1", "port": 1}),
        json!({"family": "inet", "address": "10.0.0.1", "port": 65536}),
        json!({"family": "inet", "address": "10.0.0.1", "port": 1, "path": "x"}),
        json!({"family": "inet6", "address": "::1%eth0", "port": 1}),
        json!({"family": "inet6", "address": "::1%4294967296", "port": 1}),
        json!({"family": "unix", "port": 1}),
        json!({"family": "unix", "path": "x", "path_bytes": "AP8="}),
        json!({"family": "unix", "path_bytes": "AP8="}),
        json!({"family": "netlink", "operation": "listen"}),
        json!({"family": "netlink", "count": -1}),
    ] {
        assert!(read(wrong.clone()).is_err(), "{wrong}");
    }
    let later = json!({"family": "vsock", "address": 3, "cid": 4});
    assert!(read(later).is_err(), "the key has a type");
    let later = json!({"family": "vsock", "address": "3", "cid": 4});
    assert_eq!(read(later).unwrap(), NetworkAddress::Other("vsock".to_owned()));
}

#[test]
fn refused_has_a_path_or_an_address() {
    let of = |more: Value| {
        let mut object = json!({"operation": "write", "rule": "allow-write", "process": 1, "count": 1});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    };
    let path = RefusedSubject::Path { path: b"/x".to_vec(), through: None, operation: Operation::Write };
    let refused = RefusedUse { subject: path, rule: "allow-write".to_owned(), process: 1, count: 1 };
    assert_eq!(value(&refused), of(json!({"path": "/x"})));
    for wrong in [
        json!({}),
        json!({"path": "/x", "operation": "send"}),
        json!({"family": "unix", "path": "/x", "operation": "write"}),
        json!({"family": "inet", "address": "10.0.0.1", "operation": "bind"}),
    ] {
        assert!(serde_json::from_value::<RefusedUse>(of(wrong.clone())).is_err(), "{wrong}");
    }
}

#[test]
fn older_manifest_has_no_network() {
    let mut older: Value = serde_json::from_str(&written(&header(), &[])).unwrap();
    assert_eq!(older.as_object_mut().unwrap().remove("network"), Some(json!([])));
    assert_eq!(serde_json::from_value::<Manifest>(older).unwrap().header, header());
}

#[test]
fn a_record_of_a_deleted_file_has_the_keys_of_the_format() {
    let record = FileRecord {
        operations: Operations::NONE.with(Operation::Delete).with(Operation::Read),
        processes: vec![3],
        uses: vec![PathUse {
            process: 3,
            operations: Operations::NONE.with(Operation::Delete).with(Operation::Read),
            exe: Some(b"/bin/dash".to_vec()),
        }],
        before: State::Present(Box::new(Present {
            digest: Some(Digest::Sha256([0xab; 32])),
            blob: Some("before:/repo/deleted.txt".to_owned()),
            ..present(12)
        })),
        ..created(b"/repo/deleted.txt", State::Absent { tombstone: true })
    };
    let expected = json!({
        "path": "/repo/deleted.txt", "operations": ["read", "delete"], "processes": [3],
        "uses": [{ "process": 3, "operations": ["read", "delete"], "exe": "/bin/dash" }],
        "before": { "exists": true, "type": "file", "mode": 0o100_644, "mtime": 1_770_000_000,
                    "mtime_nsec": 5, "size": 12, "uid": 1000, "gid": 1000, "dev": 2049, "ino": 77,
                    "nlink": 1, "digest": format!("sha256:{}", "ab".repeat(32)),
                    "blob": "before:/repo/deleted.txt" },
        "after": { "exists": false, "tombstone": true },
    });
    assert_eq!(value(&record), expected);
}

#[test]
fn a_created_file_in_an_unborn_repository_has_a_null_head() {
    let git = GitStatus {
        root: b"/repo".to_vec(),
        head: None,
        relative_path: b"new.txt".to_vec(),
        oid: None,
        tracked: false,
        dirty: false,
        ignored: true,
    };
    let record =
        FileRecord { git: Some(git), ..created(b"/repo/new.txt", State::Absent { tombstone: false }) };
    let value = value(&record);
    assert_eq!(value["before"], json!({ "exists": false }));
    assert_eq!(
        value["git"],
        json!({ "in_repo": true, "root": "/repo", "head": null, "relative_path": "new.txt",
                "tracked": false, "dirty": false, "ignored": true })
    );
}

#[test]
fn bytes_that_are_not_utf8_are_shown_and_kept() {
    let manifest = everything();
    let value: Value = serde_json::from_str(&written(&manifest.header, &manifest.files)).unwrap();
    assert_eq!(value["start_cwd"], "/odd-ÿ");
    assert_eq!(value["start_cwd_bytes"], "L29kZC3/");
    assert_eq!(value["command"], json!(["sh", "/odd-ÿ"]));
    assert_eq!(value["command_bytes"], json!(["c2g=", "L29kZC3/"]));
    let file = &value["files"][0];
    assert_eq!(file["path_bytes"], "L29kZC3/");
    assert_eq!(file["renamed_from_bytes"], "L29kZC3/");
    assert_eq!(file.get("renamed_to_bytes"), None);
    assert_eq!(file["before"]["target_bytes"], "dG8v/w==");
    assert_eq!(file["before"]["xattrs"], json!({ "user.plain": "", "user.ÿ": "AAE=" }));
    assert_eq!(file["before"]["xattrs_bytes"], json!({ "dXNlci7/": "AAE=", "dXNlci5wbGFpbg==": "" }));
    assert_eq!(file["git"]["relative_path_bytes"], "ZGlyL/8=");
    assert_eq!(value["processes"][0]["execs"][1]["argv_bytes"], json!(["L29kZC3/", "Lf4="]));
    assert_eq!(value["suppressed"][0]["changed_bytes"], json!(["L29kZC3/", "L3g="]));
}

#[test]
fn every_key_survives_the_way_through_json() {
    let manifest = everything();
    let read: Manifest = serde_json::from_str(&written(&manifest.header, &manifest.files)).unwrap();
    assert_eq!(read, manifest);
}

#[test]
fn the_lists_are_there_when_empty_and_each_record_is_a_line() {
    let records = [b"/a", b"/b"].map(|path| created(path, State::Absent { tombstone: false }));
    let text = written(&header(), &records);
    for list in ["warnings", "suppressed", "git_repositories", "processes"] {
        assert!(text.contains(&format!("\n\"{list}\":[],")), "{text}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with("{\"path\":")).count(), 2);
    assert!(text.starts_with("{\n\"format_version\":1,\n\"id\":\""), "{text}");
    assert!(text.ends_with("}\n"), "{text}");
    let empty = written(&header(), &[]);
    assert!(empty.contains("\n\"files\":[],\n\"git_files\":[]}\n"), "{empty}");
}

fn repository(dirty: bool) -> GitRepository {
    let root = b"/r".to_vec();
    GitRepository { root, head: None, branch: None, dirty, head_after: None, branch_after: None }
}

#[test]
fn a_repository_is_called_dirty_or_nothing_is_said() {
    for (dirty, expected) in [
        (false, json!([{ "root": "/r", "head": null }])),
        (true, json!([{ "root": "/r", "head": null, "dirty": true }])),
    ] {
        let header = Header { git_repositories: vec![repository(dirty)], ..header() };
        let mut whole: Value = serde_json::from_str(&written(&header, &[])).unwrap();
        assert_eq!(whole["git_repositories"], expected);
        // A build of before said false where no dirty path was observed.
        whole["git_repositories"][0]["dirty"] = json!(dirty);
        assert_eq!(serde_json::from_value::<Manifest>(whole).unwrap().header, header);
    }
}

/// Every object of the document, each as the way to it.
fn objects(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            found.push(at.to_owned());
            map.iter().for_each(|(key, value)| objects(value, &format!("{at}/{key}"), found));
        }
        Value::Array(list) => {
            list.iter()
                .enumerate()
                .for_each(|(index, value)| objects(value, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

/// What a record may lack.
const OPTIONAL_OF_A_RECORD: &[&str] = &[
    "processes",
    "uses",
    "seen",
    "process_count",
    "inherited",
    "changed_by_name",
    "mount_point",
    "changed_between_us",
    "renamed_to",
    "git",
    "git_after",
];

/// What may be missing, by the key that the object has in its parent. Of `x` and `x_bytes` only the
/// exact bytes may: what remains is then read as what it shows.
const OPTIONAL: &[(&str, &[&str])] = &[
    ("", &["name", "session", "title", "redacted", "exit_signal", "timed_out", "keep", "existence_only"]),
    ("", &["git_files", "network", "recall", "private_mounts", "enforcement", "refused"]),
    ("", &["working_tree", "git_directory", "home", "temporary_directory", "imported", "step"]),
    ("enforcement", &["landlock"]),
    ("suppressed", &["changes", "changes_cut", "read"]),
    ("read", &["beneath"]),
    ("changes", &["beneath"]),
    ("network", &["errno"]),
    ("git_repositories", &["branch", "dirty", "head_after", "branch_after"]),
    (
        "processes",
        &["parent", "exit_status", "execs", "argv_truncated", "redacted", "started_us", "ended_us"],
    ),
    ("execs", &["argv_truncated", "redacted"]),
    ("files", OPTIONAL_OF_A_RECORD),
    ("git_files", OPTIONAL_OF_A_RECORD),
    (
        "before",
        &["rdev", "entries_digest", "entry_types_digest", "inode_flags", "digest", "blob", "blob_omitted"],
    ),
    ("after", &["tombstone"]),
    ("git", &["oid"]),
    ("git_after", &["oid"]),
];

#[test]
fn every_required_key_is_missed_and_every_unknown_one_is_passed_over() {
    let manifest = everything();
    let whole: Value = serde_json::from_str(&written(&manifest.header, &manifest.files)).unwrap();
    let mut places = Vec::new();
    objects(&whole, "", &mut places);
    for place in places.iter().filter(|place| !place.contains("/xattrs")) {
        let mut more = whole.clone();
        more.pointer_mut(place).unwrap()["a key of tomorrow"] = json!({ "deep": [[{}]] });
        assert_eq!(serde_json::from_value::<Manifest>(more).unwrap(), manifest, "{place}");

        let keys: Vec<String> = whole.pointer(place).unwrap().as_object().unwrap().keys().cloned().collect();
        for key in keys {
            let mut less = whole.clone();
            less.pointer_mut(place).unwrap().as_object_mut().unwrap().remove(&key);
            let read = serde_json::from_value::<Manifest>(less);
            let kind = place.rsplit('/').find(|part| part.parse::<usize>().is_err()).unwrap_or_default();
            let optional = key.ends_with("_bytes")
                || OPTIONAL.iter().any(|(of, keys)| *of == kind && keys.contains(&key.as_str()));
            assert_eq!(read.is_ok(), optional, "{place} without {key}: {read:?}");
        }
    }
}

#[test]
fn exact_bytes_that_contradict_the_text_are_refused() {
    for (path, bytes) in [
        ("/etc/passwd", json!("L29kZC3/")), // another path
        ("/odd", json!("L29kZA==")),        // the same, but it needs no bytes
        ("/odd-ÿ", json!("not base64")),
        ("/odd-ÿ", json!(7)),
    ] {
        let mut value = value(&created(b"/x", State::Absent { tombstone: false }));
        value["path"] = path.into();
        value["path_bytes"] = bytes;
        assert!(serde_json::from_value::<FileRecord>(value.clone()).is_err(), "{value}");
    }
    let command = json!({ "exe": "/x", "argv": ["x", "y"], "argv_bytes": ["eA=="] });
    assert!(serde_json::from_value::<Exec>(command).is_err());
}

#[test]
fn a_sparse_file_makes_the_format_version_2() {
    let digest = Some(Digest::Sparse([0xab; 32]));
    let sparse = State::Present(Box::new(Present { digest, ..present(1 << 30) }));
    let plain = created(b"/a", State::Absent { tombstone: false });
    let before = FileRecord { before: sparse.clone(), ..created(b"/b", State::Absent { tombstone: true }) };
    for record in [before, created(b"/b", sparse)] {
        let files = [plain.clone(), record];
        let text = written(&header(), &files);
        assert!(text.starts_with("{\n\"format_version\":2,\n\"id\":\""), "{text}");
        assert!(text.ends_with("}\n"), "{text}");
        let state = format!("\"sparse\":true,\"digest\":\"sparse-sha256:{}\"", "ab".repeat(32));
        assert!(text.contains(&state), "{text}");
        assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap().files, files);
    }
    // What was written before stays as it is.
    let mut out = std::io::Cursor::new(b"before".to_vec());
    out.set_position(6);
    write_manifest(
        &mut out,
        &header(),
        &[created(b"/b", State::Present(Box::new(Present { digest, ..present(1) })))],
    )
    .unwrap();
    assert!(out.into_inner().starts_with(b"before{\n\"format_version\":2,"));
}

#[test]
fn a_record_without_states_makes_the_format_version_2() {
    let header = Header { keep: Keep::Undo, existence_only: Some(3), ..header() };
    let input = FileRecord {
        operations: Operation::Read.into(),
        ..FileRecord::new(b"/a", State::NotKept, State::NotKept, Operations::NONE)
    };
    let text = written(&header, std::slice::from_ref(&input));
    assert!(text.starts_with("{\n\"format_version\":2,\n"), "{text}");
    assert!(text.contains("\"keep\":\"undo\",\n\"existence_only\":3,\n"), "{text}");
    assert!(text.contains(r#"{"path":"/a","operations":["read"],"processes":[]}"#), "{text}");
    let read = serde_json::from_str::<Manifest>(&text).unwrap();
    assert_eq!(read, Manifest { header, files: vec![input] });

    let version_1 = text.replacen("\"format_version\":2", "\"format_version\":1", 1);
    let error = serde_json::from_str::<Manifest>(&version_1).unwrap_err();
    assert!(error.to_string().contains("missing keys `before` and `after`"), "{error}");
    for (state, missing) in [("before", "after"), ("after", "before")] {
        let half = text
            .replace("\"processes\":[]}", &format!("\"processes\":[],\"{state}\":{{\"exists\":false}}}}"));
        let error = serde_json::from_str::<Manifest>(&half).unwrap_err();
        assert!(error.to_string().contains(&format!("missing key `{missing}`")), "{error}");
    }
}

#[test]
fn the_level_is_always_written_and_an_absent_one_means_all() {
    let text = written(&header(), &[]);
    assert!(text.starts_with("{\n\"format_version\":1,\n") && text.contains("\n\"keep\":\"all\","), "{text}");
    let past = text.replace(",\n\"keep\":\"all\"", "");
    assert_eq!(serde_json::from_str::<Manifest>(&past).unwrap().header.keep, Keep::All);
    let other = text.replace("\"keep\":\"all\"", "\"keep\":\"some\"");
    let error = serde_json::from_str::<Manifest>(&other).unwrap_err();
    assert!(error.to_string().contains("unknown variant `some`"), "{error}");
}

#[test]
fn a_repository_is_dirty_or_nothing_is_said_of_it() {
    assert_eq!(value(&repository(true)), json!({ "root": "/r", "head": null, "dirty": true }));
    assert_eq!(value(&repository(false)), json!({ "root": "/r", "head": null }));
}

#[test]
fn another_format_version_is_reported_before_anything_else() {
    let error = serde_json::from_str::<Manifest>(r#"{"format_version":3,"other":[]}"#).unwrap_err();
    assert!(error.to_string().contains("format version 3"), "{error}");
}

fn path_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof!["[a-z/ÿé\n\"]{0,12}".prop_map(String::into_bytes), prop::collection::vec(any::<u8>(), 0..12)]
}

fn maybe<T: std::fmt::Debug>(strategy: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    prop::option::of(strategy)
}

fn any_digest() -> impl Strategy<Value = Digest> {
    any::<[u8; 32]>().prop_map(Digest::Sha256)
}

fn any_content_digest() -> impl Strategy<Value = Digest> {
    prop_oneof![any_digest(), any::<[u8; 32]>().prop_map(Digest::Sparse)]
}

fn any_inode_flag() -> impl Strategy<Value = InodeFlag> {
    prop::sample::select(
        &[InodeFlag::Append, InodeFlag::Immutable, InodeFlag::Nodump, InodeFlag::Compressed][..],
    )
}

prop_compose! {
    fn any_present()(
        file_type in prop::sample::select(&[
            FileType::File, FileType::Directory, FileType::Symlink, FileType::Fifo, FileType::Socket,
            FileType::CharDevice, FileType::BlockDevice,
        ][..]),
        mode: u32, mtime: i64, mtime_nsec: u32, size: u64, uid: u32, gid: u32, dev: u64, ino: u64,
        (target, rdev, nlink) in (maybe(path_bytes()), any::<Option<u64>>(), any::<u64>()),
        ([entries_digest, entry_types_digest], digest) in ([maybe(any_digest()), maybe(any_digest())], maybe(any_content_digest())),
        xattrs in prop::collection::btree_map(path_bytes(), path_bytes(), 0..3),
        inode_flags in prop::collection::btree_set(any_inode_flag(), 0..3),
        blob in maybe(".{0,10}"),
        blob_omitted in maybe(prop::sample::select(&[BlobOmitted::NoSpace, BlobOmitted::Withheld][..])),
    ) -> Present {
        Present { file_type, mode, mtime, mtime_nsec, size, uid, gid, dev, ino, nlink, target, rdev,
                  entries_digest, entry_types_digest, xattrs, inode_flags, digest, blob, blob_omitted }
    }
}

fn any_state() -> impl Strategy<Value = State> {
    prop_oneof![
        any::<bool>().prop_map(|tombstone| State::Absent { tombstone }),
        any_present().boxed().prop_map(|present| State::Present(Box::new(present))),
    ]
}

prop_compose! {
    fn any_git()(
        root in path_bytes(), head in maybe("[0-9a-f]{40}"), relative_path in path_bytes(),
        oid in maybe("[0-9a-f]{40}"), (tracked, dirty, ignored) in any::<(bool, bool, bool)>(),
    ) -> GitStatus {
        GitStatus { root, head, relative_path, oid, tracked, dirty, ignored }
    }
}

prop_compose! {
    fn any_record()(
        path in path_bytes(),
        operations in prop::collection::vec(prop::sample::select(&Operation::ALL[..]), 0..4),
        uses in prop::collection::vec((any::<u32>(), prop::sample::select(&Operation::ALL[..]), maybe(path_bytes())), 0..3),
        processes: Vec<u32>, process_count: Option<u32>, (inherited, changed_by_name, mount_point, changed_between_us) in any::<(bool, bool, bool, Option<(u64, u64)>)>(),
        looks in prop::collection::vec(prop::sample::select(&Look::ALL[..]), 0..3),
        (renamed_from, renamed_to, linked_from) in (maybe(path_bytes()), maybe(path_bytes()), prop::collection::vec(path_bytes(), 0..3)),
        (before, after) in (any_state().boxed(), any_state().boxed()),
        (git, git_after) in (maybe(any_git()).boxed(), maybe(any_git()).boxed()),
    ) -> FileRecord {
        let operations = operations.into_iter().fold(Operations::NONE, Operations::with);
        let seen = looks.into_iter().fold(Seen::NOTHING, Seen::with);
        let uses = uses.into_iter();
        let uses = uses.map(|(process, operation, exe)| PathUse { process, operations: operation.into(), exe }).collect();
        FileRecord { path, is_git_state: false, operations, processes, uses, seen, process_count, inherited, changed_by_name, mount_point, changed_between_us, renamed_from, renamed_to, linked_from, relinked: false,
                     before, after, git, git_after }
    }
}

prop_compose! {
    fn any_exec()(
        exe in path_bytes(), argv in prop::collection::vec(path_bytes(), 0..3), argv_truncated: bool, redacted: bool,
        interpreters in prop::collection::vec(path_bytes(), 0..2),
    ) -> Exec {
        Exec { exe, argv, argv_truncated, redacted, interpreters }
    }
}

prop_compose! {
    fn any_header()(
        (name, session, exit_signal) in (maybe(".*"), maybe(".*"), maybe("SIG[A-Z]+")),
        command in prop::collection::vec(path_bytes(), 0..4),
        refused in maybe(".*"),
        (exit_status, timed_out, complete, uid, gid) in any::<(i32, bool, bool, u32, u32)>(),
        start_cwd in path_bytes(),
        warnings in prop::collection::vec((any::<bool>(), any::<u64>(), ".*", any::<Vec<u32>>()), 0..2),
        suppressed in prop::collection::vec((".*", prop::collection::vec(path_bytes(), 0..3)), 0..2),
        repositories in prop::collection::vec((path_bytes(), maybe("[0-9a-f]*"), any::<bool>()), 0..2),
        processes in prop::collection::vec(
            (any::<(u32, u32, Option<u32>, Option<i32>, [Option<u64>; 2])>(), any_exec().boxed(), path_bytes(),
             prop::collection::vec(any_exec().boxed(), 0..2)), 0..3),
    ) -> Header {
        Header {
            kind: if complete { SnapshotKind::Recording } else { SnapshotKind::Rescue },
            name, session, exit_signal, command, exit_status, timed_out, complete, uid, gid, start_cwd,
            warnings: warnings.into_iter().map(|(lost, count, detail, processes)| Warning {
                kind: if lost { WarningKind::IoUring } else { WarningKind::Survivors },
                lost, count, detail, processes,
            }).collect(),
            suppressed: suppressed.into_iter().map(|(rule, changed)| Suppressed {
                rule, reads: 3, writes: u64::MAX, changes: Some(changed.iter().map(|path| LeftOutUse {
                    path: path.clone(), beneath: path.len() > 5, operations: Operation::Write.into(), process: 3,
                }).collect()), changes_cut: changed.len() > 2, read: None, changed,
            }).collect(),
            git_repositories: repositories.into_iter().map(|(root, head, dirty)| GitRepository { branch: None, branch_after: None,
                root, head_after: head.clone(), head, dirty,
            }).collect(),
            processes: processes.into_iter().map(|((id, pid, parent, exit_status, [started_us, ended_us]), image, cwd, execs)| {
                RecordedProcess { id, pid, parent, image: image.into(), cwd, exit_status, execs, started_us, ended_us }
            }).collect(),
            recall: refused.map(|why| {
                let path = vec![why.clone().into_bytes()];
                Recallable { kernel_files: path.clone(), locked_files: path, refused: vec![why] }
            }),
            ..header()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_manifest_survives_the_way_through_json(
        header in any_header().boxed(), files in prop::collection::vec(any_record().boxed(), 0..4),
    ) {
        let text = written(&header, &files);
        let read: Manifest = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(read, Manifest { header, files });
    }
}
