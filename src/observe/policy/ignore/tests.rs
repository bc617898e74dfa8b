use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use rustix::fs::CWD;
use tempfile::TempDir;

use super::*;

/// A fresh home below a resolved temporary directory.
struct Place {
    _temporary: TempDir,
    root: PathBuf,
}

impl Place {
    fn new() -> Place {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path().canonicalize().unwrap();
        fs::create_dir(root.join("home")).unwrap();
        fs::create_dir(root.join("cwd")).unwrap();
        Place { _temporary: temporary, root }
    }

    fn bytes(&self, relative: &str) -> Vec<u8> {
        self.root.join(relative).into_os_string().into_vec()
    }

    fn environment(&self) -> Environment {
        Environment::new(Some(self.bytes("home")), None, || None, &self.bytes("cwd"))
    }

    fn list_file(&self) -> PathBuf {
        self.root.join("home/.config/agent-snapshot/ignore.json")
    }

    fn write_list(&self, content: &str) {
        fs::create_dir_all(self.list_file().parent().unwrap()).unwrap();
        fs::write(self.list_file(), content).unwrap();
    }

    fn load(&self, list: &str) -> Ignore {
        self.write_list(list);
        Ignore::load(&self.environment(), &[]).unwrap()
    }

    fn error(&self) -> String {
        Ignore::load(&self.environment(), &[]).unwrap_err().to_string()
    }
}

fn rule<'i>(ignore: &'i Ignore, path: &(impl AsRef<[u8]> + ?Sized)) -> Option<&'i str> {
    ignore.covering(path.as_ref()).map(|cover| std::str::from_utf8(ignore.name(cover.rule)).unwrap())
}

#[test]
fn first_run_writes_the_default_list_and_uses_it() {
    let place = Place::new();
    let ignore = Ignore::load(&place.environment(), &[]).unwrap();
    assert_eq!(ignore.notes(), [""; 0]);
    let text = fs::read_to_string(place.list_file()).unwrap();
    assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), DEFAULT_LIST);
    assert!(text.starts_with("[\n  \"$HOME/.cache\",\n") && text.ends_with("\"reads:/bin\"\n]\n"), "{text}");
    let beside: Vec<_> = fs::read_dir(place.list_file().parent().unwrap()).unwrap().collect();
    assert_eq!(beside.len(), 1, "a temporary name was left behind");
    assert_eq!(rule(&ignore, &place.bytes("home/.cache/pip/x")), Some("$HOME/.cache"));
    assert_eq!(rule(&ignore, "/usr/lib/libc.so"), Some("reads:/usr"));
    assert_eq!(rule(&ignore, &place.bytes("home/.cachet")), None);
    let again = Ignore::load(&place.environment(), &[]).unwrap();
    assert_eq!(again.names, ignore.names);
}

#[test]
fn first_runs_at_once_agree_on_one_list() {
    let place = Place::new();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let ignore = Ignore::load(&place.environment(), &[]).unwrap();
                assert_eq!(rule(&ignore, "/usr"), Some("reads:/usr"));
            });
        }
    });
    assert_eq!(
        serde_json::from_str::<Vec<String>>(&fs::read_to_string(place.list_file()).unwrap()).unwrap(),
        DEFAULT_LIST
    );
}

#[test]
fn creating_never_replaces_a_list() {
    let place = Place::new();
    place.write_list("[]");
    assert_eq!(create_list(&place.list_file()).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read_to_string(place.list_file()).unwrap(), "[]");
}

#[test]
fn a_list_that_cannot_be_created_is_used_from_memory_and_said() {
    let place = Place::new();
    // A file where the directory should be stops root as well.
    fs::write(place.root.join("home/.config"), "").unwrap();
    let ignore = Ignore::load(&place.environment(), &[]).unwrap();
    assert_eq!(ignore.notes().len(), 1);
    assert!(ignore.notes()[0].contains("can't be created"), "{}", ignore.notes()[0]);
    assert_eq!(rule(&ignore, "/usr"), Some("reads:/usr"));
    assert_eq!(rule(&ignore, &place.bytes("home/.config/agent-snapshot/ignore.json")), Some(IGNORE_FILE));
}

#[test]
fn a_list_that_links_to_nothing_is_not_replaced() {
    let place = Place::new();
    fs::create_dir_all(place.list_file().parent().unwrap()).unwrap();
    symlink("nowhere", place.list_file()).unwrap();
    let ignore = Ignore::load(&place.environment(), &[]).unwrap();
    assert!(ignore.notes()[0].contains("dangling symlink"), "{:?}", ignore.notes());
    assert!(place.list_file().is_symlink());
}

#[test]
fn what_is_no_array_of_strings_is_refused_by_name() {
    for (content, what) in [
        ("", "EOF"),
        ("{}", "map"),
        ("\"/usr\"", "string"),
        ("[\"/usr\", 7]", "integer `7`"),
        ("[\"/usr\"] tail", "trailing"),
        ("[\"/usr\", null]", "null"),
        ("[[\"/usr\"]]", "sequence"),
        ("null", "null"),
    ] {
        let place = Place::new();
        place.write_list(content);
        let error = place.error();
        assert!(error.contains(place.list_file().to_str().unwrap()), "{error}");
        assert!(error.contains(what), "{content}: {error}");
    }
}

#[test]
fn a_list_that_is_no_regular_file_is_refused_without_blocking() {
    let make: [fn(&Path); 4] = [
        |path| rustix::fs::mknodat(CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap(),
        |path| fs::create_dir(path).unwrap(),
        |path| symlink("/dev/zero", path).unwrap(),
        |path| drop(UnixListener::bind(path).unwrap()),
    ];
    for make in make {
        let place = Place::new();
        fs::create_dir_all(place.list_file().parent().unwrap()).unwrap();
        make(&place.list_file());
        assert!(place.error().contains("not a regular file"), "{}", place.error());
    }
}

#[test]
fn a_list_beyond_a_mebibyte_is_refused() {
    let place = Place::new();
    place.write_list(&format!("[\"/{}\"]", "a".repeat(1 << 20)));
    assert!(place.error().contains("larger than 1 MiB"), "{}", place.error());
}

#[test]
fn an_unreadable_list_is_refused() {
    if nix::unistd::geteuid().is_root() {
        eprintln!("skipped: root reads every file");
        return;
    }
    let place = Place::new();
    place.write_list("[]");
    fs::set_permissions(place.list_file(), std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    assert!(place.error().contains("ermission denied"), "{}", place.error());
}

#[test]
fn a_list_behind_a_link_is_read() {
    let place = Place::new();
    fs::create_dir_all(place.list_file().parent().unwrap()).unwrap();
    fs::write(place.root.join("mine.json"), "[\"/only\"]").unwrap();
    symlink(place.root.join("mine.json"), place.list_file()).unwrap();
    let ignore = Ignore::load(&place.environment(), &[]).unwrap();
    assert_eq!((rule(&ignore, "/only"), rule(&ignore, "/usr")), (Some("/only"), None));
    // The file itself is ignored under both of its names.
    assert_eq!(rule(&ignore, &place.bytes("mine.json")), Some(IGNORE_FILE));
    assert_eq!(rule(&ignore, place.list_file().as_os_str().as_bytes()), Some(IGNORE_FILE));
}

#[test]
fn the_ignore_file_is_ignored_though_no_entry_says_so() {
    let place = Place::new();
    let ignore = place.load("[]");
    assert_eq!(rule(&ignore, place.list_file().as_os_str().as_bytes()), Some(IGNORE_FILE));
    assert_eq!(rule(&ignore, place.list_file().parent().unwrap().as_os_str().as_bytes()), None);
}

#[test]
fn variables_expand_as_a_whole_first_component_only() {
    let place = Place::new();
    let home = String::from_utf8(place.bytes("home")).unwrap();
    for (entry, path, covered) in [
        ("$HOME", home.clone(), true),
        ("$HOME", format!("{home}/deep/file"), true),
        ("$HOME/a", format!("{home}/a/b"), true),
        ("$HOME//a/", format!("{home}/a"), true),
        ("$HOME/a/../b", format!("{home}/b"), true),
        ("$HOMEX/a", format!("{home}X/a"), false),
        ("$HOMEX/a", format!("{home}/a"), false),
        ("/x/$HOME/a", "/x/$HOME/a".to_owned(), true),
        ("/x/$HOME/a", format!("/x{home}/a"), false),
        ("$XDG_CONFIG_HOME/z", format!("{home}/.config/z"), true),
        ("$XDG_CONFIG_HOMEY", format!("{home}/.config"), false),
        ("${HOME}/a", format!("{home}/a"), false),
    ] {
        let ignore = place.load(&format!("[\"{entry}\"]"));
        assert_eq!(rule(&ignore, &path) == Some(entry), covered, "{entry} of {path}");
    }
}

#[test]
fn relative_entries_cover_nothing_and_are_told() {
    let place = Place::new();
    let ignore = place.load("[\"target\", \"\", \"~/x\", \"/fine\"]");
    assert_eq!(ignore.notes().len(), 3);
    assert!(ignore.notes()[0].contains("\"target\""), "{:?}", ignore.notes());
    assert_eq!(rule(&ignore, &place.bytes("cwd/target")), None);
    assert_eq!(rule(&ignore, "/fine"), Some("/fine"));
}

#[test]
fn the_configuration_directory_follows_the_xdg_rules() {
    let place = Place::new();
    let cwd = place.bytes("cwd");
    let file = |home: Option<&[u8]>, config: Option<&[u8]>, passwd: Option<&[u8]>| {
        Environment::new(
            home.map(<[u8]>::to_vec),
            config.map(<[u8]>::to_vec),
            || passwd.map(<[u8]>::to_vec),
            &cwd,
        )
        .ignore_file()
        .map(|path| normalise(path.as_os_str().as_bytes()))
    };
    let below = |base: &str| Some(format!("{base}/agent-snapshot/ignore.json").into_bytes());
    assert_eq!(file(Some(b"/h"), Some(b"/c"), None), below("/c"));
    assert_eq!(file(Some(b"/h"), Some(b"c"), None), below("/h/.config"));
    assert_eq!(file(Some(b"/h"), Some(b""), None), below("/h/.config"));
    assert_eq!(file(Some(b"/h/"), None, Some(b"/p")), below("/h/.config"));
    assert_eq!(file(None, None, Some(b"/p")), below("/p/.config"));
    assert_eq!(file(Some(b""), None, Some(b"/p")), below("/p/.config"));
    assert_eq!(file(Some(b"h"), None, Some(b"/p")), below("/p/.config"));
    assert_eq!(file(None, Some(b"/c"), None), below("/c"));
    assert_eq!(file(None, None, Some(b"p")), None);
}

#[test]
fn without_any_home_the_rest_of_the_default_list_holds() {
    let ignore = Ignore::load(&Environment::new(None, None, || None, b"/"), &[]).unwrap();
    assert_eq!(ignore.notes().len(), 1);
    assert_eq!(rule(&ignore, "/usr/x"), Some("reads:/usr"));
    assert_eq!(rule(&ignore, "/.cache"), None);
}

#[test]
fn entries_are_whole_components() {
    let ignore = Place::new().load("[\"/tmp/work\", \"/a/b/c\"]");
    for (path, expected) in [
        ("/tmp/work", Some("/tmp/work")),
        ("/tmp/work/x/y", Some("/tmp/work")),
        ("/tmp/workshop", None),
        ("/tmp/workshop/work", None),
        ("/tmp", None),
        ("/", None),
        ("/a/b", None),
        ("/a/b/c/d", Some("/a/b/c")),
        ("/x/tmp/work", None),
    ] {
        assert_eq!(rule(&ignore, path), expected, "{path}");
    }
}

#[test]
fn an_entry_of_the_root_covers_everything() {
    for entry in ["/", "//", "/..", "/./"] {
        let ignore = Place::new().load(&format!("[\"{entry}\"]"));
        assert_eq!(rule(&ignore, "/any/thing"), Some(entry));
        assert_eq!(rule(&ignore, "/"), Some(entry));
        assert_eq!(ignore.covering(b"/any/thing").unwrap().topmost, b"/");
    }
}

#[test]
fn an_entry_is_taken_as_written_and_as_it_resolves() {
    let place = Place::new();
    fs::create_dir_all(place.root.join("real/deep")).unwrap();
    symlink("real", place.root.join("link")).unwrap();
    symlink("link/deep", place.root.join("chain")).unwrap();
    symlink(place.root.join("real/absent"), place.root.join("dangling")).unwrap();
    symlink("loop", place.root.join("loop")).unwrap();
    let base = place.root.to_str().unwrap();
    for (entry, path, covered) in [
        ("link/sub", "link/sub/x", true),
        ("link/sub", "real/sub/x", true),
        ("chain", "chain", true),
        ("chain", "real/deep/x", true),
        ("chain", "real", false),
        // `..` by words, and `..` as the kernel goes.
        ("chain/../x", "x", true),
        ("chain/../x", "real/x", true),
        ("dangling", "real/absent/x", true),
        ("not/yet/here", "not/yet/here/x", true),
        ("link/not/yet", "real/not/yet/x", true),
        ("loop/x", "loop/x", true),
        ("loop/x", "x", false),
    ] {
        let ignore = place.load(&format!("[\"{base}/{entry}\"]"));
        assert_eq!(ignore.covering(&place.bytes(path)).is_some(), covered, "{entry} of {path}");
    }
}

#[test]
fn a_home_that_is_a_link_is_covered_where_it_leads() {
    let place = Place::new();
    place.write_list("[\"$HOME/.cache\"]");
    symlink("home", place.root.join("alias")).unwrap();
    let environment = Environment::new(Some(place.bytes("alias/")), None, || None, b"/");
    let ignore = Ignore::load(&environment, &[]).unwrap();
    assert_eq!(rule(&ignore, &place.bytes("home/.cache/x")), Some("$HOME/.cache"));
    assert_eq!(rule(&ignore, &place.bytes("alias/.cache/x")), Some("$HOME/.cache"));
}

#[test]
fn arguments_add_to_the_list() {
    let place = Place::new();
    place.write_list("[\"/listed\"]");
    let additions = [
        b"out/".to_vec(),
        b"../sibling".to_vec(),
        b"/abs".to_vec(),
        b"$HOME/h".to_vec(),
        b"by\xfftes".to_vec(),
        b"/listed/".to_vec(),
        b"/abs".to_vec(),
    ];
    let ignore = Ignore::load(&place.environment(), &additions).unwrap();
    assert_eq!(rule(&ignore, &place.bytes("cwd/out/x")), Some("out/"));
    assert_eq!(rule(&ignore, &place.bytes("sibling")), Some("../sibling"));
    assert_eq!(rule(&ignore, "/abs/x"), Some("/abs"));
    assert_eq!(rule(&ignore, &place.bytes("home/h")), Some("$HOME/h"));
    let id = ignore.covering(&join(&place.bytes("cwd"), b"by\xfftes/x")).unwrap().rule;
    assert_eq!(ignore.name(id), b"by\xfftes");
    assert_eq!(rule(&ignore, "/listed"), Some("/listed"));
    let names: Vec<&[u8]> = ignore.rules().map(|id| ignore.name(id)).collect();
    let expected: [&[u8]; 12] = [
        b".git",
        b"foreign owner",
        b"/listed",
        b"out/",
        b"../sibling",
        b"/abs",
        b"$HOME/h",
        b"by\xfftes",
        IGNORE_FILE.as_bytes(),
        SCRATCH[0].as_bytes(),
        SCRATCH[1].as_bytes(),
        SCRATCH[2].as_bytes(),
    ];
    assert_eq!(names, expected, "a rule that is there already gets no second number");
}

#[test]
fn an_empty_argument_is_refused() {
    let place = Place::new();
    assert!(matches!(Ignore::load(&place.environment(), &[Vec::new()]), Err(Error::EmptyArgument)));
}

#[test]
fn every_component_named_git_is_covered() {
    let ignore = Place::new().load("[]");
    for (path, top) in [
        ("/repo/.git", Some("/repo/.git")),
        ("/repo/.git/objects/x", Some("/repo/.git")),
        ("/.git", Some("/.git")),
        ("/a/.git/modules/b/.git/c", Some("/a/.git")),
        ("/repo/.gitignore", None),
        ("/repo/x.git", None),
        ("/repo/.GIT", None),
        ("/repo/.git.d/x", None),
    ] {
        let found = ignore.covering(path.as_bytes()).map(|cover| (cover.rule, cover.topmost));
        assert_eq!(found, top.map(|top| (RuleId::GIT, top.as_bytes())), "{path}");
    }
}

#[test]
fn git_directories_elsewhere_join_the_git_rule() {
    let mut ignore = Place::new().load("[\"/listed\"]");
    ignore.add_git_dir(b"/srv/store/");
    ignore.add_git_dir(b"/");
    ignore.add_git_dir(b"/listed/store");
    let cover = ignore.covering(b"/srv/store/objects/ab").unwrap();
    assert_eq!((cover.rule, cover.topmost), (RuleId::GIT, b"/srv/store".as_slice()));
    assert_eq!(rule(&ignore, "/srv/storehouse"), None);
    assert_eq!(rule(&ignore, "/srv"), None);
    assert_eq!(rule(&ignore, "/listed/store"), Some("/listed"));
}

#[test]
fn the_topmost_rule_covers() {
    let ignore = Place::new().load("[\"/a/b\", \"/a\", \"/r/.git/x\"]");
    assert_eq!(rule(&ignore, "/a/b/c"), Some("/a"));
    assert_eq!(rule(&ignore, "/a/.git"), Some("/a"));
    assert_eq!(rule(&ignore, "/r/.git/x"), Some("/r/.git/x"));
    assert_eq!(rule(&ignore, "/r/.git/y"), Some(".git"));
    assert_eq!(ignore.covering(b"/a/b/c").unwrap().topmost, b"/a");
}

#[test]
fn entry_of_reads_covers_what_is_not_changed_and_gives_way_to_others() {
    let list =
        r#"["reads:/usr", "/usr/cache", "reads:$HOME/lib", "/opt", "reads:/opt/x", "/srv", "reads:/srv"]"#;
    let place = Place::new();
    let mut ignore = place.load(list);
    ignore.add_git_dir(b"/usr/store");
    let found =
        |path: &'static str| ignore.covering(path.as_bytes()).map(|cover| (cover.topmost, cover.of_reads));
    assert_eq!(found("/usr/bin/x"), Some((b"/usr".as_slice(), true)));
    assert_eq!(found("/usr/cache/x"), Some((b"/usr/cache".as_slice(), false)));
    assert_eq!(found("/usr/src/.git/config"), Some((b"/usr/src/.git".as_slice(), true)));
    assert_eq!(found("/usr/store/x"), Some((b"/usr/store".as_slice(), true)));
    assert_eq!(found("/opt/x/y"), Some((b"/opt".as_slice(), false)));
    assert_eq!(found("/srv/x"), Some((b"/srv".as_slice(), false)));
    assert_eq!(found("/usrs"), None);
    assert_eq!(rule(&ignore, &place.bytes("home/lib/x")), Some("reads:$HOME/lib"));
    let added = Ignore::load(&place.environment(), &[b"reads:sub".to_vec()]).unwrap();
    assert_eq!(rule(&added, &place.bytes("cwd/sub/x")), Some("reads:sub"));
    assert_eq!(place.load(r#"["reads:relative"]"#).notes().len(), 1);
}

#[test]
fn scratch_files_of_an_agent_are_left_out() {
    let place = Place::new();
    let ignore = place.load(r#"["$HOME/.claude", "/x/a*"]"#);
    for path in ["home/.claude/shell-snapshots/snapshot-bash-1.sh", "home/.claude/settings.json"] {
        assert_eq!(rule(&ignore, &place.bytes(path)), Some("$HOME/.claude"), "{path}");
    }
    assert_eq!(rule(&ignore, "/tmp/claude-a1b2-cwd"), Some("claude-*-cwd"));
    assert_eq!(rule(&ignore, "/tmp/claude-a1b2-cwd/below"), Some("claude-*-cwd"));
    let below = format!("/tmp/claude-{}", rustix::process::getuid().as_raw());
    assert_eq!(rule(&ignore, &format!("{below}/cwd-a1b2")), Some("/tmp/claude-UID/cwd-*"));
    assert_eq!(rule(&ignore, &format!("{below}/other")), None);
    assert_eq!(rule(&ignore, "/tmp/gemini-shell-Gfjl0O/bgpids.tmp"), Some("gemini-shell-*"));
    for other in
        ["/tmp/claude-notes.txt", "/tmp/claude-cwd", "/tmp/claude-1-cwd2", "/tmp/my-claude-1-cwd", "/x/ab"]
    {
        assert_eq!(rule(&ignore, other), None, "{other}");
    }
}
