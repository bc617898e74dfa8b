//! Secrets that are planted in files, command lines and targets of symlinks: no output for others has one.

use std::path::Path;

use agent_snapshot::snapshot::Digest;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use walkdir::WalkDir;

use crate::support::{Place, assert_same, describe, scan};

/// Files that hold a secret by their name.
const FILES: [&str; 40] = [
    ".ssh/id_ed25519",
    ".netrc",
    ".aws/credentials",
    ".aws/sso/cache/0123.json",
    ".azure/msal_token_cache.json",
    ".boto",
    ".s3cfg",
    ".config/gcloud/legacy_credentials/me/adc.json",
    ".config/rclone/rclone.conf",
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh/hosts.yml",
    ".config/glab-cli/config.yml",
    ".npmrc",
    ".pypirc",
    ".cargo/credentials.toml",
    ".cargo/credentials",
    ".m2/settings.xml",
    ".gradle/gradle.properties",
    ".gem/credentials",
    ".docker/config.json",
    ".config/containers/auth.json",
    ".kube/config",
    ".pgpass",
    ".my.cnf",
    ".vault-token",
    ".terraform.d/credentials.tfrc.json",
    "infra/terraform.tfstate",
    ".gnupg/private-keys-v1.d/0A.key",
    ".password-store/mail.gpg",
    "store.kdbx",
    "cert.p12",
    ".env",
    ".env.production",
    ".envrc",
    ".bash_history",
    ".zsh_history",
    ".python_history",
    ".local/share/fish/fish_history",
    ".codex/auth.json",
];

/// Files that hold a secret by their content.
const CONTENTS: [(&str, &str); 8] = [
    ("server.pem", "-----BEGIN PRIVATE KEY-----\nVALUE\n"),
    ("tls.key", "-----BEGIN RSA PRIVATE KEY-----\nVALUE\n"),
    ("deploy_key", "-----BEGIN OPENSSH PRIVATE KEY-----\nVALUE\n"),
    ("putty", "PuTTY-User-Key-File-3: ssh-ed25519\nVALUE\n"),
    ("mine.asc", "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nVALUE\n"),
    ("robot.json", r#"{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\nVALUE\n"}"#),
    ("clone/.git/config", "[remote \"origin\"]\n\turl = https://me:VALUE@example.org/x\n"),
    (".curlrc", "user = \"me:x\"\nheader = \"Authorization: Bearer VALUE\"\n"),
];

/// Commands with one secret each in place of `VALUE`.
const COMMANDS: [&str; 44] = [
    "true --password VALUE",
    "true --db-pass VALUE",
    "true --db-pass=VALUE",
    "true --pass VALUE",
    "true --pw VALUE",
    "plink -pw VALUE",
    "true --auth me:VALUE",
    "true --token=VALUE",
    "true --api-key 'VALUE' next",
    "true --cookie 'a=VALUE; b=1'",
    "env GITHUB_TOKEN=VALUE true",
    "env DB_PASSWORD=\"VALUE\" true",
    "env DB_PASS=VALUE true",
    "env PGPASSWORD=VALUE true",
    "env REDISCLI_AUTH=VALUE true",
    "env AWS_SECRET_ACCESS_KEY=VALUE true",
    "true -H 'Authorization: Bearer VALUE'",
    "true -H 'Proxy-Authorization: Basic VALUE'",
    "true -H 'Cookie: session=VALUE; x=y'",
    "true -H 'X-Api-Key: VALUE'",
    "true -H 'PRIVATE-TOKEN: VALUE'",
    "true https://me:VALUE@example.org/x",
    "true https://VALUE@example.org/x",
    "true 'https://example.org/x?access_token=VALUE&y=1'",
    "true 'https://example.org/x?sv=1&sig=VALUE'",
    "true 'postgresql://u:VALUE@localhost/db'",
    "true '{\"client_secret\": \"VALUE\"}'",
    "true 'Server=x;AccountKey=VALUE;y'",
    "mysql -u me -pVALUE db",
    "mysqldump --user=me -p'VALUE' db",
    "curl -u me:VALUE https://example.org",
    "curl -sSu me:VALUE https://example.org",
    "curl --user 'me:VALUE' https://example.org",
    "curl --proxy-user me:VALUE https://example.org",
    "curl -b 'session=VALUE' https://example.org",
    "sshpass -p VALUE true",
    "redis-cli -a VALUE ping",
    "docker login -u me -p VALUE example.org",
    "openssl rsa -passin pass:VALUE",
    "aws configure set aws_secret_access_key VALUE",
    "sh -c 'export NPM_TOKEN=VALUE; true'",
    "bash -c 'true --passphrase=VALUE && true'",
    "sh -c \"sh -c 'mysql -pVALUE db'\"",
    "git config remote.origin.url https://me:VALUE@example.org/x",
];

/// What the programs are that need not be installed.
const PROGRAMS: [&str; 9] =
    ["mysql", "mysqldump", "curl", "sshpass", "redis-cli", "docker", "openssl", "aws", "plink"];

/// How tokens begin, and how many characters follow.
const TOKENS: [(&str, usize); 14] = [
    ("AKIA", 16),
    ("ghp_", 36),
    ("github_pat_", 82),
    ("glpat-", 20),
    ("xoxb-", 40),
    ("sk-", 48),
    ("sk-ant-api03-", 93),
    ("sk_live_", 24),
    ("npm_", 36),
    ("AIza", 35),
    ("hf_", 34),
    ("hvs.", 90),
    ("pypi-", 150),
    ("eyJhbGciOiJIUzI1NiJ9.", 80),
];

const TARGETS: [&str; 3] = ["https://me:VALUE@example.org/x", "API_TOKEN=VALUE", "cache/--db-pass=VALUE"];

/// Words that are no secrets.
const OTHERS: [&str; 8] = [
    "true --pass-through open-yes",
    "true task-0123456789abcdef0123456789",
    "mkdir -p open-directory",
    "true -u open-user",
    "ssh -p22022",
    "true --author open-author --compass=open-north",
    "true --no-password open-host",
    "true sk-learn-open-examples-of-2024",
];

/// A secret that is found wherever it is.
fn secret(number: usize) -> String {
    format!("planted{number:03}secret")
}

/// What follows the beginning of a token.
fn token(number: usize, length: usize) -> String {
    let parts = format!("7PLANTED{number:03}TOKEN").repeat(length / 8);
    // The parts of a JSON Web Token.
    if length == 80 { format!("{}.{}", &parts[..40], &parts[..39]) } else { parts[..length].to_owned() }
}

/// What was planted, and where that is: the needles of all outputs, and the commands that plant them.
struct Planted {
    needles: Vec<String>,
    digests: Vec<String>,
    script: String,
    files: Vec<String>,
}

fn plant(place: &Place) -> Planted {
    let mut number = 0;
    let mut planted =
        Planted { needles: Vec::new(), digests: Vec::new(), script: String::new(), files: Vec::new() };
    let mut next = |planted: &mut Planted| {
        number += 1;
        planted.needles.push(secret(number));
        secret(number)
    };
    let plain = FILES.map(|name| (name, "a VALUE b\n"));
    for (name, content) in plain.iter().chain(&CONTENTS) {
        let content = content.replace("VALUE", &next(&mut planted));
        place.write(name, &content);
        planted.digests.push(Digest::of(content.as_bytes()).to_string());
        planted.files.push((*name).to_owned());
    }
    place.prepare(&format!(
        "mkdir bin cache; for name in {}; do ln -s /bin/true bin/$name; done; git init -q clone2",
        PROGRAMS.join(" ")
    ));
    let mut lines =
        vec!["PATH=$PWD/bin:$PATH; cd clone2".to_owned(), format!("cat ../{}", planted.files.join(" ../"))];
    for command in COMMANDS {
        lines.push(command.replace("VALUE", &next(&mut planted)));
    }
    for (number, (prefix, length)) in TOKENS.iter().enumerate() {
        let rest = token(number, *length);
        lines.push(format!("true {prefix}{rest}\ntrue 'see {prefix}{rest}, there'"));
        planted.needles.push(rest[..12].to_owned());
    }
    lines.push("cd ..".to_owned());
    for (number, target) in TARGETS.iter().enumerate() {
        lines.push(format!("ln -s '{}' link{number}", target.replace("VALUE", &next(&mut planted))));
    }
    lines.extend(OTHERS.map(str::to_owned));
    planted.script = lines.join("\n");
    assert!(planted.needles.len() >= 93, "{}", planted.needles.len());
    planted
}

/// The words of [`OTHERS`] that every output of command lines has.
fn assert_others_stay(text: &str) {
    for word in
        ["open-yes", "open-directory", "open-user", "-p22022", "open-author", "open-north", "open-host"]
    {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert!(
        text.contains("task-0123456789abcdef0123456789") && text.contains("sk-learn-open-examples-of-2024")
    );
}

impl Planted {
    fn found(&self, bytes: &[u8]) -> Vec<&String> {
        let has = |needle: &&String| bytes.windows(needle.len()).any(|part| part == needle.as_bytes());
        self.needles.iter().filter(has).collect()
    }

    fn assert_absent(&self, what: &str, bytes: &[u8]) {
        assert_eq!(self.found(bytes), [""; 0], "{what}");
    }

    fn assert_no_digest(&self, what: &str, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let is_there = |digest: &&String| text.contains(digest.trim_start_matches("sha256:"));
        let found: Vec<_> =
            self.digests.iter().zip(&self.files).filter(|(digest, _)| is_there(digest)).collect();
        assert!(found.is_empty(), "{what}: {found:?}");
    }
}

/// The bytes of all files below a directory, with the values of Parquet files.
fn decoded(directory: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in WalkDir::new(directory) {
        let entry = entry.unwrap();
        if !entry.file_type().is_file() {
            continue;
        }
        bytes.extend(std::fs::read(entry.path()).unwrap());
        if entry.path().extension().is_some_and(|extension| extension == "parquet") {
            let reader = SerializedFileReader::new(std::fs::File::open(entry.path()).unwrap()).unwrap();
            for row in reader.get_row_iter(None).unwrap() {
                for (_, field) in row.unwrap().get_column_iter() {
                    match field {
                        Field::Bytes(value) => bytes.extend_from_slice(value.data()),
                        field => bytes.extend(field.to_string().into_bytes()),
                    }
                    bytes.push(b'\n');
                }
            }
        }
    }
    bytes
}

/// Compares all that `snapshot` is written as, for others.
fn assert_outputs_have_none(place: &Place, planted: &Planted) {
    let base = place.base();
    let out = place.out.to_str().unwrap();
    let archive = base.join("out.tar");
    place.run(["export", out, archive.to_str().unwrap(), "--expand"]).expect(0);
    planted.assert_absent("archive", &std::fs::read(&archive).unwrap());
    let unpacked = base.join("unpacked");
    std::fs::create_dir(&unpacked).unwrap();
    place.prepare(&format!("tar -C {} -xf {}", unpacked.display(), archive.display()));
    let bytes = decoded(&unpacked);
    planted.assert_absent("unpacked archive", &bytes);
    planted.assert_no_digest("unpacked archive", &bytes);
    for side in ["before", "after"] {
        for entry in WalkDir::new(unpacked.join("files").join(side)) {
            let Ok(entry) = entry else { continue };
            if entry.path_is_symlink() {
                let target = std::fs::read_link(entry.path()).unwrap();
                planted.assert_absent("symlink", target.as_os_str().as_encoded_bytes());
            }
        }
    }

    let tables = base.join("tables");
    place.run(["export", "--tables", tables.to_str().unwrap(), out]).expect(0);
    let bytes = decoded(&tables);
    planted.assert_absent("tables", &bytes);
    planted.assert_no_digest("tables", &bytes);
    assert_others_stay(&String::from_utf8_lossy(&bytes));

    for options in [&["-o", "-"][..], &["--markdown"]] {
        let page = place.verb("report", options).expect(0).stdout;
        planted.assert_absent("report", page.as_bytes());
        planted.assert_no_digest("report", page.as_bytes());
    }
    let rules = ["--deny-write", "/**", "--deny-read", "/**"];
    for format in [&[][..], &["--json"], &["--sarif"]] {
        let said = place.verb("check", &[&rules, format].concat()).expect(1).stdout;
        planted.assert_absent("check", said.as_bytes());
    }
    for options in [&["--json"][..], &["--long"], &["--processes", "--long"]] {
        let said = place.verb("show", options).expect(0).stdout;
        planted.assert_absent("show", said.as_bytes());
    }
    std::fs::remove_dir_all(&unpacked).unwrap();
    std::fs::remove_dir_all(&tables).unwrap();
    std::fs::remove_file(&archive).unwrap();
}

#[test]
fn no_output_has_a_planted_secret() {
    let place = Place::new();
    let planted = plant(&place);
    let output = place.record_with(&["--keep", "all", "--compression", "none", "--"], &planted.script);
    assert!(output.status.success(), "{output:?}");
    // What is only read, and what is an argument, is not even recorded: but `git config` has changed a file, and an
    // undo needs the target of a symlink.
    let is_changed = |needle: &&&String| {
        let of_links = planted.needles.iter().rev().take(TARGETS.len());
        let of_git = FILES.len() + CONTENTS.len() + COMMANDS.len() - 1;
        !of_links.chain([&planted.needles[of_git]]).any(|changed| changed == **needle)
    };
    let bytes = decoded(&place.out);
    let found = planted.found(&bytes);
    let found: Vec<_> = found.iter().filter(is_changed).collect();
    assert!(found.is_empty(), "{found:?}");
    planted.assert_no_digest("recording", &bytes);
    assert_outputs_have_none(&place, &planted);
    let statement = place.verb("attest", &[]).expect(0).stdout;
    planted.assert_absent("attest", statement.as_bytes());
    planted.assert_no_digest("attest", statement.as_bytes());
    assert_others_stay(&statement);
}

#[test]
fn no_output_has_a_planted_secret_that_was_changed_and_recorded() {
    let place = Place::new();
    let planted = plant(&place);
    let tree = describe(&scan(&place.work), |_| false);
    let mut script = planted.script.clone();
    for (number, name) in planted.files.iter().enumerate() {
        script.push('\n');
        script.push_str(&match number % 4 {
            0 => format!("cp -p {name} copy{number}; echo more >> {name}"),
            1 => format!("mv {name} moved{number}"),
            2 => format!("ln {name} hard{number}; chmod 600 {name}"),
            _ => format!("cat {name} > copy{number}; rm {name}"),
        });
    }
    let output = place.record_with(&["--no-redact", "--keep", "all", "--"], &script);
    assert!(output.status.success(), "{output:?}");
    let bytes = decoded(&place.out);
    assert_eq!(planted.found(&bytes).len(), planted.needles.len(), "all of it is in the recording");
    assert_outputs_have_none(&place, &planted);
    let statement = place.verb("attest", &[]).expect(0).stdout;
    planted.assert_absent("attest", statement.as_bytes());
    planted.assert_no_digest("attest", statement.as_bytes());
    // Nothing of the user's is lost by it.
    place.verb("restore", &["--before"]).expect(0);
    assert_same(&describe(&scan(&place.work), |_| false), &tree, "before");
}

#[test]
fn copy_of_a_secret_that_was_only_read_is_withheld_by_all_outputs() {
    let place = Place::new();
    place.write(".env.copy", "x=planted001secret\n");
    let output = place.record_with(&["--keep", "all", "--"], "cp .env.copy copied.txt; echo open > plain");
    assert!(output.status.success(), "{output:?}");
    let planted = Planted {
        needles: vec![secret(1)],
        digests: vec![Digest::of(b"x=planted001secret\n").to_string()],
        script: String::new(),
        files: vec![".env.copy".to_owned()],
    };
    // Also if nobody can tell any more what the secret was.
    for change in ["true", "echo another > .env.copy"] {
        place.prepare(change);
        let archive = place.base().join("out.tar");
        place.verb("export", &[archive.to_str().unwrap(), "--force"]).expect(0);
        let unpacked = place.base().join("unpacked");
        place.prepare(&format!("mkdir -p {0}; tar -C {0} -xf {1}", unpacked.display(), archive.display()));
        let bytes = decoded(&unpacked);
        planted.assert_absent("archive", &bytes);
        planted.assert_no_digest("archive", &bytes);
        assert!(bytes.windows(5).any(|part| part == b"open\n"), "{change}");
        let page = place.verb("report", &["-o", "-"]).expect(0).stdout;
        planted.assert_absent("report", page.as_bytes());
        let statement = place.verb("attest", &[]).expect(0).stdout;
        planted.assert_no_digest("attest", statement.as_bytes());
        assert!(statement.contains(&Digest::of(b"open\n").to_string()["sha256:".len()..]), "{statement}");
    }
    place.verb("restore", &["--before"]).expect(0);
    place.verb("restore", &[]).expect(0);
    assert_eq!(std::fs::read_to_string(place.at("copied.txt")).unwrap(), "x=planted001secret\n");
}
